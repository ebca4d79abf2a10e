/* Scatter: rank i gets block i of the root's message. Only the root has INPUT. b is the bytes of one block. */
#include "backend/collectives/common.h"

/* Naive: the root sends each rank its block. p - 1 rounds of b. */
void scatter_naive(struct schedule *s)
{
    if (s->rank != s->root) {
        step_recv(s, span_of_buffer(s, s->rank, OUTPUT), s->root);
        return;
    }
    for (int hop = 1; hop < s->size; hop++) {
        int peer = int_modulo(s->root + hop, s->size);
        step_send(s, span_of_chunk(s->rank, INPUT, peer), peer);
    }
    step_copy(s, span_of_buffer(s, s->rank, OUTPUT), span_of_chunk(s->rank, INPUT, s->rank));
}

/* Binomial tree, the reverse of gather: each rank that has blocks sends on the far half of them. ⌈log2 p⌉ rounds; the
   root sends (p - 1)b. */
void scatter_binomial(struct schedule *s)
{
    struct branch b = branch_of_rank(s);
    struct span out = span_of_buffer(s, s->rank, OUTPUT);
    if (b.parent >= 0) step_recv(s, out, b.parent);
    if (b.parent >= 0 && b.count > 1) step_add_span(s, span_part(b.landing, 1, b.count - 1));
    for (int bit = power_of_two_below(b.count); bit; bit /= 2)
        if (bit < b.count)
            piece_run_send(s, branch_block_run(s, &b, INPUT, bit, int_min(bit, b.count - bit)),
                int_modulo(s->rank + bit, s->size));
    if (b.parent < 0) step_copy(s, out, span_of_chunk(s->rank, INPUT, s->rank));
}

/* ---- on one host ---- */
/* Read: each rank takes its block from the root. 1 round; each rank reads b. */
void scatter_read(struct schedule *s)
{
    step_copy(s, span_of_buffer(s, s->rank, OUTPUT), span_of_chunk(s->root, INPUT, s->rank));
}

/* Read and write: the root writes one piece of every block, whose owners read the other pieces. 1 round; each rank
   copies (p - 1)/p b. So in place, where the root has no other work, all are equally busy. */
void scatter_read_write(struct schedule *s)
{
    int p = s->size, me = s->rank, root = s->root;
    schedule_cut(s, p);
    if (me == root) step_copy(s, span_of_buffer(s, root, OUTPUT), (struct span){ root, INPUT, root * p, p });
    for (int hop = 1; hop < p; hop++) {
        int other = int_modulo(root + hop, p);
        if (me == root) step_copy(s, span_of_chunk(other, OUTPUT, root), span_of_chunk(root, INPUT, other * p + root));
        else step_copy(s, span_of_chunk(me, OUTPUT, other), span_of_chunk(root, INPUT, me * p + other));
    }
}
