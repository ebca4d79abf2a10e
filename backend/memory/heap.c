/* A region is a list of extents in the order of their addresses, and two neighbours are never both free. A free
   extent is in the bin of its size, and a taken one in the hash table of addresses. */
#include "backend/memory/heap.h"
#include "backend/base/memory.h"
#include <assert.h>
#include <stdlib.h>

struct extent {
    unsigned char *at;
    size_t bytes;
    void *region;
    bool free;
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
static struct extent **heap_row_of(const struct heap *h, const void *at)
{
    uint64_t mixed = (uint64_t)(uintptr_t)at / HEAP_UNIT * 0x9e3779b97f4a7c15u;
    return &h->rows[(mixed >> 32) & (h->row_count - 1)];
}
static void extent_list_push(struct extent **list, struct extent *e)
{
    e->previous = NULL;
    e->next = *list;
    if (e->next) e->next->previous = e;
    *list = e;
}
static void extent_list_remove(struct extent **list, struct extent *e)
{
    if (e->next) e->next->previous = e->previous;
    if (e->previous) e->previous->next = e->next;
    else *list = e->next;
}
/* Keeps at least one row for each taken extent. */
static bool rows_grow(struct heap *h)
{
    if (h->taken < h->row_count) return true;
    size_t count = h->row_count ? 2 * h->row_count : 64;
    struct heap larger = { .row_count = count, .rows = memory_alloc_zeroed(count, sizeof *larger.rows) };
    if (!larger.rows) return false;
    for (size_t row = 0; row < h->row_count; row++)
        for (struct extent *e = h->rows[row], *next; e; e = next) {
            next = e->next;
            extent_list_push(heap_row_of(&larger, e->at), e);
        }
    free(h->rows);
    h->rows = larger.rows;
    h->row_count = count;
    return true;
}

/* ---- extents ---- */
/* Makes the part of a free extent behind its first `bytes` an extent of its own. Both are in no bin. */
static bool extent_split(struct extent *e, size_t bytes)
{
    if (e->bytes == bytes) return true;
    struct extent *rest = memory_alloc_zeroed(1, sizeof *rest);
    if (!rest) return false;
    *rest = (struct extent){ e->at + bytes, e->bytes - bytes, e->region, true, e, e->after, NULL, NULL };
    if (rest->after) rest->after->before = rest;
    e->after = rest;
    e->bytes = bytes;
    return true;
}
/* Adds the extent behind `e` to `e`; it must be free and in no bin. */
static void extent_absorb(struct extent *e, struct extent *next)
{
    e->bytes += next->bytes;
    e->after = next->after;
    if (e->after) e->after->before = e;
    free(next);
}
/* Merges a freed extent with its free neighbours, and puts the result into a bin. */
static struct extent *extent_merge(struct heap *h, struct extent *e)
{
    struct extent *after = e->after, *before = e->before;
    e->free = true;
    if (after && after->free) {
        extent_list_remove(&h->bins[heap_bin_of_size(after->bytes)], after);
        extent_absorb(e, after);
    }
    if (before && before->free) {
        extent_list_remove(&h->bins[heap_bin_of_size(before->bytes)], before);
        extent_absorb(before, e);
        e = before;
    }
    extent_list_push(&h->bins[heap_bin_of_size(e->bytes)], e);
    return e;
}

/* ---- the heap ---- */
bool heap_add(struct heap *h, void *region, size_t bytes)
{
    assert((uintptr_t)region % HEAP_UNIT == 0 && bytes && bytes % HEAP_UNIT == 0);
    struct extent *e = memory_alloc_zeroed(1, sizeof *e);
    if (!e) return false;
    *e = (struct extent){ .at = region, .bytes = bytes, .region = region, .free = true };
    extent_list_push(&h->bins[heap_bin_of_size(bytes)], e);
    return true;
}
static size_t extent_padding(const struct extent *e, size_t alignment) { return -(uintptr_t)e->at & (alignment - 1); }
static struct extent *heap_find_room(const struct heap *h, size_t bytes, size_t alignment)
{
    for (int bin = heap_bin_of_size(bytes); bin < HEAP_BINS; bin++)
        for (struct extent *e = h->bins[bin]; e; e = e->next)
            if (e->bytes >= bytes && e->bytes - bytes >= extent_padding(e, alignment)) return e;
    return NULL;
}
void *heap_take(struct heap *h, size_t bytes, size_t alignment)
{
    if (bytes > SIZE_MAX - HEAP_UNIT) return NULL;
    bytes = size_round_up(bytes ? bytes : 1, HEAP_UNIT);
    struct extent *e = rows_grow(h) ? heap_find_room(h, bytes, alignment) : NULL, *front = e;
    if (!e) return NULL;
    extent_list_remove(&h->bins[heap_bin_of_size(e->bytes)], e);
    size_t skipped = extent_padding(e, alignment);
    bool fine = !skipped || extent_split(e, skipped);
    if (fine && skipped) e = front->after;
    if (fine) fine = extent_split(e, bytes);
    /* After a failed split the pieces are merged again. */
    if (!fine) {
        if (e != front) extent_absorb(front, e);
        extent_list_push(&h->bins[heap_bin_of_size(front->bytes)], front);
        return NULL;
    }
    if (e != front) extent_list_push(&h->bins[heap_bin_of_size(front->bytes)], front);
    if (e->after && e->after->free) extent_list_push(&h->bins[heap_bin_of_size(e->after->bytes)], e->after);
    e->free = false;
    extent_list_push(heap_row_of(h, e->at), e);
    h->taken++;
    return e->at;
}
bool heap_give(struct heap *h, void *at, void **region)
{
    struct extent *e = h->row_count ? *heap_row_of(h, at) : NULL;
    while (e && e->at != at) e = e->next;
    if (!e) return false;
    extent_list_remove(heap_row_of(h, at), e);
    h->taken--;
    e = extent_merge(h, e);
    *region = e->before || e->after ? NULL : e->region;
    return true;
}
void heap_remove(struct heap *h, void *region)
{
    for (int bin = 0; bin < HEAP_BINS; bin++)
        for (struct extent *e = h->bins[bin]; e; e = e->next) {
            if (e->at != region) continue;
            assert(!e->before && !e->after);
            extent_list_remove(&h->bins[bin], e);
            free(e);
            return;
        }
}
static void extent_list_free(struct extent *e)
{
    for (struct extent *next; e; e = next) {
        next = e->next;
        free(e);
    }
}
void heap_finish(struct heap *h)
{
    for (int bin = 0; bin < HEAP_BINS; bin++) extent_list_free(h->bins[bin]);
    for (size_t row = 0; row < h->row_count; row++) extent_list_free(h->rows[row]);
    free(h->rows);
    *h = (struct heap){ 0 };
}
