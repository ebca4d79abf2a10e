/* Predicts the next unit: the one that followed the last two units before. Pure data: ranks that have recorded the same
 * units predict the same. */
#pragma once
#include <stdbool.h>

/* Beside the numbers of units, these mean no unit, and a step. */
enum { PREFETCH_NONE = -1, PREFETCH_STEP = -2 };
struct prefetcher {
    /* `past` has the recorded units and steps; the oldest are dropped. */
    int *past;                                          /* [2 * room], owned */
    int room, count;
};
/* Returns false if memory runs out. */
bool prefetcher_init(struct prefetcher *prefetcher, int units);
void prefetcher_finish(struct prefetcher *prefetcher);
void prefetcher_record(struct prefetcher *prefetcher, int event);
/* Writes at most `most` predicted units, up to the step, and returns how many. */
int prefetcher_predict(const struct prefetcher *prefetcher, int most, int *out);
