/* Which communicator a unit's bytes travel on. A step that is *ahead* has several lanes, of falling priority: the units
 * that the next forward pass uses first have the most urgent one, so that their gradients and slices overtake those of
 * the others. Each lane has its own order, the same on all ranks. */
#pragma once
#include "zero/partition.h"

enum { MOST_LANES = 4 };
struct lanes {
    int count;
    tutti_comm *all[MOST_LANES];                        /* of all ranks; the first is for all else as well */
    tutti_comm *across[MOST_LANES];                     /* of the ranks of my index on each host; home.c makes them */
    int *of_unit;                                       /* [units] */
};
/* Collective. lanes_finish is due in every case. */
tutti_status lanes_init(struct lanes *lanes, const struct partition *partition, const tutti_zero_config *config);
tutti_status lanes_reach_across(struct lanes *lanes, int index, int host);     /* collective */
/* turn: [units] in the order in which they are summed, the reverse of the order in which they are used. Nothing is on
   its way. */
void lanes_assign(struct lanes *lanes, const struct partition *partition, const int *turn);
void lanes_abandon(struct lanes *lanes);                /* others are not to wait for this rank */
/* Ends what is on its way. */
void lanes_leave(struct lanes *lanes);
void lanes_finish(struct lanes *lanes);
static inline tutti_comm *lanes_all(const struct lanes *lanes, int unit) { return lanes->all[lanes->of_unit[unit]]; }
static inline tutti_comm *lanes_across(const struct lanes *lanes, int unit)
{
    return lanes->across[lanes->of_unit[unit]];
}
