/* Letters wait in three lists: of each peer those its socket does not take now, here those that have come and are to be
   delivered or passed on, and early ones, for communicators that have not opened a channel yet. Those for one that was
   closed lately are answered with its last words. registry.lock protects all; it is not held while a user is called. */
#include "backend/processes/channel.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/processes/link.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_EARLY = 256, CLOSED = 64 };
struct channel {
    struct address me;
    struct peer *const *peers;                          /* [size], until it is closed */
    int size;
    struct routes *routes;                              /* or NULL */
    struct parcel last;                                 /* flags 0: there are no last words yet */
    struct channel_user user;
    bool ticks, closing;                                /* closing: its user is not called any more */
    unsigned round;                                     /* of ticks: the last it was in */
    struct channel *next;
};
static struct {                                         /* registry.lock */
    struct channel *channels, *calling;
    struct letters incoming, early;
    struct channel *closed[CLOSED];                     /* the latest */
    unsigned closed_count;                              /* ever */
    int64_t ticked_ms;
    unsigned round;
} room;

/* ---- lists of letters ---- */
static bool address_equal(const struct address *a, const struct address *b)
{
    return a->rank == b->rank && nonce_equal(a->token, b->token);
}
static struct letter *letter_pop(struct letters *list)
{
    struct letter *letter = list->first;
    list->first = letter->next;
    if (!list->first) list->last = NULL;
    list->count--;
    return letter;
}
static void letter_push(struct letters *list, struct letter *letter)
{
    letter->next = NULL;
    if (list->last) list->last->next = letter;
    else list->first = letter;
    list->last = letter;
    list->count++;
}
static struct letter *find_same(const struct letters *list, const struct parcel *p)    /* the last one */
{
    struct letter *found = NULL;
    for (struct letter *l = list->first; l; l = l->next)
        if (address_equal(&l->parcel.to, &p->to) && l->parcel.from == p->from && l->parcel.word == p->word) found = l;
    return found;
}
/* In the place of an earlier one of its kind, or at the end. */
static bool letter_add(struct letters *list, const struct parcel *parcel, const unsigned char via[16])
{
    struct letter *letter = find_same(list, parcel);
    bool is_new = !letter;
    if (is_new) letter = memory_zeroed(1, sizeof *letter);
    if (!letter) return false;
    letter->parcel = *parcel;
    memcpy(letter->via, via, sizeof letter->via);
    if (is_new) letter_push(list, letter);
    return true;
}
void letters_free(struct letters *list)
{
    while (list->first) free(letter_pop(list));
}

/* ---- sending ---- */
void peer_flush(struct peer *peer)
{
    if (peer->owes_given_ups) peer_tell_given_ups(peer);
    while (peer->unsent.first && peer_tell_parcel(peer, &peer->unsent.first->parcel) != -EAGAIN)
        free(letter_pop(&peer->unsent));                /* sent, or it never will be: the end is read soon */
    if (!peer->unsent.first && !peer->owes_given_ups) peer_await_room(peer, false);
}
static bool peer_post(struct peer *peer, const struct parcel *parcel)
{
    if (peer->state > OPEN) return false;               /* a link that is not open yet takes it later */
    bool first = !peer->unsent.first;
    int error = first ? peer_tell_parcel(peer, parcel) : -EAGAIN;
    if (error != -EAGAIN) return !error;
    if (!letter_add(&peer->unsent, parcel, registry.self.nonce)) return false;
    if (first) peer_await_room(peer, true);
    return true;
}
/* What is said once makes no link, and no way of a channel that is closed does. */
static bool route(const struct channel *c, bool is_open, const struct parcel *parcel)
{
    struct peer *peer = routes_next(c->routes, parcel->to.rank, is_open && parcel->from == c->me.rank);
    bool calls = is_open && !(parcel->flags & LAST_WORD);
    return peer && (calls || !peer->link || peer->state == OPEN || peer->unsent.first) && peer_post(peer, parcel);
}
static bool post(struct channel *c, const struct parcel *parcel)
{
    struct peer *peer = c->peers[parcel->to.rank];
    if (!peer) {
        registry_wake();
        return letter_add(&room.incoming, parcel, registry.self.nonce);
    }
    if (!c->routes) return peer_post(peer, parcel);
    bool sent = route(c, true, parcel);
    if (!(parcel->flags & LAST_WORD)) routes_record_sent(c->routes, parcel->to.rank);
    return sent;
}
static bool say(struct channel *c, int to, unsigned word, int flags, const void *bytes, size_t length)
{
    struct parcel parcel = { .to = c->me, .from = c->me.rank, .word = (uint16_t)word, .length = (uint32_t)length };
    assert(length <= CHANNEL_BYTES && word < CHANNEL_WORDS);
    parcel.to.rank = to;
    parcel.flags = (uint8_t)flags;
    if (length) memcpy(parcel.bytes, bytes, length);
    pthread_mutex_lock(&registry.lock);
    if (flags) c->last = parcel;
    bool sent = post(c, &parcel);
    pthread_mutex_unlock(&registry.lock);
    return sent;
}
bool channel_send(struct channel *channel, int to, unsigned word, const void *bytes, size_t length)
{
    return say(channel, to, word, 0, bytes, length);
}
bool channel_send_last(struct channel *channel, int to, unsigned word, const void *bytes, size_t length)
{
    return say(channel, to, word, LAST_WORD, bytes, length);
}

/* ---- delivering, on the watch thread ---- */
void channels_receive(const struct parcel *parcel, const struct peer *by)
{
    letter_add(&room.incoming, parcel, by->identity.nonce);
}
static void call(struct channel *c, const struct parcel *parcel)       /* NULL: it is time */
{
    struct channel_user user = c->user;
    room.calling = c;
    pthread_mutex_unlock(&registry.lock);
    if (parcel) user.receive(user.context, parcel->from, parcel->bytes, parcel->length);
    else user.tick(user.context);
    pthread_mutex_lock(&registry.lock);
    room.calling = NULL;
    pthread_cond_broadcast(&registry.changed);
}
static struct channel *find(const struct address *to)
{
    struct channel *c = room.channels;
    while (c && !address_equal(&c->me, to)) c = c->next;
    return c;
}
static struct channel *closed(unsigned i)               /* NULL: those were all */
{
    return i < CLOSED && i < room.closed_count ? room.closed[i] : NULL;
}
static struct channel *find_closed(const struct address *to)
{
    struct channel *c = NULL;
    for (unsigned i = 0; (c = closed(i)) != NULL && !address_equal(&c->me, to);) i++;
    return c;
}
static void keep_early(const struct letter *letter)
{
    letter_add(&room.early, &letter->parcel, letter->via);
    if (room.early.count > MOST_EARLY) free(letter_pop(&room.early));
}
/* To one that came late; what comes back to it after that is not answered. */
static void answer(const struct channel *c, const struct parcel *parcel)
{
    struct parcel last = c->last;
    if (!c->routes || !last.flags || parcel->flags & ANSWER) return;
    if (!routes_may_pass(c->routes, c->me.rank, parcel->from)) return;
    last.to.rank = parcel->from;
    last.flags = LAST_WORD | ANSWER;
    route(c, false, &last);
}
/* Of two channels the one from where it is less far. */
static bool is_nearer(const struct channel *c, const struct parcel *p, const struct channel *than)
{
    if (!c->routes || !nonce_equal(c->me.token, p->to.token)) return false;
    if (!routes_may_pass(c->routes, p->from, p->to.rank)) return false;
    return !than || routes_left(c->routes, p->to.rank) < routes_left(than->routes, p->to.rank);
}
/* Whether that process belongs to the group, or is the process of that rank. Of a closed channel nothing is known. */
static bool is_process_of(const struct channel *c, int member, const unsigned char nonce[16])
{
    const struct peer *peer = c->peers[member];
    return nonce_equal(peer ? peer->identity.nonce : registry.self.nonce, nonce);
}
static bool is_authentic(const struct channel *c, const struct letter *letter)
{
    const struct parcel *p = &letter->parcel;
    if (p->from < 0 || p->from >= c->size) return false;
    if (!c->peers || nonce_equal(letter->via, registry.self.nonce)) return true;
    if (p->hops == 0) return is_process_of(c, p->from, letter->via);
    for (int r = 0; c->routes && r < c->size; r++)
        if (is_process_of(c, r, letter->via)) return true;
    return false;
}
/* A process that sends in the name of another, or of a group that it does not belong to, loses its connection. */
static void letter_refuse(const struct letter *letter)
{
    struct peer *near = registry_find(letter->via), *far = link_find(letter->via), *peer = near ? near : far;
    if (peer && registry.turned_away++ == 0)
        LOG(WARN, "process %llu on %s sent a control message as rank %d, which it is not: its connection was closed",
            (unsigned long long)peer->identity.pid, peer->identity.host, letter->parcel.from);
    if (near) peer_end(near, LOST);
    if (far) link_end(far, -EPROTO);
}
static bool pass_on(struct letter *letter)              /* false: it is for a channel that is to open here */
{
    struct parcel *parcel = &letter->parcel;
    const struct channel *best = NULL, *c;
    bool is_open = true;
    for (c = room.channels; c; c = c->next)
        if (is_nearer(c, parcel, best)) best = c;
    for (unsigned i = 0; !best && (c = closed(i)) != NULL; i++)
        if (is_nearer(c, parcel, best)) best = c, is_open = false;
    if (!best) return false;
    if (!is_authentic(best, letter)) letter_refuse(letter);
    else if (parcel->hops++ < routes_most_hops(best->routes)) route(best, is_open, parcel);
    return true;
}
static void deliver(struct letter *letter)
{
    struct channel *c = find(&letter->parcel.to);
    if (c && !is_authentic(c, letter)) { letter_refuse(letter); return; }
    if (c && c->routes) routes_record_received(c->routes, letter->parcel.from);
    if (c && !c->closing) call(c, &letter->parcel);
    else if (c || (c = find_closed(&letter->parcel.to)) != NULL) answer(c, &letter->parcel);
    else if (!pass_on(letter)) keep_early(letter);
}
void channels_deliver(void)
{
    while (room.incoming.first) {
        struct letter *letter = letter_pop(&room.incoming);
        deliver(letter);
        free(letter);
    }
}
static struct channel *next_to_tick(unsigned round)     /* that has not been called in this round */
{
    struct channel *c = room.channels;
    while (c && (!c->ticks || c->closing || c->round == round)) c = c->next;
    return c;
}
int channels_patience_ms(void)
{
    int64_t left_ms = room.ticked_ms + CHANNEL_TICK_MS - clock_ms();
    return !next_to_tick(room.round + 1) ? -1 : left_ms > 0 ? (int)left_ms : 0;
}
void channels_tick(void)                                /* the list may change during each call */
{
    if (channels_patience_ms() != 0) return;
    room.ticked_ms = clock_ms();
    room.round++;
    for (struct channel *c; (c = next_to_tick(room.round)) != NULL;) {
        c->round = room.round;
        call(c, NULL);
    }
}

/* ---- lifetime ---- */
/* Before what is just coming. */
static void deliver_early(const struct channel *c)
{
    struct letters early = room.early, incoming = room.incoming;
    room.early = room.incoming = (struct letters){ 0 };
    while (early.first) {
        struct letter *letter = letter_pop(&early);
        bool comes = nonce_equal(letter->parcel.to.token, c->me.token);        /* or goes, by way of this process */
        letter_push(comes ? &room.incoming : &room.early, letter);
    }
    while (incoming.first) letter_push(&room.incoming, letter_pop(&incoming));
}
tutti_status channel_open(const unsigned char token[16], int rank, struct peer *const *peers, int size,
    const struct route_map *map, const struct channel_user *user, struct channel **out)
{
    struct channel *c = memory_zeroed(1, sizeof *c);
    if (!c) return status_fail(TUTTI_NO_MEMORY, "no memory for a control channel");
    tutti_status status = map ? routes_create(map, peers, &c->routes) : TUTTI_OK;
    if (status != TUTTI_OK) {
        free(c);
        return status;
    }
    memcpy(c->me.token, token, sizeof c->me.token);
    c->me.rank = rank;
    c->peers = peers;
    c->size = size;
    c->user = *user;
    pthread_mutex_lock(&registry.lock);
    c->next = room.channels;
    room.channels = c;
    deliver_early(c);
    registry_wake();
    pthread_mutex_unlock(&registry.lock);
    *out = c;
    return TUTTI_OK;
}
void channel_tick(struct channel *channel, bool on)
{
    pthread_mutex_lock(&registry.lock);
    if (on && !channel->ticks) registry_wake();
    channel->ticks = on;
    pthread_mutex_unlock(&registry.lock);
}
static void forget(struct channel *c)
{
    if (!c) return;
    routes_free(c->routes);
    free(c);
}
void channel_close(struct channel *channel)
{
    if (!channel) return;
    pthread_mutex_lock(&registry.lock);
    channel->closing = true;
    while (room.calling == channel) registry_wait(INT64_MAX);           /* its user may send meanwhile */
    struct channel **at = &room.channels, **place = &room.closed[room.closed_count++ % CLOSED];
    while (*at != channel) at = &(*at)->next;
    *at = channel->next;
    forget(*place);
    if (channel->routes) routes_retire(channel->routes);
    channel->peers = NULL;
    *place = channel;
    pthread_mutex_unlock(&registry.lock);
}
void channels_lose(const struct peer *peer)
{
    const struct channel *c;
    for (unsigned i = 0; (c = closed(i)) != NULL; i++)
        if (c->routes) routes_lose(c->routes, peer);
}
void channels_forget(void)
{
    for (unsigned i = 0; closed(i); i++) forget(closed(i));
    memset(room.closed, 0, sizeof room.closed);
    room.closed_count = 0;
    letters_free(&room.incoming);
    letters_free(&room.early);
}
void channels_after_fork(void) { memset(&room, 0, sizeof room); }
