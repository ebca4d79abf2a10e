/* Arrays that are whole only while they are used: slices are gathered before a use, ahead of it where it was foreseen,
 * and the pages given back after it. All ranks use units in the same order; that they do is compared. */
#pragma once
#include "zero/pages.h"
#include "zero/partition.h"
#include "zero/prefetcher.h"
#include "zero/trace.h"

enum wholeness { CLOSED, COMING, WHOLE };
struct whole {                                          /* of one unit */
    void *flat, *slice;                                 /* the whole array, at times; this rank's part, always */
    tutti_request request;                              /* while it is COMING */
    struct trace_span span;
    enum wholeness state;
    /* The same on all ranks, as only uses and releases change them: */
    bool here;                                          /* a use needs no gathering */
    bool done;                                          /* not used any more: it goes with the next use of another */
    bool early;                                         /* gathered, or kept, for a use that was foreseen */
    /* Not so: */
    int waits;                                          /* for gradients; before, it is not closed */
};
struct gatherer {
    const struct partition *partition;
    tutti_comm *comm;
    struct trace *trace;
    struct pages pages;
    struct whole *unit;                                 /* [units] */
    struct prefetcher prefetcher;
    int prefetch, *foreseen;                               /* [prefetch] units at most */
    int64_t timeout_ms;
    bool keeps;                                         /* what is whole stays so */
    uint64_t waited_ns, moved_bytes, unforeseen, whole_bytes, most_bytes;
};
/* Collective. All units are whole at first, and their values nothing. gatherer_finish is due in every case. */
tutti_status gatherer_init(struct gatherer *gatherer, const struct partition *partition, int prefetch,
    int64_t timeout_ms, tutti_comm *all, struct trace *trace);
void gatherer_finish(struct gatherer *gatherer);
tutti_status gatherer_begin(struct gatherer *gatherer); /* collective: slices of what rank 0 has; nothing is whole */
/* Collective: returns when it is whole. In a backward pass it ends by itself. */
tutti_status gatherer_use(struct gatherer *gatherer, int unit, bool backward);
void gatherer_release(struct gatherer *gatherer, int unit);             /* until the next use */
tutti_status gatherer_check(const struct gatherer *gatherer, int unit); /* a gradient needs the unit to be whole */
void gatherer_count(struct gatherer *gatherer, int unit);               /* a gradient has come */
/* Collective: all units are whole, and stay so; afterwards those stay that are used. */
tutti_status gatherer_keep(struct gatherer *gatherer, bool kept);
tutti_status gatherer_rest(struct gatherer *gatherer);  /* slices are about to change: nothing is whole */
tutti_status gatherer_look(struct gatherer *gatherer);  /* collective: starts what is foreseen */
void gatherer_complete(struct gatherer *gatherer, int64_t until_ms);        /* waits for what is coming, no longer */
