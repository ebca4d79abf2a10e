/* Hands out parts of memory that somebody else has mapped: first fit in bins of similar sizes, and neighbours that are
 * free become one. What it knows about the memory it keeps elsewhere, so writing beyond a part breaks no heap. Not safe
 * for several threads at a time. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HEAP_UNIT = 64, HEAP_BINS = 240 };               /* parts are multiples of a cache line, and begin on one */
struct extent;
struct heap {
    struct extent *bins[HEAP_BINS];                     /* what is free, by size */
    struct extent **rows;                               /* what is not, by address */
    size_t row_count, taken;                            /* taken: parts handed out */
};
/* A new region to hand out; its address and size are multiples of the unit. false: no memory for the book-keeping. */
bool heap_add(struct heap *heap, void *region, size_t bytes);
/* A part of so many bytes (rounded up to whole units) that begins at a multiple of alignment, a power of two; NULL: no
   region has room, or no memory for the book-keeping. */
void *heap_take(struct heap *heap, size_t bytes, size_t alignment);
/* false: no part begins there. *region: the region it was part of, if that is now wholly free, else NULL. */
bool heap_give(struct heap *heap, void *at, void **region);
void heap_remove(struct heap *heap, void *region);      /* one that is wholly free */
void heap_finish(struct heap *heap);                    /* forgets everything */
