/* Allgather: each rank gets the blocks of all ranks, in rank order. n is the message of all p blocks.
 *
 * Bruck's algorithm has the rounds and bytes of the circulant allgather (the second half of the circulant allreduce)
 * for every p, and those of recursive doubling for powers of two. So the name bruck stands for all three. */
#include "backend/collectives/common.h"

/* Ring: every block travels once around the ring. p - 1 rounds of n/p. (Patarasuk, Yuan 2009) */
void team_allgather_ring(struct schedule *s, const struct team *t)
{
    for (int k = 0; k < t->size - 1; k++) {
        step_send(s, team_piece(s, t, OUTPUT, t->me - k), team_rank(t, t->me + 1));
        step_recv(s, team_piece(s, t, OUTPUT, t->me - k - 1), team_rank(t, t->me - 1));
    }
}
void allgather_ring(struct schedule *s)
{
    struct team all = team_of_blocks(s);
    step_copy_input_to_block(s);
    team_allgather_ring(s, &all);
}

/* Bruck: in round k each rank sends all its blocks to the rank 2^k below, and receives equally many from the rank 2^k
   above. ⌈log2 p⌉ rounds and (p - 1)/p n for every p. Blocks that wrap are received into their places, so they need no
   rotation at the end. (Bruck et al. 1997) */
void allgather_bruck(struct schedule *s)
{
    struct team all = team_of_blocks(s);
    step_copy_input_to_block(s);
    for (int have = 1, more; have < s->size; have += more) {
        more = int_min(have, s->size - have);
        piece_run_send(s, team_piece_run(s, &all, OUTPUT, s->rank, more), int_modulo(s->rank - have, s->size));
        piece_run_recv(s, team_piece_run(s, &all, OUTPUT, s->rank + have, more), int_modulo(s->rank + have, s->size));
    }
}

/* ---- on one host ---- */
/* Read: each rank takes the blocks of all ranks, its own first. 1 round; each rank reads (p - 1)/p n. */
void allgather_read(struct schedule *s)
{
    for (int hop = 0; hop < s->size; hop++) {
        int peer = int_modulo(s->rank + hop, s->size);
        step_copy(s, span_of_chunk(s->rank, OUTPUT, peer), span_of_buffer(s, peer, INPUT));
    }
}

/* Write: each rank puts its block into the memory of all ranks. 1 round; each rank writes (p - 1)/p n and reads only
   its own block. */
void allgather_write(struct schedule *s)
{
    for (int hop = 0; hop < s->size; hop++)
        step_copy(s, span_of_chunk(int_modulo(s->rank + hop, s->size), OUTPUT, s->rank),
            span_of_buffer(s, s->rank, INPUT));
}
