/* Gather: the root gets the blocks of all ranks, in rank order. Only the root has OUTPUT. b is the bytes of one
 * block. */
#include "backend/collectives/common.h"

/* Naive: each rank sends its block to the root. p - 1 rounds of b. */
void gather_naive(struct schedule *schedule)
{
    if (schedule->rank != schedule->root) {
        step_send(schedule, span_of_buffer(schedule, schedule->rank, INPUT), schedule->root);
        return;
    }
    for (int hop = 1; hop < schedule->size; hop++) {
        int peer = int_modulo(schedule->root + hop, schedule->size);
        step_recv(schedule, span_of_chunk(schedule->rank, OUTPUT, peer), peer);
    }
    step_copy_input_to_block(schedule);
}

/* Binomial tree: in round k the rank 2^k away sends all its blocks. ⌈log2 p⌉ rounds; the root receives (p - 1)b, others
   send at most p/2 b. Blocks are collected in order of distance from the root. */
void gather_binomial(struct schedule *schedule)
{
    struct branch branch = branch_of_rank(schedule);
    for (int bit = 1; bit < branch.count; bit *= 2)
        piece_run_recv(schedule, branch_block_run(schedule, &branch, OUTPUT, bit, int_min(bit, branch.count - bit)),
            int_modulo(schedule->rank + bit, schedule->size));
    if (branch.parent < 0) step_copy_input_to_block(schedule);
    else step_send(schedule, span_of_buffer(schedule, schedule->rank, INPUT), branch.parent);
    if (branch.parent >= 0 && branch.count > 1) step_add_span(schedule, span_part(branch.blocks, 1, branch.count - 1));
}

/* ---- on one host ---- */
/* Read: the root takes the blocks of all ranks. 1 round; the root reads (p - 1)b. */
void gather_read(struct schedule *schedule)
{
    for (int hop = 0; hop < schedule->size && schedule->rank == schedule->root; hop++) {
        int peer = int_modulo(schedule->root + hop, schedule->size);
        step_copy(schedule, span_of_chunk(schedule->rank, OUTPUT, peer), span_of_buffer(schedule, peer, INPUT));
    }
}

/* Write: each rank puts its block into the root's memory. 1 round; each rank writes b. */
void gather_write(struct schedule *schedule)
{
    step_copy(schedule, span_of_chunk(schedule->root, OUTPUT, schedule->rank),
        span_of_buffer(schedule, schedule->rank, INPUT));
}

/* Read and write: the root reads one piece of every block, their owners write the other pieces. 1 round; each rank
   copies (p - 1)/p b. So in place, where the root has no other work, all are equally busy. */
void gather_read_write(struct schedule *schedule)
{
    int p = schedule->size, me = schedule->rank, root = schedule->root;
    schedule_cut(schedule, p);
    if (me == root)
        step_copy(schedule, (struct span){ root, OUTPUT, root * p, p }, span_of_buffer(schedule, root, INPUT));
    for (int hop = 1; hop < p; hop++) {
        int other = int_modulo(root + hop, p);
        if (me == root)
            step_copy(schedule, span_of_chunk(root, OUTPUT, other * p + root), span_of_chunk(other, INPUT, root));
        else step_copy(schedule, span_of_chunk(root, OUTPUT, me * p + other), span_of_chunk(me, INPUT, other));
    }
}
