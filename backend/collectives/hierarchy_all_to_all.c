/* All-to-all over several hosts: the blocks that a host has for one rank elsewhere go there as one message. Blocks stay
 * whole and land where they belong, so those of different pairs may differ in size. */
#include "backend/collectives/hierarchy.h"

/* For each rank of another host its carrier here sends what all ranks of this host have for it, taken from where it
   lies; blocks of the own host are read. H - 1 messages arrive at a rank, in place of p - 1. A host sends (H - 1)/H of
   what its ranks have. */
void all_to_all_hierarchy(struct schedule *s)
{
    const struct layout *l = s->layout;
    struct team host = team_host(s);
    int me = s->place.host;
    for (int hop = 1; hop < l->hosts; hop++) {
        int to = mod(me + hop, l->hosts), from = mod(me - hop, l->hosts);
        for (int i = 0; i < host_size(l, to); i++) {
            int peer = rank_at(l, to, i);
            if (carrier_of(l, me, peer) != s->rank) continue;
            step_send(s, chunk(team_rank(&host, 0), INPUT, peer), peer);
            for (int j = 1; j < host.size; j++) step_also(s, chunk(team_rank(&host, j), INPUT, peer));
        }
        blocks_recv(s, OUTPUT, from, carrier_of(l, from, s->rank));
    }
    for (int i = 0; i < host.size; i++) {
        int peer = team_rank(&host, host.me + i);
        step_copy(s, chunk(s->rank, OUTPUT, peer), chunk(peer, INPUT, s->rank));
    }
}
