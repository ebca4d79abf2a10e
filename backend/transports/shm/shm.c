/* The contract and the lifetime of the shm transport; link.c has the protocol. A rank polls only peers with an open
   pair. A peer that opens its pair rings the rank's doorbell. All state of a rank is in private memory, so a peer that
   dies leaves no lock behind. */
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/transports/shm/link.h"
#include <stdlib.h>

/* ---- the contract ---- */
static void shm_send(struct transport *transport, int member, struct transfer *transfer)
{
    struct shm *shm = (struct shm *)transport;
    shm_link_send(shm, &shm->links[member], transfer);
}
static void shm_accept(struct transport *transport, int member, struct transfer *transfer,
    const struct arrival *arrival)
{
    struct shm *shm = (struct shm *)transport;
    const struct envelope announced = { arrival->name, arrival->bytes, arrival->id, ENVELOPE_ANNOUNCE,
        arrival->location };
    shm_link_accept_receive(shm, &shm->links[member], transfer, &announced);
    shm_link_settle(shm, &shm->links[member]);
}
static void shm_release(struct transport *transport, int member, uint64_t bytes)
{
    reader_return_credit(&((struct shm *)transport)->links[member].in, bytes);
}
/* Opens the incoming side of the links to all peers that have rung the doorbell, whose count is now `open_count`. */
static void shm_answer_doorbell(struct shm *shm, uint32_t open_count)
{
    shm->opens_seen = open_count;
    for (int i = 0; i < shm->count; i++)
        if (atomic_load_explicit(&shm->doorbell->opened_by[i / 32], memory_order_relaxed) >> i % 32 & 1)
            shm_link_open_incoming(shm, &shm->links[i]);
}
static bool shm_poll(struct transport *transport)
{
    struct shm *shm = (struct shm *)transport;
    uint32_t open_count = atomic_load_explicit(&shm->doorbell->open_count, memory_order_acquire);
    if (open_count != shm->opens_seen) shm_answer_doorbell(shm, open_count);
    bool moved = false;
    /* A link that becomes active during this poll is first polled in the next one. */
    struct shm_link **end = shm->active + shm->active_count;
    for (struct shm_link **l = shm->active; l < end; l++)
        if (!shm_link_is_quiet(*l)) moved |= shm_link_poll(shm, *l);
    return moved;
}
/* Forgets a transfer. This is possible at any time: a peer uses only shared memory, and the tensors of transfers with
   may_share, whose callers reuse the memory only after the peer has reported that it no longer uses it. */
static bool shm_cancel(struct transport *transport, int member, struct transfer *transfer)
{
    struct shm *shm = (struct shm *)transport;
    shm_link_cancel_transfer(shm, &shm->links[member], transfer);
    return true;
}
static void shm_lose(struct transport *transport, int member, tutti_status status)
{
    struct shm *shm = (struct shm *)transport;
    shm_link_lose_peer(shm, &shm->links[member], status);
}

/* ---- lifetime ---- */
/* Frees a list of queued envelopes. */
static void queued_envelopes_free(struct queued_envelope *queued)
{
    for (struct queued_envelope *next; queued; queued = next) {
        next = queued->next;
        free(queued);
    }
}
static void shm_destroy(struct transport *transport)
{
    struct shm *shm = (struct shm *)transport;
    for (int i = 0; shm->links && i < shm->count; i++) queued_envelopes_free(shm->links[i].queued);
    queued_envelopes_free(shm->free_envelopes);
    memory_free_sparse(shm->active, (size_t)shm->count * sizeof(struct shm_link *));
    memory_free_sparse(shm->links, (size_t)shm->count * sizeof *shm->links);
    free(shm);
}
static const struct transport_operations operations = { .name = "shm",
    .send = shm_send,
    .accept = shm_accept,
    .release = shm_release,
    .poll = shm_poll,
    .cancel = shm_cancel,
    .lose = shm_lose,
    .destroy = shm_destroy };

size_t shm_pair_bytes(void) { return sizeof(struct pair); }
/* Returns a transport between `count` ranks that is not connected yet, or NULL if memory is exhausted. */
static struct shm *shm_new(const struct shm_callbacks *callbacks, int count)
{
    struct shm *shm = memory_alloc_aligned(sizeof *shm);
    if (!shm) return NULL;
    shm->base = (struct transport){ .operations = &operations };
    shm->callbacks = *callbacks;
    shm->count = count;
    shm->links = memory_alloc_sparse((size_t)count * sizeof *shm->links);
    shm->active = memory_alloc_sparse((size_t)count * sizeof *shm->active);
    if (shm->links && shm->active) return shm;
    shm_destroy(&shm->base);
    return NULL;
}
tutti_status shm_connect(struct router *router, const struct shm_callbacks *callbacks, int me, const int *ranks,
    int count)
{
    if (count > DOORBELL_RANKS)
        return status_fail(TUTTI_UNSUPPORTED, "%d ranks on one host: the shm transport serves %d", count,
            DOORBELL_RANKS);
    struct pair *mine = (struct pair *)(void *)callbacks->pair(callbacks->context, me, me);
    TRY(callbacks->reserve(callbacks->context, mine, PAIR_PAGE));
    struct shm *shm = shm_new(callbacks, count);
    if (!shm)
        return status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for the transport between %d ranks", router->rank,
            count);
    shm->base.router = router;
    shm->matching = &router->matching;
    shm->doorbell = &mine->doorbell;
    shm->me = me;
    shm->ranks = ranks;
    shm->pipes_kept = PIPES_KEPT;
    router_add_transport(router, &shm->base, ranks, count);
    return TUTTI_OK;
}
