/* The outcome of a row of bench_core: its figures, the bound that judges it, and how it is printed and written. */
#pragma once
#include "tests/bench/cases.h"
#include <stdbool.h>
#include <stdio.h>

/* Times in ns. */
struct outcome {
    bool measured;
    double median, p99, best, slowest;
    /* The median and the 99th percentile of the reference, and its median with calls timed one by one. */
    double beside, beside_p99, beside_single;
    /* The ratio to the reference; below TINY bytes the median of the ratios of the turns. */
    double ratio;
    /* The limits: all input is read once and all output is written once; and the bytes that must go from core to core
       do so, 0 if that was not measured. */
    double memory, crossing;
    /* A flag barrier before and after the row. */
    double flag, flag_after;
    /* The times that the row was measured, and whether it must be measured again. */
    int tries;
    bool again;
    /* The time of the tries after the first one. */
    double retried_ns;
};
/* A row during which the cores moved is measured again, at most that many times in all. */
enum { OUTCOME_TRIES = 3 };
/* A row that is judged by its limit may take that many times as long. */
#define LIMIT_GOAL 1.25
/* Returns the greater of both limits in ns: no implementation can be faster. */
double outcome_limit(const struct outcome *o);
/* Returns the bound by which the row is judged: "goal", or a limit, "crossing" or "memory". A limit judges a row beside
   memcpy, T_coh or float32 whose goal allows less than LIMIT_GOAL times the limit. Such a reference cannot be reached:
   memcpy works in the cache of its own core or with stores around the caches, faster than bytes go from core to core or
   in and out of memory; T_coh does not include the time in which ranks wait for each other; and float32 itself is at
   its limit. */
const char *outcome_judge(const struct bench_case *c, const struct outcome *o);
bool outcome_is_met(const struct bench_case *c, const struct outcome *o);
/* Returns true if the cores moved while the row was measured, so that its figures do not compare. */
bool outcome_has_moved(const struct outcome *o);
/* Returns true if the row must be measured again. in_budget: there is time for that. */
bool outcome_wants_retry(const struct outcome *o, bool in_budget);
/* Returns "moved", or for a row with a goal "met" or "MISSED", otherwise "". */
const char *outcome_verdict(const struct bench_case *c, const struct outcome *o);
/* The rows that have a goal. A row whose cores moved each time counts as moved, and as neither met nor missed. */
struct outcome_counts { int met, missed, moved; };
void outcome_count(const struct bench_case *c, const struct outcome *o, struct outcome_counts *counts);

void outcome_print_header(void);
void outcome_print(const struct bench_case *c, const struct outcome *o);
/* Writes the row as a JSON object on one line, with times in µs. */
void outcome_write(FILE *file, const struct bench_case *c, const struct outcome *o);
/* Returns a copy of the object that outcome_write has written for this row into a file with this text, or NULL if the
   text has none. The caller frees it. */
char *outcome_find(const char *text, const struct bench_case *c);
/* Counts a row that outcome_write has written. */
void outcome_count_written(const char *object, struct outcome_counts *counts);
