/* Reduce-scatter: rank i gets the sum of block i over all ranks. INPUT belongs to the caller and is never written. Sums
 * are made in SCRATCH, and OUTPUT is written once, at the end: the last sum is made there, or copied to it. n is the
 * message of all p blocks. */
#include "backend/collectives/common.h"

/* Ring: partial sums travel once around the ring. p - 1 rounds of n/p. (Patarasuk, Yuan 2009) */
void reduce_scatter_ring(struct schedule *schedule)
{
    struct team all = team_of_blocks(schedule);
    struct span recv_chunks = span_new_scratch(schedule, 2),
                have = team_piece(schedule, &all, INPUT, schedule->rank - 1), received = have;
    if (team_copy_if_alone(schedule, &all)) return;
    for (int k = 1; k < schedule->size; k++, have = received) {
        received = span_part(recv_chunks, k % 2, 1);
        step_send(schedule, have, int_modulo(schedule->rank + 1, schedule->size));
        step_recv(schedule, received, int_modulo(schedule->rank - 1, schedule->size));
        if (k < schedule->size - 1)
            step_reduce(schedule, received, team_piece(schedule, &all, INPUT, schedule->rank - k - 1));
    }
    step_accumulate(schedule, span_of_buffer(schedule, schedule->rank, OUTPUT),
        span_of_chunk(schedule->rank, INPUT, schedule->rank), received);
}

/* Recursive halving: each rank sends to the rank 2^k away its sums of the blocks on that rank's side, from far to near.
   log2 p rounds and (p - 1)/p n for powers of two; else ⌊log2 p⌋ + 2 rounds and up to n, because the ranks beyond the
   power of two are folded in. (Thakur, Rabenseifner, Gropp 2005) */
void reduce_scatter_halving(struct schedule *schedule)
{
    struct fold fold = fold_for_rank(schedule->size, schedule->rank);
    struct span have = span_of_buffer(schedule, schedule->rank, INPUT),
                out = span_of_buffer(schedule, schedule->rank, OUTPUT);
    if (fold.gives) {
        struct span received = span_new_scratch(schedule, 1);
        step_send(schedule, have, schedule->rank + 1);
        step_recv(schedule, received, schedule->rank + 1);
        step_copy(schedule, out, received);
        return;
    }
    struct span sums = span_new_scratch(schedule, schedule->size);
    if (fold.takes) {
        struct span received = span_new_scratch(schedule, schedule->size);
        step_recv(schedule, received, schedule->rank - 1);
        have = step_accumulate(schedule, sums, have, received);
    }
    for (int bit = fold.power / 2, low = 0; bit; bit /= 2, have = sums) {
        int peer = fold_member_of_id(&fold, fold.id ^ bit), peer_low = low + (~fold.id & bit),
            first = fold_first_member(&fold, peer_low);
        step_send(schedule, span_part(have, first, fold_first_member(&fold, peer_low + bit) - first), peer);
        low += fold.id & bit;
        first = fold_first_member(&fold, low);
        struct span received = span_new_scratch(schedule, fold_first_member(&fold, low + bit) - first);
        step_recv(schedule, received, peer);
        step_accumulate(schedule, span_part(sums, first, received.count), span_part(have, first, received.count),
            received);
    }
    if (fold.takes) step_send(schedule, span_part(have, schedule->rank - 1, 1), schedule->rank - 1);
    step_copy(schedule, out, span_part(have, schedule->rank, 1));
}

/* Circulant: in every round a rank sends the far half of its remaining sums and adds the received ones to the near
   half. ⌈log2 p⌉ rounds and (p - 1)/p n for every p. (Träff 2024: Optimal, non-pipelined reduce-scatter and allreduce
   algorithms) */
void reduce_scatter_circulant(struct schedule *schedule)
{
    struct team all = team_of_blocks(schedule);
    /* The sums of blocks rank, rank + 1, …. */
    struct span sums = span_new_scratch(schedule, (schedule->size + 1) / 2);
    if (team_copy_if_alone(schedule, &all)) return;
    for (int width = schedule->size, skip; width > 1; width = skip) {
        int half = width / 2;
        struct span received = span_new_scratch(schedule, half);
        skip = width - half;
        int to = int_modulo(schedule->rank + skip, schedule->size),
            from = int_modulo(schedule->rank - skip, schedule->size);
        if (width < schedule->size) step_send(schedule, span_part(sums, skip, half), to);
        else piece_run_send(schedule, team_piece_run(schedule, &all, INPUT, schedule->rank + skip, half), to);
        step_recv(schedule, received, from);
        if (width == schedule->size)
            piece_run_copy(schedule, sums, team_piece_run(schedule, &all, INPUT, schedule->rank, skip));
        step_reduce(schedule, span_part(sums, 0, half), received);
    }
    step_copy(schedule, span_of_buffer(schedule, schedule->rank, OUTPUT), span_part(sums, 0, 1));
}

/* ---- on one host ---- */
/* Read: each rank sums its block over all ranks, where it lies. 1 round; each rank reads (p - 1)/p n. */
void reduce_scatter_read(struct schedule *schedule)
{
    step_sum_all_inputs(schedule, span_of_buffer(schedule, schedule->rank, OUTPUT), schedule->rank);
}
