/* The protocol resembles a network with remote memory access. A small message is copied on its way, within a budget. A
   large one is announced; its receiver later reads the sender's memory in parts, without asking, and then sends OVER.
   So a send that is being read cannot be cancelled at once.

   A transfer and a matching are changed only by their own rank. As an exception, the reader of a send moves the cursor
   of that send under the lock. A send that is not over is in `open` of its rank; once it is being cancelled, its
   peer_parts is when its reader must have released it (clock_ms). A receive that has met an announced message is in
   `reads` of its rank; its peer_parts is when it reads its next part (clock of the world). */
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/transports/pieces.h"
#include "tests/support/inproc_wire.h"
#include <stdlib.h>
#include <string.h>

enum { SMALL = 4096, BOUNCE = 4096 };
static int inproc_port_rank(const struct inproc_port *p) { return p->base.router->rank; }
static struct transfer *transfer_list_find_by_key(const struct transfer_list *list, uint64_t key)
{
    struct transfer *x = list->first;
    while (x && x->key != key) x = x->next;
    return x;
}
/* ---- departure ---- */
static struct inproc_message *inproc_message_new(struct inproc_port *p, enum inproc_kind kind, const struct transfer *x,
    size_t room)
{
    struct inproc_message *m = memory_alloc_zeroed(1, sizeof *m + room);
    if (m)
        *m = (struct inproc_message){
            .kind = kind, .name = x->name, .bytes = x->wire, .id = x->key, .source = inproc_port_rank(p)
        };
    return m;
}
static void inproc_message_enqueue(struct inproc_port *p, struct inproc_message *m, int to)
{
    struct inproc_world *w = p->world;
    struct inproc_port *peer = &w->ports[to];
    if (peer->bonds[m->source].lost || p->bonds[to].lost) {
        free(m);
        return;
    }
    m->due = inproc_world_due_time(w);
    for (const struct inproc_message *other = peer->inbox; other; other = other->next)
        if (other->source == m->source && message_names_equal(other->name, m->name) && other->due > m->due)
            m->due = other->due;
    struct inproc_message **at = &peer->inbox;
    while (*at && (*at)->due <= m->due) at = &(*at)->next;
    m->next = *at;
    *at = m;
    inproc_port_notify(peer);
}
static void inproc_send_control(struct inproc_port *p, enum inproc_kind kind, const struct transfer *x, int to,
    bool agreed)
{
    struct inproc_message *m = inproc_message_new(p, kind, x, 0);
    if (!m) {
        router_fail(p->base.router,
            status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for an answer to rank %d", inproc_port_rank(p), to));
        return;
    }
    m->agreed = agreed;
    inproc_message_enqueue(p, m, to);
}
static void inproc_send(struct transport *t, int to, struct transfer *x)
{
    struct inproc_port *p = inproc_port_lock(t);
    bool small =
        x->wire <= SMALL && p->bonds[to].buffered < p->world->options.budget && inproc_world_random(p->world) % 2;
    x->key = ++p->world->sent;
    x->peer_parts = 0;
    struct inproc_message *m = inproc_message_new(p, small ? EAGER : ANNOUNCE, x, small ? (size_t)x->wire : 0);
    if (!m) {
        router_fail_transfer(p->base.router, x,
            status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for a message to rank %d", inproc_port_rank(p), to));
    } else if (small) {
        p->bonds[to].buffered++;
        pieces_gather(x, m->data, (size_t)x->wire);
        transfer_complete(x);
    } else transfer_list_push(&p->open, x);
    if (m) p->bytes_sent += m->bytes;
    if (m) inproc_message_enqueue(p, m, to);
    inproc_port_unlock(p);
}

/* ---- arrival ---- */
static void inproc_return_budget(struct inproc_port *p, int source)
{
    p->world->ports[source].bonds[inproc_port_rank(p)].buffered--;
}
static void inproc_release(struct transport *t, int source, uint64_t bytes)
{
    struct inproc_port *p = inproc_port_lock(t);
    (void)bytes;
    inproc_return_budget(p, source);
    inproc_port_unlock(p);
}
static void inproc_accept_announced(struct inproc_port *p, int source, struct transfer *x, struct message_name name,
    uint64_t bytes, uint64_t id)
{
    x->key = id;
    if (!transfer_meet_message(x, source, name, bytes)) {
        inproc_send_control(p, OVER, x, source, false);
        return;
    }
    bool halted = p->world->options.halted == 1 + inproc_port_rank(p);
    x->peer_parts = halted ? UINT64_MAX : inproc_world_due_time(p->world);
    transfer_list_push(&p->reads, x);
}
static void inproc_accept(struct transport *t, int source, struct transfer *x, const struct arrival *a)
{
    struct inproc_port *p = inproc_port_lock(t);
    inproc_accept_announced(p, source, x, a->name, a->bytes, a->id);
    inproc_port_unlock(p);
}
static void inproc_keep_arrival(struct inproc_port *p, const struct inproc_message *m)
{
    struct matching *matching = &p->base.router->matching;
    struct arrival *a = matching_arrival_new(matching, m->kind == EAGER ? (size_t)m->bytes : 0);
    if (!a) {
        router_fail(p->base.router,
            status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for an unexpected message of rank %d",
                inproc_port_rank(p), m->source));
        return;
    }
    a->name = m->name;
    a->bytes = m->bytes;
    a->id = m->id;
    a->source = m->source;
    a->is_announced = m->kind == ANNOUNCE;
    if (m->kind == EAGER) memcpy(a->data, m->data, (size_t)m->bytes);
    matching_keep_arrival(matching, a);
}
static void inproc_handle_arrival(struct inproc_port *p, const struct inproc_message *m)
{
    struct transfer *x = matching_take_receive(&p->base.router->matching, m->source, m->name);
    if (!x) inproc_keep_arrival(p, m);
    else if (m->kind == ANNOUNCE) inproc_accept_announced(p, m->source, x, m->name, m->bytes, m->id);
    else {
        if (transfer_meet_message(x, m->source, m->name, m->bytes)) {
            pieces_scatter(x, m->data, (size_t)m->bytes);
            transfer_complete(x);
        }
        inproc_return_budget(p, m->source);
    }
}
static void inproc_handle_withdraw(struct inproc_port *p, const struct inproc_message *m)
{
    struct matching *matching = &p->base.router->matching;
    struct arrival *a = matching_withdraw_arrival(matching, NULL, m->source, m->name, m->id);
    /* A receive that has already met the message finds no send to read and fails. */
    if (a) matching_arrival_free(matching, a);
}
static void inproc_handle_over(struct inproc_port *p, const struct inproc_message *m)
{
    struct transfer *x = transfer_list_find_by_key(&p->open, m->id);
    /* The send is missing if it was cancelled meanwhile. */
    if (!x) return;
    transfer_list_remove(&p->open, x);
    if (m->agreed) transfer_complete(x);
    else transfer_fail_mismatch(x, m->name, m->bytes);
}
static void inproc_handle_message(struct inproc_port *p, const struct inproc_message *m)
{
    switch (m->kind) {
    case EAGER:
    case ANNOUNCE: inproc_handle_arrival(p, m); return;
    case WITHDRAW: inproc_handle_withdraw(p, m); return;
    case OVER: inproc_handle_over(p, m); return;
    }
}
static void pieces_copy_between(struct transfer *from, struct transfer *to, uint64_t bytes)
{
    unsigned char bounce[BOUNCE] = { 0 };
    for (uint64_t end = to->moved + bytes; to->moved < end;) {
        size_t n = end - to->moved < BOUNCE ? (size_t)(end - to->moved) : BOUNCE;
        pieces_gather(from, bounce, n);
        pieces_scatter(to, bounce, n);
    }
}
/* Reads all bytes that are left, or half of them and the rest later, at random. true: the receive has all its bytes. */
static bool inproc_read_part(struct inproc_port *p, struct transfer *from, struct transfer *to)
{
    uint64_t left = to->wire - to->moved, share = inproc_world_random(p->world) % 4;
    pieces_copy_between(from, to, share ? left : left / 2);
    to->peer_parts = inproc_world_due_time(p->world);
    return to->moved == to->wire;
}
static void inproc_read_due(struct inproc_port *p)
{
    for (struct transfer *before = NULL, *x = p->reads.first; x; x = before ? before->next : p->reads.first) {
        struct transfer *from = transfer_list_find_by_key(&p->world->ports[x->source].open, x->key);
        if (x->peer_parts > p->world->clock || (from && !inproc_read_part(p, from, x))) {
            before = x;
            continue;
        }
        transfer_list_take(&p->reads, before);
        if (from) {
            transfer_complete(x);
            inproc_send_control(p, OVER, x, x->source, true);
        } else transfer_fail(x, TUTTI_ABORTED);
    }
}
static bool inproc_poll(struct transport *t)
{
    struct inproc_port *p = inproc_port_lock(t);
    if (!p->world->wire.runs) p->world->clock++;
    bool moved = inproc_port_has_work(p);
    for (struct inproc_message *m; (m = p->inbox) != NULL && m->due <= p->world->clock; free(m)) {
        p->inbox = m->next;
        inproc_handle_message(p, m);
    }
    inproc_read_due(p);
    inproc_port_unlock(p);
    return moved;
}

/* ---- cancelling ---- */
/* Returns true also after the last read, until OVER arrives. */
static bool send_is_being_read(const struct inproc_port *p, const struct transfer *send)
{
    return send->moved || transfer_list_find_by_key(&p->world->ports[send->peer].reads, send->key);
}
static bool inproc_forget_send(struct inproc_port *p, struct transfer *x)
{
    if (send_is_being_read(p, x)) return false;
    transfer_list_remove(&p->open, x);
    inproc_send_control(p, WITHDRAW, x, x->peer, false);
    return true;
}
static bool inproc_forget_receive(struct inproc_port *p, struct transfer *x)
{
    if (transfer_list_remove(&p->reads, x)) inproc_send_control(p, OVER, x, x->source, true);
    return true;
}
static bool inproc_cancel(struct transport *t, int member, struct transfer *x)
{
    struct inproc_port *p = inproc_port_lock(t);
    int64_t limit = p->world->options.cancel_ms, now = clock_ms();
    bool forgotten = x->is_send ? inproc_forget_send(p, x) : inproc_forget_receive(p, x);
    bool first = !forgotten && x->peer_parts == 0;
    if (first) x->peer_parts = (uint64_t)(now + limit);
    bool late = !forgotten && (int64_t)x->peer_parts <= now;
    inproc_port_unlock(p);
    if (late)
        router_lose_peer(t->router, member,
            status_fail(TUTTI_PEER_LOST, "rank %d has not released a message of rank %d within %lld ms", member,
                t->router->rank, (long long)limit));
    return forgotten;
}
static void inproc_lose(struct transport *t, int member, tutti_status status)
{
    struct inproc_port *p = inproc_port_lock(t);
    p->bonds[member].lost = true;
    transfer_list_fail_all_with_rank(&p->open, member, status);
    transfer_list_fail_all_with_rank(&p->reads, member, status);
    for (struct inproc_message **at = &p->inbox, *m; (m = *at) != NULL;) {
        if (m->source != member) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        free(m);
    }
    inproc_port_unlock(p);
}
static bool inproc_arm(struct transport *t)
{
    struct inproc_port *p = inproc_port_lock(t);
    bool armed = inproc_port_arm(p);
    inproc_port_unlock(p);
    return armed;
}

/* ---- the end ---- */
static void inproc_close(struct transport *t)
{
    struct inproc_port *p = inproc_port_lock(t);
    p->open = p->reads = (struct transfer_list){ NULL, NULL };
    t->router = NULL;
    p->armed = false;
    inproc_port_unlock(p);
    if (p->world->joined) inproc_world_close_rank(p->world);
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
