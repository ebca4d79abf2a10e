/* Declarations that the parts of the checker share: symbolic memory (memory.c), the callers (caller.c), and the run of
 * a plan (check.c). The checker is independent of how waits were inferred. */
#pragma once
#include "backend/schedule/match.h"

enum { CHECK_RANKS = 128, CHECK_WORDS = CHECK_RANKS / 64 };
/* The content of a tile of a chunk: the sum of the contributions of a set of ranks to one chunk of one operation. */
struct value {
    /* A bit per rank. */
    uint64_t have[CHECK_WORDS];
    int chunk, tile, operation;
    /* raw: the value has passed a step that is flagged raw. */
    bool valid, finished, premultiplied;
};
/* Every (rank, slot) is a thread of its own, so the proof holds for any order in which a rank works on its tiles.
   done_at 0: the message is in flight. */
struct check_message { int done_at, value_count; struct value *values; int *clock; };
/* An access by a message lasts until the message is done. */
struct access {
    const struct check_message *message;
    int thread, at;
    bool write;
};
struct check_cell { struct value value; struct access *list; int count, room; };
struct published { uint64_t position; int *clock; };
struct thread { int tile, step; int *clock; struct published *log; int logged, room; };
/* `arrival` holds, for each operation, the clock at its announcement. */
struct walker { int operation; bool called, arrived; int *arrival; };
struct checker {
    const struct plan *plan;
    struct match *match;
    int tiles, operations, slots, threads, tensor_cells;
    struct check_cell *tensors, *scratch;
    struct thread *thread;
    struct walker *walker;
    /* [message_base[rank] + (step, operation, tile)] */
    struct check_message **messages;
    size_t *message_base, tensor_total, scratch_total, message_total;
    uint64_t random;
    char *why;
    size_t why_bytes;
    bool failed;
};

bool checker_init(struct checker *checker);
void checker_finish(struct checker *checker);
void checker_report_error(struct checker *checker, const char *what, int rank, int step, int tile);
struct check_message **checker_message(struct checker *checker, int rank, int step, int tile, int operation);
/* Returns the cell of a chunk. Tensors have one for every tile; SCRATCH has one for every slot, of two operations. */
struct check_cell *checker_cell(struct checker *checker, struct span span, int index, int tile, int operation);
/* Records an access of the thread, and fails if a conflicting earlier access is not ordered before it. */
void checker_record_access(struct checker *checker, struct check_cell *c, int thread, bool write,
    const struct check_message *m, int step, int tile);
void checker_merge_clock(struct checker *checker, int thread, const int *clock);
/* Returns a copy of the thread's clock. NULL: out of memory; the check has then failed. */
int *checker_copy_clock(struct checker *checker, int thread);
static inline int *checker_clock_now(struct checker *checker, int thread)
{
    return &checker->thread[thread].clock[thread];
}
/* Fails if a result of the operation is wrong, or its INPUT has changed. */
void checker_judge_operation(struct checker *checker, const struct schedule *schedule, int operation);
void checker_rewrite_tensors(struct checker *checker, const struct schedule *schedule, int operation);
/* Adds `from` to `into` as a reduction does. `into` becomes invalid if the values do not belong together. */
void value_reduce(struct checker *checker, struct value *into, const struct value *from);
