/* Messages from tensor to tensor, if a peer can reach one end or both, or can read the sender's tensor. The receiver
   copies if it can reach the sender's tensor. The sender helps if it can reach the receiver's tensor, whose location it
   gets in SHARE. A rank that has time copies the next part. A tensor that the receiver can only read is read by the
   receiver alone. Each poll copies one part, so that other messages wait only briefly.
   A receive is done when all parts are copied, counting those that the sender reports in COPIED. A send is done when
   the receiver sends FINISHED, or when the sender has copied every part itself. From then on its memory is not in use.
   A transfer ends only when its last envelope has a cell in the ring, so it needs no later poll.

   Receives that are copied are in `shares`, and the first of them has the claims of the pair. */
#include "backend/transports/shm/link.h"

/* A message of this size in bytes evicts its own beginning from the caches. */
enum { BEYOND_CACHES = 24 << 20 };

/* Returns whether the transfer is one piece without padding, which its caller allows to share. */
static bool transfer_is_shareable(const struct shm *shm, const struct transfer *transfer)
{
    bool is_whole = transfer->piece_count == 1 && transfer->pieces->length == transfer->wire && transfer->wire > 0;
    return is_whole && transfer->may_share && shm->callbacks.find;
}
struct remote share_own_location(const struct shm *shm, const struct transfer *transfer)
{
    struct remote location;
    if (!transfer_is_shareable(shm, transfer)) return (struct remote){ REMOTE_NONE, 0 };
    bool found = shm->callbacks.find(shm->callbacks.context, transfer->pieces->at, transfer->pieces->length, &location);
    if (found) return location;
    bool is_open = transfer->is_send && shm->callbacks.opens
        && shm->callbacks.opens(shm->callbacks.context, transfer->pieces->at, transfer->wire);
    return (struct remote){ is_open ? REMOTE_OPEN : REMOTE_PRIVATE, is_open ? (uintptr_t)transfer->pieces->at : 0 };
}
/* Returns whether ranks other than its owner can reach the location: it is none of the REMOTE values. */
static bool remote_is_reachable(struct remote location)
{
    return location.block != REMOTE_NONE && location.block != REMOTE_PRIVATE && location.block != REMOTE_OPEN;
}
/* Returns the pair that has the claims of the transfer: that from its sender to its receiver. */
static struct pair *shm_link_transfer_pair(const struct shm_link *link, const struct transfer *transfer)
{
    return transfer->is_send ? link->out.pair : link->in.pair;
}
/* Sends an envelope about a shared transfer; `parts` and `location` have the meaning that its kind gives them. */
static void share_send_envelope(struct shm *shm, struct shm_link *link, const struct transfer *transfer,
    enum envelope_kind kind, uint64_t parts, struct remote location)
{
    shm_link_send_envelope(shm, link,
        &(struct envelope){
            .name = transfer->name, .bytes = parts, .id = transfer->key, .kind = kind, .location = location });
}

/* ---- copying ---- */
/* Returns the bytes of this part of the transfer; the last one may be short. */
static size_t transfer_part_bytes(const struct transfer *transfer, uint64_t part)
{
    uint64_t rest = transfer->wire - part * part_bytes(transfer->wire);
    return rest < part_bytes(transfer->wire) ? (size_t)rest : part_bytes(transfer->wire);
}
/* Copies a part from the sender's tensor to the receiver's. peer_address: where this rank has mapped the peer's
   tensor. */
static void share_copy_part(const struct shm *shm, const struct transfer *transfer, unsigned char *peer_address,
    uint64_t part)
{
    size_t offset = (size_t)part * part_bytes(transfer->wire), bytes = transfer_part_bytes(transfer, part);
    unsigned char *own_address = transfer->pieces->at + offset;
    copy_function *copy = transfer->wire >= BEYOND_CACHES ? shm->callbacks.stream_far : NULL;
    piece_copy(copy, transfer->is_send ? peer_address + offset : own_address,
        transfer->is_send ? own_address : peer_address + offset, bytes);
}
/* Copies the next part that no rank has taken, or sets *none_left if all are taken. IN_PROGRESS: the caller tries again
   later. If no part is left, the peer may have freed its tensor already, so failing to reach it is no error. */
static tutti_status share_copy_next_part(struct shm *shm, struct shm_link *link, struct transfer *transfer,
    bool *none_left)
{
    const struct shm_callbacks *callbacks = &shm->callbacks;
    unsigned char *peer_address;
    uint64_t part;
    tutti_status status = callbacks->reach(callbacks->context, link->peer, transfer->is_send, transfer->peer_location,
        (size_t)transfer->wire, &peer_address);
    *none_left = status != TUTTI_OK
        && !part_claims_left(shm_link_transfer_pair(link, transfer), transfer->key, part_count(transfer->wire));
    if (status != TUTTI_OK) return *none_left ? TUTTI_OK : status;
    if (!callbacks->enter(callbacks->context)) return TUTTI_IN_PROGRESS;
    *none_left =
        !part_claims_take(shm_link_transfer_pair(link, transfer), transfer->key, part_count(transfer->wire), &part);
    if (!*none_left) share_copy_part(shm, transfer, peer_address, part);
    callbacks->leave(callbacks->context);
    transfer->moved += !*none_left;
    return TUTTI_OK;
}

/* Reads the next part of a tensor that this rank can only read, or sets *none_left if all are read. IN_PROGRESS: the
   caller tries again later. The sender cannot help, so the parts are read in order. */
static tutti_status share_read_next_part(struct shm *shm, struct shm_link *link, struct transfer *transfer,
    bool *none_left)
{
    const struct shm_callbacks *callbacks = &shm->callbacks;
    uint64_t offset = transfer->moved * part_bytes(transfer->wire);
    *none_left = transfer->moved == part_count(transfer->wire);
    if (*none_left) return TUTTI_OK;
    if (!callbacks->enter(callbacks->context)) return TUTTI_IN_PROGRESS;
    tutti_status status = callbacks->read(callbacks->context, link->peer, transfer->peer_location.offset + offset,
        transfer->pieces->at + offset, transfer_part_bytes(transfer, transfer->moved));
    callbacks->leave(callbacks->context);
    transfer->moved += status == TUTTI_OK;
    return status;
}

/* ---- the receiver ---- */
/* Begins the first of the shared receives, if there is one: opens its claims, and sends SHARE if the sender can
   help. */
static void share_begin_receive(struct shm *shm, struct shm_link *link)
{
    struct transfer *transfer = link->shares.first;
    if (!transfer || link->shares_refused) return;
    struct remote own_location = share_own_location(shm, transfer);
    part_claims_open(link->in.pair, transfer->key);
    /* A receive whose message is read never asks for help, because its own end is then unreachable. */
    bool can_help = !remote_is_reachable(transfer->peer_location) || part_count(transfer->wire) > 1;
    if (remote_is_reachable(own_location) && can_help)
        share_send_envelope(shm, link, transfer, ENVELOPE_SHARE, 0, own_location);
}
bool share_accept_receive(struct shm *shm, struct shm_link *link, struct transfer *transfer)
{
    struct remote own_location = share_own_location(shm, transfer);
    bool is_shareable = own_location.block != REMOTE_NONE && transfer->peer_location.block != REMOTE_NONE;
    bool can_read = transfer->peer_location.block == REMOTE_OPEN && shm->callbacks.reads
        && shm->callbacks.reads(shm->callbacks.context);
    if (!is_shareable
        || (!remote_is_reachable(own_location) && !remote_is_reachable(transfer->peer_location) && !can_read))
        return false;
    /* If the sender can reach the receive, it copies the message alone, and this rank does not read it. */
    if (remote_is_reachable(own_location) && transfer->peer_location.block == REMOTE_OPEN)
        transfer->peer_location.block = REMOTE_PRIVATE;
    transfer->peer_parts = 0;
    transfer_list_push(&link->shares, transfer);
    if (link->shares.first == transfer) share_begin_receive(shm, link);
    return true;
}
/* Removes the first shared receive and begins the next. */
static void share_end_receive(struct shm *shm, struct shm_link *link)
{
    transfer_list_take(&link->shares, NULL);
    part_claims_open(link->in.pair, 0);
    share_begin_receive(shm, link);
}
/* Copies or reads one part of the first shared receive, or ends the receive. true: something moved. */
static bool share_poll_receive(struct shm *shm, struct shm_link *link)
{
    struct transfer *transfer = link->shares.first;
    bool none_left = true;
    tutti_status status = remote_is_reachable(transfer->peer_location)
        ? share_copy_next_part(shm, link, transfer, &none_left)
        : transfer->peer_location.block == REMOTE_OPEN ? share_read_next_part(shm, link, transfer, &none_left)
                                                       : TUTTI_OK;
    if (status == TUTTI_IN_PROGRESS) return false;
    if (status == TUTTI_OK && !none_left) return true;
    /* The sender has not yet reported its parts. */
    if (status == TUTTI_OK && transfer->moved + transfer->peer_parts < part_count(transfer->wire)) return false;
    if (status == TUTTI_OK && transfer->moved && !shm_link_can_send_envelope(link)) return false;
    if (status == TUTTI_OK && transfer->moved)
        share_send_envelope(shm, link, transfer, ENVELOPE_FINISHED, 0, transfer->peer_location);
    /* After a failure no other receive begins, because the sender may still copy parts of this one. */
    if (status != TUTTI_OK) link->shares_refused = true;
    share_end_receive(shm, link);
    if (status == TUTTI_OK) transfer_complete(transfer);
    else router_fail_transfer(shm->base.router, transfer, status);
    return true;
}
void share_handle_copied(struct shm_link *link, const struct envelope *envelope)
{
    struct transfer *transfer = link->shares.first;
    /* The receive was cancelled meanwhile. */
    if (!transfer || transfer->key != envelope->id) return;
    if (transfer->peer_parts || envelope->bytes > part_count(transfer->wire) - transfer->moved)
        link->in.is_corrupt = true;
    else transfer->peer_parts = envelope->bytes;
}

/* ---- the sender ---- */
void share_handle_request(struct shm *shm, struct shm_link *link, const struct envelope *envelope)
{
    struct transfer *transfer = open_transfers_find(shm, link->rank, envelope->id, true);
    if (!transfer) return;
    if (link->helped_send || !remote_is_reachable(envelope->location) || !transfer_is_shareable(shm, transfer)) {
        link->in.is_corrupt = true;
        return;
    }
    open_transfers_remove(shm, transfer);
    transfer->peer_location = envelope->location;
    link->helped_send = transfer;
}
/* Copies one part of the send that this rank helps with, or ends the help. true: something moved. */
static bool share_poll_send(struct shm *shm, struct shm_link *link)
{
    struct transfer *transfer = link->helped_send;
    bool none_left;
    tutti_status status = share_copy_next_part(shm, link, transfer, &none_left);
    if (status == TUTTI_IN_PROGRESS) return false;
    if (status == TUTTI_OK && !none_left) return true;
    if (status == TUTTI_OK && transfer->moved && !shm_link_can_send_envelope(link)) return false;
    link->helped_send = NULL;
    if (status != TUTTI_OK) router_fail_transfer(shm->base.router, transfer, status);
    else if (transfer->moved)
        share_send_envelope(shm, link, transfer, ENVELOPE_COPIED, transfer->moved, transfer->peer_location);
    if (status != TUTTI_OK) return true;
    if (transfer->moved == part_count(transfer->wire)) transfer_complete(transfer);
    else open_transfers_add(shm, transfer);
    return true;
}
void share_handle_finished(struct shm *shm, struct shm_link *link, const struct envelope *envelope)
{
    struct transfer *transfer = link->helped_send && link->helped_send->key == envelope->id
        ? link->helped_send
        : open_transfers_find(shm, link->rank, envelope->id, true);
    if (!transfer) return;
    if (transfer == link->helped_send) link->helped_send = NULL;
    else open_transfers_remove(shm, transfer);
    transfer_complete(transfer);
}

/* ---- both ---- */
bool share_poll(struct shm *shm, struct shm_link *link)
{
    bool moved = link->shares.first && !link->shares_refused && share_poll_receive(shm, link);
    if (link->helped_send) moved |= share_poll_send(shm, link);
    return moved;
}
bool share_remove_transfer(struct shm *shm, struct shm_link *link, struct transfer *transfer)
{
    if (transfer == link->helped_send) {
        share_send_envelope(shm, link, transfer, ENVELOPE_WITHDRAW, 0, transfer->peer_location);
        link->helped_send = NULL;
        return true;
    }
    bool is_first = transfer == link->shares.first, is_found = is_first;
    if (!is_first) is_found = transfer_list_remove(&link->shares, transfer);
    if (is_found) share_send_envelope(shm, link, transfer, ENVELOPE_FINISHED, 0, transfer->peer_location);
    if (is_first) share_end_receive(shm, link);
    return is_found;
}
struct transfer *share_find_receive(const struct shm_link *link, uint64_t id)
{
    struct transfer *transfer = link->shares.first;
    while (transfer && transfer->key != id) transfer = transfer->next;
    return transfer;
}
