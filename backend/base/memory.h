/* Memory and checked arithmetic on sizes. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Allocates `count` zeroed elements of `bytes` bytes each, at least 1 byte. Returns NULL if memory is short. The caller
   frees it with free. */
void *memory_alloc_zeroed(size_t count, size_t bytes);
/* Allocates a zeroed block at a multiple of 64 bytes. Returns NULL if memory is short. The caller frees it with
   free. */
void *memory_alloc_aligned(size_t bytes);
/* Reserves zeroed memory, of which only the pages that are used take memory: for tables with an entry for each rank, of
   which most are never used. Returns NULL if memory is short. The caller frees it with memory_free_sparse. */
void *memory_alloc_sparse(size_t bytes);
/* Frees what memory_alloc_sparse has returned for that many bytes. NULL is allowed. */
void memory_free_sparse(void *block, size_t bytes);
/* Makes room for one more element of `bytes` bytes in an array that has `count` of them. Doubles *capacity, which
   begins as 0 with array NULL, if it is used up. Returns the array, which may have moved. If memory is short, returns
   NULL, and the old array stays valid. */
void *memory_grow(void *array, int count, int *capacity, size_t bytes);
/* Frees the capacity beyond `count` elements of `bytes` bytes, and returns the array, which may have moved. Changes
   nothing if `count` is 0 or memory is short. */
void *memory_trim(void *array, int count, int *capacity, size_t bytes);
/* For tests: makes the n-th allocation from now fail; 0 turns this off. Returns the n that is left of an earlier call,
   which is not positive if that allocation has failed. */
int memory_fail_after(int n);

/* These two set *out, and return false if the result does not fit. */
static inline bool size_multiply(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool size_add(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }
static inline size_t size_smaller(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t size_larger(size_t a, size_t b) { return a > b ? a : b; }
/* Returns the smallest multiple of `step` that is at least n. The caller excludes overflow. */
static inline size_t size_round_up(size_t n, size_t step) { return (n + step - 1) / step * step; }
