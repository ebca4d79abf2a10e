/* The calls of the library that the rows of cases.h measure, and what ranks do with their buffers between calls. */
#pragma once
#include "tests/bench/cases.h"
#include "tests/bench/measure.h"

/* Calls of rows with fewer bytes are timed in batches. */
enum { TINY = 4096 };
/* Two buffers of the bytes of the row each. */
struct pair { char *in, *out; };
/* Makes one call on this rank. In a row of sends, rank 0 sends and rank 1 receives; below TINY bytes rank 1 sends back,
   because otherwise rank 0 would run ahead of the receiver. */
void case_call(const struct bench_case *c, struct pair at, tutti_dtype dtype, tutti_comm *comm);
/* Returns the buffers of a row: its own or shared ones, and one of them twice if the row is in place. */
struct pair case_pair(const struct bench_case *c, struct pair own, struct pair shared);
/* Writes the buffer from which this rank sends. */
void case_dirty(const struct bench_case *c, struct pair at, int seed);
/* Reads the output of this rank, as its program would: otherwise the lines stay in the cache of the rank that wrote
   them. */
void case_use(const struct bench_case *c, struct pair at);
/* Writes the first element of the input. */
void case_touch(struct pair at, int value);
/* Makes calls until the tuner, which tries other choices while the library is used (tuning/tuner.h), has come to a
   choice; none for rows below TINY bytes. The ranks begin each call together, as when it is measured. */
void case_settle(const struct bench_case *c, struct pair at, tutti_comm *comm);
/* Makes that number of calls, which the ranks begin together. */
void case_repeat(const struct bench_case *c, struct pair at, tutti_comm *comm, int calls);
