/* Maps memory of other ranks. A view (processes/views.h) ends with its group, but a program may use mapped memory for
   longer. So the window duplicates the pages of the view for itself. */
#include "backend/base/memory.h"
#include "backend/memory/memfd.h"
#include "backend/processes/views.h"
#include "backend/window/window.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

/* Maps the pages of `bytes` bytes at `at` a second time, and sets *out to the new address of these bytes. mremap
   duplicates a shared mapping if its old size is 0. */
static tutti_status mapping_duplicate(struct window_mapping *m, unsigned char *at, size_t bytes, unsigned char **out)
{
    size_t inside = (uintptr_t)at % page_bytes();
    m->bytes = size_round_up(inside + bytes, page_bytes());
    void *base = mremap(at - inside, 0, m->bytes, MREMAP_MAYMOVE);
    if (base == MAP_FAILED)
        return status_fail(TUTTI_NO_MEMORY, "mremap of %zu bytes of a peer's window: %s", m->bytes, strerror(errno));
    m->base = base;
    *out = (unsigned char *)base + inside;
    return TUTTI_OK;
}
/* Maps the memory that a rank of another process has offered. IN_PROGRESS: the view has been requested; the caller
   calls again. */
static tutti_status window_map_view(struct window_peer *p, const struct window_offer *offer, struct peer *process)
{
    tutti_status status = view_acquire(process, offer->at.block, &p->mapping.view);
    if (status != TUTTI_OK) return status;
    unsigned char *at = view_address_at(p->mapping.view, offer->at.offset, offer->bytes);
    if (!at) return status_fail(TUTTI_INVALID_ARGUMENT, "the memory of a window passes the end of its block");
    TRY(mapping_duplicate(&p->mapping, at, (size_t)offer->bytes, &p->memory));
    view_release(p->mapping.view);
    p->mapping.view = NULL;
    return TUTTI_OK;
}
tutti_status window_map_peer(struct tutti_window *w, int rank, const struct window_offer *offer, struct peer *process)
{
    struct window_peer *p = &w->peers[rank];
    if (rank == w->rank) p->memory = w->memory;
    else if (offer->bytes && process) {
        tutti_status status = window_map_view(p, offer, process);
        if (status != TUTTI_OK) return status;
    } else if (offer->bytes) {
        p->memory = arena_location_address(offer->at, offer->bytes);
        if (!p->memory) return status_fail(TUTTI_INVALID_ARGUMENT, "rank %d has freed its window", rank);
    }
    p->direct = true;
    return TUTTI_OK;
}
void window_unmap_peer(struct window_peer *p)
{
    view_release(p->mapping.view);
    if (p->mapping.base) munmap(p->mapping.base, p->mapping.bytes);
    p->mapping = (struct window_mapping){ .view = NULL };
}
