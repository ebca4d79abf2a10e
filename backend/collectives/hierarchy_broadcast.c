/* Broadcast over several hosts: the ranks of the root's host read the slices from the root and send each to its owners
 * on the other hosts; on every host the other ranks read the slices from their owners. */
#include "backend/collectives/hierarchy.h"

/* Broadcasts slice by slice, with `between` between hosts. On the root's host 1 round of reading before, on every host
   1 after; each rank reads about n. Between hosts a host sends the bytes that one of H ranks would send, from all its
   ranks at once. */
static void broadcast_by_slices(struct schedule *schedule, team_spreading *between, int pieces)
{
    struct slices all = slices_cut(schedule, pieces);
    int root_host = layout_host(schedule->layout, schedule->root);
    step_copy_root_input(schedule);
    for (int k = all.host.me; k < all.count; k += all.host.size) {
        struct team across = slice_owner_team(schedule, &all, k);
        if (schedule->place.host == root_host && schedule->rank != schedule->root)
            step_copy(schedule, slice_span_of_rank(&all, schedule->rank, OUTPUT, k),
                slice_span_of_rank(&all, schedule->root, INPUT, k));
        between(schedule, &across, root_host);
    }
    if (schedule->rank != schedule->root) slices_read_from_peers(schedule, &all);
}

/* Uses slices, and binomial trees between hosts. ⌈log2 H⌉ rounds; the root's host sends ⌈log2 H⌉ n. */
void broadcast_hierarchy_binomial(struct schedule *schedule)
{
    broadcast_by_slices(schedule, team_broadcast_binomial, 1);
}

/* Uses slices, and chains between hosts. H - 1 rounds; a host sends at most n, and tiles follow each other. For long
   messages on few hosts. */
void broadcast_hierarchy_chain(struct schedule *schedule) { broadcast_by_slices(schedule, team_broadcast_chain, 1); }

/* Uses slices, and double trees between hosts. At most 2 ⌈log2 H⌉ + 1 rounds of n/2; a host sends at most n, and tiles
   follow each other. */
void broadcast_hierarchy_double_tree(struct schedule *schedule)
{
    broadcast_by_slices(schedule, team_broadcast_double_tree, 2);
}

/* Leaders: a binomial tree over one rank of each host, whose peers read the whole message from it. For comparison, and
   for messages too short to be cut. */
void broadcast_leaders(struct schedule *schedule)
{
    struct team leaders = team_of_leaders(schedule);
    int leader = team_rank(&leaders, schedule->place.host);
    step_copy_root_input(schedule);
    if (schedule->rank == leader)
        team_broadcast_binomial(schedule, &leaders, layout_host(schedule->layout, schedule->root));
    else
        step_copy(schedule, span_of_buffer(schedule, schedule->rank, OUTPUT), span_of_buffer(schedule, leader, OUTPUT));
}
