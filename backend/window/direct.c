/* Direct writes into the memory of a rank of this host. A writer sets `copying`, then reads `taken_back`. The owner
   sets `taken_back`, then reads `copying`. These accesses are sequentially consistent, so either the writer does not
   write, or the owner waits for it. A large copy takes several turns and is checked in each. */
#include "backend/base/memory.h"
#include "backend/window/window.h"
#include <string.h>

enum { PART_BYTES = 4 << 20 };

/* Begins to write a peer's memory, which stays valid until window_end_copying. PEER_LOST, without a text: the peer has
   taken it back. */
static tutti_status window_begin_copying(struct tutti_window *w, int peer)
{
    atomic_store(&w->row->copying, (uint32_t)peer + 1);
    if (!atomic_load(&w->peers[peer].row->taken_back)) return TUTTI_OK;
    atomic_store(&w->row->copying, 0);
    return TUTTI_PEER_LOST;
}
static void window_end_copying(struct tutti_window *w)
{
    atomic_store_explicit(&w->row->copying, 0, memory_order_release);
}
tutti_status window_copy_part(struct tutti_window *w, int peer, uint64_t offset, const void *from, size_t bytes,
    size_t *copied_bytes)
{
    size_t part = size_smaller(bytes - *copied_bytes, PART_BYTES);
    TRY(window_begin_copying(w, peer));
    if (part)
        memmove(w->peers[peer].memory + offset + *copied_bytes, (const unsigned char *)from + *copied_bytes, part);
    window_end_copying(w);
    *copied_bytes += part;
    return *copied_bytes == bytes ? TUTTI_OK : TUTTI_IN_PROGRESS;
}
tutti_status window_signal_directly(struct tutti_window *w, int peer)
{
    TRY(window_begin_copying(w, peer));
    atomic_fetch_add(&w->peers[peer].row->signals[w->rank].count, 1);
    window_end_copying(w);
    return TUTTI_OK;
}
void window_count_signal(struct tutti_window *w, int from) { atomic_fetch_add(&w->row->signals[from].count, 1); }
bool window_has_signal(const struct tutti_window *w, int from)
{
    return atomic_load_explicit(&w->row->signals[from].count, memory_order_acquire) != w->peers[from].awaited;
}
bool window_take_signal(struct tutti_window *w, int from)
{
    bool found = window_has_signal(w, from);
    w->peers[from].awaited += found;
    return found;
}
void window_take_back(struct tutti_window *w) { atomic_store(&w->row->taken_back, 1); }
bool window_peer_is_copying(const struct tutti_window *w, int peer)
{
    const struct window_row *row = w->peers[peer].row;
    return row && atomic_load(&row->copying) == (uint32_t)w->rank + 1;
}
