/* Barrier over several hosts. A contribution may be counted more than once (barrier.c). */
#include "backend/collectives/hierarchy.h"

/* The leader of each host reads its peers, the leaders signal each other by dissemination, and then their peers read
   them. A leader without peers reads nothing, and signals from its INPUT. ⌈log2 H⌉ rounds between hosts, 2 on the
   host. */
void barrier_hierarchy(struct schedule *s)
{
    struct team leaders = team_of_leaders(s);
    int leader = team_rank(&leaders, s->place.host);
    if (s->rank == leader && leaders.source == OUTPUT) step_sum_host_inputs(s, span_of_buffer(s, s->rank, OUTPUT), 0);
    if (s->rank == leader) team_barrier_dissemination(s, &leaders);
    else step_copy(s, span_of_buffer(s, s->rank, OUTPUT), span_of_buffer(s, leader, OUTPUT));
}
