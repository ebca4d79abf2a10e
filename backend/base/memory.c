/* Every allocation of an array or struct in the library passes through this file, so that a test can make each fail in
   turn. */
#include "backend/base/memory.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* The number of allocations until one fails for a test. It is not positive if none will. */
static atomic_int countdown;

int memory_fail_after(int n) { return atomic_exchange(&countdown, n); }
/* Counts an allocation down. Returns true if it is the one that a test wants to fail. */
static bool memory_take_failure(void)
{
    return atomic_load_explicit(&countdown, memory_order_relaxed) > 0 && atomic_fetch_sub(&countdown, 1) == 1;
}
void *memory_alloc_zeroed(size_t count, size_t bytes)
{
    return memory_take_failure() ? NULL : calloc(count ? count : 1, bytes ? bytes : 1);
}
void *memory_alloc_aligned(size_t bytes)
{
    void *block = memory_take_failure() ? NULL : aligned_alloc(64, size_round_up(bytes ? bytes : 1, 64));
    if (block) memset(block, 0, bytes);
    return block;
}
void *memory_alloc_sparse(size_t bytes)
{
    if (memory_take_failure()) return NULL;
    void *block =
        mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block == MAP_FAILED) return NULL;
    /* A huge page would allocate the entries around a used one, too. */
    madvise(block, bytes, MADV_NOHUGEPAGE);
    return block;
}
void memory_free_sparse(void *block, size_t bytes)
{
    if (block) munmap(block, bytes ? bytes : 1);
}
void *memory_grow(void *array, int count, int *capacity, size_t bytes)
{
    if (count < *capacity) return array;
    int larger = *capacity ? 2 * *capacity : 8;
    void *moved = memory_take_failure() ? NULL : realloc(array, (size_t)larger * bytes);
    if (moved) *capacity = larger;
    return moved;
}
void *memory_trim(void *array, int count, int *capacity, size_t bytes)
{
    if (!array || !count || memory_take_failure()) return array;
    void *moved = realloc(array, (size_t)count * bytes);
    if (moved) *capacity = count;
    return moved ? moved : array;
}
