/* The communicators on which the bytes of units travel. Async steps have several, of falling priority. The units that
 * the next forward pass uses first have the most urgent communicator, so their gradients and slices overtake those of
 * the others. Each communicator has its own order, the same on all ranks. */
#pragma once
#include "zero/partition.h"

enum { MOST_PRIORITIES = 4 };
struct priority_comms {
    int count;
    /* `all` connects all ranks. Its first communicator also serves all other purposes. */
    tutti_comm *all[MOST_PRIORITIES];
    /* `across` connects the ranks with this rank's index on each host; placement.c makes it. */
    tutti_comm *across[MOST_PRIORITIES];
    /* `of_unit` has for each unit the index of its communicators in `all` and `across`; 0 is the most urgent. */
    int *of_unit;                                       /* [units], owned */
};
/* Creates the communicators of all ranks. Collective. The caller must call priority_comms_finish in every case. */
tutti_status priority_comms_init(struct priority_comms *comms, const struct partition *partition,
    const tutti_zero_config *config);
/* Collective: creates the `across` communicators of this rank, which has this index and host. */
tutti_status priority_comms_split_across(struct priority_comms *comms, int index, int host);
/* Assigns units to communicators. agreed[units] has the units in the order of their sums, the reverse of the order of
   uses. No operation may be in flight. */
void priority_comms_assign_units(struct priority_comms *comms, const struct partition *partition, const int *agreed);
/* Ends the waits of other ranks for this rank with an error. */
void priority_comms_abort(struct priority_comms *comms);
/* Destroys the communicators, which ends operations in flight. */
void priority_comms_destroy(struct priority_comms *comms);
void priority_comms_finish(struct priority_comms *comms);
/* Returns the communicator of all ranks on which the unit travels. */
static inline tutti_comm *priority_comms_get_all(const struct priority_comms *comms, int unit)
{
    return comms->all[comms->of_unit[unit]];
}
/* Returns the unit's communicator of the ranks that have this rank's index on each host. */
static inline tutti_comm *priority_comms_get_across(const struct priority_comms *comms, int unit)
{
    return comms->across[comms->of_unit[unit]];
}
