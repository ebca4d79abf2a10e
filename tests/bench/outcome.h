/* What came out of a row of bench_core: the figures, by what they are judged, and how they are printed and written. */
#pragma once
#include "tests/bench/cases.h"
#include <stdbool.h>
#include <stdio.h>

struct outcome {                                        /* in ns                                                  */
    bool measured;
    double median, p99, best, slowest, beside, beside_p99;
    double beside_single;                               /* the median of references timed one by one              */
    double ratio;                                       /* to what is beside; of flags the median over the turns  */
    double memory;                                      /* all input read once, all output written once           */
    double crossing;                                    /* what staging hands from core to core; 0: not measured  */
    double flag, flag_after;
};
#define LIMIT_GOAL 1.25                                 /* most times its limit, for a row that is judged by it     */
/* The greater of both limits: nobody can be faster. */
double outcome_limit(const struct outcome *o);
/* "goal", or the limit by which the row is judged instead: "crossing" or "memory". That is so for a row beside memcpy,
   T_coh or the same bytes as float32 whose goal allows less than LIMIT_GOAL times its limit: memcpy then runs at a
   rate, of the cache of its own core or of stores around the caches, at which nothing gets from core to core, or in and
   out of memory; T_coh does not count how ranks meet; and float32 itself is at its limit. */
const char *outcome_judge(const struct bench_case *c, const struct outcome *o);
bool outcome_is_met(const struct bench_case *c, const struct outcome *o);

void outcome_print_header(void);
void outcome_print(const struct bench_case *c, const struct outcome *o);
void outcome_write(FILE *file, const struct bench_case *c, const struct outcome *o);     /* as an object of JSON  */
