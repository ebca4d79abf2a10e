/* Scatter: rank i gets block i of the root's message. Only the root has INPUT. b is the bytes of one block. */
#include "backend/collectives/common.h"

/* Naive: the root sends each rank its block. p - 1 rounds of b. */
void scatter_naive(struct schedule *schedule)
{
    if (schedule->rank != schedule->root) {
        step_recv(schedule, span_of_buffer(schedule, schedule->rank, OUTPUT), schedule->root);
        return;
    }
    for (int hop = 1; hop < schedule->size; hop++) {
        int peer = int_modulo(schedule->root + hop, schedule->size);
        step_send(schedule, span_of_chunk(schedule->rank, INPUT, peer), peer);
    }
    step_copy(schedule, span_of_buffer(schedule, schedule->rank, OUTPUT),
        span_of_chunk(schedule->rank, INPUT, schedule->rank));
}

/* Binomial tree, the reverse of gather: each rank that has blocks sends on the far half of them. ⌈log2 p⌉ rounds; the
   root sends (p - 1)b. */
void scatter_binomial(struct schedule *schedule)
{
    struct branch branch = branch_of_rank(schedule);
    struct span out = span_of_buffer(schedule, schedule->rank, OUTPUT);
    if (branch.parent >= 0) step_recv(schedule, out, branch.parent);
    if (branch.parent >= 0 && branch.count > 1) step_add_span(schedule, span_part(branch.blocks, 1, branch.count - 1));
    for (int bit = power_of_two_at_most(branch.count); bit; bit /= 2)
        if (bit < branch.count)
            piece_run_send(schedule, branch_block_run(schedule, &branch, INPUT, bit, int_min(bit, branch.count - bit)),
                int_modulo(schedule->rank + bit, schedule->size));
    if (branch.parent < 0) step_copy(schedule, out, span_of_chunk(schedule->rank, INPUT, schedule->rank));
}

/* ---- on one host ---- */
/* Read: each rank takes its block from the root. 1 round; each rank reads b. */
void scatter_read(struct schedule *schedule)
{
    step_copy(schedule, span_of_buffer(schedule, schedule->rank, OUTPUT),
        span_of_chunk(schedule->root, INPUT, schedule->rank));
}

/* Read and write: the root writes one piece of every block, whose owners read the other pieces. 1 round; each rank
   copies (p - 1)/p b. So in place, where the root has no other work, all are equally busy. */
void scatter_read_write(struct schedule *schedule)
{
    int p = schedule->size, me = schedule->rank, root = schedule->root;
    schedule_cut(schedule, p);
    if (me == root)
        step_copy(schedule, span_of_buffer(schedule, root, OUTPUT), (struct span){ root, INPUT, root * p, p });
    for (int hop = 1; hop < p; hop++) {
        int other = int_modulo(root + hop, p);
        if (me == root)
            step_copy(schedule, span_of_chunk(other, OUTPUT, root), span_of_chunk(root, INPUT, other * p + root));
        else step_copy(schedule, span_of_chunk(me, OUTPUT, other), span_of_chunk(root, INPUT, me * p + other));
    }
}
