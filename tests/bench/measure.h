/* The common parts of all benchmarks in C: ranks as processes on cores of their own, a clock, samples with quantiles of
 * the slowest rank, and the references beside which everything is measured: flags, and cache lines that two cores hand
 * to each other. The library and its reference take turns in one run, because the machine drifts: a figure by itself
 * says little. */
#pragma once
#include "include/tutti.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MOST_RANKS = 16, MOST_SAMPLES = 512, MOST_CALLS = 20000 };

/* ---- ranks ---- */
/* The number of ranks, and that of this process; set by measure_run. */
extern int measure_ranks, measure_rank;
/* Returns the number of cores that this process may use. */
int measure_cores(void);
/* Returns the word after words[*at], and moves *at to it. Ends the program if there is no further word. */
const char *measure_option(int count, char **words, int *at);
/* Forks the ranks, which run rank_main. If `pinned`, each is pinned to the core with its number modulo the number of
   cores. A rank must end within limit_s seconds. Returns false if one failed; then the others are killed. */
bool measure_run(int ranks, bool pinned, unsigned limit_s, void (*rank_main)(void *context), void *context);
/* Returns zeroed memory. with_ranks: it is shared with all ranks that are forked later. */
void *measure_map(size_t bytes, bool with_ranks);
/* Prints the error and ends the process unless the status is TUTTI_OK. */
void must(tutti_status status);

/* ---- the clock ---- */
double now_ns(void);
/* Returns the ns since `begin`, without those that reading the clock takes. */
double since_ns(double begin);

/* ---- samples ---- */
enum { CROSSING_WAYS = 4, CROSSING_SHORT_WAYS = 2 };
/* Of several ways of a reference the best one counts. CROSSING is the first of CROSSING_WAYS series. */
enum series { OURS, BESIDE, BESIDE_OTHERWISE, UPDATE, CROSSING, SERIES = CROSSING + CROSSING_WAYS };
/* Stores a sample of this rank. */
void sample_set(enum series which, int index, double ns);
/* Stores the time of one call, where a sample is the mean of many calls. which: OURS or BESIDE. */
void call_set(enum series which, int index, double ns);
/* Returns the quantile q of the times of the slowest rank: 0 for the best, 1 for the slowest. Rank 0 calls it after a
   barrier. */
double sample_quantile(enum series which, int samples, double q);
double call_quantile(enum series which, int calls, double q);
/* Returns the median of the ratios of the samples of both series. The samples of a ratio are of one turn, so it changes
   little when the machine makes both slower. */
double sample_ratio(enum series which, enum series beside, int samples);
/* Sorts the values, and returns their median. */
double median_of(double *values, int count);

/* ---- references; every rank must make the same calls ---- */
/* Waits for all ranks, and returns the time at which this rank begins, for since_ns. With more ranks than cores that is
   the arrival of the last rank: otherwise the time would be too short on a rank that gets a core only after the others
   have finished. */
double begin_together(void);
/* A barrier by a flag of each rank: no barrier can cost less. */
void flag_barrier(void);
/* The same, but ranks wait by the library's backoff. */
void backoff_barrier(void);
/* A flag from rank 0 to rank 1 and back; other ranks do nothing. */
void flag_there_and_back(void);
/* Whether ranks pause between polls of a flag, which is faster on some machines. */
extern bool flag_pauses;
/* Pauses or yields after a poll without result. tries: the number of such polls before. */
void measure_relax(int tries);
/* Returns the median ns of a flag barrier, which shows how near the cores are; 0 with more ranks than cores. */
double flag_barrier_ns(void);
/* Returns true if flag barriers before and after a row, in ns, show that the hypervisor moved the cores meanwhile: they
   differ by more than FLAG_MOVED. In rows during which the cores stayed they differed by 1.25 at most, and in rows
   during which the cores moved by 2.4 at least. False with more ranks than cores, where both are 0. */
#define FLAG_MOVED 1.4
bool flag_has_moved(double before_ns, double after_ns);
/* For two ranks, and up to COHERENT_MOST bytes. Returns the ns of writing `bytes` bytes into lines that the peer holds,
   and of reading the same number of bytes that the peer has just written: a staged allreduce cannot avoid these. from:
   the bytes that are written, which this core has in its cache. streamed: stores go around the cache. */
enum { COHERENT_MOST = 1 << 20 };
double coherent_ns(const void *from, size_t bytes, bool streamed);
bool coherent_can_stream(void);
/* For two ranks, each on its own core. Returns the ns of handing `bytes` bytes to the peer while the same number of
   bytes is taken from it, in pieces through a ring, so that writing, invalidating and reading overlap as in staging.
   Nothing else is read or written, so staging takes no less than the best way. from: one piece or more, which this core
   has in its cache. way: below CROSSING_SHORT_WAYS the ring is short and the caches hold it, otherwise it is long; odd
   ways use streaming stores. */
enum { CROSSING_PIECE = 64 << 10 };
double crossing_ns(const void *from, size_t bytes, int way);
/* Returns the ns of an update of `bytes` bytes in place, which reads and writes each of them once. */
double update_ns(void *at, size_t bytes);
/* Fills the buffer with small floats that depend on the seed. */
void dirty(void *at, size_t bytes, int seed);
