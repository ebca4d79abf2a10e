/* Gather and scatter over several hosts: one message for each host other than the root's, with the blocks of all its
 * ranks. b is the bytes of one block. */
#include "backend/collectives/hierarchy.h"

/* The leader of each host sends the blocks of all its ranks, taken from where they lie, and the root receives them into
   their places. The root reads the blocks of its own host. H - 1 rounds; the root receives every block once. */
void gather_hierarchy(struct schedule *s)
{
    struct team host = team_of_host(s), leaders = team_of_leaders(s);
    int me = s->place.host, hosts = s->layout->hosts, root_host = layout_host(s->layout, s->root);
    if (me != root_host && team_has_rank_as_leader(s, &leaders)) {
        step_send(s, span_of_buffer(s, team_rank(&host, 0), INPUT), s->root);
        for (int i = 1; i < host.size; i++) step_add_span(s, span_of_buffer(s, team_rank(&host, i), INPUT));
    }
    if (s->rank != s->root) return;
    for (int hop = 1; hop < hosts; hop++) {
        int from = int_modulo(me + hop, hosts);
        blocks_recv_from_host(s, OUTPUT, from, team_rank(&leaders, from));
    }
    for (int i = 0; i < host.size; i++) {
        int peer = team_rank(&host, host.me + i);
        step_copy(s, span_of_chunk(s->rank, OUTPUT, peer), span_of_buffer(s, peer, INPUT));
    }
}

/* The leader of each host receives the blocks of all its ranks, and its peers read them there. On the root's host, the
   peers read from the root. H - 1 rounds; the root sends every block once. */
void scatter_hierarchy(struct schedule *s)
{
    struct team host = team_of_host(s), leaders = team_of_leaders(s);
    int me = s->place.host, hosts = s->layout->hosts, leader = team_rank(&leaders, me);
    bool reads_root = me == layout_host(s->layout, s->root);
    struct span landing = span_new_scratch(s, reads_root ? 0 : host.size), out = span_of_buffer(s, s->rank, OUTPUT);
    for (int hop = 1; hop < hosts && s->rank == s->root; hop++) {
        int to = int_modulo(me + hop, hosts);
        step_send(s, span_of_chunk(s->root, INPUT, layout_rank(s->layout, to, 0)), team_rank(&leaders, to));
        for (int i = 1; i < layout_host_size(s->layout, to); i++)
            step_add_span(s, span_of_chunk(s->root, INPUT, layout_rank(s->layout, to, i)));
    }
    if (reads_root) step_copy(s, out, span_of_chunk(s->root, INPUT, s->rank));
    else if (s->rank != leader) step_copy(s, out, span_of_chunk(leader, SCRATCH, landing.first + host.me));
    else {
        for (int i = 0; i < host.size; i++) {
            struct span into = i == host.me ? out : span_part(landing, i, 1);
            if (i) step_add_span(s, into);
            else step_recv(s, into, s->root);
        }
    }
}
