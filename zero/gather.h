/* The array of a SHARDED unit is whole only while it is used. Ranks gather the slices before a use, or earlier if it
 * was predicted, and free the pages after it. All ranks must use units in the same order; the gathers compare it. */
#pragma once
#include "zero/pages.h"
#include "zero/partition.h"
#include "zero/prefetcher.h"
#include "zero/trace.h"

enum wholeness { CLOSED, GATHERING, WHOLE };
/* Each unit has one of these. */
struct gathered_unit {
    /* `flat` is the whole array, which has pages only at times. `slice` is this rank's part. */
    void *flat, *slice;                                 /* owned */
    /* The gather uses this request while the unit is GATHERING. */
    tutti_request request;
    struct trace_span span;
    enum wholeness state;
    /* Uses and releases alone change the next three fields, so they are the same on all ranks. */
    /* True: a use needs no gather. */
    bool here;
    /* True: the next use of another unit frees this one. A use in a backward pass sets it at once. */
    bool done;
    /* True: the unit was gathered or kept for a predicted use. */
    bool early;
    /* This many gradients are still to come, which may differ between ranks. The unit stays open until 0. */
    int waits;
};
struct gatherer {
    const struct partition *partition;
    tutti_comm *comm;
    struct trace *trace;
    struct pages pages;
    struct gathered_unit *unit;                                 /* [units], owned */
    struct prefetcher prefetcher;
    /* `predicted` has the units of the next uses, as predicted, and `prefetch` is the most of them. */
    int prefetch, *predicted;                           /* up to [prefetch], owned */
    int64_t timeout_ms;
    /* True: whole units stay whole. */
    bool keeps;
    uint64_t waited_ns, moved_bytes, unforeseen, whole_bytes, most_bytes;
};
/* Collective. All units start whole, with undefined values. The caller must call gatherer_finish in every case. */
tutti_status gatherer_init(struct gatherer *gatherer, const struct partition *partition, int prefetch,
    int64_t timeout_ms, tutti_comm *all, struct trace *trace);
void gatherer_finish(struct gatherer *gatherer);
/* Collective: each rank gets its slices of rank 0's values, and all units are closed. */
tutti_status gatherer_scatter_values(struct gatherer *gatherer);
/* Collective: returns when the unit is whole. A use in a backward pass ends by itself. */
tutti_status gatherer_use(struct gatherer *gatherer, int unit, bool backward);
/* Ends the current use of the unit. */
void gatherer_release(struct gatherer *gatherer, int unit);
/* Refuses a gradient of a unit that is not whole. */
tutti_status gatherer_check_unit_whole(const struct gatherer *gatherer, int unit);
/* Counts a gradient of the unit that has come. */
void gatherer_count_gradient(struct gatherer *gatherer, int unit);
/* Collective: with kept, all units become whole and stay so. Without, only units in use stay. */
tutti_status gatherer_keep_units(struct gatherer *gatherer, bool kept);
/* Closes all units, because slices are about to change. */
tutti_status gatherer_begin_update(struct gatherer *gatherer);
/* Collective: frees unused units and starts the predicted gathers. */
tutti_status gatherer_update_prefetches(struct gatherer *gatherer);
/* Waits until until_ms for gathers that have started. */
void gatherer_await_until(struct gatherer *gatherer, int64_t until_ms);
