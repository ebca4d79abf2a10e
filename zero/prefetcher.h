/* Predicts the next unit: the one that followed the last two units before. Pure data: ranks that have recorded the same
 * units predict the same. */
#pragma once
#include <stdbool.h>

enum { PREFETCH_NONE = -1, PREFETCH_STEP = -2 };        /* beside the numbers of units: nothing; the step */
struct prefetcher {
    int *past;                                          /* [2 * room] what was noted; the oldest is forgotten */
    int room, count;
};
bool prefetcher_init(struct prefetcher *prefetcher, int units);               /* false: no memory */
void prefetcher_finish(struct prefetcher *prefetcher);
void prefetcher_record(struct prefetcher *prefetcher, int event);
/* The next `most` at most, up to the step; returns how many. */
int prefetcher_predict(const struct prefetcher *prefetcher, int most, int *out);
