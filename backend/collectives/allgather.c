/* Allgather: everyone gets the blocks of all ranks, in rank order. n is the message of all p blocks.
 *
 * Bruck's algorithm takes the rounds and sends the bytes of the circulant allgather (the second half of the circulant
 * allreduce) for every p, and those of recursive doubling for powers of two: the name bruck stands for the three. */
#include "backend/collectives/common.h"

static void copy_own(struct schedule *s) { step_copy(s, chunk(s->rank, OUTPUT, s->rank), whole(s, s->rank, INPUT)); }

/* Ring: every block travels once round. p - 1 rounds of n/p. (Patarasuk, Yuan 2009) */
void team_allgather_ring(struct schedule *s, const struct team *t)
{
    for (int k = 0; k < t->size - 1; k++) {
        step_send(s, team_piece(s, t, OUTPUT, t->me - k), team_rank(t, t->me + 1));
        step_recv(s, team_piece(s, t, OUTPUT, t->me - k - 1), team_rank(t, t->me - 1));
    }
}
void allgather_ring(struct schedule *s)
{
    struct team all = team_blocks(s);
    copy_own(s);
    team_allgather_ring(s, &all);
}

/* Bruck: in round k send all I have to the rank 2^k below, get as much from the rank 2^k above. ⌈log2 p⌉ rounds and
   (p - 1)/p n for every p; blocks that wrap land in their places, so nothing is rotated at the end. (Bruck et al.
   1997) */
void allgather_bruck(struct schedule *s)
{
    struct team all = team_blocks(s);
    copy_own(s);
    for (int have = 1, more; have < s->size; have += more) {
        more = least(have, s->size - have);
        run_send(s, team_run(s, &all, OUTPUT, s->rank, more), mod(s->rank - have, s->size));
        run_recv(s, team_run(s, &all, OUTPUT, s->rank + have, more), mod(s->rank + have, s->size));
    }
}

/* ---- on one host ---- */
/* Read: take everyone's block, beginning with my own. 1 round; each rank reads (p - 1)/p n. */
void allgather_read(struct schedule *s)
{
    for (int hop = 0; hop < s->size; hop++) {
        int peer = mod(s->rank + hop, s->size);
        step_copy(s, chunk(s->rank, OUTPUT, peer), whole(s, peer, INPUT));
    }
}

/* Write: put my block into everyone's memory. 1 round; each rank writes (p - 1)/p n and reads only its own. */
void allgather_write(struct schedule *s)
{
    for (int hop = 0; hop < s->size; hop++)
        step_copy(s, chunk(mod(s->rank + hop, s->size), OUTPUT, s->rank), whole(s, s->rank, INPUT));
}
