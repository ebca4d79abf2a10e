/* Allgather over several hosts: every block goes once to every other host, where the other ranks read it from its
 * receiver. */
#include "backend/collectives/hierarchy.h"

/* Copies the blocks of a host. Blocks of this rank's host lie in INPUT of their ranks, blocks of other hosts in OUTPUT
   of the leader that received them. leader -1: each block's carrier has received it. */
static void blocks_copy_of_host(struct schedule *s, int host, int leader)
{
    for (int i = 0; i < layout_host_size(s->layout, host); i++) {
        int rank = layout_rank(s->layout, host, i);
        int holder = leader >= 0 ? leader : layout_carrier_of_rank(s->layout, s->place.host, rank);
        if (host == s->place.host && rank != s->rank)
            step_copy(s, span_of_chunk(s->rank, OUTPUT, rank), span_of_buffer(s, rank, INPUT));
        if (host != s->place.host && holder != s->rank)
            step_copy(s, span_of_chunk(s->rank, OUTPUT, rank), span_of_chunk(holder, OUTPUT, rank));
    }
}

/* Each rank sends its block to one rank of every other host. H - 1 rounds, all posted at once; a host sends
   (H - 1)/H n if all hosts have equal size. On the host each rank reads about n. */
void allgather_hierarchy(struct schedule *s)
{
    const struct layout *l = s->layout;
    int me = s->place.host;
    step_copy_input_to_block(s);
    for (int hop = 1; hop < l->hosts; hop++) {
        int to = int_modulo(me + hop, l->hosts), from = int_modulo(me - hop, l->hosts);
        step_send(s, span_of_buffer(s, s->rank, INPUT), layout_carrier_of_rank(l, to, s->rank));
        for (int i = 0; i < layout_host_size(l, from); i++)
            if (layout_carrier_of_rank(l, me, layout_rank(l, from, i)) == s->rank)
                step_recv(s, span_of_chunk(s->rank, OUTPUT, layout_rank(l, from, i)), layout_rank(l, from, i));
    }
    for (int hop = 0; hop < l->hosts; hop++) blocks_copy_of_host(s, int_modulo(me + hop, l->hosts), -1);
}

/* Leaders: one rank of each host sends the blocks of all its ranks as one message to every other leader. H - 1 rounds;
   the fewest messages. For comparison, and for short blocks. */
void allgather_leaders(struct schedule *s)
{
    struct team host = team_of_host(s), leaders = team_of_leaders(s);
    int hosts = s->layout->hosts, me = s->place.host;
    step_copy_input_to_block(s);
    for (int hop = 1; hop < hosts && team_has_rank_as_leader(s, &leaders); hop++) {
        int from = int_modulo(me - hop, hosts);
        step_send(s, span_of_buffer(s, team_rank(&host, 0), INPUT), team_rank(&leaders, me + hop));
        for (int i = 1; i < host.size; i++) step_add_span(s, span_of_buffer(s, team_rank(&host, i), INPUT));
        blocks_recv_from_host(s, OUTPUT, from, team_rank(&leaders, from));
    }
    for (int hop = 0; hop < hosts; hop++) blocks_copy_of_host(s, int_modulo(me + hop, hosts), team_rank(&leaders, me));
}
