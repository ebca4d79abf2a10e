/* The protocol resembles a network with remote memory access. A small message is copied on its way, within a budget. A
   large one is announced; its receiver later reads the sender's memory in parts, without asking, and then sends OVER.
   So a send that is being read cannot be cancelled at once.

   A transfer and a matching are changed only by their own rank. As an exception, the reader of a send moves the cursor
   of that send under the lock. A send that is not over is in `open` of its rank. A receive that has met an announced
   message is in `reads` of its rank. */
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/transports/inproc_wire.h"
#include "backend/transports/pieces.h"
#include <stdlib.h>
#include <string.h>

enum { SMALL = 4096, BOUNCE = 4096 };
static int rank_of(const struct inproc_port *p) { return p->base.router->rank; }
static struct transfer *queue_find(const struct queue *q, uint64_t key)
{
    struct transfer *x = q->first;
    while (x && x->key != key) x = x->next;
    return x;
}
/* ---- departure ---- */
static struct inproc_message *message_new(struct inproc_port *p, enum inproc_kind kind, const struct transfer *x,
    size_t room)
{
    struct inproc_message *m = memory_zeroed(1, sizeof *m + room);
    if (m)
        *m = (struct inproc_message){
            .kind = kind, .name = x->name, .bytes = x->wire, .id = x->key, .source = rank_of(p)
        };
    return m;
}
static void message_dispatch(struct inproc_port *p, struct inproc_message *m, int to)
{
    struct inproc_world *w = p->world;
    struct inproc_port *peer = &w->ports[to];
    if (peer->bonds[m->source].lost || p->bonds[to].lost) {
        free(m);
        return;
    }
    m->due = wire_soon(w);
    for (const struct inproc_message *other = peer->inbox; other; other = other->next)
        if (other->source == m->source && name_is(other->name, m->name) && other->due > m->due) m->due = other->due;
    struct inproc_message **at = &peer->inbox;
    while (*at && (*at)->due <= m->due) at = &(*at)->next;
    m->next = *at;
    *at = m;
    port_notice(peer);
}
static void message_tell(struct inproc_port *p, enum inproc_kind kind, const struct transfer *x, int to, bool agreed)
{
    struct inproc_message *m = message_new(p, kind, x, 0);
    if (!m) {
        router_fail(p->base.router,
            status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for an answer to rank %d", rank_of(p), to));
        return;
    }
    m->agreed = agreed;
    message_dispatch(p, m, to);
}
static void inproc_send(struct transport *t, int to, struct transfer *x)
{
    struct inproc_port *p = port_enter(t);
    bool small = x->wire <= SMALL && p->bonds[to].buffered < p->world->options.budget && wire_draw(p->world) % 2;
    x->key = ++p->world->sent;
    x->others = 0;
    struct inproc_message *m = message_new(p, small ? EAGER : ANNOUNCE, x, small ? (size_t)x->wire : 0);
    if (!m) {
        router_refuse(p->base.router, x,
            status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for a message to rank %d", rank_of(p), to));
    } else if (small) {
        p->bonds[to].buffered++;
        pieces_gather(x, m->data, (size_t)x->wire);
        transfer_done(x);
    } else queue_push(&p->open, x);
    if (m) p->bytes_sent += m->bytes;
    if (m) message_dispatch(p, m, to);
    port_leave(p);
}

/* ---- arrival ---- */
static void give_back(struct inproc_port *p, int source) { p->world->ports[source].bonds[rank_of(p)].buffered--; }
static void inproc_release(struct transport *t, int source, uint64_t bytes)
{
    struct inproc_port *p = port_enter(t);
    (void)bytes;
    give_back(p, source);
    port_leave(p);
}
static void transfer_accept(struct inproc_port *p, int source, struct transfer *x, uint64_t bytes, uint64_t id)
{
    x->key = id;
    if (!transfer_meets(x, source, bytes)) {
        message_tell(p, OVER, x, source, false);
        return;
    }
    bool halted = p->world->options.halted == 1 + rank_of(p);
    x->others = halted ? UINT64_MAX : wire_soon(p->world);
    queue_push(&p->reads, x);
}
static void inproc_accept(struct transport *t, int source, struct transfer *x, const struct arrival *a)
{
    struct inproc_port *p = port_enter(t);
    transfer_accept(p, source, x, a->bytes, a->id);
    port_leave(p);
}
static void message_keep(struct inproc_port *p, const struct inproc_message *m)
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
static void hear_message(struct inproc_port *p, const struct inproc_message *m)
{
    struct transfer *x = matching_arrive(&p->base.router->matching, m->source, m->name);
    if (!x) message_keep(p, m);
    else if (m->kind == ANNOUNCE) transfer_accept(p, m->source, x, m->bytes, m->id);
    else {
        if (transfer_meets(x, m->source, m->bytes)) {
            pieces_scatter(x, m->data, (size_t)m->bytes);
            transfer_done(x);
        }
        give_back(p, m->source);
    }
}
static void hear_withdrawal(struct inproc_port *p, const struct inproc_message *m)
{
    struct matching *matching = &p->base.router->matching;
    struct arrival *a = matching_withdraw(matching, NULL, m->source, m->name, m->id);
    /* A receive that has already met the message finds no send to read and fails. */
    if (a) matching_free(matching, a);
}
static void hear_end(struct inproc_port *p, const struct inproc_message *m)
{
    struct transfer *x = queue_find(&p->open, m->id);
    /* The send is missing if it was cancelled meanwhile. */
    if (!x) return;
    queue_remove(&p->open, x);
    if (m->agreed) transfer_done(x);
    else transfer_fail(x, TUTTI_MISMATCH, m->bytes);
}
static void message_hear(struct inproc_port *p, const struct inproc_message *m)
{
    switch (m->kind) {
    case EAGER:
    case ANNOUNCE: hear_message(p, m); return;
    case WITHDRAW: hear_withdrawal(p, m); return;
    case OVER: hear_end(p, m); return;
    }
}
static void pieces_move(struct transfer *from, struct transfer *to, uint64_t bytes)
{
    unsigned char bounce[BOUNCE] = { 0 };
    for (uint64_t end = to->moved + bytes; to->moved < end;) {
        size_t n = end - to->moved < BOUNCE ? (size_t)(end - to->moved) : BOUNCE;
        pieces_gather(from, bounce, n);
        pieces_scatter(to, bounce, n);
    }
}
/* Reads all bytes that are left, or half of them and the rest later, at random. true: the receive has all its bytes. */
static bool read_some(struct inproc_port *p, struct transfer *from, struct transfer *to)
{
    uint64_t left = to->wire - to->moved, share = wire_draw(p->world) % 4;
    pieces_move(from, to, share ? left : left / 2);
    to->others = wire_soon(p->world);
    return to->moved == to->wire;
}
static void read_due(struct inproc_port *p)
{
    for (struct transfer *before = NULL, *x = p->reads.first; x; x = before ? before->next : p->reads.first) {
        struct transfer *from = queue_find(&p->world->ports[x->source].open, x->key);
        if (x->others > p->world->clock || (from && !read_some(p, from, x))) {
            before = x;
            continue;
        }
        queue_take(&p->reads, before);
        if (from) {
            transfer_done(x);
            message_tell(p, OVER, x, x->source, true);
        } else transfer_fail(x, TUTTI_ABORTED, 0);
    }
}
static bool inproc_poll(struct transport *t)
{
    struct inproc_port *p = port_enter(t);
    if (!p->world->wire.runs) p->world->clock++;
    bool moved = port_is_about_to_move(p);
    for (struct inproc_message *m; (m = p->inbox) != NULL && m->due <= p->world->clock; free(m)) {
        p->inbox = m->next;
        message_hear(p, m);
    }
    read_due(p);
    port_leave(p);
    return moved;
}

/* ---- cancelling ---- */
/* Returns true also after the last read, until OVER arrives. */
static bool is_being_read(const struct inproc_port *p, const struct transfer *send)
{
    return send->moved || queue_find(&p->world->ports[send->peer].reads, send->key);
}
static bool forget_send(struct inproc_port *p, struct transfer *x)
{
    if (is_being_read(p, x)) return false;
    queue_remove(&p->open, x);
    message_tell(p, WITHDRAW, x, x->peer, false);
    return true;
}
static bool forget_receive(struct inproc_port *p, struct transfer *x)
{
    if (queue_remove(&p->reads, x)) message_tell(p, OVER, x, x->source, true);
    return true;
}
static bool inproc_cancel(struct transport *t, int member, struct transfer *x)
{
    struct inproc_port *p = port_enter(t);
    int64_t limit = p->world->options.cancel_ms, now = clock_ms();
    bool forgotten = x->is_send ? forget_send(p, x) : forget_receive(p, x);
    bool first = !forgotten && x->others == 0;
    if (first) x->others = (uint64_t)(now + limit);
    bool late = !forgotten && (int64_t)x->others <= now;
    port_leave(p);
    if (late)
        router_lose(t->router, member,
            status_fail(TUTTI_PEER_LOST, "rank %d has not released a message of rank %d within %lld ms", member,
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
    struct inproc_port *p = port_enter(t);
    p->bonds[member].lost = true;
    fail_all_with(&p->open, member, status);
    fail_all_with(&p->reads, member, status);
    for (struct inproc_message **at = &p->inbox, *m; (m = *at) != NULL;) {
        if (m->source != member) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        free(m);
    }
    port_leave(p);
}
static bool inproc_arm(struct transport *t)
{
    struct inproc_port *p = port_enter(t);
    bool armed = port_arm(p);
    port_leave(p);
    return armed;
}

/* ---- the end ---- */
static void inproc_close(struct transport *t)
{
    struct inproc_port *p = port_enter(t);
    p->open = p->reads = (struct queue){ NULL, NULL };
    t->router = NULL;
    p->armed = false;
    port_leave(p);
    if (p->world->joined) wire_part(p->world);
}
const struct transport_operations inproc_operations = { .name = "inproc",
    .send = inproc_send,
    .accept = inproc_accept,
    .release = inproc_release,
    .poll = inproc_poll,
    .cancel = inproc_cancel,
    .lose = inproc_lose,
    .arm = inproc_arm,
    .destroy = inproc_close };
