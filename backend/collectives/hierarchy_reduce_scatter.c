/* Reduce-scatter over several hosts: for every rank of another host one rank of mine, its carrier, adds up its block
 * over my host and sends it. */
#include "backend/collectives/hierarchy.h"

/* Pairwise between hosts: in round k with the hosts k above and k below. H - 1 rounds; a rank carries as many blocks as
   its share of its host, a host sends (H - 1)/H n if all are alike, and a block comes in one message. On the host each
   rank reads about n. Receives stand before the sends of a round, so nobody waits for somebody who waits. */
void reduce_scatter_hierarchy(struct schedule *s)
{
    const struct layout *l = s->layout;
    struct span landing = fresh(s, 2), sums = fresh(s, 2), out = whole(s, s->rank, OUTPUT);
    int me = s->place.host, turn = 0;
    bool alone = host_size(l, me) == 1;
    sum_host(s, out, s->rank);
    for (int hop = 1; hop < l->hosts; hop++) {
        int to = mod(me + hop, l->hosts);
        struct span received = span_part(landing, hop % 2, 1);
        step_recv(s, received, carrier_of(l, mod(me - hop, l->hosts), s->rank));
        for (int i = 0; i < host_size(l, to); i++) {
            int peer = rank_at(l, to, i);
            if (carrier_of(l, me, peer) != s->rank) continue;
            struct span sum = alone ? chunk(s->rank, INPUT, peer) : span_part(sums, turn++ % 2, 1);
            if (!alone) sum_host(s, sum, peer);
            step_send(s, sum, peer);
        }
        step_reduce(s, out, received);
    }
}
