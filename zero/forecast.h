/* Which unit comes next: the one that came the last time after the two before. Pure data: ranks that have noted the
 * same foresee the same. */
#pragma once
#include <stdbool.h>

enum { FORECAST_NONE = -1, FORECAST_STEP = -2 };        /* beside the numbers of units: nothing; the step */
struct forecast {
    int *past;                                          /* [2 * room] what was noted; the oldest is forgotten */
    int room, count;
};
bool forecast_init(struct forecast *forecast, int units);               /* false: no memory */
void forecast_finish(struct forecast *forecast);
void forecast_record(struct forecast *forecast, int event);
/* The next `most` at most, up to the step; returns how many. */
int forecast_look(const struct forecast *forecast, int most, int *out);
