/* Allgather over several hosts: every block goes once to every other host, where the other ranks read it from its
 * receiver. */
#include "backend/collectives/hierarchy.h"

/* Records copies of the blocks of all ranks of `host` into this rank's OUTPUT, but not of those that it has. Blocks of
   this rank's host lie in INPUT of their ranks, blocks of other hosts in OUTPUT of the leader that received them.
   leader -1: each block's carrier has received it. */
static void blocks_copy_of_host(struct schedule *schedule, int host, int leader)
{
    for (int i = 0; i < layout_host_size(schedule->layout, host); i++) {
        int rank = layout_rank(schedule->layout, host, i);
        int holder = leader >= 0 ? leader : layout_carrier_of_rank(schedule->layout, schedule->place.host, rank);
        if (host == schedule->place.host && rank != schedule->rank)
            step_copy(schedule, span_of_chunk(schedule->rank, OUTPUT, rank), span_of_buffer(schedule, rank, INPUT));
        if (host != schedule->place.host && holder != schedule->rank)
            step_copy(schedule, span_of_chunk(schedule->rank, OUTPUT, rank), span_of_chunk(holder, OUTPUT, rank));
    }
}

/* Each rank sends its block to one rank of every other host. H - 1 rounds, all posted at once; a host sends (H - 1)/H n
   if all hosts have equal size. On the host each rank reads about n. */
void allgather_hierarchy(struct schedule *schedule)
{
    const struct layout *layout = schedule->layout;
    int me = schedule->place.host;
    step_copy_input_to_block(schedule);
    for (int hop = 1; hop < layout->hosts; hop++) {
        int to = int_modulo(me + hop, layout->hosts), from = int_modulo(me - hop, layout->hosts);
        step_send(schedule, span_of_buffer(schedule, schedule->rank, INPUT),
            layout_carrier_of_rank(layout, to, schedule->rank));
        for (int i = 0; i < layout_host_size(layout, from); i++)
            if (layout_carrier_of_rank(layout, me, layout_rank(layout, from, i)) == schedule->rank)
                step_recv(schedule, span_of_chunk(schedule->rank, OUTPUT, layout_rank(layout, from, i)),
                    layout_rank(layout, from, i));
    }
    for (int hop = 0; hop < layout->hosts; hop++)
        blocks_copy_of_host(schedule, int_modulo(me + hop, layout->hosts), -1);
}

/* Leaders: one rank of each host sends the blocks of all its ranks as one message to every other leader. H - 1 rounds;
   the fewest messages. For comparison, and for short blocks. */
void allgather_leaders(struct schedule *schedule)
{
    struct team host = team_of_host(schedule), leaders = team_of_leaders(schedule);
    int hosts = schedule->layout->hosts, me = schedule->place.host;
    step_copy_input_to_block(schedule);
    for (int hop = 1; hop < hosts && schedule_rank_is_leader(schedule, &leaders); hop++) {
        int from = int_modulo(me - hop, hosts);
        step_send(schedule, span_of_buffer(schedule, team_rank(&host, 0), INPUT), team_rank(&leaders, me + hop));
        for (int i = 1; i < host.size; i++)
            step_add_span(schedule, span_of_buffer(schedule, team_rank(&host, i), INPUT));
        blocks_recv_from_host(schedule, OUTPUT, from, team_rank(&leaders, from));
    }
    for (int hop = 0; hop < hosts; hop++)
        blocks_copy_of_host(schedule, int_modulo(me + hop, hosts), team_rank(&leaders, me));
}
