/* The protocol with one peer. Small messages go into the ring at once. Large ones are announced with an id. When the
   receive of an announced message is posted, the receiver answers CLEAR. The sender then streams its cleared messages
   one after the other, in the order of the clearances, through the slots of its pipe. If one rank can reach the other's
   tensor, the message is copied instead (share.c). No call blocks: a transfer without room stays in a list of this rank
   and continues in a later poll.

   A posted transfer is in exactly one place. A send is in the outbox (not yet written), in `open_transfers`
   (announced), in `streams` (cleared), or is `helped_send`. A receive is in the matching (not met), in the outbox (met,
   not cleared), in `open_transfers` (cleared), or in `shares`. */
#include "backend/transports/shm/link.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"

/* ---- announced sends and cleared receives, by id ---- */
/* Returns the list that transfers of this id belong to. */
static struct transfer_list *open_transfers_bucket(struct shm *shm, uint64_t id)
{
    return &shm->open_transfers[id % OPEN_BUCKETS];
}
void open_transfers_add(struct shm *shm, struct transfer *transfer)
{
    transfer_list_push(open_transfers_bucket(shm, transfer->key), transfer);
}
bool open_transfers_remove(struct shm *shm, const struct transfer *transfer)
{
    return transfer_list_remove(open_transfers_bucket(shm, transfer->key), transfer);
}
struct transfer *open_transfers_find(struct shm *shm, int rank, uint64_t id, bool is_send)
{
    struct transfer *transfer = open_transfers_bucket(shm, id)->first;
    while (transfer && (transfer->key != id || transfer->is_send != is_send || transfer_peer_rank(transfer) != rank))
        transfer = transfer->next;
    return transfer;
}
/* ---- the end of each use ---- */
void shm_link_settle(struct shm *shm, struct shm_link *link)
{
    if (link->must_ring) shm->callbacks.ring(shm->callbacks.context, link->peer);
    link->must_ring = false;
    link->is_busy = link->queued || link->outbox.first || link->streams.first || link->expected_count
        || link->shares.first || link->helped_send || link->is_dropping || !link->in.pair;
}

/* ---- sending ---- */
/* Returns a queued envelope from the free list, or a new one. NULL: memory is exhausted. */
static struct queued_envelope *queued_envelope_new(struct shm *shm)
{
    struct queued_envelope *queued = shm->free_envelopes;
    if (!queued) return memory_alloc_zeroed(1, sizeof *queued);
    shm->free_envelopes = queued->next;
    return queued;
}
/* Queues an envelope until the ring has room. Without memory the router fails. */
static void shm_link_queue_envelope(struct shm *shm, struct shm_link *link, const struct envelope *envelope)
{
    struct queued_envelope *queued = queued_envelope_new(shm);
    if (!queued) {
        router_fail(shm->base.router,
            status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for an answer to rank %d", shm->base.router->rank,
                link->rank));
        return;
    }
    *queued = (struct queued_envelope){ .envelope = *envelope };
    if (link->queued) link->last_queued->next = queued;
    else link->queued = queued;
    link->last_queued = queued;
}
bool shm_link_can_send_envelope(struct shm_link *link)
{
    return !link->out.pair || (!link->queued && writer_has_room(&link->out));
}
void shm_link_send_envelope(struct shm *shm, struct shm_link *link, const struct envelope *envelope)
{
    tutti_status status = shm_link_open_outgoing(shm, link);
    if (status < 0) router_fail(shm->base.router, status);
    else if (!shm_link_can_send_envelope(link)) shm_link_queue_envelope(shm, link, envelope);
    else {
        writer_write_envelope(&link->out, envelope);
        link->must_ring = true;
    }
}
/* Sends an envelope without a location. */
static void shm_link_send_control(struct shm *shm, struct shm_link *link, enum envelope_kind kind,
    struct message_name name, uint64_t bytes, uint64_t id)
{
    shm_link_send_envelope(shm, link, &(struct envelope){ .name = name, .bytes = bytes, .id = id, .kind = kind });
}
/* Announces a send: the receiver answers CLEAR, or copies the message from tensor to tensor. */
static tutti_status shm_link_announce_send(struct shm *shm, struct shm_link *link, struct transfer *transfer)
{
    struct remote location = share_own_location(shm, transfer);
    TRY(shm_link_reserve_pipe(shm, link));
    transfer->key = ++shm->last_id;
    writer_write_envelope(&link->out,
        &(struct envelope){ transfer->name, transfer->wire, transfer->key, ENVELOPE_ANNOUNCE, location });
    open_transfers_add(shm, transfer);
    return TUTTI_OK;
}
/* Returns how writers of this transport copy long runs. */
static struct copy_policy shm_copy_policy(const struct shm *shm)
{
    return (struct copy_policy){ shm->callbacks.stream, shm->callbacks.is_paced };
}
/* Sends a small message with its bytes. The transfer is complete at once, because the bytes are copied. */
static tutti_status shm_link_send_eager(struct shm *shm, struct shm_link *link, struct transfer *transfer)
{
    if (transfer->wire > INLINE_BYTES) TRY(shm_link_reserve_eager(shm, link));
    writer_send_eager(&link->out, transfer, shm_copy_policy(shm));
    transfer_complete(transfer);
    return TUTTI_OK;
}
/* Sends CLEAR: the receive of an announced message is posted, and its sender may stream. */
static void shm_link_clear_receive(struct shm *shm, struct shm_link *link, struct transfer *transfer)
{
    writer_write_envelope(&link->out,
        &(struct envelope){ transfer->name, transfer->wire, transfer->key, ENVELOPE_CLEAR, { 0, 0 } });
    open_transfers_add(shm, transfer);
    link->expected_count++;
}
/* Writes the queued envelopes, and then the transfers of the outbox, while the ring has room. true: something moved. */
static bool shm_link_flush_outbox(struct shm *shm, struct shm_link *link)
{
    bool moved = false;
    for (struct queued_envelope *queued; (queued = link->queued) != NULL && writer_has_room(&link->out); moved = true) {
        writer_write_envelope(&link->out, &queued->envelope);
        link->queued = queued->next;
        queued->next = shm->free_envelopes;
        shm->free_envelopes = queued;
    }
    for (; link->outbox.first && writer_has_room(&link->out); moved = true) {
        struct transfer *transfer = transfer_list_take(&link->outbox, NULL);
        tutti_status status = TUTTI_OK;
        if (!transfer->is_send) shm_link_clear_receive(shm, link, transfer);
        else if (writer_has_credit(&link->out, transfer->wire)) status = shm_link_send_eager(shm, link, transfer);
        else status = shm_link_announce_send(shm, link, transfer);
        if (status < 0) router_fail_transfer(shm->base.router, transfer, status);
    }
    link->must_ring |= moved;
    return moved;
}
/* Copies cleared messages into empty slots of the pipe. true: something moved. */
static bool shm_link_stream_sends(struct shm *shm, struct shm_link *link)
{
    bool moved = false;
    for (struct transfer *transfer; (transfer = link->streams.first) != NULL && writer_has_slot(&link->out);
        moved = true) {
        writer_stream_slot(&link->out, transfer, shm_copy_policy(shm));
        /* The bell rings after each slot, so that the peer empties it while this rank fills the next. */
        shm->callbacks.ring(shm->callbacks.context, link->peer);
        if (transfer->moved < transfer->wire) continue;
        transfer_list_take(&link->streams, NULL);
        transfer_complete(transfer);
    }
    return moved;
}
/* Sends a message of one piece that fits a cell, if the pair is open and no message waits before it. false: it was not
   sent, perhaps for lack of room or credit. This path touches no list. */
static bool shm_link_send_inline(struct shm *shm, struct shm_link *link, struct transfer *transfer)
{
    bool small =
        transfer->wire <= INLINE_BYTES && transfer->piece_count == 1 && transfer->pieces->length == transfer->wire;
    if (!small || !link->out.pair || link->queued || link->outbox.first) return false;
    if (!writer_has_room(&link->out) || !writer_has_credit(&link->out, transfer->wire)) return false;
    writer_send_inline(&link->out, transfer);
    transfer_complete(transfer);
    shm->callbacks.ring(shm->callbacks.context, link->peer);
    return true;
}
/* Sends a message by the outbox. Not inlined, because the path of tiny messages would need stack space for it. */
__attribute__((noinline)) static void shm_link_send_queued(struct shm *shm, struct shm_link *link,
    struct transfer *transfer)
{
    tutti_status status = shm_link_open_outgoing(shm, link);
    if (status < 0) {
        router_fail_transfer(shm->base.router, transfer, status);
        return;
    }
    transfer_list_push(&link->outbox, transfer);
    shm_link_flush_outbox(shm, link);
    shm_link_settle(shm, link);
}
void shm_link_send(struct shm *shm, struct shm_link *link, struct transfer *transfer)
{
    if (!shm_link_send_inline(shm, link, transfer)) shm_link_send_queued(shm, link, transfer);
}

/* ---- receiving ---- */
void shm_link_accept_receive(struct shm *shm, struct shm_link *link, struct transfer *transfer,
    const struct envelope *envelope)
{
    if (!transfer_meet_message(transfer, link->rank, envelope->name, envelope->bytes)) {
        shm_link_send_control(shm, link, ENVELOPE_MISMATCH, transfer->name, transfer->wire, envelope->id);
        return;
    }
    transfer->key = envelope->id;
    transfer->peer_location = envelope->location;
    if (share_accept_receive(shm, link, transfer)) return;
    transfer_list_push(&link->outbox, transfer);
    tutti_status status = shm_link_open_outgoing(shm, link);
    if (status < 0) router_fail(shm->base.router, status);
    else shm_link_flush_outbox(shm, link);
}
/* Keeps a message whose receive has not been posted. Without memory the router fails. */
static void shm_link_keep_arrival(struct shm *shm, struct shm_link *link, const struct envelope *envelope)
{
    bool eager = envelope->kind == ENVELOPE_EAGER;
    struct arrival *arrival = matching_arrival_new(shm->matching, eager ? (size_t)envelope->bytes : 0);
    if (!arrival) {
        router_fail(shm->base.router,
            status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for an unexpected message of rank %d",
                shm->base.router->rank, link->rank));
        return;
    }
    /* The name is copied in words, as it was stored: one wide load would wait for both stores. */
    arrival->name.operation = envelope->name.operation;
    arrival->name.message = envelope->name.message;
    arrival->bytes = envelope->bytes;
    arrival->id = envelope->id;
    arrival->location = envelope->location;
    arrival->source = link->rank;
    arrival->is_announced = !eager;
    if (eager) reader_copy_eager(&link->in, envelope, arrival->data);
    matching_keep_arrival(shm->matching, arrival);
}
/* Handles an eager message: copies it into its receive, or keeps it until one is posted. */
static void shm_link_handle_eager(struct shm *shm, struct shm_link *link, const struct envelope *envelope)
{
    struct transfer *transfer = matching_take_receive(shm->matching, link->rank, envelope->name);
    if (!transfer) {
        shm_link_keep_arrival(shm, link, envelope);
        return;
    }
    if (transfer_meet_message(transfer, link->rank, envelope->name, envelope->bytes)) {
        reader_scatter_eager(&link->in, envelope, transfer);
        transfer_complete(transfer);
    }
    reader_return_credit(&link->in, envelope->bytes);
}
/* Handles an announced message: starts its receive, or keeps the announcement until one is posted. */
static void shm_link_handle_announce(struct shm *shm, struct shm_link *link, const struct envelope *envelope)
{
    struct transfer *transfer = matching_take_receive(shm->matching, link->rank, envelope->name);
    if (transfer) shm_link_accept_receive(shm, link, transfer, envelope);
    else shm_link_keep_arrival(shm, link, envelope);
}
/* Handles CLEAR (the send may stream) and MISMATCH (the send fails). Ignores answers to sends that were cancelled
   meanwhile. */
static void shm_link_handle_answer(struct shm *shm, struct shm_link *link, const struct envelope *envelope)
{
    struct transfer *transfer = open_transfers_find(shm, link->rank, envelope->id, true);
    if (!transfer) return;
    open_transfers_remove(shm, transfer);
    if (envelope->kind == ENVELOPE_MISMATCH) transfer_fail_mismatch(transfer, envelope->name, envelope->bytes);
    else transfer_list_push(&link->streams, transfer);
}
/* Returns the receive that has met the message `id` but waits in the outbox to send CLEAR, or NULL. */
static struct transfer *shm_link_find_uncleared(const struct shm_link *link, uint64_t id)
{
    struct transfer *transfer = link->outbox.first;
    while (transfer && (transfer->is_send || transfer->key != id)) transfer = transfer->next;
    return transfer;
}
/* Handles WITHDRAW, by which the sender cancels its send: drops the kept arrival, or fails the receive that has met the
   message. */
static void shm_link_handle_withdraw(struct shm *shm, struct shm_link *link, const struct envelope *envelope)
{
    struct arrival *arrival = matching_withdraw_arrival(shm->matching, NULL, link->rank, envelope->name, envelope->id);
    struct transfer *transfer = arrival ? NULL : open_transfers_find(shm, link->rank, envelope->id, false);
    if (arrival) matching_arrival_free(shm->matching, arrival);
    if (transfer) {
        open_transfers_remove(shm, transfer);
        link->expected_count--;
        link->is_dropping = true;
    } else if (!arrival && (transfer = shm_link_find_uncleared(link, envelope->id)) != NULL)
        transfer_list_remove(&link->outbox, transfer);
    else if (!arrival && (transfer = share_find_receive(link, envelope->id)) != NULL)
        share_remove_transfer(shm, link, transfer);
    if (transfer) transfer_fail(transfer, TUTTI_ABORTED);
}
/* Handles an envelope that is not eager. Not inlined, to keep the path of eager messages small. */
__attribute__((noinline)) static void shm_link_handle_envelope(struct shm *shm, struct shm_link *link,
    const struct envelope *envelope)
{
    /* So shm_link_poll goes on after the ring and sends what is queued here. shm_link_settle then updates the flag. */
    link->is_busy = true;
    switch (envelope->kind) {
    case ENVELOPE_EAGER: return;
    case ENVELOPE_ANNOUNCE: shm_link_handle_announce(shm, link, envelope); return;
    case ENVELOPE_CLEAR:
    case ENVELOPE_MISMATCH: shm_link_handle_answer(shm, link, envelope); return;
    case ENVELOPE_WITHDRAW: shm_link_handle_withdraw(shm, link, envelope); return;
    case ENVELOPE_SHARE: share_handle_request(shm, link, envelope); return;
    case ENVELOPE_COPIED: share_handle_copied(link, envelope); return;
    case ENVELOPE_FINISHED: share_handle_finished(shm, link, envelope); return;
    }
}
/* Reads and handles at most RING_CELLS envelopes, so that other peers get their turn. true: something moved. */
static bool shm_link_drain_ring(struct shm *shm, struct shm_link *link)
{
    int n = 0;
    for (struct envelope envelope; n < RING_CELLS && reader_has_cell(&link->in); n++) {
        if (!reader_read_envelope(&link->in, &envelope)) break;
        if (envelope.kind == ENVELOPE_EAGER) shm_link_handle_eager(shm, link, &envelope);
        else shm_link_handle_envelope(shm, link, &envelope);
        if (shm_has_failed(shm)) return true;
        link->must_ring |= reader_free_cell(&link->in, &envelope);
    }
    return n > 0;
}
/* Copies a slot into its receive, and completes the receive after the last slot. A slot of a wrong size sets
   is_corrupt. */
static void shm_link_fill_receive(struct shm *shm, struct shm_link *link, struct transfer *transfer,
    const struct filled_slot *slot)
{
    uint64_t rest = transfer->wire - transfer->moved;
    if (slot->bytes != (rest < slot_filling_bytes(transfer->wire) ? rest : slot_filling_bytes(transfer->wire))) {
        link->in.is_corrupt = true;
        return;
    }
    copy_function *copy = transfer->wire >= BEYOND_CACHE ? shm->callbacks.stream_far : NULL;
    reader_scatter_slot(&link->in, slot, transfer, copy);
    if (transfer->moved < transfer->wire) return;
    open_transfers_remove(shm, transfer);
    link->expected_count--;
    transfer_complete(transfer);
}
/* Empties the slots that the peer has filled. Slots of cancelled receives are dropped. true: something moved. */
static bool shm_link_drain_pipe(struct shm *shm, struct shm_link *link)
{
    int n = 0;
    for (; n < PIPE_SLOTS && reader_has_slot(&link->in); n++) {
        struct filled_slot slot = reader_read_slot(&link->in);
        struct transfer *transfer = open_transfers_find(shm, link->rank, slot.id, false);
        if (transfer) shm_link_fill_receive(shm, link, transfer, &slot);
        if (link->in.is_corrupt) break;
        reader_free_slot(&link->in);
        shm->callbacks.ring(shm->callbacks.context, link->peer);
    }
    return n > 0;
}
/* Fails the router and returns true if an end has read impossible values from shared memory. */
static bool shm_link_fail_if_corrupt(struct shm *shm, const struct shm_link *link)
{
    if (!link->in.is_corrupt && !link->out.is_corrupt) return false;
    router_fail(shm->base.router,
        status_fail(TUTTI_INTERNAL,
            "rank %d found invalid data in the memory that it shares with rank %d: that memory was overwritten, or the "
            "ranks run different versions of tutti",
            shm->base.router->rank, link->rank));
    return true;
}
bool shm_link_poll(struct shm *shm, struct shm_link *link)
{
    bool moved = link->in.pair && shm_link_drain_ring(shm, link);
    /* Links that carry only small messages return here. */
    if (!link->is_busy && !link->must_ring && !link->in.is_corrupt && !link->out.is_corrupt) return moved;
    if (link->expected_count || link->is_dropping) moved |= shm_link_drain_pipe(shm, link);
    if (shm_has_failed(shm)) return true;
    if (link->queued || link->outbox.first) moved |= shm_link_flush_outbox(shm, link);
    if (link->streams.first) moved |= shm_link_stream_sends(shm, link);
    if (link->shares.first || link->helped_send) moved |= share_poll(shm, link);
    shm_link_settle(shm, link);
    return shm_link_fail_if_corrupt(shm, link) || moved;
}

/* ---- cancelling: possible at any time, see shm_cancel ---- */
void shm_link_cancel_transfer(struct shm *shm, struct shm_link *link, struct transfer *transfer)
{
    if (transfer_list_remove(&link->outbox, transfer)) {
        /* The sender of a cancelled receive still streams its message, and this rank drops the slots. */
        if (!transfer->is_send)
            shm_link_send_control(shm, link, ENVELOPE_CLEAR, transfer->name, transfer->wire, transfer->key);
        link->is_dropping |= !transfer->is_send;
    } else if (share_remove_transfer(shm, link, transfer)) {
        /* share_remove_transfer has notified the other end. */
    } else if (transfer->is_send) {
        if (!transfer_list_remove(&link->streams, transfer)) open_transfers_remove(shm, transfer);
        shm_link_send_control(shm, link, ENVELOPE_WITHDRAW, transfer->name, 0, transfer->key);
    } else if (open_transfers_remove(shm, transfer)) {
        link->expected_count--;
        link->is_dropping = true;
    }
    shm_link_settle(shm, link);
}

/* ---- a lost peer ---- */
/* Removes the link from those that shm_poll visits. */
static void shm_link_deactivate(struct shm *shm, struct shm_link *link)
{
    for (int i = 0; i < shm->active_count; i++)
        if (shm->active[i] == link) shm->active[i--] = shm->active[--shm->active_count];
    link->is_active = false;
}
void shm_link_open_incoming(struct shm *shm, struct shm_link *link)
{
    if (shm_link_find_incoming(shm, link)) shm_link_settle(shm, link);
}
void shm_link_lose_peer(struct shm *shm, struct shm_link *link, tutti_status status)
{
    shm_link_prepare(shm, link);
    for (int i = 0; i < OPEN_BUCKETS; i++)
        transfer_list_fail_all_with_rank(&shm->open_transfers[i], link->rank, status);
    transfer_list_fail_all(&link->outbox, status);
    transfer_list_fail_all(&link->streams, status);
    transfer_list_fail_all(&link->shares, status);
    if (link->helped_send) transfer_fail(link->helped_send, status);
    link->helped_send = NULL;
    link->is_lost = true;
    shm_link_deactivate(shm, link);
}
