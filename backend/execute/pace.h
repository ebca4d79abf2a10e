/* How a thread writes slots that peers read: by ordinary stores, or around its cache (kernels/stream.h). If the peers'
   cores share a cache with this one, ordinary stores are at least as fast. Otherwise a store into a line that a peer
   has just read costs many times more. The system or a hypervisor may move a core at any time, so the thread measures
   now and then how long a line takes to fetch. Each thread decides for itself. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* True if a large part of a slot, which begins at `to`, is now better written around the cache. Each call counts, and
   some measure first how long the line at `to` takes to fetch. */
bool pace_prefers_streaming(void *to);

/* ---- the decision, for pace.c and its test ---- */
/* The state of a thread's decision. */
struct pace {
    /* Ordinary stores are used now. */
    bool ordinary_stores;
    /* The number of calls of pace_count_call so far. */
    unsigned calls;
    /* A low quantile of the time to fetch a line that a peer has read. */
    double line_ns;
};
/* Counts a call. Returns true if it must be measured. */
bool pace_count_call(struct pace *pace);
/* Records one measured time of fetching a line, which an interruption may have made longer. */
void pace_record_measurement(struct pace *pace, double line_ns);
