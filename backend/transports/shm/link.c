/* The protocol with one peer. Small messages go into the ring at once. Large ones are announced with an id. When the
   receive of an announced message is posted, the receiver answers CLEAR. The sender then streams its cleared messages
   one after the other, in the order of the clearances, through the slots of its pipe. If one rank can reach the other's
   tensor, the message is copied instead (share.c). No call blocks: a transfer without room stays in a list of this rank
   and continues in a later poll.

   A posted transfer is in exactly one place. A send is in the outbox (not yet written), in `open` (announced), in
   `streams` (cleared), or is `helped`. A receive is in the matching (not met), in the outbox (met, not cleared), in
   `open` (cleared), or in `shares`. */
#include "backend/transports/shm/link.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"

/* ---- open transfers by id: a send by its own, a receive by its sender's ---- */
static struct transfer_list *open_transfers_bucket(struct shm *shm, uint64_t id)
{
    return &shm->open[id % OPEN_BUCKETS];
}
void open_transfers_add(struct shm *shm, struct transfer *x)
{
    transfer_list_push(open_transfers_bucket(shm, x->key), x);
}
bool open_transfers_remove(struct shm *shm, const struct transfer *x)
{
    return transfer_list_remove(open_transfers_bucket(shm, x->key), x);
}
struct transfer *open_transfers_find(struct shm *shm, int rank, uint64_t id, bool is_send)
{
    struct transfer *x = open_transfers_bucket(shm, id)->first;
    while (x && (x->key != id || x->is_send != is_send || transfer_peer_rank(x) != rank)) x = x->next;
    return x;
}

/* ---- opening: memory is reserved before it is touched ---- */
static void shm_link_activate(struct shm *shm, struct shm_link *l)
{
    if (!l->active) shm->active[shm->active_count++] = l;
    l->active = true;
}
static tutti_status shm_reserve_memory(struct shm *shm, void *at, size_t bytes)
{
    return shm->callbacks.reserve(shm->callbacks.context, at, bytes);
}
static struct pair *shm_pair_between(struct shm *shm, int from, int to)
{
    return (struct pair *)(void *)shm->callbacks.pair(shm->callbacks.context, from, to);
}
static tutti_status shm_link_open_outgoing(struct shm *shm, struct shm_link *l)
{
    if (l->out.pair) return TUTTI_OK;
    struct pair *pair = shm_pair_between(shm, shm->me, l->peer);
    struct doorbell *doorbell = &shm_pair_between(shm, l->peer, l->peer)->doorbell;
    TRY(shm_reserve_memory(shm, pair, offsetof(struct pair, eager)));
    TRY(shm_reserve_memory(shm, doorbell, PAIR_PAGE));
    l->out.pair = pair;
    shm_link_activate(shm, l);
    atomic_fetch_or_explicit(&doorbell->who[shm->me / 32], 1u << shm->me % 32, memory_order_relaxed);
    atomic_fetch_add_explicit(&doorbell->opened, 1, memory_order_release);
    return TUTTI_OK;
}
static tutti_status shm_link_reserve_eager(struct shm *shm, struct shm_link *l)
{
    if (!l->eager_ready) TRY(shm_reserve_memory(shm, l->out.pair->eager, sizeof l->out.pair->eager));
    l->eager_ready = true;
    return TUTTI_OK;
}
static tutti_status shm_link_reserve_pipe(struct shm *shm, struct shm_link *l)
{
    if (!l->pipe_ready) TRY(shm_reserve_memory(shm, l->out.pair->pipe, sizeof l->out.pair->pipe));
    l->pipe_ready = true;
    return TUTTI_OK;
}
void shm_link_open_incoming(struct shm *shm, struct shm_link *l)
{
    if (l->in.pair || l->lost) return;
    l->in.pair = shm_pair_between(shm, l->peer, shm->me);
    shm_link_activate(shm, l);
    shm_link_settle(shm, l);
}
void shm_link_settle(struct shm *shm, struct shm_link *l)
{
    if (l->must_ring) shm->callbacks.ring(shm->callbacks.context, l->peer);
    l->must_ring = false;
    l->busy = l->queued || l->outbox.first || l->streams.first || l->expecting || l->shares.first || l->helped
        || l->dropping || !l->in.pair;
}

/* ---- sending ---- */
static struct queued_envelope *queued_envelope_new(struct shm *shm)
{
    struct queued_envelope *queued = shm->spare_envelopes;
    if (!queued) return memory_alloc_zeroed(1, sizeof *queued);
    shm->spare_envelopes = queued->next;
    return queued;
}
static void shm_link_queue_envelope(struct shm *shm, struct shm_link *l, const struct envelope *e)
{
    struct queued_envelope *queued = queued_envelope_new(shm);
    if (!queued) {
        router_fail(shm->base.router,
            status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for an answer to rank %d", shm->base.router->rank,
                l->rank));
        return;
    }
    *queued = (struct queued_envelope){ .envelope = *e };
    if (l->queued) l->last_queued->next = queued;
    else l->queued = queued;
    l->last_queued = queued;
}
bool shm_link_can_send_envelope(struct shm_link *l) { return !l->out.pair || (!l->queued && writer_has_room(&l->out)); }
void shm_link_send_envelope(struct shm *shm, struct shm_link *l, const struct envelope *e)
{
    tutti_status status = shm_link_open_outgoing(shm, l);
    if (status < 0) router_fail(shm->base.router, status);
    else if (!shm_link_can_send_envelope(l)) shm_link_queue_envelope(shm, l, e);
    else {
        writer_write_envelope(&l->out, e);
        l->must_ring = true;
    }
}
static void shm_link_send_control(struct shm *shm, struct shm_link *l, enum envelope_kind kind,
    struct message_name name, uint64_t bytes, uint64_t id)
{
    shm_link_send_envelope(shm, l, &(struct envelope){ .name = name, .bytes = bytes, .id = id, .kind = kind });
}
static tutti_status shm_link_announce_send(struct shm *shm, struct shm_link *l, struct transfer *x)
{
    struct remote place = share_own_place(shm, x);
    TRY(shm_link_reserve_pipe(shm, l));
    x->key = ++shm->last_id;
    writer_write_envelope(&l->out, &(struct envelope){ x->name, x->wire, x->key, ENVELOPE_ANNOUNCE, place });
    open_transfers_add(shm, x);
    return TUTTI_OK;
}
static struct copy_policy shm_copy_policy(const struct shm *shm)
{
    return (struct copy_policy){ shm->callbacks.stream, shm->callbacks.paced };
}
static tutti_status shm_link_send_eager(struct shm *shm, struct shm_link *l, struct transfer *x)
{
    if (x->wire > INLINE_BYTES) TRY(shm_link_reserve_eager(shm, l));
    writer_send_eager(&l->out, x, shm_copy_policy(shm));
    transfer_complete(x);
    return TUTTI_OK;
}
static void shm_link_clear_receive(struct shm *shm, struct shm_link *l, struct transfer *x)
{
    writer_write_envelope(&l->out, &(struct envelope){ x->name, x->wire, x->key, ENVELOPE_CLEAR, { 0, 0 } });
    open_transfers_add(shm, x);
    l->expecting++;
}
/* Writes the queued envelopes and the outbox while the ring has room. */
static bool shm_link_flush_outbox(struct shm *shm, struct shm_link *l)
{
    bool moved = false;
    for (struct queued_envelope *queued; (queued = l->queued) != NULL && writer_has_room(&l->out); moved = true) {
        writer_write_envelope(&l->out, &queued->envelope);
        l->queued = queued->next;
        queued->next = shm->spare_envelopes;
        shm->spare_envelopes = queued;
    }
    for (; l->outbox.first && writer_has_room(&l->out); moved = true) {
        struct transfer *x = transfer_list_take(&l->outbox, NULL);
        tutti_status status = TUTTI_OK;
        if (!x->is_send) shm_link_clear_receive(shm, l, x);
        else if (writer_has_credit(&l->out, x->wire)) status = shm_link_send_eager(shm, l, x);
        else status = shm_link_announce_send(shm, l, x);
        if (status < 0) router_refuse_transfer(shm->base.router, x, status);
    }
    l->must_ring |= moved;
    return moved;
}
static bool shm_link_stream_sends(struct shm *shm, struct shm_link *l)
{
    bool moved = false;
    for (struct transfer *x; (x = l->streams.first) != NULL && writer_has_slot(&l->out); moved = true) {
        writer_stream_slot(&l->out, x, shm_copy_policy(shm));
        /* The bell rings after each slot, so that the peer empties it while this rank fills the next. */
        shm->callbacks.ring(shm->callbacks.context, l->peer);
        if (x->moved < x->wire) continue;
        transfer_list_take(&l->streams, NULL);
        transfer_complete(x);
    }
    return moved;
}
/* Writes a message that fits the cell and has no message waiting before it. This path touches no list. */
static bool shm_link_send_inline(struct shm *shm, struct shm_link *l, struct transfer *x)
{
    bool small = x->wire <= INLINE_BYTES && x->piece_count == 1 && x->pieces->length == x->wire;
    if (!small || !l->out.pair || l->queued || l->outbox.first) return false;
    if (!writer_has_room(&l->out) || !writer_has_credit(&l->out, x->wire)) return false;
    writer_send_inline(&l->out, x);
    transfer_complete(x);
    shm->callbacks.ring(shm->callbacks.context, l->peer);
    return true;
}
/* Not inlined, because the path of tiny messages would need stack space for it. */
__attribute__((noinline)) static void shm_link_send_queued(struct shm *shm, struct shm_link *l, struct transfer *x)
{
    tutti_status status = shm_link_open_outgoing(shm, l);
    if (status < 0) {
        router_refuse_transfer(shm->base.router, x, status);
        return;
    }
    transfer_list_push(&l->outbox, x);
    shm_link_flush_outbox(shm, l);
    shm_link_settle(shm, l);
}
void shm_link_send(struct shm *shm, struct shm_link *l, struct transfer *x)
{
    if (!shm_link_send_inline(shm, l, x)) shm_link_send_queued(shm, l, x);
}

/* ---- receiving ---- */
void shm_link_accept_receive(struct shm *shm, struct shm_link *l, struct transfer *x, const struct envelope *e)
{
    if (!transfer_meet_message(x, l->rank, e->bytes)) {
        shm_link_send_control(shm, l, ENVELOPE_MISMATCH, x->name, x->wire, e->id);
        return;
    }
    x->key = e->id;
    x->place = e->place;
    if (share_accept_receive(shm, l, x)) return;
    transfer_list_push(&l->outbox, x);
    tutti_status status = shm_link_open_outgoing(shm, l);
    if (status < 0) router_fail(shm->base.router, status);
    else shm_link_flush_outbox(shm, l);
}
/* Keeps a message whose receive has not been posted. */
static void shm_link_keep_arrival(struct shm *shm, struct shm_link *l, const struct envelope *e)
{
    bool eager = e->kind == ENVELOPE_EAGER;
    struct arrival *a = matching_arrival_new(shm->matching, eager ? (size_t)e->bytes : 0);
    if (!a) {
        router_fail(shm->base.router,
            status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for an unexpected message of rank %d",
                shm->base.router->rank, l->rank));
        return;
    }
    /* The name is copied in words, as it was stored: one wide load would wait for both stores. */
    a->name.operation = e->name.operation;
    a->name.message = e->name.message;
    a->bytes = e->bytes;
    a->id = e->id;
    a->place = e->place;
    a->source = l->rank;
    a->announced = !eager;
    if (eager) reader_copy_eager(&l->in, e, a->data);
    matching_keep_arrival(shm->matching, a);
}
static void shm_link_handle_eager(struct shm *shm, struct shm_link *l, const struct envelope *e)
{
    struct transfer *x = matching_take_receive(shm->matching, l->rank, e->name);
    if (!x) {
        shm_link_keep_arrival(shm, l, e);
        return;
    }
    if (transfer_meet_message(x, l->rank, e->bytes)) {
        reader_scatter_eager(&l->in, e, x);
        transfer_complete(x);
    }
    reader_return_credit(&l->in, e->bytes);
}
static void shm_link_handle_announce(struct shm *shm, struct shm_link *l, const struct envelope *e)
{
    struct transfer *x = matching_take_receive(shm->matching, l->rank, e->name);
    if (x) shm_link_accept_receive(shm, l, x, e);
    else shm_link_keep_arrival(shm, l, e);
}
/* Handles CLEAR and MISMATCH, and ignores answers to sends that were cancelled meanwhile. */
static void shm_link_handle_answer(struct shm *shm, struct shm_link *l, const struct envelope *e)
{
    struct transfer *x = open_transfers_find(shm, l->rank, e->id, true);
    if (!x) return;
    open_transfers_remove(shm, x);
    if (e->kind == ENVELOPE_MISMATCH) transfer_fail(x, TUTTI_MISMATCH, e->bytes);
    else transfer_list_push(&l->streams, x);
}
static struct transfer *shm_link_find_uncleared(const struct shm_link *l, uint64_t id)
{
    struct transfer *x = l->outbox.first;
    while (x && (x->is_send || x->key != id)) x = x->next;
    return x;
}
static void shm_link_handle_withdraw(struct shm *shm, struct shm_link *l, const struct envelope *e)
{
    struct arrival *a = matching_withdraw_arrival(shm->matching, NULL, l->rank, e->name, e->id);
    struct transfer *x = a ? NULL : open_transfers_find(shm, l->rank, e->id, false);
    if (a) matching_arrival_free(shm->matching, a);
    if (x) {
        open_transfers_remove(shm, x);
        l->expecting--;
        l->dropping = true;
    } else if (!a && (x = shm_link_find_uncleared(l, e->id)) != NULL) transfer_list_remove(&l->outbox, x);
    else if (!a && (x = share_find_receive(l, e->id)) != NULL) share_remove_transfer(shm, l, x);
    if (x) transfer_fail(x, TUTTI_ABORTED, 0);
}
/* Not inlined, to keep the path of eager messages small. */
__attribute__((noinline)) static void shm_link_handle_envelope(struct shm *shm, struct shm_link *l,
    const struct envelope *e)
{
    /* The flag is provisional, and shm_link_settle updates it. */
    l->busy = true;
    switch (e->kind) {
    case ENVELOPE_EAGER: return;
    case ENVELOPE_ANNOUNCE: shm_link_handle_announce(shm, l, e); return;
    case ENVELOPE_CLEAR:
    case ENVELOPE_MISMATCH: shm_link_handle_answer(shm, l, e); return;
    case ENVELOPE_WITHDRAW: shm_link_handle_withdraw(shm, l, e); return;
    case ENVELOPE_SHARE: share_handle_request(shm, l, e); return;
    case ENVELOPE_COPIED: share_handle_copied(l, e); return;
    case ENVELOPE_FINISHED: share_handle_finished(shm, l, e); return;
    }
}
/* Reads at most RING_CELLS envelopes, so that other peers get their turn. */
static bool shm_link_drain_ring(struct shm *shm, struct shm_link *l)
{
    int n = 0;
    for (struct envelope e; n < RING_CELLS && reader_has_cell(&l->in); n++) {
        if (!reader_read_envelope(&l->in, &e)) break;
        if (e.kind == ENVELOPE_EAGER) shm_link_handle_eager(shm, l, &e);
        else shm_link_handle_envelope(shm, l, &e);
        if (shm_has_failed(shm)) return true;
        l->must_ring |= reader_free_cell(&l->in, &e);
    }
    return n > 0;
}
static void shm_link_fill_receive(struct shm *shm, struct shm_link *l, struct transfer *x,
    const struct filled_slot *slot)
{
    uint64_t rest = x->wire - x->moved;
    if (slot->bytes != (rest < slot_filling_bytes(x->wire) ? rest : slot_filling_bytes(x->wire))) {
        l->in.corrupt = true;
        return;
    }
    copy_function *copy = x->wire >= BEYOND_CACHE ? shm->callbacks.stream_far : NULL;
    reader_scatter_slot(&l->in, slot, x, copy);
    if (x->moved < x->wire) return;
    open_transfers_remove(shm, x);
    l->expecting--;
    transfer_complete(x);
}
static bool shm_link_drain_pipe(struct shm *shm, struct shm_link *l)
{
    int n = 0;
    for (; n < PIPE_SLOTS && reader_has_slot(&l->in); n++) {
        struct filled_slot slot = reader_read_slot(&l->in);
        struct transfer *x = open_transfers_find(shm, l->rank, slot.id, false);
        if (x) shm_link_fill_receive(shm, l, x, &slot);
        if (l->in.corrupt) break;
        reader_free_slot(&l->in);
        shm->callbacks.ring(shm->callbacks.context, l->peer);
    }
    return n > 0;
}
static bool shm_link_check_corrupt(struct shm *shm, const struct shm_link *l)
{
    if (!l->in.corrupt && !l->out.corrupt) return false;
    router_fail(shm->base.router,
        status_fail(TUTTI_INTERNAL,
            "rank %d found invalid data in the memory that it shares with rank %d: that memory was overwritten, or the "
            "ranks run different versions of tutti",
            shm->base.router->rank, l->rank));
    return true;
}
bool shm_link_poll(struct shm *shm, struct shm_link *l)
{
    bool moved = l->in.pair && shm_link_drain_ring(shm, l);
    /* Links that carry only small messages return here. */
    if (!l->busy && !l->must_ring && !l->in.corrupt && !l->out.corrupt) return moved;
    if (l->expecting || l->dropping) moved |= shm_link_drain_pipe(shm, l);
    if (shm_has_failed(shm)) return true;
    if (l->queued || l->outbox.first) moved |= shm_link_flush_outbox(shm, l);
    if (l->streams.first) moved |= shm_link_stream_sends(shm, l);
    if (l->shares.first || l->helped) moved |= share_poll(shm, l);
    shm_link_settle(shm, l);
    return shm_link_check_corrupt(shm, l) || moved;
}

/* ---- cancelling: the peer uses shared memory only, so a transfer can be forgotten at any time ---- */
void shm_link_cancel_transfer(struct shm *shm, struct shm_link *l, struct transfer *x)
{
    if (transfer_list_remove(&l->outbox, x)) {
        /* The sender of a cancelled receive still streams its message, and this rank drops the slots. */
        if (!x->is_send) shm_link_send_control(shm, l, ENVELOPE_CLEAR, x->name, x->wire, x->key);
        l->dropping |= !x->is_send;
    } else if (share_remove_transfer(shm, l, x)) {
        /* share_remove_transfer has notified the other end. */
    } else if (x->is_send) {
        if (!transfer_list_remove(&l->streams, x)) open_transfers_remove(shm, x);
        shm_link_send_control(shm, l, ENVELOPE_WITHDRAW, x->name, 0, x->key);
    } else if (open_transfers_remove(shm, x)) {
        l->expecting--;
        l->dropping = true;
    }
    shm_link_settle(shm, l);
}

/* ---- a lost peer ---- */
static void shm_link_deactivate(struct shm *shm, struct shm_link *l)
{
    for (int i = 0; i < shm->active_count; i++)
        if (shm->active[i] == l) shm->active[i--] = shm->active[--shm->active_count];
    l->active = false;
}
void shm_link_lose_peer(struct shm *shm, struct shm_link *l, tutti_status status)
{
    for (int i = 0; i < OPEN_BUCKETS; i++) transfer_list_fail_all_with_rank(&shm->open[i], l->rank, status);
    transfer_list_fail_all(&l->outbox, status);
    transfer_list_fail_all(&l->streams, status);
    transfer_list_fail_all(&l->shares, status);
    if (l->helped) transfer_fail(l->helped, status, 0);
    l->helped = NULL;
    l->lost = true;
    shm_link_deactivate(shm, l);
}
