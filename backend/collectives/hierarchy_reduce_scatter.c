/* Reduce-scatter over several hosts: for every rank of another host, its carrier on this host sums its block over this
 * host and sends it. */
#include "backend/collectives/hierarchy.h"

/* Pairwise between hosts: in round k with the hosts k above and k below. H - 1 rounds; the ranks of a host share its
   blocks evenly, a host sends (H - 1)/H n if all hosts have equal size, and a block is one message. On the host each
   rank reads about n. The receives of a round stand before its sends, so ranks cannot wait for each other. */
void reduce_scatter_hierarchy(struct schedule *schedule)
{
    const struct layout *layout = schedule->layout;
    struct span recv_chunks = span_new_scratch(schedule, 2), sums = span_new_scratch(schedule, 2),
                out = span_of_buffer(schedule, schedule->rank, OUTPUT);
    int me = schedule->place.host, sum_count = 0;
    bool is_alone = layout_host_size(layout, me) == 1;
    step_sum_host_inputs(schedule, out, schedule->rank);
    for (int hop = 1; hop < layout->hosts; hop++) {
        int to = int_modulo(me + hop, layout->hosts);
        struct span received = span_part(recv_chunks, hop % 2, 1);
        step_recv(schedule, received,
            layout_carrier_of_rank(layout, int_modulo(me - hop, layout->hosts), schedule->rank));
        for (int i = 0; i < layout_host_size(layout, to); i++) {
            int peer = layout_rank(layout, to, i);
            if (layout_carrier_of_rank(layout, me, peer) != schedule->rank) continue;
            struct span sum =
                is_alone ? span_of_chunk(schedule->rank, INPUT, peer) : span_part(sums, sum_count++ % 2, 1);
            if (!is_alone) step_sum_host_inputs(schedule, sum, peer);
            step_send(schedule, sum, peer);
        }
        step_reduce(schedule, out, received);
    }
}
