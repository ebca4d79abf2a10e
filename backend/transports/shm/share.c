/* Messages from tensor to tensor, if a peer can reach one end or both, or can read the sender's tensor. The receiver
   copies if it can reach the sender's tensor. The sender helps if it can reach the receiver's tensor, whose place it
   gets in SHARE. A rank that has time copies the next part. A tensor that the receiver can only read is read by the
   receiver alone. Each poll copies one part, so that other messages wait only briefly.
   A receive is done when all parts are copied, counting those that the sender reports in COPIED. A send is done when
   the receiver sends FINISHED, or when the sender has copied every part itself. From then on its memory is not in use.
   A transfer ends only when its last envelope has a cell in the ring, so it needs no later poll.

   Receives that are copied are in `shares`, and the first of them has the claims of the pair. */
#include "backend/transports/shm/link.h"

/* A message of this size in bytes evicts its own beginning from the caches. */
enum { BEYOND_CACHES = 24 << 20 };

/* Returns true if the transfer is one piece without padding, which its caller allows to share. */
static bool transfer_is_shareable(const struct shm *shm, const struct transfer *transfer)
{
    bool whole = transfer->piece_count == 1 && transfer->pieces->length == transfer->wire && transfer->wire > 0;
    return whole && transfer->may_share && shm->callbacks.find;
}
/* Returns where the peer finds this end of the transfer, or one of the REMOTE values. */
struct remote share_own_place(const struct shm *shm, const struct transfer *transfer)
{
    struct remote place;
    if (!transfer_is_shareable(shm, transfer)) return (struct remote){ REMOTE_NONE, 0 };
    bool found = shm->callbacks.find(shm->callbacks.context, transfer->pieces->at, transfer->pieces->length, &place);
    if (found) return place;
    bool open = transfer->is_send && shm->callbacks.opens
        && shm->callbacks.opens(shm->callbacks.context, transfer->pieces->at, transfer->wire);
    return (struct remote){ open ? REMOTE_OPEN : REMOTE_PRIVATE, open ? (uintptr_t)transfer->pieces->at : 0 };
}
static bool remote_is_reachable(struct remote place)
{
    return place.block != REMOTE_NONE && place.block != REMOTE_PRIVATE && place.block != REMOTE_OPEN;
}
static struct pair *shm_link_transfer_pair(const struct shm_link *link, const struct transfer *transfer)
{
    return transfer->is_send ? link->out.pair : link->in.pair;
}
static void share_send_envelope(struct shm *shm, struct shm_link *link, const struct transfer *transfer,
    enum envelope_kind kind, uint64_t parts, struct remote place)
{
    shm_link_send_envelope(shm, link,
        &(struct envelope){
            .name = transfer->name, .bytes = parts, .id = transfer->key, .kind = kind, .place = place });
}

/* ---- copying ---- */
static size_t transfer_part_bytes(const struct transfer *transfer, uint64_t part)
{
    uint64_t rest = transfer->wire - part * part_bytes(transfer->wire);
    return rest < part_bytes(transfer->wire) ? (size_t)rest : part_bytes(transfer->wire);
}
/* Copies a part from the sender's tensor to the receiver's; `theirs` is the address of the peer's tensor here. */
static void share_copy_part(const struct shm *shm, const struct transfer *transfer, unsigned char *theirs,
    uint64_t part)
{
    size_t from = (size_t)part * part_bytes(transfer->wire), bytes = transfer_part_bytes(transfer, part);
    unsigned char *mine = transfer->pieces->at + from;
    copy_function *copy = transfer->wire >= BEYOND_CACHES ? shm->callbacks.stream_far : NULL;
    piece_copy(copy, transfer->is_send ? theirs + from : mine, transfer->is_send ? mine : theirs + from, bytes);
}
/* Copies one part, or sets *none if no part is left. IN_PROGRESS: the caller tries again later. If no part is left, the
   peer may have freed its tensor already, so failing to reach it is no error. */
static tutti_status share_copy_next_part(struct shm *shm, struct shm_link *link, struct transfer *transfer, bool *none)
{
    const struct shm_callbacks *callbacks = &shm->callbacks;
    unsigned char *theirs;
    uint64_t part;
    tutti_status status = callbacks->reach(callbacks->context, link->peer, transfer->is_send, transfer->place,
        (size_t)transfer->wire, &theirs);
    *none = status != TUTTI_OK
        && !part_claims_left(shm_link_transfer_pair(link, transfer), transfer->key, part_count(transfer->wire));
    if (status != TUTTI_OK) return *none ? TUTTI_OK : status;
    if (!callbacks->enter(callbacks->context)) return TUTTI_IN_PROGRESS;
    *none = !part_claims_take(shm_link_transfer_pair(link, transfer), transfer->key, part_count(transfer->wire), &part);
    if (!*none) share_copy_part(shm, transfer, theirs, part);
    callbacks->leave(callbacks->context);
    transfer->moved += !*none;
    return TUTTI_OK;
}

/* Reads one part of a tensor that this rank can only read, with the same results. The sender cannot help, so the parts
   are read in order. */
static tutti_status share_read_next_part(struct shm *shm, struct shm_link *link, struct transfer *transfer, bool *none)
{
    const struct shm_callbacks *callbacks = &shm->callbacks;
    uint64_t from = transfer->moved * part_bytes(transfer->wire);
    *none = transfer->moved == part_count(transfer->wire);
    if (*none) return TUTTI_OK;
    if (!callbacks->enter(callbacks->context)) return TUTTI_IN_PROGRESS;
    tutti_status status = callbacks->read(callbacks->context, link->peer, transfer->place.offset + from,
        transfer->pieces->at + from, transfer_part_bytes(transfer, transfer->moved));
    callbacks->leave(callbacks->context);
    transfer->moved += status == TUTTI_OK;
    return status;
}

/* ---- the receiver ---- */
/* Begins the first of the shared receives. */
static void share_begin_receive(struct shm *shm, struct shm_link *link)
{
    struct transfer *transfer = link->shares.first;
    if (!transfer || link->refused) return;
    struct remote mine = share_own_place(shm, transfer);
    part_claims_open(link->in.pair, transfer->key);
    /* A receive whose message is read never asks for help, because its own end is then unreachable. */
    bool helps = !remote_is_reachable(transfer->place) || part_count(transfer->wire) > 1;
    if (remote_is_reachable(mine) && helps) share_send_envelope(shm, link, transfer, ENVELOPE_SHARE, 0, mine);
}
bool share_accept_receive(struct shm *shm, struct shm_link *link, struct transfer *transfer)
{
    struct remote mine = share_own_place(shm, transfer);
    bool plain = mine.block != REMOTE_NONE && transfer->place.block != REMOTE_NONE;
    bool reads =
        transfer->place.block == REMOTE_OPEN && shm->callbacks.reads && shm->callbacks.reads(shm->callbacks.context);
    if (!plain || (!remote_is_reachable(mine) && !remote_is_reachable(transfer->place) && !reads)) return false;
    /* If the sender can reach the receive, it copies the message alone, and this rank does not read it. */
    if (remote_is_reachable(mine) && transfer->place.block == REMOTE_OPEN) transfer->place.block = REMOTE_PRIVATE;
    transfer->others = 0;
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
/* Copies or reads one part of the first shared receive, or ends the receive. Returns true if something moved. */
static bool share_poll_receive(struct shm *shm, struct shm_link *link)
{
    struct transfer *transfer = link->shares.first;
    bool none = true;
    tutti_status status = remote_is_reachable(transfer->place) ? share_copy_next_part(shm, link, transfer, &none)
        : transfer->place.block == REMOTE_OPEN                 ? share_read_next_part(shm, link, transfer, &none)
                                                               : TUTTI_OK;
    if (status == TUTTI_IN_PROGRESS) return false;
    if (status == TUTTI_OK && !none) return true;
    /* The sender has not yet reported its parts. */
    if (status == TUTTI_OK && transfer->moved + transfer->others < part_count(transfer->wire)) return false;
    if (status == TUTTI_OK && transfer->moved && !shm_link_can_send_envelope(link)) return false;
    if (status == TUTTI_OK && transfer->moved)
        share_send_envelope(shm, link, transfer, ENVELOPE_FINISHED, 0, transfer->place);
    /* After a failure no other receive begins, because the sender may still copy parts of this one. */
    link->refused = status != TUTTI_OK;
    share_end_receive(shm, link);
    if (status == TUTTI_OK) transfer_complete(transfer);
    else router_refuse_transfer(shm->base.router, transfer, status);
    return true;
}
/* Records how many parts the sender has copied. */
void share_handle_copied(struct shm_link *link, const struct envelope *envelope)
{
    struct transfer *transfer = link->shares.first;
    /* The receive was cancelled meanwhile. */
    if (!transfer || transfer->key != envelope->id) return;
    if (transfer->others || envelope->bytes > part_count(transfer->wire) - transfer->moved) link->in.corrupt = true;
    else transfer->others = envelope->bytes;
}

/* ---- the sender ---- */
/* Begins to help with an announced send, whose receiver has sent its place (SHARE). */
void share_handle_request(struct shm *shm, struct shm_link *link, const struct envelope *envelope)
{
    struct transfer *transfer = open_transfers_find(shm, link->rank, envelope->id, true);
    if (!transfer) return;
    if (link->helped || !remote_is_reachable(envelope->place) || !transfer_is_shareable(shm, transfer)) {
        link->in.corrupt = true;
        return;
    }
    open_transfers_remove(shm, transfer);
    transfer->place = envelope->place;
    link->helped = transfer;
}
/* Copies one part of the send that this rank helps with, or ends the help. Returns true if something moved. */
static bool share_poll_send(struct shm *shm, struct shm_link *link)
{
    struct transfer *transfer = link->helped;
    bool none;
    tutti_status status = share_copy_next_part(shm, link, transfer, &none);
    if (status == TUTTI_IN_PROGRESS) return false;
    if (status == TUTTI_OK && !none) return true;
    if (status == TUTTI_OK && transfer->moved && !shm_link_can_send_envelope(link)) return false;
    link->helped = NULL;
    if (status != TUTTI_OK) router_refuse_transfer(shm->base.router, transfer, status);
    else if (transfer->moved)
        share_send_envelope(shm, link, transfer, ENVELOPE_COPIED, transfer->moved, transfer->place);
    if (status != TUTTI_OK) return true;
    if (transfer->moved == part_count(transfer->wire)) transfer_complete(transfer);
    else open_transfers_add(shm, transfer);
    return true;
}
/* Completes a send whose receiver has all parts. */
void share_handle_finished(struct shm *shm, struct shm_link *link, const struct envelope *envelope)
{
    struct transfer *transfer = link->helped && link->helped->key == envelope->id
        ? link->helped
        : open_transfers_find(shm, link->rank, envelope->id, true);
    if (!transfer) return;
    if (transfer == link->helped) link->helped = NULL;
    else open_transfers_remove(shm, transfer);
    transfer_complete(transfer);
}

/* ---- both ---- */
bool share_poll(struct shm *shm, struct shm_link *link)
{
    bool moved = link->shares.first && share_poll_receive(shm, link);
    if (link->helped) moved |= share_poll_send(shm, link);
    return moved;
}
bool share_remove_transfer(struct shm *shm, struct shm_link *link, struct transfer *transfer)
{
    if (transfer == link->helped) {
        share_send_envelope(shm, link, transfer, ENVELOPE_WITHDRAW, 0, transfer->place);
        link->helped = NULL;
        return true;
    }
    bool first = transfer == link->shares.first, found = first;
    if (!first) found = transfer_list_remove(&link->shares, transfer);
    if (found) share_send_envelope(shm, link, transfer, ENVELOPE_FINISHED, 0, transfer->place);
    if (first) share_end_receive(shm, link);
    return found;
}
struct transfer *share_find_receive(const struct shm_link *link, uint64_t id)
{
    struct transfer *transfer = link->shares.first;
    while (transfer && transfer->key != id) transfer = transfer->next;
    return transfer;
}
