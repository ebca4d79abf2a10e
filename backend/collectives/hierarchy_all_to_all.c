/* All-to-all over several hosts: blocks stay whole and are received into their places; blocks of the own host are read.
 * n is the message of all p blocks. A host sends (H - 1)/H of its ranks' messages. */
#include "backend/collectives/hierarchy.h"

/* Records copies of this rank's blocks from the INPUT of all ranks of its host. */
static void blocks_read_on_host(struct schedule *schedule)
{
    struct team host = team_of_host(schedule);
    for (int i = 0; i < host.size; i++) {
        int peer = team_rank(&host, host.me + i);
        step_copy(schedule, span_of_chunk(schedule->rank, OUTPUT, peer), span_of_chunk(peer, INPUT, schedule->rank));
    }
}

/* For each rank of another host, its carrier on this host sends the blocks of all ranks of this host as one message,
   taken from where they lie. A rank receives H - 1 messages, instead of p - 1 in a flat exchange. */
void all_to_all_hierarchy(struct schedule *schedule)
{
    const struct layout *layout = schedule->layout;
    struct team host = team_of_host(schedule);
    int me = schedule->place.host;
    for (int hop = 1; hop < layout->hosts; hop++) {
        int to = int_modulo(me + hop, layout->hosts), from = int_modulo(me - hop, layout->hosts);
        for (int i = 0; i < layout_host_size(layout, to); i++) {
            int peer = layout_rank(layout, to, i);
            if (layout_carrier_of_rank(layout, me, peer) != schedule->rank) continue;
            step_send(schedule, span_of_chunk(team_rank(&host, 0), INPUT, peer), peer);
            for (int j = 1; j < host.size; j++)
                step_add_span(schedule, span_of_chunk(team_rank(&host, j), INPUT, peer));
        }
        blocks_recv_from_host(schedule, OUTPUT, from, layout_carrier_of_rank(layout, from, schedule->rank));
    }
    blocks_read_on_host(schedule);
}

/* Direct between hosts: every rank sends its own blocks. A block goes from its place in one tensor to its place in
   another, so blocks of different pairs may differ in size. A rank receives p - p/H messages. */
void all_to_all_hierarchy_direct(struct schedule *schedule)
{
    const struct layout *layout = schedule->layout;
    for (int hop = 1; hop < layout->hosts; hop++) {
        int to = int_modulo(schedule->place.host + hop, layout->hosts),
            from = int_modulo(schedule->place.host - hop, layout->hosts);
        for (int i = 0; i < layout_host_size(layout, from); i++)
            step_recv(schedule, span_of_chunk(schedule->rank, OUTPUT, layout_rank(layout, from, i)),
                layout_rank(layout, from, i));
        for (int i = 0; i < layout_host_size(layout, to); i++)
            step_send(schedule, span_of_chunk(schedule->rank, INPUT, layout_rank(layout, to, i)),
                layout_rank(layout, to, i));
    }
    blocks_read_on_host(schedule);
}
