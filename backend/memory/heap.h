/* Allocates parts of memory that the caller has mapped: first fit in bins of similar sizes, and free neighbours are
 * merged. The heap keeps its data outside of that memory, so a write beyond a part cannot corrupt the heap. Only one
 * thread may use a heap at a time. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Parts are multiples of a cache line, and begin on one. */
enum { HEAP_UNIT = 64, HEAP_BINS = 240 };
struct extent;
/* A heap starts zeroed. */
struct heap {
    /* The bins hold free extents by size, and the rows taken ones by address; `taken` counts the latter. */
    struct extent *bins[HEAP_BINS];
    struct extent **rows;
    size_t row_count, taken;
};
/* Adds a free region whose address and size are multiples of HEAP_UNIT. Returns false if memory for the bookkeeping is
   short. */
bool heap_add_region(struct heap *heap, void *region, size_t bytes);
/* Allocates `bytes` bytes, rounded up to whole units, at a multiple of `alignment`, which is a power of two. Returns
   NULL if no region has room, or memory for the bookkeeping is short. */
void *heap_allocate(struct heap *heap, size_t bytes, size_t alignment);
/* Frees the part that begins at `at`; returns false if no part begins there. Sets *region to the region of the part if
   that region is now wholly free, otherwise to NULL. */
bool heap_free(struct heap *heap, void *at, void **region);
/* Removes a region that is wholly free. */
void heap_remove_region(struct heap *heap, void *region);
/* Frees the bookkeeping of all regions. */
void heap_finish(struct heap *heap);
