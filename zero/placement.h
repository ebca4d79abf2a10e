/* Places the units' flat arrays, and distributes updated slices. A unit's version is the number of steps that have
 * updated it. Each rank publishes the version of its slice in memory that the ranks of its host share. */
#pragma once
#include "zero/gather.h"
#include "zero/priority_comms.h"
#include "zero/topology.h"
#include <stdatomic.h>

/* A rank's slice of a unit has been updated by this many steps. */
struct version { _Alignas(64) _Atomic uint64_t steps; };
/* Each unit has one of these, unless it is SHARDED. */
struct placed_unit {
    /* `flat` is the whole array. */
    void *flat;                                         /* owned */
    /* SHARED: `versions_here` has the version of the slice of each rank of this host. Otherwise it is NULL. */
    struct version *versions_here;                      /* [ranks of this host] */
    struct zero_placement *placement;
    /* This request gathers the slices that other ranks have updated. */
    tutti_request gathering;
    struct trace_interval interval;
    /* The version of its slice that this rank has published, or will publish when `gathering` has succeeded. */
    uint64_t steps;
    /* True from the start of `gathering` until this rank has waited for it. */
    bool gathers;
};
struct zero_placement {
    tutti_zero_placement kind;
    const struct partition *partition;
    int64_t timeout_ms;
    /* Slices travel on `comms`: on its `across` communicators if SHARED, otherwise on `all`. */
    struct priority_comms *comms;                       /* owned by the caller */
    /* Barriers use `control_comm`. Waits for versions end with an error if it has failed. */
    tutti_comm *control_comm;                           /* owned by the caller */
    struct trace *trace;
    struct topology places;
    /* The arguments of a gather between hosts: the elements of each host's slice, and their offset in the unit. */
    size_t *lengths, *offsets;                          /* [hosts], owned */
    struct version *versions;                           /* [units][ranks of this host], owned */
    struct placed_unit *placed;                         /* [units], owned */
    /* SHARDED units are in the gatherer, and the fields from `places` to `placed` are unused. */
    struct gatherer gatherer;
    /* The time that the caller and the asynchronous step have waited for other ranks' slices. */
    _Atomic uint64_t waited_ns;
    /* The bytes of other ranks' slices that this rank has gathered. */
    uint64_t moved_bytes;
};
/* Allocates the flat arrays of all units. Collective. The caller must call placement_finish in every case. */
tutti_status placement_init(struct zero_placement *placement, const struct partition *partition,
    const tutti_zero_config *config, struct priority_comms *comms, tutti_comm *control_comm, struct trace *trace);
void placement_finish(struct zero_placement *placement);
/* Aborts the communicator of SHARDED gathers, which ends the waits of other ranks for this rank with an error. */
void placement_abort_comms(struct zero_placement *placement);
/* Collective. With kept, returns when this rank may read all units, with the values of step `steps`, until it calls
   this without kept or a step begins. Without, only SHARDED units in use stay whole. */
tutti_status placement_keep_units(struct zero_placement *placement, uint64_t steps, bool kept);
/* Collective: makes all units readable, as placement_keep_units with kept, and waits in a barrier for all ranks. After
   it no rank reads parameters. */
tutti_status placement_claim_units(struct zero_placement *placement, uint64_t steps);
/* Collective: returns when no rank reads another's slices. SHARDED units are closed for this. */
tutti_status placement_claim_pieces(struct zero_placement *placement, uint64_t steps);
/* Collective: all ranks get the values that rank 0 has in the flat arrays. */
tutti_status placement_broadcast_values(struct zero_placement *placement);
/* Waits for gathers that have started, at most until the clock shows until_ms. */
void placement_await_until(struct zero_placement *placement, int64_t until_ms);
/* Publishes this rank's slice of a unit after `steps` steps. Collective if bytes move: all ranks publish units in the
   same order. It does nothing for SHARDED and WHOLE units. */
tutti_status placement_publish_slice(struct zero_placement *placement, int unit, uint64_t steps);
/* Returns when this rank may read the whole unit with the values of step `steps`. A use of a SHARDED unit lasts until
   its release, or with `backward` until the unit's gradients have come. */
tutti_status placement_use_unit(struct zero_placement *placement, int unit, uint64_t steps, bool backward);
/* Returns when all slices of the unit in this rank's memory are as new as step `steps`. The caller waits before it
   changes its slice. It does nothing for SHARDED units, whose slices no other rank reads in place. */
tutti_status placement_await_unit(struct zero_placement *placement, int unit, uint64_t steps);
/* Closes all SHARDED units: frees the pages of their whole arrays, which will be outdated when the caller has changed
   its slices. It does nothing for other kinds. */
tutti_status placement_close_units(struct zero_placement *placement);
/* Starts the predicted gathers of SHARDED units, after all ranks have changed their slices. Collective. It does nothing
   for other kinds. */
tutti_status placement_update_prefetches(struct zero_placement *placement);
/* Returns how many ranks hold one copy of a unit together: those that share its flat array, or divide it (SHARDED). */
uint64_t placement_count_copy_ranks(const struct zero_placement *placement);
/* Returns the address of the unit's flat array. */
void *placement_get_flat(const struct zero_placement *placement, int unit);
/* Returns the address of this rank's slice of the unit. */
void *placement_get_slice(const struct zero_placement *placement, int unit);
