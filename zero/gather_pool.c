/* A spare buffer serves a unit that needs at least four fifths of it. So units of similar sizes share buffers, and a
   small unit does not occupy a large buffer. */
#include "zero/gather_pool.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "zero/pages.h"
#include <stdlib.h>

/* ---- buffers ---- */
void gather_buffer_free(struct gather_buffer *b)
{
    if (!b) return;
    pages_release_range(b->alias, b->bytes);
    tutti_mem_free(b->memory);
    free(b);
}
/* Allocates the parts of a buffer. */
static tutti_status gather_buffer_init(struct gather_buffer *b, size_t bytes)
{
    b->bytes = bytes;
    TRY(tutti_mem_alloc(&b->memory, size_larger(bytes, WHOLE_PAGES_BYTES)));
    return pages_alias_range(b->memory, bytes, NULL, &b->alias);
}
/* Makes a buffer, which gather_buffer_free frees. */
static tutti_status gather_buffer_create(size_t bytes, struct gather_buffer **out)
{
    struct gather_buffer *b = memory_alloc_zeroed(1, sizeof *b);
    tutti_status status = b ? gather_buffer_init(b, bytes)
                            : status_fail(TUTTI_NO_MEMORY, "zero: no memory for a buffer of gathered parameters");
    if (status == TUTTI_OK) *out = b;
    else gather_buffer_free(b);
    return status;
}

/* ---- the pool ---- */
/* Removes a spare buffer from the list. `link` points to it. */
static struct gather_buffer *gather_pool_remove(struct gather_pool *pool, struct gather_buffer **link)
{
    struct gather_buffer *b = *link;
    *link = b->next;
    pool->spare_bytes -= b->bytes;
    return b;
}
/* Frees spare buffers until another `bytes` bytes fit below the limit. */
static void gather_pool_make_room(struct gather_pool *pool, size_t bytes)
{
    while (pool->spare && pool->used_bytes + pool->spare_bytes + bytes > pool->limit_bytes)
        gather_buffer_free(gather_pool_remove(pool, &pool->spare));
}
void gather_pool_finish(struct gather_pool *pool)
{
    while (pool->spare) gather_buffer_free(gather_pool_remove(pool, &pool->spare));
}
/* Returns the smallest spare buffer that serves `bytes` bytes, removed from the list, or NULL. */
static struct gather_buffer *gather_pool_take_spare(struct gather_pool *pool, size_t bytes)
{
    struct gather_buffer **best = NULL;
    for (struct gather_buffer **link = &pool->spare; *link; link = &(*link)->next) {
        bool serves = (*link)->bytes >= bytes && (*link)->bytes - bytes <= bytes / 4;
        if (serves && (!best || (*link)->bytes < (*best)->bytes)) best = link;
    }
    return best ? gather_pool_remove(pool, best) : NULL;
}
tutti_status gather_pool_take(struct gather_pool *pool, size_t bytes, bool exceeds, struct gather_buffer **out)
{
    struct gather_buffer *b = gather_pool_take_spare(pool, bytes);
    size_t needed = pool->used_bytes + (b ? b->bytes : bytes);
    if (!exceeds) pool->most_bytes = size_larger(pool->most_bytes, needed);
    pool->limit_bytes = size_larger(pool->limit_bytes, pool->most_bytes);
    if (!b) {
        gather_pool_make_room(pool, bytes);
        TRY(gather_buffer_create(bytes, &b));
    }
    pool->used_bytes += b->bytes;
    *out = b;
    return TUTTI_OK;
}
void gather_pool_end_step(struct gather_pool *pool)
{
    pool->limit_bytes = pool->most_bytes;
    pool->most_bytes = pool->used_bytes;
    gather_pool_make_room(pool, 0);
}
void gather_pool_return(struct gather_pool *pool, struct gather_buffer *b)
{
    pool->used_bytes -= b->bytes;
    if (pool->used_bytes + pool->spare_bytes + b->bytes > pool->limit_bytes) {
        gather_buffer_free(b);
        return;
    }
    b->next = pool->spare;
    pool->spare = b;
    pool->spare_bytes += b->bytes;
}
