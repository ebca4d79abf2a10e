/* Measured times: the smaller and the larger of two, and quantiles of many. */
#pragma once
#include <stdlib.h>

static inline double double_smaller(double a, double b) { return a < b ? a : b; }
static inline double double_larger(double a, double b) { return a > b ? a : b; }

/* Compares two doubles for qsort. */
static inline int sorted_compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
/* Sorts the values and returns the one at `index`: count / 2 gives the median, count / 4 the lower quartile. */
static inline double doubles_sort_and_get(double *values, int count, int index)
{
    qsort(values, (size_t)count, sizeof *values, sorted_compare_doubles);
    return values[index];
}
