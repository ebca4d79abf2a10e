/* What all benchmarks in C share: ranks as processes on cores of their own, a clock, samples that become the quantiles
 * of the slowest rank, and the references beside which everything is measured: flags, memcpy, and lines that two cores
 * hand to each other. Whoever is measured and what it is measured against take turns in one run, because the machine
 * drifts; a figure by itself says little. */
#pragma once
#include "include/tutti.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MOST_RANKS = 16, MOST_SAMPLES = 512, MOST_CALLS = 20000 };

/* ---- ranks ---- */
extern int measure_ranks, measure_rank;                 /* of this process, inside measure_run                    */
int measure_cores(void);                                /* that this process may use                              */
const char *measure_option(int count, char **words, int *at);          /* what follows words[*at]; moves *at        */
/* Forks the ranks; each runs `main`, pinned to core rank modulo cores unless that is switched off, and must be over
   within limit_s seconds. False: one of them did not end well; then the others are ended too. */
bool measure_run(int ranks, bool pinned, unsigned limit_s, void (*rank_main)(void *context), void *context);
void *measure_map(size_t bytes, bool with_ranks);       /* zeroed memory; with_ranks: of all ranks forked later   */
void must(tutti_status status);                         /* ends the process with the text unless it is OK         */

/* ---- the clock ---- */
double now_ns(void);
double since_ns(double begin);                          /* without what the clock itself takes                    */

/* ---- samples ---- */
enum { CROSSING_WAYS = 4, CROSSING_SHORT_WAYS = 2 };
/* Of several ways of a reference the best counts. CROSSING: that way and the others behind it. */
enum series { OURS, BESIDE, BESIDE_OTHERWISE, UPDATE, CROSSING, SERIES = CROSSING + CROSSING_WAYS };
void sample_set(enum series which, int index, double ns);              /* of this rank                            */
/* One call of many, where a sample is the mean of many; series: OURS or BESIDE. */
void call_set(enum series which, int index, double ns);
/* For rank 0 when all have met: of the slowest rank of each sample. q: 0 the best … 1 the slowest. */
double sample_quantile(enum series which, int samples, double q);
double call_quantile(enum series which, int calls, double q);
/* The median over samples of one series ÷ another, each pair taken in one turn: what moves both moves it little. */
double sample_ratio(enum series which, enum series beside, int samples);
double median_of(double *values, int count);            /* sorts them                                             */

/* ---- references; the same number of calls on every rank ---- */
/* When this rank may begin, for since_ns. With more ranks than cores it is when the last of all has arrived: else a
   rank that gets no core until the others are done would have waited for nothing. */
double begin_together(void);
void flag_barrier(void);                                /* the least any meeting of ranks can cost                */
void backoff_barrier(void);                              /* the same with the product's way of waiting             */
void flag_there_and_back(void);                         /* ranks 0 and 1; with others only those two              */
extern bool flag_pauses;                                /* while polling a flag; sometimes it is better so        */
void measure_relax(int tries);                          /* after the n-th fruitless poll                          */
double flag_barrier_ns(void);                           /* median of some batches: tells how near the cores are,
                                                           which it cannot with more ranks than cores: 0          */
/* Two ranks, up to COHERENT_MOST bytes. ns for writing so many bytes into lines that the peer holds and reading as
   many that the peer has just written: what a staged allreduce cannot avoid. streamed: stores go around the cache.
   from: what is written, in this core's cache. */
enum { COHERENT_MOST = 1 << 20 };
double coherent_ns(const void *from, size_t bytes, bool streamed);
bool coherent_can_stream(void);
/* Two ranks, each on a core of its own. ns for handing so many bytes to the peer while as many are taken from it, in
   pieces that go round in a ring, so writing, invalidating and reading overlap as they do in what is staged. way: below
   CROSSING_SHORT_WAYS the ring is short and caches hold it, else long; by ordinary and by streaming stores. from: at
   least a piece that this core has in its cache. Nothing else is read or written, so staging takes no less than the
   best way. */
enum { CROSSING_PIECE = 64 << 10 };
double crossing_ns(const void *from, size_t bytes, int way);
/* ns for reading and writing so many bytes in place: the rate at which memory can be worked on. */
double update_ns(void *at, size_t bytes);
void dirty(void *at, size_t bytes, int seed);           /* the owner writes its buffer: small floats              */
