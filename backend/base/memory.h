/* Memory and checked arithmetic on sizes. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* calloc that can be told to fail: after memory_fail_after(n), the n-th allocation from now returns NULL (tests; 0:
   never). */
void *memory_zeroed(size_t count, size_t bytes);
/* A zeroed block that starts on a cache-line boundary; NULL when out of memory; freed with free. */
void *memory_aligned(size_t bytes);
/* Room for one more of `bytes` each: returns the array, moved if need be, with *room grown; NULL when out of memory
   (array kept). */
void *memory_grow(void *array, int count, int *room, size_t bytes);
/* Gives the room beyond `count` back: returns the array, moved if need be. */
void *memory_trim(void *array, int count, int *room, size_t bytes);
void memory_fail_after(int allocations);

/* false when the result does not fit */
static inline bool size_multiply(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool size_add(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }
static inline size_t size_smaller(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t size_larger(size_t a, size_t b) { return a > b ? a : b; }
static inline size_t size_round_up(size_t n, size_t step) { return (n + step - 1) / step * step; }
