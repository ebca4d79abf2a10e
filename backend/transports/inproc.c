/* Ranks that are threads of one process (or one thread playing all of them), for tests: every message arrives after a
   random delay, so messages of different names overtake each other; those of one name from one peer keep their order,
   because none is due before the one sent earlier. One lock guards the world, but a transfer is changed by the calls
   of its own rank only: what a receiver decides about a send waits in the sender's list of outcomes until the sender
   polls. */
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/transports/matching.h"
#include "backend/transports/pieces.h"
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

enum { SMALL = 4096, BOUNCE = 4096 };
struct message {
    struct arrival arrival; /* first: an arrival that is kept is its message */
    struct message *next;
    struct transfer *send; /* NULL: buffered, the send is over */
    uint64_t due;
    bool agreed; /* the outcome of the send */
    uint64_t theirs;
};
struct port { /* one rank's end */
    struct transport base;
    struct inproc_world *world;
    struct matching matching;
    struct message *inbox;    /* to this rank, by due time */
    struct message *outcomes; /* of this rank's sends */
    uint64_t bytes_sent;
    int *buffered; /* [size]: messages to each peer that hold budget */
};
struct inproc_world {
    pthread_mutex_t lock;
    int size, delay, budget;
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

/* ---- arrival ---- */
static void message_free(struct inproc_world *w, struct message *m, int to)
{
    if (!m->send) w->ports[m->arrival.source].buffered[to]--;
    free(m);
}
static void move(struct transfer *from, struct transfer *to)
{
    unsigned char bounce[BOUNCE] = { 0 };
    while (to->moved < to->wire) {
        size_t n = to->wire - to->moved < BOUNCE ? (size_t)(to->wire - to->moved) : BOUNCE;
        pieces_gather(from, bounce, n);
        pieces_scatter(to, bounce, n);
    }
}
/* A message meets its receive. */
static void meet(struct port *port, struct message *m, struct transfer *receive)
{
    bool agreed = receive->wire == m->arrival.bytes;
    receive->source = m->arrival.source;
    if (agreed && m->send) move(m->send, receive);
    else if (agreed) pieces_scatter(receive, m->arrival.data, (size_t)m->arrival.bytes);
    if (agreed) transfer_done(receive);
    else transfer_fail(receive, TUTTI_MISMATCH, m->arrival.bytes);
    if (!m->send) {
        message_free(port->world, m, port->base.rank);
        return;
    }
    struct port *sender = &port->world->ports[m->arrival.source];
    m->agreed = agreed;
    m->theirs = receive->wire;
    m->next = sender->outcomes;
    sender->outcomes = m;
}
static bool deliver(struct port *port) /* all that is due */
{
    bool moved = false;
    while (port->inbox && port->inbox->due <= port->world->clock) {
        struct message *m = port->inbox;
        port->inbox = m->next;
        struct transfer *receive = matching_arrive(&port->matching, m->arrival.source, m->arrival.name);
        if (receive) meet(port, m, receive);
        else matching_keep(&port->matching, &m->arrival);
        moved = true;
    }
    return moved;
}
static bool settle(struct port *port) /* the sends whose outcome is known */
{
    bool moved = port->outcomes != NULL;
    for (struct message *m; (m = port->outcomes) != NULL; free(m)) {
        port->outcomes = m->next;
        if (m->agreed) transfer_done(m->send);
        else transfer_fail(m->send, TUTTI_MISMATCH, m->theirs);
    }
    return moved;
}

/* ---- departure ---- */
static uint64_t due_time(struct inproc_world *w, const struct message *m, int to)
{
    uint64_t due = w->clock + (w->delay ? draw(w) % (uint64_t)w->delay : 0);
    for (const struct message *other = w->ports[to].inbox; other; other = other->next)
        if (other->arrival.source == m->arrival.source && other->arrival.name == m->arrival.name && other->due > due)
            due = other->due;
    return due;
}
static void dispatch(struct inproc_world *w, struct message *m, int to)
{
    struct message **at = &w->ports[to].inbox;
    m->due = due_time(w, m, to);
    while (*at && (*at)->due <= m->due) at = &(*at)->next;
    m->next = *at;
    *at = m;
}
static void post_send(struct port *port, struct transfer *x)
{
    struct inproc_world *w = port->world;
    bool buffer = x->wire <= SMALL && port->buffered[x->peer] < w->budget && draw(w) % 2;
    struct message *m = memory_zeroed(1, sizeof *m + (buffer ? (size_t)x->wire : 0));
    if (!m) {
        transfer_fail(x, status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for a message", port->base.rank), 0);
        return;
    }
    x->key = ++w->sent;
    m->arrival = (struct arrival){ .name = x->name,
        .bytes = x->wire,
        .id = x->key,
        .source = port->base.rank,
        .announced = !buffer,
        .data = (unsigned char *)(m + 1) };
    port->bytes_sent += x->wire;
    if (buffer) {
        port->buffered[x->peer]++;
        pieces_gather(x, m->arrival.data, (size_t)x->wire);
        transfer_done(x);
    } else m->send = x;
    dispatch(w, m, x->peer);
}
static void post_receive(struct port *port, struct transfer *x)
{
    struct arrival *arrival = matching_post(&port->matching, x);
    if (arrival) meet(port, (struct message *)arrival, x);
}

/* ---- the contract ---- */
static void inproc_post(struct transport *t, struct transfer *x)
{
    struct port *port = (struct port *)t;
    x->state = TRANSFER_POSTED;
    if (!pieces_start(x)) {
        transfer_fail(x, status_fail(TUTTI_INVALID_ARGUMENT, "the pieces of a message exceed 2^64 bytes"), 0);
        return;
    }
    pthread_mutex_lock(&port->world->lock);
    if (x->is_send) post_send(port, x);
    else post_receive(port, x);
    pthread_mutex_unlock(&port->world->lock);
}
static bool inproc_poll(struct transport *t)
{
    struct port *port = (struct port *)t;
    pthread_mutex_lock(&port->world->lock);
    port->world->clock++;
    bool moved = deliver(port);
    moved |= settle(port);
    pthread_mutex_unlock(&port->world->lock);
    return moved;
}
static struct message *recall(struct inproc_world *w, int source, const struct transfer *x)
{
    struct port *to = &w->ports[x->peer];
    for (struct message **at = &to->inbox, *m; (m = *at) != NULL; at = &m->next)
        if (m->send == x) {
            *at = m->next;
            return m;
        }
    return (struct message *)matching_withdraw(&to->matching, source, x->name, x->key);
}
static bool has_outcome(const struct port *port, const struct transfer *x)
{
    const struct message *m = port->outcomes;
    while (m && m->send != x) m = m->next;
    return m != NULL;
}
static bool inproc_cancel(struct transport *t, struct transfer *x)
{
    struct port *port = (struct port *)t;
    pthread_mutex_lock(&port->world->lock);
    bool over = x->is_send && has_outcome(port, x);
    if (x->is_send && !over) free(recall(port->world, port->base.rank, x));
    if (!x->is_send) matching_cancel(&port->matching, x);
    if (!over) x->state = TRANSFER_IDLE;
    pthread_mutex_unlock(&port->world->lock);
    return !over;
}
static void forget_sends_of(struct inproc_world *w, int rank)
{
    for (struct port *to = w->ports; to < w->ports + w->size; to++) {
        for (struct message **at = &to->inbox, *m; (m = *at) != NULL;) {
            if (!m->send || m->arrival.source != rank) {
                at = &m->next;
                continue;
            }
            *at = m->next;
            free(m);
        }
        matching_withdraw_all(&to->matching, rank);
    }
}
static void inproc_close(struct transport *t)
{
    struct port *port = (struct port *)t;
    pthread_mutex_lock(&port->world->lock);
    forget_sends_of(port->world, port->base.rank);
    while (matching_pop(&port->matching)) {}
    for (struct message *m; (m = port->outcomes) != NULL; free(m)) port->outcomes = m->next;
    pthread_mutex_unlock(&port->world->lock);
}
static const struct transport_operations operations = { "inproc", inproc_post, inproc_poll, inproc_cancel,
    inproc_close };

/* ---- the world ---- */
struct inproc_world *inproc_create(int size, unsigned seed, int delay, int budget)
{
    struct inproc_world *w = memory_zeroed(1, sizeof *w);
    if (!w) return NULL;
    *w = (struct inproc_world){
        .size = size, .delay = delay, .budget = budget, .random = (uint64_t)seed * 0x9e3779b97f4a7c15u | 1
    };
    pthread_mutex_init(&w->lock, NULL);
    w->ports = memory_zeroed((size_t)size, sizeof *w->ports);
    bool fine = w->ports != NULL;
    for (int r = 0; fine && r < size; r++) {
        w->ports[r].base = (struct transport){ .operations = &operations, .rank = r, .size = size };
        w->ports[r].world = w;
        fine = (w->ports[r].buffered = memory_zeroed((size_t)size, sizeof(int))) != NULL;
    }
    if (fine) return w;
    inproc_destroy(w);
    return NULL;
}
tutti_status inproc_connect(struct inproc_world *world, int rank, struct transport **out)
{
    assert(rank >= 0 && rank < world->size);
    *out = &world->ports[rank].base;
    return TUTTI_OK;
}
uint64_t inproc_bytes_sent(const struct inproc_world *world, int rank) { return world->ports[rank].bytes_sent; }
void inproc_destroy(struct inproc_world *world)
{
    if (!world) return;
    for (int r = 0; world->ports && r < world->size; r++) {
        struct port *port = &world->ports[r];
        for (struct message *m; (m = port->inbox) != NULL; free(m)) port->inbox = m->next;
        for (struct message *m; (m = port->outcomes) != NULL; free(m)) port->outcomes = m->next;
        matching_finish(&port->matching);
        free(port->buffered);
    }
    free(world->ports);
    pthread_mutex_destroy(&world->lock);
    free(world);
}
