/* Where the units' flat arrays live, and how an updated slice reaches all who read it. A unit's version is the number
 * of steps that have updated it: each rank says so of its slice, in a word that the ranks of its host see. */
#pragma once
#include "zero/gather.h"
#include "zero/lanes.h"
#include "zero/places.h"
#include <stdatomic.h>

struct version { _Alignas(64) _Atomic uint64_t steps; };
struct placed_unit {                                          /* of one unit, but SHARDED */
    void *flat;                                         /* the whole array */
    struct version *said;                               /* [ranks of this host], of SHARED */
    struct home *home;
    tutti_request gathering;                            /* of what others have updated */
    struct trace_span span;
    uint64_t steps;                                     /* this rank has published */
    bool gathers;                                       /* `gathering` has been started */
};
struct home {
    tutti_zero_home kind;
    const struct partition *partition;
    int64_t timeout_ms;
    struct lanes *lanes;                                /* for slices; `across`: SHARED, on several hosts */
    tutti_comm *word;                                   /* for small words, and this host's failures */
    struct trace *trace;
    struct places places;
    size_t *lengths, *offsets;                           /* [hosts]: what `across` gathers */
    struct version *versions;                           /* [units][here] */
    struct placed_unit *placed;                                /* [units] */
    struct gatherer gatherer;                           /* SHARDED: all it has */
    _Atomic uint64_t waited_ns;                         /* of the caller, and of an asynchronous step */
    uint64_t moved_bytes;
};
/* Collective. `lanes` and `word` stay the caller's. home_finish is due in every case. */
tutti_status home_init(struct home *home, const struct partition *partition, const tutti_zero_config *config,
    struct lanes *lanes, tutti_comm *word, struct trace *trace);
void home_finish(struct home *home);
void home_abandon(struct home *home);                   /* others are not to wait for this rank */
tutti_status home_keep(struct home *home, uint64_t steps, bool kept);  /* collective: all units may be read */
/* Collective: waits for all units, and until all ranks have come: nobody reads any more. */
tutti_status home_claim(struct home *home, uint64_t steps);
tutti_status home_claim_pieces(struct home *home, uint64_t steps);     /* collective: nobody reads another's slices */
tutti_status home_begin(struct home *home);             /* collective: all have what rank 0 has */
void home_complete(struct home *home, int64_t until_ms);    /* waits for what is being gathered, at most that long */
/* This rank's slice is as `steps` steps have left it. Collective where bytes move: units in the same order on all. */
tutti_status home_publish(struct home *home, int unit, uint64_t steps);
/* Returns when all slices are. */
tutti_status home_use(struct home *home, int unit, uint64_t steps, bool backward);
/* Before this rank's slice of the unit, or of all units, changes. */
tutti_status home_await(struct home *home, int unit, uint64_t steps);
tutti_status home_rest(struct home *home);
tutti_status home_go_on(struct home *home);             /* collective: all slices have changed */
uint64_t home_shm_group(const struct home *home);         /* ranks that have one flat array, or a slice of it each */
void *home_flat(const struct home *home, int unit);
void *home_slice(const struct home *home, int unit);    /* this rank's */
