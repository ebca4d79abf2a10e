/* The rows of bench_core: for each collective, size and kind of tensors the reference beside which it is measured, and
 * its goal. The goals are those of docs/performance.md, and only cases.c has their numbers. */
#pragma once
#include "include/tutti.h"

enum verb { ALLREDUCE, REDUCE_SCATTER, ALLGATHER, BROADCAST, ALL_TO_ALL, REDUCE, GATHER, SCATTER, SEND_RECV, VERBS };
/* The reference of a row, which is measured in turns with it. */
enum beside {
    /* A barrier of the same ranks by flags. */
    FLAG_BARRIER,
    /* The same, but ranks wait by the library's backoff: for more ranks than cores. */
    BACKOFF_BARRIER,
    /* A flag there and back. */
    PING_PONG,
    /* A memcpy of the row's bytes on all ranks at once; beside a send on one rank. */
    MEMCPY,
    /* T_coh: writing n bytes that the peer's cache holds, and reading n bytes that the peer has written. */
    COHERENCE,
    /* The same call with the same number of bytes in float32. */
    FLOAT32,
};
struct bench_case {
    enum verb verb;
    size_t bytes;                                       /* of the greater buffer                                  */
    int ranks;
    tutti_dtype dtype;
    bool in_place, shared;
    enum beside beside;
    /* Goals; 0 where the row has none. The ratio to the reference at most; the ratio of the 99th percentile of single
       calls to the median of single references at most; and the upper bound of that percentile in µs. */
    double goal, goal_p99, goal_p99_us;
};
enum { MOST_CASES = 512 };
/* Writes all rows to `out`, those with the same number of ranks together. Returns their number. */
int cases_list(struct bench_case out[MOST_CASES]);
/* Writes a label such as "allreduce 64M in shared float32 2ranks", whose words select rows. */
void case_label(const struct bench_case *c, char *out, size_t capacity);
/* Returns true if the label has all of the words. */
bool case_has_words(const char *label, const char *words);
/* Returns the bytes that a rank must read and write at least, in the mean of all ranks, divided by those that an update
   of `bytes` in place reads and writes. All input is read once, all output is written once, and bytes that are in their
   place stay there. */
double case_touched(const struct bench_case *c);
/* Returns the bytes that a rank must hand to other ranks and take from them at least, in the mean of all ranks, divided
   by `bytes`, while the caches hold them. A private tensor is staged, so its bytes are handed over and taken; a shared
   tensor needs only one of both. */
double case_crossing(const struct bench_case *c);
/* Returns the name by which tutti_comm_set_algorithm knows the collective. */
const char *verb_name(enum verb verb);
const char *beside_name(enum beside beside);
