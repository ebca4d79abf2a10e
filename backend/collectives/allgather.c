/* Allgather: each rank gets the blocks of all ranks, in rank order. n is the message of all p blocks.
 *
 * Bruck's algorithm has the rounds and bytes of the circulant allgather (the second half of the circulant allreduce)
 * for every p, and those of recursive doubling for powers of two. So the name bruck stands for all three. */
#include "backend/collectives/common.h"

/* Ring: every piece travels once around the ring. p - 1 rounds of n/p. (Patarasuk, Yuan 2009) */
void team_allgather_ring(struct schedule *schedule, const struct team *team)
{
    for (int k = 0; k < team->size - 1; k++) {
        step_send(schedule, team_piece(schedule, team, OUTPUT, team->me - k), team_rank(team, team->me + 1));
        step_recv(schedule, team_piece(schedule, team, OUTPUT, team->me - k - 1), team_rank(team, team->me - 1));
    }
}
void allgather_ring(struct schedule *schedule)
{
    struct team all = team_of_blocks(schedule);
    step_copy_input_to_block(schedule);
    team_allgather_ring(schedule, &all);
}

/* Bruck: in round k each rank sends all its blocks to the rank 2^k below, and receives equally many from the rank 2^k
   above. ⌈log2 p⌉ rounds and (p - 1)/p n for every p. Blocks that wrap are received into their places, so they need no
   rotation at the end. (Bruck et al. 1997) */
void allgather_bruck(struct schedule *schedule)
{
    struct team all = team_of_blocks(schedule);
    step_copy_input_to_block(schedule);
    for (int have = 1, more; have < schedule->size; have += more) {
        more = int_min(have, schedule->size - have);
        piece_run_send(schedule, team_piece_run(schedule, &all, OUTPUT, schedule->rank, more),
            int_modulo(schedule->rank - have, schedule->size));
        piece_run_recv(schedule, team_piece_run(schedule, &all, OUTPUT, schedule->rank + have, more),
            int_modulo(schedule->rank + have, schedule->size));
    }
}

/* ---- on one host ---- */
/* Read: each rank takes the blocks of all ranks, its own first. 1 round; each rank reads (p - 1)/p n. */
void allgather_read(struct schedule *schedule)
{
    for (int hop = 0; hop < schedule->size; hop++) {
        int peer = int_modulo(schedule->rank + hop, schedule->size);
        step_copy(schedule, span_of_chunk(schedule->rank, OUTPUT, peer), span_of_buffer(schedule, peer, INPUT));
    }
}

/* Write: each rank puts its block into the memory of all ranks. 1 round; each rank writes (p - 1)/p n and reads only
   its own block. */
void allgather_write(struct schedule *schedule)
{
    for (int hop = 0; hop < schedule->size; hop++)
        step_copy(schedule, span_of_chunk(int_modulo(schedule->rank + hop, schedule->size), OUTPUT, schedule->rank),
            span_of_buffer(schedule, schedule->rank, INPUT));
}
