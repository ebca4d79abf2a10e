/* Places the units' flat arrays, and distributes updated slices. A unit's version is the number of steps that have
 * updated it. Each rank publishes the version of its slice in memory that the ranks of its host share. */
#pragma once
#include "zero/gather.h"
#include "zero/priority_comms.h"
#include "zero/topology.h"
#include <stdatomic.h>

struct version { _Alignas(64) _Atomic uint64_t steps; };
/* Each unit has one of these, unless it is SHARDED. */
struct placed_unit {
    /* `flat` is the whole array. */
    void *flat;                                         /* owned */
    /* `versions_here` has the versions of this host's slices if the unit is SHARED. */
    struct version *versions_here;                      /* [ranks of this host] */
    struct zero_placement *placement;
    /* This request gathers the slices that other ranks have updated. */
    tutti_request gathering;
    struct trace_span span;
    /* This rank has published this version. */
    uint64_t steps;
    /* True if `gathering` has been started. */
    bool gathers;
};
struct zero_placement {
    tutti_zero_placement kind;
    const struct partition *partition;
    int64_t timeout_ms;
    /* Slices travel on `comms`. SHARED uses `across` on several hosts. */
    struct priority_comms *comms;                       /* owned by the caller */
    /* Small messages travel on `control_comm`, which also reports failures on this host. */
    tutti_comm *control_comm;                           /* owned by the caller */
    struct trace *trace;
    struct topology places;
    /* `across` gathers these parts. */
    size_t *lengths, *offsets;                          /* [hosts], owned */
    struct version *versions;                           /* [units][ranks of this host], owned */
    struct placed_unit *placed;                         /* [units], owned */
    /* SHARDED uses only this. */
    struct gatherer gatherer;
    /* The caller and an asynchronous step have waited this long. */
    _Atomic uint64_t waited_ns;
    uint64_t moved_bytes;
};
/* Collective. The caller must call placement_finish in every case. */
tutti_status placement_init(struct zero_placement *placement, const struct partition *partition,
    const tutti_zero_config *config, struct priority_comms *comms, tutti_comm *control_comm, struct trace *trace);
void placement_finish(struct zero_placement *placement);
/* Ends the waits of other ranks for this rank with an error. */
void placement_abort_comms(struct zero_placement *placement);
/* Collective: with kept, all units may be read. */
tutti_status placement_keep_units(struct zero_placement *placement, uint64_t steps, bool kept);
/* Collective: waits for all units and for all ranks. Then no rank reads. */
tutti_status placement_claim_units(struct zero_placement *placement, uint64_t steps);
/* Collective: waits until no rank reads another's slices. */
tutti_status placement_claim_pieces(struct zero_placement *placement, uint64_t steps);
/* Collective: all ranks get the values of rank 0. */
tutti_status placement_broadcast_values(struct zero_placement *placement);
/* Waits until until_ms for gathers that have started. */
void placement_await_until(struct zero_placement *placement, int64_t until_ms);
/* Publishes this rank's slice of a unit after `steps` steps. Collective if bytes move: all ranks publish units in the
   same order. */
tutti_status placement_publish(struct zero_placement *placement, int unit, uint64_t steps);
/* Returns when all slices of the unit have had `steps` steps. */
tutti_status placement_use(struct zero_placement *placement, int unit, uint64_t steps, bool backward);
/* The caller calls placement_await before it changes its slice of the unit, and placement_begin_update before it
   changes all its slices. */
tutti_status placement_await(struct zero_placement *placement, int unit, uint64_t steps);
tutti_status placement_begin_update(struct zero_placement *placement);
/* Collective, after all slices have changed: starts the predicted gathers. */
tutti_status placement_end_update(struct zero_placement *placement);
/* Returns how many ranks share one flat array, or divide it. */
uint64_t placement_count_copy_ranks(const struct zero_placement *placement);
void *placement_flat(const struct zero_placement *placement, int unit);
/* Returns this rank's slice. */
void *placement_slice(const struct zero_placement *placement, int unit);
