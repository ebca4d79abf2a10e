/* Makes and frees a window. */
#include "backend/window/window.h"
#include "backend/base/memory.h"
#include "backend/memory/common.h"
#include <stdlib.h>

tutti_status window_create(int rank, int size, void *memory, size_t bytes, tutti_dtype dtype, struct tutti_window **out)
{
    struct tutti_window *w = memory_alloc_zeroed(1, sizeof *w);
    struct window_peer *peers = memory_alloc_zeroed((size_t)size, sizeof *peers);
    if (!w || !peers) {
        free(w);
        free(peers);
        return status_fail(TUTTI_NO_MEMORY, "no memory for a window between %d ranks", size);
    }
    *w = (struct tutti_window){ .rank = rank, .size = size, .memory = memory, .bytes = bytes, .dtype = dtype };
    w->peers = peers;
    w->holders = w->references = 1;
    *out = w;
    return TUTTI_OK;
}
void window_describe_memory(const struct tutti_window *w, struct window_offer *out)
{
    *out = (struct window_offer){ .bytes = w->bytes, .dtype = w->dtype };
    if (!arena_find(w->memory, w->bytes, &out->at)) out->at = (struct location){ 0, 0 };
}
/* The memory is in the arena. A window without bytes has nothing to map. */
bool window_offer_is_direct(const struct window_offer *offer) { return offer->at.block || !offer->bytes; }
void window_release(struct tutti_window *w)
{
    if (!w || atomic_fetch_sub(&w->holders, 1) != 1) return;
    for (int r = 0; r < w->size; r++) {
        window_unmap_peer(&w->peers[r]);
        free(w->peers[r].inbound);
        free(w->peers[r].revocations);
    }
    if (w->shared) shared_mapping_leave_at(w->shared);
    free(w->peers);
    free(w);
}
