/* Barrier over several hosts. A contribution may be counted more than once (barrier.c). */
#include "backend/collectives/hierarchy.h"

/* The leader of each host reads the INPUT of its peers, the leaders signal each other by dissemination, and then the
   peers read the OUTPUT of their leader. A leader without peers reads nothing, and signals from its INPUT. ⌈log2 H⌉
   rounds between hosts, 2 on the host. */
void barrier_hierarchy(struct schedule *schedule)
{
    struct team leaders = team_of_leaders(schedule);
    int leader = team_rank(&leaders, schedule->place.host);
    if (schedule->rank == leader && leaders.source == OUTPUT)
        step_sum_host_inputs(schedule, span_of_buffer(schedule, schedule->rank, OUTPUT), 0);
    if (schedule->rank == leader) team_barrier_dissemination(schedule, &leaders);
    else
        step_copy(schedule, span_of_buffer(schedule, schedule->rank, OUTPUT), span_of_buffer(schedule, leader, OUTPUT));
}
