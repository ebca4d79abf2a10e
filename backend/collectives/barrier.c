/* Barrier: each rank leaves only after all have arrived. It is an allreduce of a tiny message in which a contribution
 * may be counted more than once. The naive and tree barriers are the allreduces of these names. */
#include "backend/collectives/common.h"

/* Dissemination: in round k signal the rank 2^k above, wait for the rank 2^k below. ⌈log2 p⌉ rounds for every p.
   (Hensgen, Finkel, Manber 1988) */
void team_barrier_dissemination(struct schedule *s, const struct team *t)
{
    struct span have = team_all_pieces(s, t, t->source), landing = span_new_scratch(s, 2);
    if (team_is_alone(s, t)) return;
    for (int distance = 1, half = 0; distance < t->size; distance *= 2, half = !half) {
        struct span received = span_part(landing, half, 1);
        step_send(s, have, team_rank(t, t->me + distance));
        step_recv(s, received, team_rank(t, t->me - distance));
        have = step_accumulate(s, team_all_pieces(s, t, OUTPUT), have, received);
    }
}
void barrier_dissemination(struct schedule *s)
{
    struct team all = team_of_group(s);
    team_barrier_dissemination(s, &all);
}

/* ---- on one host ---- */
/* Read: each rank reads all ranks. 1 round. */
void barrier_read(struct schedule *s) { step_sum_all_inputs(s, span_of_buffer(s, s->rank, OUTPUT), 0); }
