/* The rows of cases.h as calls of the library: what each rank gives and gets, and from where. */
#pragma once
#include "tests/bench/cases.h"
#include "tests/bench/measure.h"

enum { TINY = 4096 };                                   /* below so many bytes calls are timed in batches         */
struct pair { char *in, *out; };                        /* of the bytes of the row, each                          */
/* One call on this rank. A send and its receive; below TINY there and back, else nobody would wait for the receiver. */
void case_call(const struct bench_case *c, struct pair at, tutti_dtype dtype, tutti_comm *comm);
struct pair case_pair(const struct bench_case *c, struct pair own, struct pair shared);
void case_dirty(const struct bench_case *c, struct pair at, int seed);  /* the buffer from which this rank sends  */
/* Reads what this rank has got, as who asked for it would: else its lines stay in the cache of who has written them. */
void case_use(const struct bench_case *c, struct pair at);
void case_touch(struct pair at, int value);             /* its first element                                      */
/* The library tries other choices while it is used (tuning/tuner.h): calls until it has come to one, of TINY or more.
   Each begins together, as when it is measured. */
void case_settle(const struct bench_case *c, struct pair at, tutti_comm *comm);
void case_repeat(const struct bench_case *c, struct pair at, tutti_comm *comm, int calls);             /* so many */
