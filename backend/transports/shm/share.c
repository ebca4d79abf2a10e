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
static bool transfer_is_shareable(const struct shm *shm, const struct transfer *x)
{
    bool whole = x->piece_count == 1 && x->pieces->length == x->wire && x->wire > 0;
    return whole && x->may_share && shm->callbacks.find;
}
/* Returns where the peer finds this end of the transfer, or one of the REMOTE values. */
struct remote share_own_place(const struct shm *shm, const struct transfer *x)
{
    struct remote place;
    if (!transfer_is_shareable(shm, x)) return (struct remote){ REMOTE_NONE, 0 };
    bool found = shm->callbacks.find(shm->callbacks.context, x->pieces->at, x->pieces->length, &place);
    if (found) return place;
    bool open =
        x->is_send && shm->callbacks.opens && shm->callbacks.opens(shm->callbacks.context, x->pieces->at, x->wire);
    return (struct remote){ open ? REMOTE_OPEN : REMOTE_PRIVATE, open ? (uintptr_t)x->pieces->at : 0 };
}
static bool remote_is_reachable(struct remote place)
{
    return place.block != REMOTE_NONE && place.block != REMOTE_PRIVATE && place.block != REMOTE_OPEN;
}
static struct pair *shm_link_transfer_pair(const struct shm_link *l, const struct transfer *x)
{
    return x->is_send ? l->out.pair : l->in.pair;
}
static void share_send_envelope(struct shm *shm, struct shm_link *l, const struct transfer *x, enum envelope_kind kind,
    uint64_t parts, struct remote place)
{
    shm_link_send_envelope(shm, l,
        &(struct envelope){ .name = x->name, .bytes = parts, .id = x->key, .kind = kind, .place = place });
}

/* ---- copying ---- */
static size_t transfer_part_bytes(const struct transfer *x, uint64_t part)
{
    uint64_t rest = x->wire - part * part_bytes(x->wire);
    return rest < part_bytes(x->wire) ? (size_t)rest : part_bytes(x->wire);
}
/* Copies a part from the sender's tensor to the receiver's; `theirs` is the address of the peer's tensor here. */
static void share_copy_part(const struct shm *shm, const struct transfer *x, unsigned char *theirs, uint64_t part)
{
    size_t from = (size_t)part * part_bytes(x->wire), bytes = transfer_part_bytes(x, part);
    unsigned char *mine = x->pieces->at + from;
    copy_function *copy = x->wire >= BEYOND_CACHES ? shm->callbacks.stream_far : NULL;
    piece_copy(copy, x->is_send ? theirs + from : mine, x->is_send ? mine : theirs + from, bytes);
}
/* Copies one part, or sets *none if no part is left. IN_PROGRESS: the caller tries again later. If no part is left, the
   peer may have freed its tensor already, so failing to reach it is no error. */
static tutti_status share_copy_next_part(struct shm *shm, struct shm_link *l, struct transfer *x, bool *none)
{
    const struct shm_callbacks *callbacks = &shm->callbacks;
    unsigned char *theirs;
    uint64_t part;
    tutti_status status = callbacks->reach(callbacks->context, l->peer, x->is_send, x->place, (size_t)x->wire, &theirs);
    *none = status != TUTTI_OK && !part_claims_left(shm_link_transfer_pair(l, x), x->key, part_count(x->wire));
    if (status != TUTTI_OK) return *none ? TUTTI_OK : status;
    if (!callbacks->enter(callbacks->context)) return TUTTI_IN_PROGRESS;
    *none = !part_claims_take(shm_link_transfer_pair(l, x), x->key, part_count(x->wire), &part);
    if (!*none) share_copy_part(shm, x, theirs, part);
    callbacks->leave(callbacks->context);
    x->moved += !*none;
    return TUTTI_OK;
}

/* Reads one part of a tensor that this rank can only read, with the same results. The sender cannot help, so the parts
   are read in order. */
static tutti_status share_read_next_part(struct shm *shm, struct shm_link *l, struct transfer *x, bool *none)
{
    const struct shm_callbacks *callbacks = &shm->callbacks;
    uint64_t from = x->moved * part_bytes(x->wire);
    *none = x->moved == part_count(x->wire);
    if (*none) return TUTTI_OK;
    if (!callbacks->enter(callbacks->context)) return TUTTI_IN_PROGRESS;
    tutti_status status = callbacks->read(callbacks->context, l->peer, x->place.offset + from, x->pieces->at + from,
        transfer_part_bytes(x, x->moved));
    callbacks->leave(callbacks->context);
    x->moved += status == TUTTI_OK;
    return status;
}

/* ---- the receiver ---- */
/* Begins the first of the shared receives. */
static void share_begin_receive(struct shm *shm, struct shm_link *l)
{
    struct transfer *x = l->shares.first;
    if (!x || l->refused) return;
    struct remote mine = share_own_place(shm, x);
    part_claims_open(l->in.pair, x->key);
    /* A receive whose message is read never asks for help, because its own end is then unreachable. */
    bool helps = !remote_is_reachable(x->place) || part_count(x->wire) > 1;
    if (remote_is_reachable(mine) && helps) share_send_envelope(shm, l, x, ENVELOPE_SHARE, 0, mine);
}
bool share_accept_receive(struct shm *shm, struct shm_link *l, struct transfer *x)
{
    struct remote mine = share_own_place(shm, x);
    bool plain = mine.block != REMOTE_NONE && x->place.block != REMOTE_NONE;
    bool reads = x->place.block == REMOTE_OPEN && shm->callbacks.reads && shm->callbacks.reads(shm->callbacks.context);
    if (!plain || (!remote_is_reachable(mine) && !remote_is_reachable(x->place) && !reads)) return false;
    /* If the sender can reach the receive, it copies the message alone, and this rank does not read it. */
    if (remote_is_reachable(mine) && x->place.block == REMOTE_OPEN) x->place.block = REMOTE_PRIVATE;
    x->others = 0;
    transfer_list_push(&l->shares, x);
    if (l->shares.first == x) share_begin_receive(shm, l);
    return true;
}
/* Removes the first shared receive and begins the next. */
static void share_end_receive(struct shm *shm, struct shm_link *l)
{
    transfer_list_take(&l->shares, NULL);
    part_claims_open(l->in.pair, 0);
    share_begin_receive(shm, l);
}
/* Copies or reads one part of the first shared receive, or ends the receive. Returns true if something moved. */
static bool share_poll_receive(struct shm *shm, struct shm_link *l)
{
    struct transfer *x = l->shares.first;
    bool none = true;
    tutti_status status = remote_is_reachable(x->place) ? share_copy_next_part(shm, l, x, &none)
        : x->place.block == REMOTE_OPEN                 ? share_read_next_part(shm, l, x, &none)
                                                        : TUTTI_OK;
    if (status == TUTTI_IN_PROGRESS) return false;
    if (status == TUTTI_OK && !none) return true;
    /* The sender has not yet reported its parts. */
    if (status == TUTTI_OK && x->moved + x->others < part_count(x->wire)) return false;
    if (status == TUTTI_OK && x->moved && !shm_link_can_send_envelope(l)) return false;
    if (status == TUTTI_OK && x->moved) share_send_envelope(shm, l, x, ENVELOPE_FINISHED, 0, x->place);
    /* After a failure no other receive begins, because the sender may still copy parts of this one. */
    l->refused = status != TUTTI_OK;
    share_end_receive(shm, l);
    if (status == TUTTI_OK) transfer_complete(x);
    else router_refuse_transfer(shm->base.router, x, status);
    return true;
}
/* Records how many parts the sender has copied. */
void share_handle_copied(struct shm_link *l, const struct envelope *e)
{
    struct transfer *x = l->shares.first;
    /* The receive was cancelled meanwhile. */
    if (!x || x->key != e->id) return;
    if (x->others || e->bytes > part_count(x->wire) - x->moved) l->in.corrupt = true;
    else x->others = e->bytes;
}

/* ---- the sender ---- */
/* Begins to help with an announced send, whose receiver has sent its place (SHARE). */
void share_handle_request(struct shm *shm, struct shm_link *l, const struct envelope *e)
{
    struct transfer *x = open_transfers_find(shm, l->rank, e->id, true);
    if (!x) return;
    if (l->helped || !remote_is_reachable(e->place) || !transfer_is_shareable(shm, x)) {
        l->in.corrupt = true;
        return;
    }
    open_transfers_remove(shm, x);
    x->place = e->place;
    l->helped = x;
}
/* Copies one part of the send that this rank helps with, or ends the help. Returns true if something moved. */
static bool share_poll_send(struct shm *shm, struct shm_link *l)
{
    struct transfer *x = l->helped;
    bool none;
    tutti_status status = share_copy_next_part(shm, l, x, &none);
    if (status == TUTTI_IN_PROGRESS) return false;
    if (status == TUTTI_OK && !none) return true;
    if (status == TUTTI_OK && x->moved && !shm_link_can_send_envelope(l)) return false;
    l->helped = NULL;
    if (status != TUTTI_OK) router_refuse_transfer(shm->base.router, x, status);
    else if (x->moved) share_send_envelope(shm, l, x, ENVELOPE_COPIED, x->moved, x->place);
    if (status != TUTTI_OK) return true;
    if (x->moved == part_count(x->wire)) transfer_complete(x);
    else open_transfers_add(shm, x);
    return true;
}
/* Completes a send whose receiver has all parts. */
void share_handle_finished(struct shm *shm, struct shm_link *l, const struct envelope *e)
{
    struct transfer *x =
        l->helped && l->helped->key == e->id ? l->helped : open_transfers_find(shm, l->rank, e->id, true);
    if (!x) return;
    if (x == l->helped) l->helped = NULL;
    else open_transfers_remove(shm, x);
    transfer_complete(x);
}

/* ---- both ---- */
bool share_poll(struct shm *shm, struct shm_link *l)
{
    bool moved = l->shares.first && share_poll_receive(shm, l);
    if (l->helped) moved |= share_poll_send(shm, l);
    return moved;
}
bool share_remove_transfer(struct shm *shm, struct shm_link *l, struct transfer *x)
{
    if (x == l->helped) {
        share_send_envelope(shm, l, x, ENVELOPE_WITHDRAW, 0, x->place);
        l->helped = NULL;
        return true;
    }
    bool first = x == l->shares.first, found = first;
    if (!first) found = transfer_list_remove(&l->shares, x);
    if (found) share_send_envelope(shm, l, x, ENVELOPE_FINISHED, 0, x->place);
    if (first) share_end_receive(shm, l);
    return found;
}
struct transfer *share_find_receive(const struct shm_link *l, uint64_t id)
{
    struct transfer *x = l->shares.first;
    while (x && x->key != id) x = x->next;
    return x;
}
