/* Declarations that the parts of the checker share: symbolic memory (memory.c), the callers (caller.c), and the run of
 * a plan (check.c). The checker is independent of how waits were inferred. */
#pragma once
#include "backend/schedule/match.h"

enum { CHECK_RANKS = 128, CHECK_WORDS = CHECK_RANKS / 64 };
/* The symbolic content of a cell: the sum of the contributions of a set of ranks to a tile of a chunk in an
   operation. */
struct value {
    /* The set of ranks, a bit for each. */
    uint64_t have[CHECK_WORDS];
    int chunk, tile, operation;
    /* valid: the sum makes sense; finished, premultiplied: a step with this flag has made it. */
    bool valid, finished, premultiplied;
};
/* Every slot of a rank is a thread of its own, so the proof holds for any order in which a rank works on its tiles. A
   thread's number is rank * slots + slot. A clock has an entry per thread: how much of that thread has happened
   before. */

/* A posted send or receive. done_at: the time of its thread at which it was complete; 0: in flight. values: those that
   a send has read. clock: that of its thread when the message was posted. */
struct check_message { int done_at, value_count; struct value *values; int *clock; };
/* A read or write of a cell by a thread at its time `at`. If it belongs to a message, it lasts until that is
   complete. */
struct access {
    const struct check_message *message;
    int thread, at;
    bool is_write;
};
/* A cell for one tile, with the accesses that later ones must follow. */
struct check_cell { struct value value; struct access *list; int count, room; };
/* A position that a thread has published, with its clock then. */
struct published { uint64_t position; int *clock; };
/* The next step of a thread, its clock, and the `logged` positions that it has published, in order. */
struct thread { int tile, step; int *clock; struct published *log; int logged, room; };
/* A rank's progress through its operations. called: its caller has called `operation`; all_arrived: the rank has seen
   the arrival of all ranks of its host. arrival: [operation][thread], the clock at the call. */
struct walker { int operation; bool called, all_arrived; int *arrival; };
struct checker {
    const struct plan *plan;
    struct match *match;
    /* tensor_cells: the number of cells of a rank for INPUT and OUTPUT. */
    int tiles, operations, slots, threads, tensor_cells;
    struct check_cell *tensors, *scratch;
    struct thread *thread;
    struct walker *walker;
    /* [message_base[rank] + (step, operation, tile)] */
    struct check_message **messages;
    size_t *message_base, tensor_total, scratch_total, message_total;
    /* The state of the random numbers; 0: steps run in order. */
    uint64_t random;
    /* The description of the first error. */
    char *why;
    size_t why_bytes;
    bool failed;
};

/* Allocates the memory of a check. False: out of memory; the check has then failed. */
bool checker_init(struct checker *checker);
void checker_finish(struct checker *checker);
/* Makes the check fail. `why` gets the first error, with its rank, step and tile. */
void checker_report_error(struct checker *checker, const char *what, int rank, int step, int tile);
/* Does checker_report_error for a chunk of a tensor: `why` gets the rank, chunk and tile. */
void checker_report_chunk(struct checker *checker, const char *what, int rank, int chunk, int tile);
/* Returns the entry of the message that the rank posts at this step, for a tile of an operation; it has NULL until
   then. */
struct check_message **checker_message(struct checker *checker, int rank, int step, int tile, int operation);
/* Returns the cell of chunk `index` of a span. Tensors have one for every tile; SCRATCH has one for every slot, of two
   operations. */
struct check_cell *checker_cell(struct checker *checker, struct span span, int index, int tile, int operation);
/* Records an access by the thread (message: the message that makes it, or NULL), and reports a race at the step and
   tile if a conflicting earlier access is not known to be over. */
void checker_record_access(struct checker *checker, struct check_cell *cell, int thread, bool is_write,
    const struct check_message *message, int step, int tile);
/* Raises the entries of the thread's clock to those of `clock`. */
void checker_merge_clock(struct checker *checker, int thread, const int *clock);
/* Returns a copy of the thread's clock. NULL: out of memory; the check has then failed. */
int *checker_copy_clock(struct checker *checker, int thread);
/* Returns the thread's own entry of its clock: its time. */
static inline int *checker_clock_now(struct checker *checker, int thread)
{
    return &checker->thread[thread].clock[thread];
}
/* Reports an error if a result of the operation is wrong on this rank, or its INPUT has changed. */
void checker_judge_operation(struct checker *checker, const struct schedule *schedule, int operation);
/* Writes new values into the tensors of the rank, as its caller does before the operation. */
void checker_rewrite_tensors(struct checker *checker, const struct schedule *schedule, int operation);
/* Adds `from` to `into` as a reduction does. `into` becomes invalid if the values do not belong together. */
void value_reduce(struct checker *checker, struct value *into, const struct value *from);
