/* Barrier: each rank leaves only after all have arrived. It is an allreduce of a tiny message in which a contribution
 * may be counted more than once. The naive and tree barriers are the allreduces of these names. */
#include "backend/collectives/common.h"

/* Dissemination: in round k signal the rank 2^k above, wait for the rank 2^k below. ⌈log2 p⌉ rounds for every p.
   (Hensgen, Finkel, Manber 1988) */
void team_barrier_dissemination(struct schedule *schedule, const struct team *team)
{
    struct span have = team_all_pieces(schedule, team, team->source), recv_chunks = span_new_scratch(schedule, 2);
    if (team_copy_if_alone(schedule, team)) return;
    for (int distance = 1, half = 0; distance < team->size; distance *= 2, half = !half) {
        struct span received = span_part(recv_chunks, half, 1);
        step_send(schedule, have, team_rank(team, team->me + distance));
        step_recv(schedule, received, team_rank(team, team->me - distance));
        have = step_accumulate(schedule, team_all_pieces(schedule, team, OUTPUT), have, received);
    }
}
void barrier_dissemination(struct schedule *schedule)
{
    struct team all = team_of_group(schedule);
    team_barrier_dissemination(schedule, &all);
}

/* ---- on one host ---- */
/* Read: each rank reads the INPUT of all ranks. 1 round. */
void barrier_read(struct schedule *schedule)
{
    step_sum_all_inputs(schedule, span_of_buffer(schedule, schedule->rank, OUTPUT), 0);
}
