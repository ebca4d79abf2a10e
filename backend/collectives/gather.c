/* Gather: the root gets the blocks of all ranks, in rank order. Only the root has OUTPUT. b is the bytes of one
 * block. */
#include "backend/collectives/common.h"

/* Naive: each rank sends its block to the root. p - 1 rounds of b. */
void gather_naive(struct schedule *s)
{
    if (s->rank != s->root) {
        step_send(s, span_of_buffer(s, s->rank, INPUT), s->root);
        return;
    }
    for (int hop = 1; hop < s->size; hop++) {
        int peer = int_modulo(s->root + hop, s->size);
        step_recv(s, span_of_chunk(s->rank, OUTPUT, peer), peer);
    }
    step_copy_input_to_block(s);
}

/* Binomial tree: in round k the rank 2^k away sends all its blocks. ⌈log2 p⌉ rounds; the root receives (p - 1)b, others
   send at most p/2 b. Blocks are collected in order of distance from the root. */
void gather_binomial(struct schedule *s)
{
    struct branch b = branch_of_rank(s);
    for (int bit = 1; bit < b.count; bit *= 2)
        piece_run_recv(s, branch_block_run(s, &b, OUTPUT, bit, int_min(bit, b.count - bit)),
            int_modulo(s->rank + bit, s->size));
    if (b.parent < 0) step_copy_input_to_block(s);
    else step_send(s, span_of_buffer(s, s->rank, INPUT), b.parent);
    if (b.parent >= 0 && b.count > 1) step_add_span(s, span_part(b.landing, 1, b.count - 1));
}

/* ---- on one host ---- */
/* Read: the root takes the blocks of all ranks. 1 round; the root reads (p - 1)b. */
void gather_read(struct schedule *s)
{
    for (int hop = 0; hop < s->size && s->rank == s->root; hop++) {
        int peer = int_modulo(s->root + hop, s->size);
        step_copy(s, span_of_chunk(s->rank, OUTPUT, peer), span_of_buffer(s, peer, INPUT));
    }
}

/* Write: each rank puts its block into the root's memory. 1 round; each rank writes b. */
void gather_write(struct schedule *s)
{
    step_copy(s, span_of_chunk(s->root, OUTPUT, s->rank), span_of_buffer(s, s->rank, INPUT));
}

/* Read and write: the root reads one piece of every block, their owners write the other pieces. 1 round; each rank
   copies (p - 1)/p b. So in place, where the root has no other work, all are equally busy. */
void gather_read_write(struct schedule *s)
{
    int p = s->size, me = s->rank, root = s->root;
    schedule_cut(s, p);
    if (me == root) step_copy(s, (struct span){ root, OUTPUT, root * p, p }, span_of_buffer(s, root, INPUT));
    for (int hop = 1; hop < p; hop++) {
        int other = int_modulo(root + hop, p);
        if (me == root) step_copy(s, span_of_chunk(root, OUTPUT, other * p + root), span_of_chunk(other, INPUT, root));
        else step_copy(s, span_of_chunk(root, OUTPUT, me * p + other), span_of_chunk(me, INPUT, other));
    }
}
