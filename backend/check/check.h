/* What the parts of the checker share: symbolic memory (memory.c), the callers (caller.c), and running a
 * plan (check.c). It knows nothing of how waits were inferred. */
#pragma once
#include "backend/schedule/match.h"

enum { CHECK_RANKS = 128, CHECK_WORDS = CHECK_RANKS / 64 };
/* What a tile of a chunk holds: whose contributions, to which chunk of INPUT of which operation. */
struct value {
    uint64_t have[CHECK_WORDS];                             /* a bit per rank */
    int chunk, tile, operation;
    bool valid, finished, raw;                              /* raw: has passed a step that is flagged raw */
};
/* Every (rank, slot) is a thread of its own, so nothing is proved by the order in which a rank works on its tiles. */
struct check_message { int done_at, value_count; struct value *values; int *clock; };     /* done_at 0: in flight */
struct access {
    const struct check_message *message;
    int thread, at;
    bool write;
};       /* message: until it is done */
struct check_cell { struct value value; struct access *list; int count, room; };
struct published { uint64_t position; int *clock; };
struct thread { int tile, step; int *clock; struct published *log; int logged, room; };
struct walker { int operation; bool called, arrived; int *arrival; };  /* arrival: the clock when it was announced */
struct checker {
    const struct plan *plan;
    struct match *match;
    int tiles, operations, slots, threads, tensor_cells;
    struct check_cell *tensors, *scratch;
    struct thread *thread;
    struct walker *walker;
    struct check_message **messages;                              /* [message_base[rank] + (step, operation, tile)] */
    size_t *message_base, tensor_total, scratch_total, message_total;
    uint64_t random;
    char *why;
    size_t why_bytes;
    bool failed;
};

bool checker_init(struct checker *k);
void checker_finish(struct checker *k);
void checker_fail(struct checker *k, const char *what, int rank, int step, int tile);
struct check_message **checker_message(struct checker *k, int rank, int step, int tile, int operation);
/* The cell of a chunk; tensors have one for every tile, SCRATCH one for every slot, of two operations. */
struct check_cell *checker_cell(struct checker *k, struct span a, int index, int tile, int operation);
/* The thread's access must be ordered after all that conflict with it. */
void checker_touch(struct checker *k, struct check_cell *c, int thread, bool write, const struct check_message *m,
    int step, int tile);
void checker_learn(struct checker *k, int thread, const int *clock);
int *checker_snapshot(struct checker *k, int thread);       /* NULL: out of memory, and failed */
static inline int *checker_now(struct checker *k, int thread) { return &k->thread[thread].clock[thread]; }
/* Are the results of an operation right, and INPUT as it was? */
void checker_judge(struct checker *k, const struct schedule *s, int operation);
void checker_rewrite(struct checker *k, const struct schedule *s, int operation);
/* into += from, as a reduction does; into becomes invalid when they do not belong together. */
void value_reduce(struct checker *k, struct value *into, const struct value *from);
