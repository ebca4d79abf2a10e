/* Barrier: nobody leaves before everyone has come. It is an allreduce of next to nothing in which a contribution may
 * be counted more than once; the naive and tree barriers are those allreduces themselves. */
#include "backend/collectives/common.h"

/* Dissemination: in round k signal the rank 2^k above, wait for the rank 2^k below. ⌈log2 p⌉ rounds for every p.
   (Hensgen, Finkel, Manber 1988) */
void barrier_dissemination(struct schedule *s)
{
    struct team all = team_all(s);
    struct span have = whole(s, s->rank, INPUT), landing = fresh(s, 2);
    if (team_is_alone(s, &all)) return;
    for (int distance = 1, half = 0; distance < s->size; distance *= 2, half = !half) {
        struct span landed = span_part(landing, half, 1);
        step_send(s, have, mod(s->rank + distance, s->size));
        step_recv(s, landed, mod(s->rank - distance, s->size));
        have = accumulate(s, whole(s, s->rank, OUTPUT), have, landed);
    }
}

/* ---- on one host ---- */
/* Read: look at everyone. 1 round. */
void barrier_read(struct schedule *s) { accumulate_host(s, whole(s, s->rank, OUTPUT), 0); }
