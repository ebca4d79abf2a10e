/* All-to-all over several hosts: blocks stay whole and are received into their places; blocks of the own host are read.
 * n is the message of all p blocks. A host sends (H - 1)/H of its ranks' messages. */
#include "backend/collectives/hierarchy.h"

/* Reads this rank's blocks from the INPUTs of all ranks of its host. */
static void blocks_read_on_host(struct schedule *s)
{
    struct team host = team_of_host(s);
    for (int i = 0; i < host.size; i++) {
        int peer = team_rank(&host, host.me + i);
        step_copy(s, span_of_chunk(s->rank, OUTPUT, peer), span_of_chunk(peer, INPUT, s->rank));
    }
}

/* For each rank of another host, its carrier on this host sends the blocks of all ranks of this host as one message,
   taken from where they lie. A rank receives H - 1 messages, instead of p - 1 in a flat exchange. */
void all_to_all_hierarchy(struct schedule *s)
{
    const struct layout *l = s->layout;
    struct team host = team_of_host(s);
    int me = s->place.host;
    for (int hop = 1; hop < l->hosts; hop++) {
        int to = int_modulo(me + hop, l->hosts), from = int_modulo(me - hop, l->hosts);
        for (int i = 0; i < layout_host_size(l, to); i++) {
            int peer = layout_rank(l, to, i);
            if (layout_carrier_of_rank(l, me, peer) != s->rank) continue;
            step_send(s, span_of_chunk(team_rank(&host, 0), INPUT, peer), peer);
            for (int j = 1; j < host.size; j++) step_add_span(s, span_of_chunk(team_rank(&host, j), INPUT, peer));
        }
        blocks_recv_from_host(s, OUTPUT, from, layout_carrier_of_rank(l, from, s->rank));
    }
    blocks_read_on_host(s);
}

/* Direct between hosts: every rank sends its own blocks. A block goes from its place in one tensor to its place in
   another, so blocks of different pairs may differ in size. A rank receives p - p/H messages. */
void all_to_all_hierarchy_direct(struct schedule *s)
{
    const struct layout *l = s->layout;
    for (int hop = 1; hop < l->hosts; hop++) {
        int to = int_modulo(s->place.host + hop, l->hosts), from = int_modulo(s->place.host - hop, l->hosts);
        for (int i = 0; i < layout_host_size(l, from); i++)
            step_recv(s, span_of_chunk(s->rank, OUTPUT, layout_rank(l, from, i)), layout_rank(l, from, i));
        for (int i = 0; i < layout_host_size(l, to); i++)
            step_send(s, span_of_chunk(s->rank, INPUT, layout_rank(l, to, i)), layout_rank(l, to, i));
    }
    blocks_read_on_host(s);
}
