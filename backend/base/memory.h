/* Memory and checked arithmetic on sizes. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Allocates zeroed memory, as calloc does. For tests, memory_fail_after(n) makes the n-th allocation from now return
   NULL; 0 turns this off. */
void *memory_alloc_zeroed(size_t count, size_t bytes);
/* Allocates a zeroed block that starts on a cache-line boundary, or returns NULL. The caller frees it with free. */
void *memory_alloc_aligned(size_t bytes);
/* Makes room for one more element of `bytes` bytes. It returns the array, which may have moved, and updates *room. If
   memory is short, it returns NULL and keeps the array. */
void *memory_grow(void *array, int count, int *room, size_t bytes);
/* Frees the room beyond `count` elements and returns the array, which may have moved. */
void *memory_trim(void *array, int count, int *room, size_t bytes);
void memory_fail_after(int allocations);

/* These functions return false if the result does not fit. */
static inline bool size_multiply(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool size_add(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }
static inline size_t size_smaller(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t size_larger(size_t a, size_t b) { return a > b ? a : b; }
static inline size_t size_round_up(size_t n, size_t step) { return (n + step - 1) / step * step; }
