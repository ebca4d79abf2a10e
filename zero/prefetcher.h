/* Predicts the next unit: the one that came next when the last two events occurred in this order before. Pure data:
 * ranks that have recorded the same units predict the same. */
#pragma once
#include <stdbool.h>

/* An event is the number of a used unit, or PREFETCH_STEP, the end of a step. PREFETCH_NONE is no event. */
enum { PREFETCH_NONE = -1, PREFETCH_STEP = -2 };
struct prefetcher {
    /* `events` has the recorded events, the newest last. The oldest are dropped. */
    int *events;                                        /* [2 * room], owned */
    int room, count;
};
/* Makes room for the events of several passes over `units` units. Returns false if memory runs out. */
bool prefetcher_init(struct prefetcher *prefetcher, int units);
void prefetcher_finish(struct prefetcher *prefetcher);
/* Appends an event: the number of a unit that is used, or PREFETCH_STEP. */
void prefetcher_record(struct prefetcher *prefetcher, int event);
/* Writes the units that are expected next to out[limit], at most up to the next step. Returns how many. */
int prefetcher_predict(const struct prefetcher *prefetcher, int limit, int *out);
