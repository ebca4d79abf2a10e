/* Places the units' flat arrays, and distributes updated slices. A unit's version is the number of steps that have
 * updated it. Each rank publishes the version of its slice in memory that the ranks of its host share. */
#pragma once
#include "zero/gather.h"
#include "zero/lanes.h"
#include "zero/places.h"
#include <stdatomic.h>

struct version { _Alignas(64) _Atomic uint64_t steps; };
/* Each unit has one of these, unless it is SHARDED. */
struct placed_unit {
    /* `flat` is the whole array. */
    void *flat;                                         /* owned */
    /* `said` has the versions of this host's slices if the unit is SHARED. */
    struct version *said;                               /* [ranks of this host] */
    struct home *home;
    /* This request gathers the slices that other ranks have updated. */
    tutti_request gathering;
    struct trace_span span;
    /* This rank has published this version. */
    uint64_t steps;
    /* True if `gathering` has been started. */
    bool gathers;
};
struct home {
    tutti_zero_home kind;
    const struct partition *partition;
    int64_t timeout_ms;
    /* Slices travel on `lanes`. SHARED uses `across` on several hosts. */
    struct lanes *lanes;                                /* owned by the caller */
    /* Small messages travel on `word`, which also reports failures on this host. */
    tutti_comm *word;                                   /* owned by the caller */
    struct trace *trace;
    struct places places;
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
/* Collective. The caller must call home_finish in every case. */
tutti_status home_init(struct home *home, const struct partition *partition, const tutti_zero_config *config,
    struct lanes *lanes, tutti_comm *word, struct trace *trace);
void home_finish(struct home *home);
/* Ends the waits of other ranks for this rank with an error. */
void home_abandon(struct home *home);
/* Collective: with kept, all units may be read. */
tutti_status home_keep(struct home *home, uint64_t steps, bool kept);
/* Collective: waits for all units and for all ranks. Then no rank reads. */
tutti_status home_claim(struct home *home, uint64_t steps);
/* Collective: waits until no rank reads another's slices. */
tutti_status home_claim_pieces(struct home *home, uint64_t steps);
/* Collective: all ranks get the values of rank 0. */
tutti_status home_begin(struct home *home);
/* Waits until until_ms for gathers that have started. */
void home_complete(struct home *home, int64_t until_ms);
/* Publishes this rank's slice of a unit after `steps` steps. Collective if bytes move: all ranks publish units in the
   same order. */
tutti_status home_publish(struct home *home, int unit, uint64_t steps);
/* Returns when all slices of the unit have had `steps` steps. */
tutti_status home_use(struct home *home, int unit, uint64_t steps, bool backward);
/* The caller calls home_await before it changes its slice of the unit, and home_rest before it changes all its
   slices. */
tutti_status home_await(struct home *home, int unit, uint64_t steps);
tutti_status home_rest(struct home *home);
/* Collective, after all slices have changed: starts the predicted gathers. */
tutti_status home_go_on(struct home *home);
/* Returns how many ranks share one flat array, or divide it. */
uint64_t home_shm_group(const struct home *home);
void *home_flat(const struct home *home, int unit);
/* Returns this rank's slice. */
void *home_slice(const struct home *home, int unit);
