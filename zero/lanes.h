/* Lanes are the communicators on which a unit's bytes travel. Async steps have several lanes of falling priority. The
 * units that the next forward pass uses first have the most urgent lane, so their gradients and slices overtake those
 * of the others. Each lane has its own order, the same on all ranks. */
#pragma once
#include "zero/partition.h"

enum { MOST_LANES = 4 };
struct lanes {
    int count;
    /* `all` connects all ranks. Its first communicator also serves all other purposes. */
    tutti_comm *all[MOST_LANES];
    /* `across` connects the ranks with this rank's index on each host; home.c makes it. */
    tutti_comm *across[MOST_LANES];
    /* `of_unit` has the lane of each unit. */
    int *of_unit;                                       /* [units], owned */
};
/* Collective. The caller must call lanes_finish in every case. */
tutti_status lanes_init(struct lanes *lanes, const struct partition *partition, const tutti_zero_config *config);
/* Collective: makes the `across` communicators. */
tutti_status lanes_reach_across(struct lanes *lanes, int index, int host);
/* Assigns units to lanes. turn[units] is the order of sums, the reverse of the order of uses. No operation may be in
   flight. */
void lanes_assign(struct lanes *lanes, const struct partition *partition, const int *turn);
/* Ends the waits of other ranks for this rank with an error. */
void lanes_abandon(struct lanes *lanes);
/* Destroys the communicators, which ends operations in flight. */
void lanes_leave(struct lanes *lanes);
void lanes_finish(struct lanes *lanes);
static inline tutti_comm *lanes_all(const struct lanes *lanes, int unit) { return lanes->all[lanes->of_unit[unit]]; }
static inline tutti_comm *lanes_across(const struct lanes *lanes, int unit)
{
    return lanes->across[lanes->of_unit[unit]];
}
