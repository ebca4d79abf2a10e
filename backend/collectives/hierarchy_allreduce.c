/* Allreduce over several hosts: every rank sums its slices over the host, allreduces each slice with its owners on the
 * other hosts, and reads the other slices from its peers. n is the bytes of the message, and H the number of hosts. */
#include "backend/collectives/hierarchy.h"

/* Allreduces slice by slice: over the host, then `between` hosts. On the host: 1 round of reading before and 1 after;
   each rank reads about 2n. Between hosts: the rounds of the team's algorithm, one slice of a rank after the other. A
   host sends the bytes that one of H ranks would send, from all its ranks at once. `between` needs each slice cut into
   `pieces` chunks. (Jia et al. 2018: Highly scalable deep learning training system; the levels of MPI's hierarchies) */
static void allreduce_by_slices(struct schedule *schedule, team_function *between, int pieces)
{
    struct slices all = slices_cut(schedule, pieces);
    struct team host = all.host;
    for (int k = host.me; k < all.count && host.size > 1; k += host.size)
        step_sum_host_inputs(schedule, slice_span_of_rank(&all, schedule->rank, OUTPUT, k), k * pieces);
    for (int k = host.me; k < all.count; k += host.size) {
        struct team across = slice_owner_team(schedule, &all, k);
        between(schedule, &across);
    }
    slices_read_from_peers(schedule, &all);
}

/* Uses slices, and a ring between hosts. A host sends 2(H - 1)/H n in 2(H - 1) rounds. */
void allreduce_hierarchy_ring(struct schedule *schedule)
{
    allreduce_by_slices(schedule, team_allreduce_ring, schedule->layout->hosts);
}

/* Uses slices, and the circulant algorithm between hosts. A host sends 2(H - 1)/H n in 2 ⌈log2 H⌉ rounds. */
void allreduce_hierarchy_circulant(struct schedule *schedule)
{
    allreduce_by_slices(schedule, team_allreduce_circulant, schedule->layout->hosts);
}

/* Uses slices, and Rabenseifner's algorithm between hosts. A host sends 2(H - 1)/H n in 2 log2 H rounds for powers of
   two; else up to n more, in 2 rounds more, to fold. */
void allreduce_hierarchy_rabenseifner(struct schedule *schedule)
{
    allreduce_by_slices(schedule, team_allreduce_rabenseifner, power_of_two_at_most(schedule->layout->hosts));
}

/* Uses slices, and recursive doubling between hosts. A host sends n log2 H in log2 H rounds for powers of two; else in
   2 rounds more, to fold. For short messages. */
void allreduce_hierarchy_doubling(struct schedule *schedule)
{
    allreduce_by_slices(schedule, team_allreduce_doubling, 1);
}

/* Uses slices, and a double tree between hosts. A host sends at most 2n in at most 4 ⌈log2 H⌉ + 1 rounds; tiles follow
   each other. */
void allreduce_hierarchy_double_tree(struct schedule *schedule)
{
    allreduce_by_slices(schedule, team_allreduce_double_tree, 2);
}

/* Leaders: one rank of each host sums the whole message and exchanges it by recursive doubling; its peers read the
   result. The leaders do all the work. For comparison, and for messages too short to be cut. */
void allreduce_leaders(struct schedule *schedule)
{
    struct team leaders = team_of_leaders(schedule);
    int leader = team_rank(&leaders, schedule->place.host);
    if (schedule->rank == leader && leaders.source == OUTPUT)
        step_sum_host_inputs(schedule, span_of_buffer(schedule, schedule->rank, OUTPUT), 0);
    if (schedule->rank == leader) team_allreduce_doubling(schedule, &leaders);
    else
        step_copy(schedule, span_of_buffer(schedule, schedule->rank, OUTPUT), span_of_buffer(schedule, leader, OUTPUT));
}
