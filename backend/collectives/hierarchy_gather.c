/* Gather and scatter over several hosts: one message for each host other than the root's, with the blocks of all its
 * ranks. b is the bytes of one block. */
#include "backend/collectives/hierarchy.h"

/* The leader of each host sends the blocks of all its ranks, taken from where they lie, and the root receives them into
   their places. The root reads the blocks of its own host. H - 1 rounds; the root receives every block once. */
void gather_hierarchy(struct schedule *schedule)
{
    struct team host = team_of_host(schedule), leaders = team_of_leaders(schedule);
    int me = schedule->place.host, hosts = schedule->layout->hosts,
        root_host = layout_host(schedule->layout, schedule->root);
    if (me != root_host && schedule_rank_is_leader(schedule, &leaders)) {
        step_send(schedule, span_of_buffer(schedule, team_rank(&host, 0), INPUT), schedule->root);
        for (int i = 1; i < host.size; i++)
            step_add_span(schedule, span_of_buffer(schedule, team_rank(&host, i), INPUT));
    }
    if (schedule->rank != schedule->root) return;
    for (int hop = 1; hop < hosts; hop++) {
        int from = int_modulo(me + hop, hosts);
        blocks_recv_from_host(schedule, OUTPUT, from, team_rank(&leaders, from));
    }
    for (int i = 0; i < host.size; i++) {
        int peer = team_rank(&host, host.me + i);
        step_copy(schedule, span_of_chunk(schedule->rank, OUTPUT, peer), span_of_buffer(schedule, peer, INPUT));
    }
}

/* The leader of each host receives the blocks of all its ranks, and its peers read them there. On the root's host, the
   peers read from the root. H - 1 rounds; the root sends every block once. */
void scatter_hierarchy(struct schedule *schedule)
{
    struct team host = team_of_host(schedule), leaders = team_of_leaders(schedule);
    int me = schedule->place.host, hosts = schedule->layout->hosts, leader = team_rank(&leaders, me);
    bool is_on_root_host = me == layout_host(schedule->layout, schedule->root);
    struct span host_blocks = span_new_scratch(schedule, is_on_root_host ? 0 : host.size),
                out = span_of_buffer(schedule, schedule->rank, OUTPUT);
    for (int hop = 1; hop < hosts && schedule->rank == schedule->root; hop++) {
        int to = int_modulo(me + hop, hosts);
        step_send(schedule, span_of_chunk(schedule->root, INPUT, layout_rank(schedule->layout, to, 0)),
            team_rank(&leaders, to));
        for (int i = 1; i < layout_host_size(schedule->layout, to); i++)
            step_add_span(schedule, span_of_chunk(schedule->root, INPUT, layout_rank(schedule->layout, to, i)));
    }
    if (is_on_root_host) step_copy(schedule, out, span_of_chunk(schedule->root, INPUT, schedule->rank));
    else if (schedule->rank != leader)
        step_copy(schedule, out, span_of_chunk(leader, SCRATCH, host_blocks.first + host.me));
    else {
        for (int i = 0; i < host.size; i++) {
            struct span into = i == host.me ? out : span_part(host_blocks, i, 1);
            if (i) step_add_span(schedule, into);
            else step_recv(schedule, into, schedule->root);
        }
    }
}
