/* Every allocation of the library passes through this file, so that a test can make each of them fail in turn. */
#include "backend/base/memory.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_int countdown;

void memory_fail_after(int allocations) { atomic_store(&countdown, allocations); }
static bool memory_should_fail(void)
{
    return atomic_load_explicit(&countdown, memory_order_relaxed) > 0 && atomic_fetch_sub(&countdown, 1) == 1;
}
void *memory_alloc_zeroed(size_t count, size_t bytes)
{
    return memory_should_fail() ? NULL : calloc(count ? count : 1, bytes ? bytes : 1);
}
void *memory_alloc_aligned(size_t bytes)
{
    void *block = memory_should_fail() ? NULL : aligned_alloc(64, size_round_up(bytes ? bytes : 1, 64));
    if (block) memset(block, 0, bytes);
    return block;
}
void *memory_grow(void *array, int count, int *room, size_t bytes)
{
    if (count < *room) return array;
    int more = *room ? 2 * *room : 8;
    void *moved = memory_should_fail() ? NULL : realloc(array, (size_t)more * bytes);
    if (moved) *room = more;
    return moved;
}
void *memory_trim(void *array, int count, int *room, size_t bytes)
{
    void *moved = array && count ? realloc(array, (size_t)count * bytes) : NULL;
    if (moved) *room = count;
    return moved ? moved : array;
}
