/* Reduce over several hosts: every rank sums its slices over the host, each slice goes up a tree to its owner on the
 * root's host, and the root reads the slices from their owners. Only the root has OUTPUT; others work in SCRATCH. */
#include "backend/collectives/hierarchy.h"

/* Returns the largest number of slices that a rank of this host owns. */
static int slices_per_rank(const struct slices *all) { return (all->count + all->host.size - 1) / all->host.size; }
/* Returns the span in which the owner of slice k on this host sums it: on the root in OUTPUT, else in SCRATCH. `sums`:
   the SCRATCH chunks for the slices that a rank owns, at the same place on every rank of the host. */
static struct span slice_sum_span(const struct schedule *schedule, const struct slices *all, struct span sums, int k)
{
    int owner = team_rank(&all->host, k);
    if (owner == schedule->root) return slice_span_of_rank(all, owner, OUTPUT, k);
    return (struct span){ owner, SCRATCH, sums.first + k / all->host.size * all->pieces, all->pieces };
}
/* Reduces slice by slice: over the host, then by `between` to the root's host. On the host 1 round of reading before,
   and 1 after, by the root. Between hosts every host other than the root's sends n. */
static void reduce_by_slices(struct schedule *schedule, team_reduction *between, int pieces)
{
    struct slices all = slices_cut(schedule, pieces);
    struct span sums = span_new_scratch(schedule, slices_per_rank(&all) * pieces);
    for (int k = all.host.me; k < all.count; k += all.host.size) {
        struct team across = slice_owner_team(schedule, &all, k);
        struct span sum = slice_sum_span(schedule, &all, sums, k);
        if (all.host.size > 1) {
            step_sum_host_inputs(schedule, sum, k * pieces);
            across.base = sum.first;
            across.source = sum.buffer;
        }
        between(schedule, &across, layout_host(schedule->layout, schedule->root), sum);
    }
    for (int k = 0; k < all.count && schedule->rank == schedule->root; k++)
        if (k % all.host.size != all.host.me)
            step_copy(schedule, slice_span_of_rank(&all, schedule->rank, OUTPUT, k),
                slice_sum_span(schedule, &all, sums, k));
}

/* Uses slices, and binomial trees between hosts. ⌈log2 H⌉ rounds of n. */
void reduce_hierarchy_binomial(struct schedule *schedule) { reduce_by_slices(schedule, team_reduce_binomial, 1); }

/* Uses slices, and double trees between hosts. At most 2 ⌈log2 H⌉ rounds of n/2; tiles follow each other. */
void reduce_hierarchy_double_tree(struct schedule *schedule) { reduce_by_slices(schedule, team_reduce_double_tree, 2); }

/* Leaders: one rank of each host, the root on its own host, sums the whole message; the sums go up a binomial tree. For
   comparison, and for messages too short to be cut. */
void reduce_leaders(struct schedule *schedule)
{
    struct team leaders = team_of_leaders(schedule);
    if (!schedule_rank_is_leader(schedule, &leaders)) return;
    struct span sum = schedule->rank == schedule->root ? span_of_buffer(schedule, schedule->rank, OUTPUT)
                                                       : span_new_scratch(schedule, schedule->chunks[INPUT]);
    if (leaders.source == OUTPUT) {
        step_sum_host_inputs(schedule, sum, 0);
        leaders.base = sum.first;
        leaders.source = sum.buffer;
    }
    team_reduce_binomial(schedule, &leaders, layout_host(schedule->layout, schedule->root), sum);
}
