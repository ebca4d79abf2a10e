/* A process requests a block from its owner (WANTED). The owner's watch thread answers with a descriptor (BLOCK), or
 * without one if the block no longer exists. The answer is lost if the requester does not read, so the requester asks
 * again. registry.lock protects everything here.
 *
 * A thread that waits for an answer holds the view. A view without holders that is not mapped is destroyed, so a
 * refusal does not reach a later operation, when the shortage may be over. Each view requests under a number of its
 * own, so a refusal in flight does not reach a later view either. */
#include "backend/processes/views.h"
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/host/wait.h"
#include "backend/memory/arena.h"
#include "backend/processes/registry.h"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REQUEST_GAP_MS = 50 };
/* A block of a peer's arena. */
struct view {
    struct peer *peer;
    /* `block` is the number of the block in the peer, and `number` is that of this view's requests. */
    uint64_t block, number;
    enum { VIEW_ASKED, VIEW_MAPPED, VIEW_REFUSED } state;
    /* The time of the next request while VIEW_ASKED. */
    int64_t next_request_ms;
    /* The number of holders. */
    int users;
    /* The mapping while VIEW_MAPPED. */
    void *base;
    size_t bytes;
    /* The error of VIEW_REFUSED. */
    tutti_status status;
    char detail[256];
    struct view *next;
};
/* The token of a WANTED packet. */
struct view_order { uint64_t block, number; };
/* The token of a BLOCK packet. `bytes` is 0 if the block does not exist. */
struct view_answer { uint64_t number, bytes; };
static uint64_t last_number;
/* `arrivals` is a bell that rings when an answer has arrived, and `sleepers` counts the threads that sleep on it. */
static _Atomic uint32_t arrivals, sleepers;

void views_add_to_wait(struct wait_set *set)
{
    wait_set_add(set, &arrivals, atomic_load_explicit(&arrivals, memory_order_acquire), &sleepers, false);
}
unsigned char *view_address_at(const struct view *view, uint64_t offset, uint64_t bytes)
{
    bool inside = offset <= view->bytes && bytes <= view->bytes - offset;
    return inside ? (unsigned char *)view->base + offset : NULL;
}

/* ---- the list of a peer ---- */
/* Unmaps a peer's block and frees its view. */
static void view_destroy(struct view *view)
{
    struct view **at = &view->peer->views;
    while (*at != view) at = &(*at)->next;
    *at = view->next;
    if (view->state == VIEW_MAPPED) arena_detach(view->base, view->bytes);
    free(view);
}
/* Returns true if the view has no users, and is not mapped or its owner has freed the block. Until then a mapped view
   stays. */
static bool view_may_be_destroyed(const struct view *view)
{
    return view->users == 0 && (view->state != VIEW_MAPPED || arena_block_is_retired(view->base));
}
/* Returns the peer's view of that block, or NULL. A refused view does not count. */
static struct view *view_find(const struct peer *peer, uint64_t block)
{
    struct view *view = peer->views;
    while (view && (view->block != block || view->state == VIEW_REFUSED)) view = view->next;
    return view;
}
/* Adds a view for a block of the peer, after it has destroyed those views of the peer that may be destroyed. Returns
   NULL if memory is short. */
static struct view *view_add(struct peer *peer, uint64_t block)
{
    for (struct view *view = peer->views, *next; view; view = next) {
        next = view->next;
        if (view_may_be_destroyed(view)) view_destroy(view);
    }
    struct view *view = memory_alloc_zeroed(1, sizeof *view);
    if (!view) return NULL;
    *view = (struct view){ .peer = peer, .block = block, .number = ++last_number, .next = peer->views };
    return peer->views = view;
}
void views_free_all(struct peer *peer)
{
    while (peer->views) {
        assert(peer->views->users == 0);
        view_destroy(peer->views);
    }
}

/* ---- asking ---- */
static_assert(sizeof(struct view_order) == 16 && sizeof(struct view_answer) == 16, "they are tokens");
/* Sends a request for the block if it is time. Returns IN_PROGRESS, also if the peer is gone, which the watch thread
   reports. */
static tutti_status view_request_block(struct view *view)
{
    struct peer *peer = view->peer;
    struct view_order order = { view->block, view->number };
    unsigned char token[sizeof order];
    memcpy(token, &order, sizeof token);
    if (peer->state != OPEN || clock_ms() < view->next_request_ms) return TUTTI_IN_PROGRESS;
    if (peer_send_packet(peer, WANTED, token, -1) == 0) view->next_request_ms = clock_ms() + REQUEST_GAP_MS;
    return TUTTI_IN_PROGRESS;
}
/* Ends one use of the view, and destroys it if it may be. */
static void view_drop(struct view *view)
{
    view->users--;
    if (view_may_be_destroyed(view)) view_destroy(view);
}
/* Does view_acquire; the caller holds registry.lock. A refused view is dropped, so a later call requests the block
   again. */
static tutti_status view_acquire_locked(struct peer *peer, uint64_t block, struct view **held)
{
    struct view *view = *held;
    if (!view && !(view = view_find(peer, block)) && !(view = view_add(peer, block)))
        return status_fail(TUTTI_NO_MEMORY, "no memory to map shared tensors of a peer");
    if (!*held) view->users++;
    *held = view;
    if (view->state == VIEW_MAPPED) return TUTTI_OK;
    if (view->state == VIEW_ASKED) return view_request_block(view);
    tutti_status status = status_repeat(view->status, view->detail);
    view_drop(view);
    *held = NULL;
    return status;
}
tutti_status view_acquire(struct peer *peer, uint64_t block, struct view **held)
{
    pthread_mutex_lock(&registry.lock);
    tutti_status status = view_acquire_locked(peer, block, held);
    pthread_mutex_unlock(&registry.lock);
    return status;
}
void view_release(struct view *view)
{
    if (!view) return;
    pthread_mutex_lock(&registry.lock);
    view_drop(view);
    pthread_mutex_unlock(&registry.lock);
}

/* ---- answering; on the watch thread ---- */
void views_send_block(struct peer *peer, const unsigned char token[16])
{
    struct view_order order;
    unsigned char reply[sizeof(struct view_answer)];
    size_t bytes = 0;
    memcpy(&order, token, sizeof order);
    int descriptor = arena_copy_descriptor(order.block, &bytes);
    memcpy(reply, &(struct view_answer){ order.number, bytes }, sizeof reply);
    peer_send_packet(peer, BLOCK, reply, descriptor < 0 ? -1 : descriptor);
    if (descriptor >= 0) close(descriptor);
}
/* Maps the block of `bytes` bytes whose descriptor has arrived. `attached_fd` is closed; -1 means that no descriptor
   has arrived. */
static tutti_status view_map(struct view *view, size_t bytes, int attached_fd)
{
    char whose[80];
    snprintf(whose, sizeof whose, "process %llu's", (unsigned long long)view->peer->identity.pid);
    view->bytes = bytes;
    if (attached_fd >= 0) return arena_attach(attached_fd, view->block, bytes, whose, &view->base);
    if (bytes)
        return status_fail(TUTTI_SYSTEM,
            "%s shared tensors arrived without their file descriptor: too many open files, there or here? see "
            "ulimit -n",
            whose);
    return status_fail(TUTTI_INVALID_ARGUMENT, "%s shared tensor was freed while an operation used it", whose);
}
void views_receive_block(struct peer *peer, const unsigned char token[16], int attached_fd)
{
    struct view_answer answer;
    memcpy(&answer, token, sizeof answer);
    struct view *view = peer->views;
    while (view && view->number != answer.number) view = view->next;
    /* The view was released, or a repeated request got a second answer. */
    if (!view || view->state != VIEW_ASKED) {
        descriptor_close(&attached_fd);
        return;
    }
    view->status = view_map(view, answer.bytes, attached_fd);
    view->state = view->status == TUTTI_OK ? VIEW_MAPPED : VIEW_REFUSED;
    if (view->status != TUTTI_OK) snprintf(view->detail, sizeof view->detail, "%.250s", status_detail());
    word_ring_bell(&arrivals, &sleepers, false);
}
