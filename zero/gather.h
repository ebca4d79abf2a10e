/* The array of a SHARDED unit is whole only while it is used. Ranks gather its slices before a use, or earlier if the
 * use was predicted, and free its pages after the use. All ranks must use units in the same order; the gathers compare
 * it. */
#pragma once
#include "zero/gather_pool.h"
#include "zero/pages.h"
#include "zero/partition.h"
#include "zero/prefetcher.h"
#include "zero/trace.h"

/* A CLOSED unit has no pages. */
enum wholeness { CLOSED, GATHERING, WHOLE };
/* Each unit has one of these. */
struct gathered_unit {
    /* `flat` is the whole array, which has pages only at times. `slice` is this rank's part, and `shared` its address
       for peers. They are equal unless the gatherer moves pages; then `slice` is an alias. */
    void *flat, *slice, *shared;                        /* owned */
    /* The buffer, owned by the unit, that `flat` maps outside this rank's part. NULL: `flat` has pages of its own, or
       none. */
    struct gather_buffer *buffer;
    /* The gather uses this request while the unit is GATHERING. */
    tutti_request request;
    struct trace_interval interval;
    enum wholeness state;
    /* Uses and releases alone change the next three fields, so they are the same on all ranks. */
    /* True if a use needs no new gather: the unit has been gathered, or its gather is in flight. */
    bool is_gathered;
    /* True: the last use has ended, and the next use of another unit may free this one. A use in a backward pass sets
       it at once. */
    bool has_ended;
    /* True: the unit was gathered or kept for a predicted use. */
    bool is_prefetched;
    /* The number of gradients of the backward pass that have not come on this rank; ranks may differ. The unit is not
       freed while it is above 0. */
    int gradients_due;
};
struct gatherer {
    const struct partition *partition;
    /* The list of gatherers that move pages, for forked children. */
    struct gatherer *next;
    tutti_comm *comm;
    struct trace *trace;
    struct pages pages;
    /* True: all ranks are on one host, and units are gathered into buffers of the pool, whose pages move to the flat
       array and back. False: into the pages of the flat array. Equal on all ranks. */
    bool moves_pages;
    struct gather_pool pool;
    /* A gather into a buffer is an all-to-all without this rank's own part, which the flat array has already. Its
       arrays, of one number for each rank: the elements that are sent and received, where they begin in the slice, and
       where in the buffer. The gatherer owns `lengths`, an allocation with all three. NULL without moves_pages. */
    size_t *lengths, *starts, *places;
    struct gathered_unit *unit;                                 /* [units], owned */
    struct prefetcher prefetcher;
    /* `predicted` has the units of the next predicted uses, at most `prefetch`. */
    int prefetch, *predicted;                           /* up to [prefetch], owned */
    int64_t timeout_ms;
    /* True: whole units stay whole. */
    bool keeps_whole;
    /* Gathers have made this rank wait waited_ns and brought it moved_bytes. */
    uint64_t waited_ns, moved_bytes;
    /* This many uses were not predicted. */
    uint64_t unforeseen;
    /* The bytes of all units with pages, now and at most. */
    uint64_t whole_bytes, most_bytes;
};
/* Reserves the arrays of all units, which start whole with undefined values. Collective. The caller must call
   gatherer_finish in every case. */
tutti_status gatherer_init(struct gatherer *gatherer, const struct partition *partition, int prefetch,
    int64_t timeout_ms, tutti_comm *all, struct trace *trace);
void gatherer_finish(struct gatherer *gatherer);
/* Collective: sends each rank its slices of rank 0's whole arrays, and closes all units. */
tutti_status gatherer_scatter_values(struct gatherer *gatherer);
/* Collective: begins a use, gathers the unit if needed, and returns when it is whole. A use in a backward pass ends by
   itself when another unit is used and the unit's gradients have come. */
tutti_status gatherer_use_unit(struct gatherer *gatherer, int unit, bool backward);
/* Ends the current use of the unit. */
void gatherer_release_unit(struct gatherer *gatherer, int unit);
/* Refuses a gradient if its unit is not whole. */
tutti_status gatherer_check_unit_whole(const struct gatherer *gatherer, int unit);
/* Records that one gradient of the unit has come. */
void gatherer_count_gradient(struct gatherer *gatherer, int unit);
/* Collective: with kept, gathers all units, which then stay whole. Without, frees the units that are not in use. */
tutti_status gatherer_keep_units(struct gatherer *gatherer, bool kept);
/* Ends all uses and frees the pages of all units, because slices are about to change. Records the end of a step for
   predictions. */
tutti_status gatherer_close_units(struct gatherer *gatherer);
/* Collective: frees unused units and starts the predicted gathers. */
tutti_status gatherer_update_prefetches(struct gatherer *gatherer);
/* Waits for gathers that have started, at most until the clock shows until_ms. */
void gatherer_await_until(struct gatherer *gatherer, int64_t until_ms);
