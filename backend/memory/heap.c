/* A region is a list of extents in the order of their addresses, and two neighbours are never both free. A free
   extent is in the bin of its size, and a taken one in the hash table of addresses. */
#include "backend/memory/heap.h"
#include "backend/base/memory.h"
#include <assert.h>
#include <stdlib.h>

/* A free or taken part of a region. */
struct extent {
    unsigned char *at;
    size_t bytes;
    void *region;
    bool is_free;
    /* The neighbours in the region. */
    struct extent *before, *after;
    /* The neighbours in the bin, or in the row of the hash table. */
    struct extent *next, *previous;
};

/* ---- lists ---- */
/* Returns the bin of a size; each power of two of units has four bins. */
static int heap_bin_of_size(size_t bytes)
{
    size_t units = bytes / HEAP_UNIT;
    if (units < 4) return (int)units;
    int level = 63 - __builtin_clzll(units);
    return 4 * (level - 1) + (int)(units >> (level - 2) & 3);
}
/* Returns the row of the hash table for the taken extent at this address. */
static struct extent **heap_row_of(const struct heap *heap, const void *at)
{
    uint64_t mixed = (uint64_t)(uintptr_t)at / HEAP_UNIT * 0x9e3779b97f4a7c15u;
    return &heap->rows[(mixed >> 32) & (heap->row_count - 1)];
}
/* Adds an extent at the beginning of a bin or a row. */
static void extent_list_push(struct extent **list, struct extent *extent)
{
    extent->previous = NULL;
    extent->next = *list;
    if (extent->next) extent->next->previous = extent;
    *list = extent;
}
static void extent_list_remove(struct extent **list, struct extent *extent)
{
    if (extent->next) extent->next->previous = extent->previous;
    if (extent->previous) extent->previous->next = extent->next;
    else *list = extent->next;
}
/* Doubles the hash table if it has fewer rows than extents after one more is taken. Returns false if memory is
   short. */
static bool heap_grow_rows(struct heap *heap)
{
    if (heap->taken < heap->row_count) return true;
    size_t count = heap->row_count ? 2 * heap->row_count : 64;
    struct heap larger = { .row_count = count, .rows = memory_alloc_zeroed(count, sizeof *larger.rows) };
    if (!larger.rows) return false;
    for (size_t row = 0; row < heap->row_count; row++)
        for (struct extent *extent = heap->rows[row], *next; extent; extent = next) {
            next = extent->next;
            extent_list_push(heap_row_of(&larger, extent->at), extent);
        }
    free(heap->rows);
    heap->rows = larger.rows;
    heap->row_count = count;
    return true;
}

/* ---- extents ---- */
/* Shortens a free extent to its first `bytes` bytes, and makes the rest an extent of its own behind it. Both are in no
   bin. Returns false if memory is short. */
static bool extent_split(struct extent *extent, size_t bytes)
{
    if (extent->bytes == bytes) return true;
    struct extent *rest = memory_alloc_zeroed(1, sizeof *rest);
    if (!rest) return false;
    *rest = (struct extent){ extent->at + bytes, extent->bytes - bytes, extent->region, true, extent, extent->after,
        NULL, NULL };
    if (rest->after) rest->after->before = rest;
    extent->after = rest;
    extent->bytes = bytes;
    return true;
}
/* Appends `next`, the extent directly behind `extent`, to `extent`, and frees its entry. Both are free, and `next` is
   in no bin. */
static void extent_absorb(struct extent *extent, struct extent *next)
{
    extent->bytes += next->bytes;
    extent->after = next->after;
    if (extent->after) extent->after->before = extent;
    free(next);
}
/* Marks an extent as free, merges it with its free neighbours, puts the result into a bin and returns it. */
static struct extent *extent_merge(struct heap *heap, struct extent *extent)
{
    struct extent *after = extent->after, *before = extent->before;
    extent->is_free = true;
    if (after && after->is_free) {
        extent_list_remove(&heap->bins[heap_bin_of_size(after->bytes)], after);
        extent_absorb(extent, after);
    }
    if (before && before->is_free) {
        extent_list_remove(&heap->bins[heap_bin_of_size(before->bytes)], before);
        extent_absorb(before, extent);
        extent = before;
    }
    extent_list_push(&heap->bins[heap_bin_of_size(extent->bytes)], extent);
    return extent;
}

/* ---- the heap ---- */
bool heap_add_region(struct heap *heap, void *region, size_t bytes)
{
    assert((uintptr_t)region % HEAP_UNIT == 0 && bytes && bytes % HEAP_UNIT == 0);
    struct extent *extent = memory_alloc_zeroed(1, sizeof *extent);
    if (!extent) return false;
    *extent = (struct extent){ .at = region, .bytes = bytes, .region = region, .is_free = true };
    extent_list_push(&heap->bins[heap_bin_of_size(bytes)], extent);
    return true;
}
/* Returns the bytes from the beginning of an extent to the next multiple of the alignment. */
static size_t extent_padding(const struct extent *extent, size_t alignment)
{
    return -(uintptr_t)extent->at & (alignment - 1);
}
/* Returns a free extent with room for `bytes` bytes at a multiple of the alignment, or NULL. */
static struct extent *heap_find_room(const struct heap *heap, size_t bytes, size_t alignment)
{
    for (int bin = heap_bin_of_size(bytes); bin < HEAP_BINS; bin++)
        for (struct extent *extent = heap->bins[bin]; extent; extent = extent->next)
            if (extent->bytes >= bytes && extent->bytes - bytes >= extent_padding(extent, alignment)) return extent;
    return NULL;
}
void *heap_allocate(struct heap *heap, size_t bytes, size_t alignment)
{
    if (bytes > SIZE_MAX - HEAP_UNIT) return NULL;
    bytes = size_round_up(bytes ? bytes : 1, HEAP_UNIT);
    struct extent *extent = heap_grow_rows(heap) ? heap_find_room(heap, bytes, alignment) : NULL, *front = extent;
    if (!extent) return NULL;
    extent_list_remove(&heap->bins[heap_bin_of_size(extent->bytes)], extent);
    size_t skipped = extent_padding(extent, alignment);
    bool is_split = !skipped || extent_split(extent, skipped);
    if (is_split && skipped) extent = front->after;
    if (is_split) is_split = extent_split(extent, bytes);
    /* After a failed split the pieces are merged again. */
    if (!is_split) {
        if (extent != front) extent_absorb(front, extent);
        extent_list_push(&heap->bins[heap_bin_of_size(front->bytes)], front);
        return NULL;
    }
    if (extent != front) extent_list_push(&heap->bins[heap_bin_of_size(front->bytes)], front);
    if (extent->after && extent->after->is_free)
        extent_list_push(&heap->bins[heap_bin_of_size(extent->after->bytes)], extent->after);
    extent->is_free = false;
    extent_list_push(heap_row_of(heap, extent->at), extent);
    heap->taken++;
    return extent->at;
}
bool heap_free(struct heap *heap, void *at, void **region)
{
    struct extent *extent = heap->row_count ? *heap_row_of(heap, at) : NULL;
    while (extent && extent->at != at) extent = extent->next;
    if (!extent) return false;
    extent_list_remove(heap_row_of(heap, at), extent);
    heap->taken--;
    extent = extent_merge(heap, extent);
    *region = extent->before || extent->after ? NULL : extent->region;
    return true;
}
void heap_remove_region(struct heap *heap, void *region)
{
    for (int bin = 0; bin < HEAP_BINS; bin++)
        for (struct extent *extent = heap->bins[bin]; extent; extent = extent->next) {
            if (extent->at != region) continue;
            assert(!extent->before && !extent->after);
            extent_list_remove(&heap->bins[bin], extent);
            free(extent);
            return;
        }
}
/* Frees the entries of all extents of a list. */
static void extent_list_free(struct extent *extent)
{
    for (struct extent *next; extent; extent = next) {
        next = extent->next;
        free(extent);
    }
}
void heap_finish(struct heap *heap)
{
    for (int bin = 0; bin < HEAP_BINS; bin++) extent_list_free(heap->bins[bin]);
    for (size_t row = 0; row < heap->row_count; row++) extent_list_free(heap->rows[row]);
    free(heap->rows);
    *heap = (struct heap){ 0 };
}
