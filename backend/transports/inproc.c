/* The world is one lock, a clock that ticks with every poll, and an inbox for each rank: messages by the time at which
   they are due. Those of one name from one rank keep their order, because none is due before the one sent earlier.

   As over a network with remote memory access, a small message is copied on its way, within a budget; a large one is
   announced, and the receiver that has met it reads the sender's memory, a while later and without asking, then tells
   the sender (OVER). So a send that is being read cannot be forgotten at once.

   A transfer is changed by its own rank only, and the matching is touched by its own rank only; the receiver that reads
   a send moves the cursor of that, under the lock. A send that is not over is in the `open` of its rank, a receive that
   has met an announced message in its `reads`. */
#include "backend/transports/inproc.h"
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/transports/pieces.h"
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { SMALL = 4096, BOUNCE = 4096 };
enum kind {
    EAGER,    /* a message, with its bytes */
    ANNOUNCE, /* a message; the bytes stay where they are */
    WITHDRAW, /* the send `id` is not coming any more */
    OVER,     /* your send `id` is: it has been read, or the receive wants `bytes`, not what you have */
};
struct message {
    struct message *next;
    enum kind kind;
    struct message_name name;
    uint64_t bytes, id, due;
    int source;
    bool agreed; /* of OVER */
    unsigned char data[];
};
struct port { /* one rank's end */
    struct transport base;
    struct inproc_world *world;
    struct message *inbox; /* by due time */
    struct queue open, reads;
    uint64_t bytes_sent;
    bool armed;
    struct bond { /* with each other rank */
        int buffered; /* small messages to it that hold budget */
        bool lost;
    } *bonds;
};
struct inproc_world {
    pthread_mutex_t lock;
    struct inproc_options options;
    int size;
    uint64_t clock, random, sent;
    struct port *ports;
};

static uint64_t draw(struct inproc_world *w) /* xorshift64* (Vigna 2016) */
{
    w->random ^= w->random >> 12;
    w->random ^= w->random << 25;
    w->random ^= w->random >> 27;
    return (w->random * 0x2545f4914f6cdd1du) >> 33;
}
static uint64_t soon(struct inproc_world *w)
{
    return w->clock + (w->options.delay ? draw(w) % (uint64_t)w->options.delay : 0);
}
static int rank_of(const struct port *p) { return p->base.router->rank; }
static struct transfer *find(const struct queue *q, uint64_t key)
{
    struct transfer *x = q->first;
    while (x && x->key != key) x = x->next;
    return x;
}
static struct port *enter(struct transport *t)
{
    struct port *p = (struct port *)t;
    pthread_mutex_lock(&p->world->lock);
    return p;
}
static void leave(struct port *p) { pthread_mutex_unlock(&p->world->lock); }

/* ---- departure ---- */
static void wake(struct port *p)
{
    const struct router *r = p->base.router;
    if (r && r->bell.ring) r->bell.ring(r->bell.context);
    else if (p->armed) eventfd_write(p->base.descriptor, 1);
    p->armed = false;
}
static struct message *message_new(struct port *p, enum kind kind, const struct transfer *x, size_t room)
{
    struct message *m = memory_zeroed(1, sizeof *m + room);
    if (m) *m = (struct message){ .kind = kind, .name = x->name, .bytes = x->wire, .id = x->key, .source = rank_of(p) };
    return m;
}
static void dispatch(struct port *p, struct message *m, int to)
{
    struct inproc_world *w = p->world;
    struct port *peer = &w->ports[to];
    if (peer->bonds[m->source].lost || p->bonds[to].lost) {
        free(m);
        return;
    }
    m->due = soon(w);
    for (const struct message *other = peer->inbox; other; other = other->next)
        if (other->source == m->source && name_is(other->name, m->name) && other->due > m->due) m->due = other->due;
    struct message **at = &peer->inbox;
    while (*at && (*at)->due <= m->due) at = &(*at)->next;
    m->next = *at;
    *at = m;
    wake(peer);
}
static void tell(struct port *p, enum kind kind, const struct transfer *x, int to, bool agreed)
{
    struct message *m = message_new(p, kind, x, 0);
    if (!m) {
        router_fail(p->base.router,
            status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for an answer to rank %d", rank_of(p), to));
        return;
    }
    m->agreed = agreed;
    dispatch(p, m, to);
}
static void inproc_send(struct transport *t, int to, struct transfer *x)
{
    struct port *p = enter(t);
    bool small = x->wire <= SMALL && p->bonds[to].buffered < p->world->options.budget && draw(p->world) % 2;
    x->key = ++p->world->sent;
    x->others = 0;
    struct message *m = message_new(p, small ? EAGER : ANNOUNCE, x, small ? (size_t)x->wire : 0);
    if (!m) {
        router_refuse(p->base.router, x,
            status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for a message to rank %d", rank_of(p), to));
    } else if (small) {
        p->bonds[to].buffered++;
        pieces_gather(x, m->data, (size_t)x->wire);
        transfer_done(x);
    } else queue_push(&p->open, x);
    if (m) p->bytes_sent += m->bytes;
    if (m) dispatch(p, m, to);
    leave(p);
}

/* ---- arrival ---- */
static void give_back(struct port *p, int source) { p->world->ports[source].bonds[rank_of(p)].buffered--; }
static void inproc_release(struct transport *t, int source, uint64_t bytes)
{
    struct port *p = enter(t);
    (void)bytes;
    give_back(p, source);
    leave(p);
}
static void accept(struct port *p, int source, struct transfer *x, uint64_t bytes, uint64_t id)
{
    x->key = id;
    if (!transfer_meets(x, source, bytes)) {
        tell(p, OVER, x, source, false);
        return;
    }
    x->others = soon(p->world);
    queue_push(&p->reads, x);
}
static void inproc_accept(struct transport *t, int source, struct transfer *x, const struct arrival *a)
{
    struct port *p = enter(t);
    accept(p, source, x, a->bytes, a->id);
    leave(p);
}
static void keep(struct port *p, const struct message *m)
{
    struct matching *matching = &p->base.router->matching;
    struct arrival *a = matching_arrival(matching, m->kind == EAGER ? (size_t)m->bytes : 0);
    if (!a) {
        router_fail(p->base.router,
            status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for an unexpected message of rank %d", rank_of(p),
                m->source));
        return;
    }
    a->name = m->name;
    a->bytes = m->bytes;
    a->id = m->id;
    a->source = m->source;
    a->announced = m->kind == ANNOUNCE;
    if (m->kind == EAGER) memcpy(a->data, m->data, (size_t)m->bytes);
    matching_keep(matching, a);
}
static void hear_message(struct port *p, const struct message *m)
{
    struct transfer *x = matching_arrive(&p->base.router->matching, m->source, m->name);
    if (!x) keep(p, m);
    else if (m->kind == ANNOUNCE) accept(p, m->source, x, m->bytes, m->id);
    else {
        if (transfer_meets(x, m->source, m->bytes)) {
            pieces_scatter(x, m->data, (size_t)m->bytes);
            transfer_done(x);
        }
        give_back(p, m->source);
    }
}
static void hear_withdrawal(struct port *p, const struct message *m)
{
    struct matching *matching = &p->base.router->matching;
    struct arrival *a = matching_withdraw(matching, m->source, m->name, m->id);
    if (a) matching_free(matching, a); /* else its receive finds nothing to read */
}
static void hear_end(struct port *p, const struct message *m)
{
    struct transfer *x = find(&p->open, m->id);
    if (!x) return; /* cancelled meanwhile */
    queue_remove(&p->open, x);
    if (m->agreed) transfer_done(x);
    else transfer_fail(x, TUTTI_MISMATCH, m->bytes);
}
static void hear(struct port *p, const struct message *m)
{
    switch (m->kind) {
    case EAGER:
    case ANNOUNCE: hear_message(p, m); return;
    case WITHDRAW: hear_withdrawal(p, m); return;
    case OVER: hear_end(p, m); return;
    }
}
static void copy(struct transfer *from, struct transfer *to)
{
    unsigned char bounce[BOUNCE] = { 0 };
    while (to->moved < to->wire) {
        size_t n = to->wire - to->moved < BOUNCE ? (size_t)(to->wire - to->moved) : BOUNCE;
        pieces_gather(from, bounce, n);
        pieces_scatter(to, bounce, n);
    }
}
static void read_due(struct port *p)
{
    for (struct transfer *before = NULL, *x = p->reads.first; x; x = before ? before->next : p->reads.first) {
        if (x->others > p->world->clock) {
            before = x;
            continue;
        }
        struct transfer *from = find(&p->world->ports[x->source].open, x->key);
        queue_take(&p->reads, before);
        if (from) {
            copy(from, x);
            transfer_done(x);
            tell(p, OVER, x, x->source, true);
        } else transfer_fail(x, TUTTI_ABORTED, 0);
    }
}
static bool inproc_poll(struct transport *t)
{
    struct port *p = enter(t);
    p->world->clock++;
    bool moved = p->inbox || p->reads.first;
    for (struct message *m; (m = p->inbox) != NULL && m->due <= p->world->clock; free(m)) {
        p->inbox = m->next;
        hear(p, m);
    }
    read_due(p);
    leave(p);
    return moved;
}

/* ---- cancelling ---- */
/* Also true once it has been read, until that is heard. */
static bool is_being_read(const struct port *p, const struct transfer *send)
{
    return send->moved || find(&p->world->ports[send->peer].reads, send->key);
}
static bool forget_send(struct port *p, struct transfer *x)
{
    if (is_being_read(p, x)) return false;
    queue_remove(&p->open, x);
    tell(p, WITHDRAW, x, x->peer, false);
    return true;
}
static bool forget_receive(struct port *p, struct transfer *x)
{
    if (queue_remove(&p->reads, x)) tell(p, OVER, x, x->source, true);
    return true;
}
static bool inproc_cancel(struct transport *t, int member, struct transfer *x)
{
    struct port *p = enter(t);
    int64_t limit = p->world->options.cancel_ms, now = clock_ms();
    bool forgotten = x->is_send ? forget_send(p, x) : forget_receive(p, x);
    bool first = !forgotten && x->others == 0;
    if (first) x->others = (uint64_t)(now + limit);
    bool late = !forgotten && (int64_t)x->others <= now;
    leave(p);
    if (late)
        router_lose(t->router, member,
            status_fail(TUTTI_PEER_LOST, "rank %d has not let go of a message of rank %d within %lld ms", member,
                t->router->rank, (long long)limit));
    return forgotten;
}
static void fail_all_with(struct queue *q, int rank, tutti_status status)
{
    for (struct transfer *before = NULL, *x = q->first; x; x = before ? before->next : q->first)
        if ((x->is_send ? x->peer : x->source) == rank) transfer_fail(queue_take(q, before), status, 0);
        else before = x;
}
static void inproc_lose(struct transport *t, int member, tutti_status status)
{
    struct port *p = enter(t);
    p->bonds[member].lost = true;
    fail_all_with(&p->open, member, status);
    fail_all_with(&p->reads, member, status);
    for (struct message **at = &p->inbox, *m; (m = *at) != NULL;) {
        if (m->source != member) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        free(m);
    }
    leave(p);
}
static bool inproc_arm(struct transport *t)
{
    struct port *p = enter(t);
    eventfd_t rung;
    eventfd_read(t->descriptor, &rung);
    p->armed = !p->inbox && !p->reads.first;
    bool armed = p->armed;
    leave(p);
    return armed;
}

/* ---- the world ---- */
static void inproc_close(struct transport *t)
{
    struct port *p = enter(t);
    if (t->descriptor >= 0) close(t->descriptor);
    p->open = p->reads = (struct queue){ NULL, NULL };
    t->descriptor = -1;
    t->router = NULL;
    p->armed = false;
    leave(p);
}
static const struct transport_operations operations = { .name = "inproc",
    .send = inproc_send,
    .accept = inproc_accept,
    .release = inproc_release,
    .poll = inproc_poll,
    .cancel = inproc_cancel,
    .lose = inproc_lose,
    .arm = inproc_arm,
    .destroy = inproc_close };
struct inproc_world *inproc_create(int size, const struct inproc_options *options)
{
    struct inproc_world *w = memory_zeroed(1, sizeof *w);
    if (!w) return NULL;
    w->size = size;
    w->options = *options;
    if (!w->options.cancel_ms) w->options.cancel_ms = TRANSPORT_CANCEL_MS;
    w->random = (uint64_t)options->seed * 0x9e3779b97f4a7c15u | 1;
    pthread_mutex_init(&w->lock, NULL);
    w->ports = memory_zeroed((size_t)size, sizeof *w->ports);
    bool fine = w->ports != NULL;
    for (int r = 0; fine && r < size; r++) {
        w->ports[r].base = (struct transport){ .operations = &operations, .descriptor = -1 };
        w->ports[r].world = w;
        fine = (w->ports[r].bonds = memory_zeroed((size_t)size, sizeof *w->ports[r].bonds)) != NULL;
    }
    if (fine) return w;
    inproc_destroy(w);
    return NULL;
}
tutti_status inproc_connect(struct inproc_world *world, struct router *router)
{
    assert(router->size == world->size);
    struct port *p = enter(&world->ports[router->rank].base);
    if (!router->bell.ring) p->base.descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    bool fine = router->bell.ring || p->base.descriptor >= 0;
    if (fine) p->base.router = router;
    leave(p);
    if (!fine) return status_fail(TUTTI_SYSTEM, "rank %d has no file descriptor to sleep on", router->rank);
    router_add(router, &p->base, NULL, world->size);
    return TUTTI_OK;
}
uint64_t inproc_bytes_sent(struct inproc_world *world, int rank)
{
    struct port *p = enter(&world->ports[rank].base);
    uint64_t bytes = p->bytes_sent;
    leave(p);
    return bytes;
}
void inproc_destroy(struct inproc_world *w)
{
    if (!w) return;
    for (struct port *p = w->ports; p && p < w->ports + w->size; p++) {
        for (struct message *m; (m = p->inbox) != NULL; free(m)) p->inbox = m->next;
        free(p->bonds);
    }
    free(w->ports);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
