/* Messages from tensor to tensor, where a peer can reach one end or both, or read what is sent. The receiver copies if
   it can reach what is sent, the sender helps if it can reach where that goes (the receiver tells it, with SHARE): part
   by part, whoever has time takes the next. What the receiver can only read it takes by itself, part by part. A part is
   copied in one poll, so nothing else waits for long. The receive is over when all parts have been copied, those of the
   sender as it tells (COPIED); the send when the receiver tells so (FINISHED), or when the sender has copied all by
   itself. So when a transfer is over nobody touches its memory any more.
   Nor does anybody poll for it: it is over once the other end has been told, not while that waits for room.

   A receive that is copied is in `shares`, and the first of them has the claims of the pair. */
#include "backend/transports/shm/link.h"

/* A message of so many bytes pushes its own beginning out of the caches anyway. */
enum { BEYOND_CACHES = 24 << 20 };

static bool may_share(const struct shm *shm, const struct transfer *x)
{
    bool whole = x->piece_count == 1 && x->pieces->length == x->wire && x->wire > 0;
    return whole && x->may_share && shm->callbacks.find;
}
struct remote share_remote(const struct shm *shm, const struct transfer *x)
{
    struct remote place;
    if (!may_share(shm, x)) return (struct remote){ REMOTE_NONE, 0 };
    bool found = shm->callbacks.find(shm->callbacks.context, x->pieces->at, x->pieces->length, &place);
    if (found) return place;
    bool open =
        x->is_send && shm->callbacks.opens && shm->callbacks.opens(shm->callbacks.context, x->pieces->at, x->wire);
    return (struct remote){ open ? REMOTE_OPEN : REMOTE_PRIVATE, open ? (uintptr_t)x->pieces->at : 0 };
}
static bool is_reachable(struct remote place)
{
    return place.block != REMOTE_NONE && place.block != REMOTE_PRIVATE && place.block != REMOTE_OPEN;
}
static struct pair *pair_of(const struct shm_link *l, const struct transfer *x)
{
    return x->is_send ? l->out.pair : l->in.pair;
}
static void share_send_envelope(struct shm *shm, struct shm_link *l, const struct transfer *x, enum envelope_kind kind,
    uint64_t parts, struct remote place)
{
    link_tell(shm, l,
        &(struct envelope){ .name = x->name, .bytes = parts, .id = x->key, .kind = kind, .place = place });
}

/* ---- copying ---- */
static size_t bytes_of_part(const struct transfer *x, uint64_t part)
{
    uint64_t rest = x->wire - part * part_bytes(x->wire);
    return rest < part_bytes(x->wire) ? (size_t)rest : part_bytes(x->wire);
}
static void copy_part(const struct shm *shm, const struct transfer *x, unsigned char *theirs, uint64_t part)
{
    size_t from = (size_t)part * part_bytes(x->wire), bytes = bytes_of_part(x, part);
    unsigned char *mine = x->pieces->at + from;
    copy_function *copy = x->wire >= BEYOND_CACHES ? shm->callbacks.stream_far : NULL;
    piece_copy(copy, x->is_send ? theirs + from : mine, x->is_send ? mine : theirs + from, bytes);
}
/* IN_PROGRESS: not now. OK: a part has been copied, or, *none, there is none left. Then the peer may have copied all,
   be over and have freed its tensor before it could be reached from here: that it cannot be is no error. */
static tutti_status copy_next(struct shm *shm, struct shm_link *l, struct transfer *x, bool *none)
{
    const struct shm_callbacks *callbacks = &shm->callbacks;
    unsigned char *theirs;
    uint64_t part;
    tutti_status status = callbacks->reach(callbacks->context, l->peer, x->is_send, x->place, (size_t)x->wire, &theirs);
    *none = status != TUTTI_OK && !claims_left(pair_of(l, x), x->key, part_count(x->wire));
    if (status != TUTTI_OK) return *none ? TUTTI_OK : status;
    if (!callbacks->enter(callbacks->context)) return TUTTI_IN_PROGRESS;
    *none = !claims_take(pair_of(l, x), x->key, part_count(x->wire), &part);
    if (!*none) copy_part(shm, x, theirs, part);
    callbacks->leave(callbacks->context);
    x->moved += !*none;
    return TUTTI_OK;
}

/* The same, of what is read; nobody helps, so the parts come in turn. */
static tutti_status read_next(struct shm *shm, struct shm_link *l, struct transfer *x, bool *none)
{
    const struct shm_callbacks *callbacks = &shm->callbacks;
    uint64_t from = x->moved * part_bytes(x->wire);
    *none = x->moved == part_count(x->wire);
    if (*none) return TUTTI_OK;
    if (!callbacks->enter(callbacks->context)) return TUTTI_IN_PROGRESS;
    tutti_status status = callbacks->read(callbacks->context, l->peer, x->place.offset + from, x->pieces->at + from,
        bytes_of_part(x, x->moved));
    callbacks->leave(callbacks->context);
    x->moved += status == TUTTI_OK;
    return status;
}

/* ---- the receiver ---- */
static void share_begin(struct shm *shm, struct shm_link *l) /* with the first of the receives */
{
    struct transfer *x = l->shares.first;
    if (!x || l->refused) return;
    struct remote mine = share_remote(shm, x);
    claims_open(l->in.pair, x->key);
    bool helps = !is_reachable(x->place) || part_count(x->wire) > 1;   /* never where it is read: mine is private */
    if (is_reachable(mine) && helps) share_send_envelope(shm, l, x, ENVELOPE_SHARE, 0, mine);
}
bool share_accept(struct shm *shm, struct shm_link *l, struct transfer *x)
{
    struct remote mine = share_remote(shm, x);
    bool plain = mine.block != REMOTE_NONE && x->place.block != REMOTE_NONE;
    bool reads = x->place.block == REMOTE_OPEN && shm->callbacks.reads && shm->callbacks.reads(shm->callbacks.context);
    if (!plain || (!is_reachable(mine) && !is_reachable(x->place) && !reads)) return false;
    if (is_reachable(mine) && x->place.block == REMOTE_OPEN) x->place.block = REMOTE_PRIVATE;  /* the sender copies */
    x->others = 0;
    queue_push(&l->shares, x);
    if (l->shares.first == x) share_begin(shm, l);
    return true;
}
static void share_next(struct shm *shm, struct shm_link *l) /* the first is over */
{
    queue_take(&l->shares, NULL);
    claims_open(l->in.pair, 0);
    share_begin(shm, l);
}
static bool share_receive(struct shm *shm, struct shm_link *l)
{
    struct transfer *x = l->shares.first;
    bool none = true;
    tutti_status status = is_reachable(x->place) ? copy_next(shm, l, x, &none)
        : x->place.block == REMOTE_OPEN          ? read_next(shm, l, x, &none)
                                                 : TUTTI_OK;
    if (status == TUTTI_IN_PROGRESS) return false;
    if (status == TUTTI_OK && !none) return true;
    if (status == TUTTI_OK && x->moved + x->others < part_count(x->wire)) return false; /* the sender is at the last */
    if (status == TUTTI_OK && x->moved && !link_can_tell(l)) return false;
    if (status == TUTTI_OK && x->moved) share_send_envelope(shm, l, x, ENVELOPE_FINISHED, 0, x->place);
    l->refused = status != TUTTI_OK; /* the sender may still be at it: the next would make no sense to it */
    share_next(shm, l);
    if (status == TUTTI_OK) transfer_done(x);
    else router_refuse(shm->base.router, x, status);
    return true;
}
void share_hear_copied(struct shm_link *l, const struct envelope *e)
{
    struct transfer *x = l->shares.first;
    if (!x || x->key != e->id) return; /* cancelled meanwhile */
    if (x->others || e->bytes > part_count(x->wire) - x->moved) l->in.corrupt = true;
    else x->others = e->bytes;
}

/* ---- the sender ---- */
void share_hear_offer(struct shm *shm, struct shm_link *l, const struct envelope *e)
{
    struct transfer *x = open_find(shm, l->rank, e->id, true);
    if (!x) return;
    if (l->helped || !is_reachable(e->place) || !may_share(shm, x)) {
        l->in.corrupt = true;
        return;
    }
    open_remove(shm, x);
    x->place = e->place;
    l->helped = x;
}
static bool share_send(struct shm *shm, struct shm_link *l)
{
    struct transfer *x = l->helped;
    bool none;
    tutti_status status = copy_next(shm, l, x, &none);
    if (status == TUTTI_IN_PROGRESS) return false;
    if (status == TUTTI_OK && !none) return true;
    if (status == TUTTI_OK && x->moved && !link_can_tell(l)) return false;
    l->helped = NULL;
    if (status != TUTTI_OK) router_refuse(shm->base.router, x, status);
    else if (x->moved) share_send_envelope(shm, l, x, ENVELOPE_COPIED, x->moved, x->place);
    if (status != TUTTI_OK) return true;
    if (x->moved == part_count(x->wire)) transfer_done(x);
    else open_add(shm, x);
    return true;
}
void share_hear_finished(struct shm *shm, struct shm_link *l, const struct envelope *e)
{
    struct transfer *x = l->helped && l->helped->key == e->id ? l->helped : open_find(shm, l->rank, e->id, true);
    if (!x) return;
    if (x == l->helped) l->helped = NULL;
    else open_remove(shm, x);
    transfer_done(x);
}

/* ---- both ---- */
bool share_poll(struct shm *shm, struct shm_link *l)
{
    bool moved = l->shares.first && share_receive(shm, l);
    if (l->helped) moved |= share_send(shm, l);
    return moved;
}
bool share_remove(struct shm *shm, struct shm_link *l, struct transfer *x)
{
    if (x == l->helped) {
        share_send_envelope(shm, l, x, ENVELOPE_WITHDRAW, 0, x->place);
        l->helped = NULL;
        return true;
    }
    bool first = x == l->shares.first, found = first;
    if (!first) found = queue_remove(&l->shares, x);
    if (found) share_send_envelope(shm, l, x, ENVELOPE_FINISHED, 0, x->place);
    if (first) share_next(shm, l);
    return found;
}
struct transfer *share_find(const struct shm_link *l, uint64_t id)
{
    struct transfer *x = l->shares.first;
    while (x && x->key != id) x = x->next;
    return x;
}
