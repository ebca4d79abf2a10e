/* Reduce-scatter over several hosts: for every rank of another host, its carrier on this host sums its block over this
 * host and sends it. */
#include "backend/collectives/hierarchy.h"

/* Pairwise between hosts: in round k with the hosts k above and k below. H - 1 rounds; the ranks of a host share its
   blocks evenly, a host sends (H - 1)/H n if all hosts have equal size, and a block is one message. On the host each
   rank reads about n. The receives of a round stand before its sends, so ranks cannot wait for each other. */
void reduce_scatter_hierarchy(struct schedule *s)
{
    const struct layout *l = s->layout;
    struct span landing = span_new_scratch(s, 2), sums = span_new_scratch(s, 2),
                out = span_of_buffer(s, s->rank, OUTPUT);
    int me = s->place.host, turn = 0;
    bool alone = layout_host_size(l, me) == 1;
    step_sum_host_inputs(s, out, s->rank);
    for (int hop = 1; hop < l->hosts; hop++) {
        int to = int_modulo(me + hop, l->hosts);
        struct span received = span_part(landing, hop % 2, 1);
        step_recv(s, received, layout_carrier_of_rank(l, int_modulo(me - hop, l->hosts), s->rank));
        for (int i = 0; i < layout_host_size(l, to); i++) {
            int peer = layout_rank(l, to, i);
            if (layout_carrier_of_rank(l, me, peer) != s->rank) continue;
            struct span sum = alone ? span_of_chunk(s->rank, INPUT, peer) : span_part(sums, turn++ % 2, 1);
            if (!alone) step_sum_host_inputs(s, sum, peer);
            step_send(s, sum, peer);
        }
        step_reduce(s, out, received);
    }
}
