/* Buffers in shared memory into which units are gathered. A unit's flat array maps one while the unit is whole. Freed
 * buffers serve the next gathers, so gathers need neither new memory nor page faults. */
#pragma once
#include "include/tutti.h"
#include <stdbool.h>

struct gather_buffer {
    struct gather_buffer *next;
    /* Gathers write to `memory`, which peers can reach. The entries of the page table that a flat array uses are at
       `alias` while the buffer is unused. The buffer owns both. */
    void *memory, *alias;
    size_t bytes;
};
/* Starts as zeros, and owns the list of spare buffers. The buffers together take at most limit_bytes: the most that was
   in use at one time without `exceeds`, in this step (most_bytes) or in the one before. */
struct gather_pool {
    struct gather_buffer *spare;
    size_t used_bytes, spare_bytes, most_bytes, limit_bytes;
};
void gather_pool_finish(struct gather_pool *pool);
/* Returns in *out an unused buffer of at least this size, or a new one. exceeds: the use does not raise the limit. */
tutti_status gather_pool_take(struct gather_pool *pool, size_t bytes, bool exceeds, struct gather_buffer **out);
/* Ends a step, and frees spare buffers that it did not need at one time. */
void gather_pool_end_step(struct gather_pool *pool);
/* Makes the buffer a spare one, or frees it if the limit is exceeded. */
void gather_pool_return(struct gather_pool *pool, struct gather_buffer *buffer);
void gather_buffer_free(struct gather_buffer *buffer);
