/* Reduce-scatter: rank i gets the sum of block i over all ranks. INPUT belongs to the caller and is never written. Sums
 * are made in SCRATCH, and OUTPUT is written once, at the end: the last sum is made there, or copied to it. n is the
 * message of all p blocks. */
#include "backend/collectives/common.h"

/* Ring: partial sums travel once around the ring. p - 1 rounds of n/p. (Patarasuk, Yuan 2009) */
void reduce_scatter_ring(struct schedule *s)
{
    struct team all = team_of_blocks(s);
    struct span landing = span_new_scratch(s, 2), have = team_piece(s, &all, INPUT, s->rank - 1), received = have;
    if (team_is_alone(s, &all)) return;
    for (int k = 1; k < s->size; k++, have = received) {
        received = span_part(landing, k % 2, 1);
        step_send(s, have, int_modulo(s->rank + 1, s->size));
        step_recv(s, received, int_modulo(s->rank - 1, s->size));
        if (k < s->size - 1) step_reduce(s, received, team_piece(s, &all, INPUT, s->rank - k - 1));
    }
    step_accumulate(s, span_of_buffer(s, s->rank, OUTPUT), span_of_chunk(s->rank, INPUT, s->rank), received);
}

/* Recursive halving: each rank sends the rank 2^k away the blocks on its side, from far to near. log2 p rounds and
   (p - 1)/p n for powers of two; else ⌊log2 p⌋ + 2 rounds and up to n, because the ranks beyond the power of two are
   folded in. (Thakur, Rabenseifner, Gropp 2005) */
void reduce_scatter_halving(struct schedule *s)
{
    struct fold f = fold_for_rank(s->size, s->rank);
    struct span have = span_of_buffer(s, s->rank, INPUT), out = span_of_buffer(s, s->rank, OUTPUT);
    if (f.gives) {
        struct span received = span_new_scratch(s, 1);
        step_send(s, have, s->rank + 1);
        step_recv(s, received, s->rank + 1);
        step_copy(s, out, received);
        return;
    }
    struct span sums = span_new_scratch(s, s->size);
    if (f.takes) {
        struct span received = span_new_scratch(s, s->size);
        step_recv(s, received, s->rank - 1);
        have = step_accumulate(s, sums, have, received);
    }
    for (int bit = f.power / 2, low = 0; bit; bit /= 2, have = sums) {
        int peer = fold_member_of_id(&f, f.id ^ bit), its = low + (~f.id & bit), first = fold_first_member(&f, its);
        step_send(s, span_part(have, first, fold_first_member(&f, its + bit) - first), peer);
        low += f.id & bit;
        first = fold_first_member(&f, low);
        struct span received = span_new_scratch(s, fold_first_member(&f, low + bit) - first);
        step_recv(s, received, peer);
        step_accumulate(s, span_part(sums, first, received.count), span_part(have, first, received.count), received);
    }
    if (f.takes) step_send(s, span_part(have, s->rank - 1, 1), s->rank - 1);
    step_copy(s, out, span_part(have, s->rank, 1));
}

/* Circulant: in every round a rank sends the far half of its remaining sums and adds the received ones to the near
   half. ⌈log2 p⌉ rounds and (p - 1)/p n for every p.
   (Träff 2024: Optimal, non-pipelined reduce-scatter and allreduce algorithms) */
void reduce_scatter_circulant(struct schedule *s)
{
    struct team all = team_of_blocks(s);
    /* The sums of blocks rank, rank + 1, …. */
    struct span sums = span_new_scratch(s, (s->size + 1) / 2);
    if (team_is_alone(s, &all)) return;
    for (int width = s->size, skip; width > 1; width = skip) {
        int half = width / 2;
        struct span received = span_new_scratch(s, half);
        skip = width - half;
        int to = int_modulo(s->rank + skip, s->size), from = int_modulo(s->rank - skip, s->size);
        if (width < s->size) step_send(s, span_part(sums, skip, half), to);
        else piece_run_send(s, team_piece_run(s, &all, INPUT, s->rank + skip, half), to);
        step_recv(s, received, from);
        if (width == s->size) piece_run_copy(s, sums, team_piece_run(s, &all, INPUT, s->rank, skip));
        step_reduce(s, span_part(sums, 0, half), received);
    }
    step_copy(s, span_of_buffer(s, s->rank, OUTPUT), span_part(sums, 0, 1));
}

/* ---- on one host ---- */
/* Read: each rank sums its block over all ranks, where it lies. 1 round; each rank reads (p - 1)/p n. */
void reduce_scatter_read(struct schedule *s) { step_sum_all_inputs(s, span_of_buffer(s, s->rank, OUTPUT), s->rank); }
