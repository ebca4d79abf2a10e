/* The world has one lock, a clock, and for each rank an inbox of messages in the order of their due times. Messages of
   one name from one rank keep their order, because a later one is due at the same time or later. The clock counts polls
   or, in time mode, microseconds. In time mode the wire thread rings the bell of a rank whose message is due. */
#include "tests/support/inproc_wire.h"
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include <assert.h>
#include <stdlib.h>

/* Returns a random number of 31 bits, by xorshift64* (Vigna 2016). */
uint64_t inproc_world_random(struct inproc_world *w)
{
    w->random ^= w->random >> 12;
    w->random ^= w->random << 25;
    w->random ^= w->random >> 27;
    return (w->random * 0x2545f4914f6cdd1du) >> 33;
}
uint64_t inproc_world_due_time(struct inproc_world *w)
{
    return w->clock + (w->options.delay ? inproc_world_random(w) % (uint64_t)w->options.delay : 0);
}
static uint64_t inproc_wire_now_us(const struct inproc_world *w)
{
    return (uint64_t)(clock_ns() - w->wire.begin_ns) / 1000;
}
struct inproc_port *inproc_port_lock(struct transport *t)
{
    struct inproc_port *p = (struct inproc_port *)t;
    pthread_mutex_lock(&p->world->lock);
    if (p->world->wire.runs) p->world->clock = inproc_wire_now_us(p->world);
    return p;
}
void inproc_port_unlock(struct inproc_port *p) { pthread_mutex_unlock(&p->world->lock); }

/* ---- waking ---- */
static void inproc_port_wake(struct inproc_port *p)
{
    const struct router *r = p->base.router;
    if (r && p->armed && r->bell.ring) r->bell.ring(r->bell.context);
    p->armed = false;
}
void inproc_port_notify(struct inproc_port *p)
{
    if (p->world->wire.runs) pthread_cond_signal(&p->world->wire.changed);
    else inproc_port_wake(p);
}
static uint64_t inproc_port_next_due(const struct inproc_port *p)
{
    uint64_t due = p->inbox ? p->inbox->due : UINT64_MAX;
    for (const struct transfer *x = p->reads.first; x; x = x->next)
        if (x->peer_parts < due) due = x->peer_parts;
    return due;
}
bool inproc_port_has_work(const struct inproc_port *p)
{
    uint64_t due = inproc_port_next_due(p);
    return p->world->wire.runs ? due <= p->world->clock : due < UINT64_MAX;
}
/* Wakes the armed ranks whose messages are due. Returns the next due time. */
static uint64_t inproc_world_wake_due(struct inproc_world *w)
{
    uint64_t next = UINT64_MAX;
    w->clock = inproc_wire_now_us(w);
    for (struct inproc_port *p = w->ports; p < w->ports + w->size; p++) {
        uint64_t due = p->armed ? inproc_port_next_due(p) : UINT64_MAX;
        if (due <= w->clock) inproc_port_wake(p);
        else if (due < next) next = due;
    }
    return next;
}
static void *inproc_wire_main(void *context)
{
    struct inproc_world *w = context;
    pthread_mutex_lock(&w->lock);
    while (!w->wire.ends) {
        uint64_t due = inproc_world_wake_due(w);
        int64_t at = due == UINT64_MAX ? 0 : w->wire.begin_ns + (int64_t)due * 1000;
        struct timespec until = { at / 1000000000, at % 1000000000 };
        if (due == UINT64_MAX) pthread_cond_wait(&w->wire.changed, &w->lock);
        else pthread_cond_timedwait(&w->wire.changed, &w->lock, &until);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

bool inproc_port_arm(struct inproc_port *p)
{
    p->armed = !inproc_port_has_work(p);
    if (p->armed && p->world->wire.runs) pthread_cond_signal(&p->world->wire.changed);
    return p->armed;
}

/* ---- worlds ---- */
static bool inproc_wire_start(struct inproc_world *w)
{
    clock_condition_init(&w->wire.changed);
    w->wire.begin_ns = clock_ns();
    w->wire.runs = pthread_create(&w->wire.thread, NULL, inproc_wire_main, w) == 0;
    return w->wire.runs;
}
static void inproc_wire_stop(struct inproc_world *w)
{
    if (!w->wire.runs) return;
    pthread_mutex_lock(&w->lock);
    w->wire.ends = true;
    pthread_cond_signal(&w->wire.changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->wire.thread, NULL);
    pthread_cond_destroy(&w->wire.changed);
}
struct inproc_world *inproc_world_create(int size, const struct inproc_options *options)
{
    struct inproc_world *w = memory_alloc_zeroed(1, sizeof *w);
    if (!w) return NULL;
    w->size = size;
    w->options = *options;
    if (!w->options.cancel_ms) w->options.cancel_ms = TRANSPORT_CANCEL_MS;
    w->random = (uint64_t)options->seed * 0x9e3779b97f4a7c15u | 1;
    pthread_mutex_init(&w->lock, NULL);
    w->ports = memory_alloc_zeroed((size_t)size, sizeof *w->ports);
    bool fine = w->ports != NULL;
    for (int r = 0; fine && r < size; r++) {
        w->ports[r].base = (struct transport){ .operations = &inproc_operations };
        w->ports[r].world = w;
        fine = (w->ports[r].bonds = memory_alloc_zeroed((size_t)size, sizeof *w->ports[r].bonds)) != NULL;
    }
    if (fine && options->in_time) fine = inproc_wire_start(w);
    if (fine) return w;
    inproc_world_destroy(w);
    return NULL;
}
void inproc_world_connect(struct inproc_world *world, struct router *router)
{
    assert(router->size == world->size);
    struct inproc_port *p = inproc_port_lock(&world->ports[router->rank].base);
    p->base.router = router;
    inproc_port_unlock(p);
    router_add_transport(router, &p->base, NULL, world->size);
}
uint64_t inproc_world_bytes_sent(struct inproc_world *world, int rank)
{
    struct inproc_port *p = inproc_port_lock(&world->ports[rank].base);
    uint64_t bytes = p->bytes_sent;
    inproc_port_unlock(p);
    return bytes;
}
void inproc_world_destroy(struct inproc_world *w)
{
    if (!w) return;
    inproc_wire_stop(w);
    for (struct inproc_port *p = w->ports; p && p < w->ports + w->size; p++) {
        for (struct inproc_message *m; (m = p->inbox) != NULL; free(m)) p->inbox = m->next;
        free(p->bonds);
    }
    free(w->ports);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

/* ---- worlds that are joined ---- */
static pthread_mutex_t joining = PTHREAD_MUTEX_INITIALIZER;
static struct inproc_world *joined;

static struct inproc_world *inproc_world_find_joined(uint64_t comm)
{
    struct inproc_world *w = joined;
    while (w && w->comm != comm) w = w->next;
    return w;
}
tutti_status inproc_world_join(const struct inproc_options *options, struct router *router)
{
    pthread_mutex_lock(&joining);
    struct inproc_world *w = inproc_world_find_joined(router->comm);
    bool first = !w;
    if (first) w = inproc_world_create(router->size, options);
    if (first && w) {
        w->comm = router->comm;
        w->joined = true;
        w->next = joined;
        joined = w;
    }
    if (w) inproc_world_connect(w, router);
    pthread_mutex_unlock(&joining);
    return w ? TUTTI_OK : status_fail(TUTTI_NO_MEMORY, "no memory for a network of %d threads", router->size);
}
void inproc_world_close_rank(struct inproc_world *w)
{
    pthread_mutex_lock(&joining);
    bool last = ++w->closed == w->size;
    struct inproc_world **at = &joined;
    while (last && *at != w) at = &(*at)->next;
    if (last) *at = w->next;
    pthread_mutex_unlock(&joining);
    if (last) inproc_world_destroy(w);
}
