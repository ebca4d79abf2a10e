/* The contract of a transport (transport.h), and the polls of a port. */
#include "backend/transports/fabric/port.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include <stdlib.h>
#include <string.h>

static struct fabric_transport *transport_lock(struct transport *t)
{
    struct fabric_transport *p = (struct fabric_transport *)t;
    pthread_mutex_lock(&p->fabric->lock);
    return p;
}
static void transport_unlock(struct fabric_transport *p) { pthread_mutex_unlock(&p->fabric->lock); }

/* ---- reports of a fabric ---- */
struct fabric_transport *port_find(const struct fabric *fabric, uint64_t comm, int rank)
{
    struct fabric_transport *p = fabric->ports;
    while (p && (p->comm != comm || p->rank != rank)) p = p->next;
    return p;
}
bool port_was_closed(const struct fabric *fabric, uint64_t comm, int rank)
{
    const struct past *past = &fabric->past;
    for (unsigned i = 0; i < PAST_PORTS && i < past->count; i++)
        if (past->closed[i].comm == comm && past->closed[i].rank == rank) return true;
    return false;
}
static void port_disarm(struct fabric_transport *p)
{
    p->fabric->armed -= p->armed;
    p->armed = false;
}
static void port_wake(struct fabric_transport *p)
{
    const struct bell *bell = &p->base.router->bell;
    if (p->armed && bell->ring) bell->ring(bell->context);
    port_disarm(p);
}
void port_save_msg(struct fabric_transport *p, struct saved_msg *msg)
{
    saved_msgs_push(&p->saved_msgs, msg);
    port_wake(p);
}
void port_starve(struct fabric_transport *p)
{
    p->out_of_memory = true;
    port_wake(p);
}
void ports_wake(const struct fabric *fabric)
{
    for (struct fabric_transport *p = fabric->ports; p; p = p->next) port_wake(p);
}
void port_complete(struct fabric_transport *p, struct fabric_op *f)
{
    fabric_op_add(f, &p->completed);
    if (p->fabric->polling != p) port_wake(p);
}

/* ---- the contract ---- */
static void fabric_send(struct transport *t, int member, struct transfer *x)
{
    struct fabric_transport *p = transport_lock(t);
    port_send(p, &p->links[member], x);
    transport_unlock(p);
}
static enum readiness fabric_readiness(struct transport *t, int member)
{
    struct fabric_transport *p = transport_lock(t);
    enum readiness readiness = port_readiness(p, &p->links[member]);
    transport_unlock(p);
    return readiness;
}
static void fabric_accept(struct transport *t, int member, struct transfer *x, const struct arrival *a)
{
    struct fabric_transport *p = transport_lock(t);
    port_accept(p, &p->links[member], x, a->id, a->bytes);
    port_end_completed(p);
    transport_unlock(p);
}
static void fabric_release(struct transport *t, int member, uint64_t bytes)
{
    struct fabric_transport *p = transport_lock(t);
    link_owe(p, &p->links[member], bytes);
    transport_unlock(p);
}
/* Does the work that saved messages and callbacks of the fabric have left. */
static bool port_settle(struct fabric_transport *p)
{
    bool moved = p->met.first || p->completed;
    if (p->ahead.first) moved |= port_hear_ahead(p);
    if (p->met.first) port_begin_met(p);
    if (p->completed) port_end_completed(p);
    if (p->waiting) moved |= port_send_waiting(p);
    if (p->owes) port_return_credit(p);
    if (p->refusing.first) port_refuse(p);
    return moved;
}
/* Marks the links of endpoints that broke since the last call, in any communicator. This includes links without an
   endpoint: UCX silently drops messages that a rank announces to a process without an endpoint here. */
static void breaks_record(struct fabric_transport *p)
{
    bool beside = p->base.router->network->beside;
    unsigned known = p->breaks;
    p->breaks = p->fabric->breaks;
    for (const struct endpoint *e = p->fabric->endpoints; e; e = e->next) {
        if (!endpoint_is_broken(e) || e->left || (int)(e->broke - known) <= 0) continue;
        for (int r = 0; r < p->size; r++) {
            struct fabric_link *link = &p->links[r];
            bool its = link->endpoint ? link->endpoint == e
                                      : memcmp(p->callbacks.process(p->callbacks.context, r), e->process, 16) == 0;
            if (its && beside && !e->open && !link->waiting.first) link_mark_refused(p, link, e->why);
            else if (its) link_mark_broken(p, link, e->why);
        }
    }
}
static bool port_progress(struct fabric_transport *p)
{
    struct fabric *fabric = p->fabric;
    bool moved = p->saved_msgs.first;
    port_disarm(p);
    fabric->touched++;
    if (moved) port_handle_saved_msgs(p);
    fabric->polling = p;
    moved |= fabric->operations->progress(fabric);
    moved |= port_settle(p);
    fabric->polling = NULL;
    if (fabric->faults) moved |= fabric_end_faulty(fabric);
    if (p->breaks != fabric->breaks) breaks_record(p);
    return moved;
}
/* Returns a broken link that is unreachable or was held until its time was up. */
static struct fabric_link *find_broken(const struct fabric_transport *p)
{
    int64_t now_ms = clock_ms();
    for (int r = 0; p->broken && r < p->size; r++) {
        struct fabric_link *link = &p->links[r];
        if (link->broken_ms && !link->lost && (link->unreachable || now_ms - link->broken_ms >= HOLD_MS)) return link;
    }
    return NULL;
}
static void fabric_link_lose(struct fabric_transport *p, const struct fabric_link *link)
{
    char name[256];
    p->callbacks.name(p->callbacks.context, link->rank, name, sizeof name);
    router_lose(p->base.router, link->rank,
        status_fail(link->unreachable ? link->unreachable : TUTTI_PEER_LOST,
            "the connection of rank %d to rank %d on %s broke: %s", p->rank, link->rank, name, link->why));
}
static bool fabric_poll(struct transport *t)
{
    struct fabric_transport *p = transport_lock(t);
    bool moved = port_progress(p);
    const struct fabric_link *broken = p->broken ? find_broken(p) : NULL;
    bool out_of_memory = p->out_of_memory;
    transport_unlock(p);
    if (broken) fabric_link_lose(p, broken);
    if (out_of_memory)
        router_fail(t->router, status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for messages", p->rank));
    return moved || broken || out_of_memory;
}
static bool fabric_arm(struct transport *t)
{
    struct fabric_transport *p = transport_lock(t);
    bool ready = !p->saved_msgs.first && !p->completed && !p->met.first && !p->waiting && !p->owes && !p->broken
        && !p->refusing.first && !p->out_of_memory;
    if (ready && !p->armed) {
        p->armed = true;
        p->fabric->armed++;
        thread_wake(p->fabric);
    }
    transport_unlock(p);
    return ready;
}

/* ---- cancelling ---- */
static struct fabric_op *fabric_op_find(const struct fabric_transport *p, const struct transfer *x)
{
    struct fabric_op *f = p->ops;
    while (f && f->transfer != x) f = f->next;
    return f;
}
/* A rendezvous cannot be cancelled from one side. The sender asks the receiver to release it; after TRANSPORT_CANCEL_MS
   the connection is closed, which ends all its ops. */
static bool is_overdue(struct fabric_transport *p, struct fabric_op *f)
{
    int64_t now_ms = clock_ms();
    if (f->withdrawn_ms) return now_ms - f->withdrawn_ms >= TRANSPORT_CANCEL_MS;
    f->withdrawn_ms = now_ms;
    if (f->transfer->is_send)
        port_tell(p, f->link, &(struct header){ .kind = WITHDRAWN, .name = f->header.name, .id = f->header.id });
    return false;
}
static bool link_unwait(struct fabric_transport *p, struct fabric_link *link, const struct transfer *x)
{
    if (!queue_remove(&link->waiting, x)) return false;
    p->waiting -= !link->waiting.first;
    return true;
}
static bool fabric_cancel(struct transport *t, int member, struct transfer *x)
{
    struct fabric_transport *p = transport_lock(t);
    struct fabric_link *link = &p->links[member];
    bool forgotten = link_unwait(p, link, x) || queue_remove(&link->held, x) || link_forget_receive(p, link, x),
         late = false;
    struct fabric_op *f = forgotten ? NULL : fabric_op_find(p, x);
    if (f) late = is_overdue(p, f);
    if (!forgotten) port_progress(p);
    transport_unlock(p);
    if (late)
        router_lose(t->router, member,
            status_fail(TUTTI_PEER_LOST, "rank %d has not released a message of rank %d within %d ms", member, p->rank,
                TRANSPORT_CANCEL_MS));
    return forgotten;
}

/* ---- losing and ending ---- */
static void fail_all(struct queue *q, tutti_status status)
{
    while (q->first) transfer_fail(queue_take(q, NULL), status, 0);
}
/* Returns whether an op of the link may still use memory of its caller. */
static bool is_at(const struct fabric_transport *p, const struct fabric_link *link)
{
    const struct fabric_op *f = p->ops;
    while (f && (f->link != link || !f->transfer || f->packed)) f = f->next;
    return f;
}
/* Clears fabric->polling meanwhile, so that messages which arrive within the disconnect are saved. */
static void break_endpoint(struct fabric *fabric, struct endpoint *e)
{
    struct fabric_transport *polling = fabric->polling;
    endpoint_mark_broken(fabric, e, "this process closed it");
    fabric->polling = NULL;
    fabric->operations->disconnect(fabric, e);
    fabric->polling = polling;
}
/* Ends the ops of the link that use memory of a caller. Such ops have an endpoint, and its disconnect ends them. */
static void let_go(struct fabric_transport *p, struct fabric_link *link)
{
    if (link->endpoint && is_at(p, link)) break_endpoint(p->fabric, link->endpoint);
    for (int64_t until_ms = clock_ms() + TRANSPORT_CANCEL_MS; is_at(p, link) && clock_ms() < until_ms;)
        p->fabric->operations->progress(p->fabric);
    if (is_at(p, link))
        LOG(ERROR, "%s does not release memory of rank %d, whose connection was closed", p->fabric->operations->name,
            p->rank);
}
static void end_link(struct fabric_transport *p, struct fabric_link *link, tutti_status status)
{
    link->lost = true;
    for (struct pending_rndv *at = p->met.first; at; at = at->next_due)
        if (at->link == link) transfer_fail(at->receive, status, 0);
    port_forget_arrivals(p, link);
    let_go(p, link);
    port_end_completed(p);
    p->broken -= link->broken_ms != 0;
    p->waiting -= link->waiting.first != NULL;
    fail_all(&link->held, status);
    fail_all(&link->waiting, status);
    for (struct fabric_op *f = p->ops; f; f = f->next)
        if (f->link == link && f->transfer) {
            transfer_fail(f->transfer, status, 0);
            f->transfer = NULL;
        }
}
static void fabric_lose(struct transport *t, int member, tutti_status status)
{
    struct fabric_transport *p = transport_lock(t);
    end_link(p, &p->links[member], status);
    transport_unlock(p);
}
static void fabric_ops_orphan(struct fabric_transport *p)
{
    for (struct fabric_op *f; (f = p->ops) != NULL; f->owner = NULL) {
        fabric_op_remove(f);
        fabric_op_add(f, &p->fabric->orphans);
    }
    for (struct fabric_op *f; (f = p->completed) != NULL; fabric_op_free(p->fabric, f)) fabric_op_remove(f);
}
static void closed_record(const struct fabric_transport *p)
{
    struct past *past = &p->fabric->past;
    past->closed[past->count % PAST_PORTS].comm = p->comm;
    past->closed[past->count++ % PAST_PORTS].rank = p->rank;
}
static void fabric_destroy(struct transport *t)
{
    struct fabric_transport *p = transport_lock(t);
    struct fabric_transport **at = &p->fabric->ports;
    while (*at && *at != p) at = &(*at)->next;
    if (*at) *at = p->next;
    closed_record(p);
    port_disarm(p);
    for (int r = 0; r < p->size; r++) let_go(p, &p->links[r]);
    port_forget_arrivals(p, NULL);
    fabric_ops_orphan(p);
    for (struct saved_msg *msg; (msg = saved_msgs_pop(&p->saved_msgs)) != NULL;) saved_msg_free(p->fabric, msg);
    for (struct saved_msg *msg; (msg = saved_msgs_pop(&p->ahead)) != NULL;) saved_msg_free(p->fabric, msg);
    transport_unlock(p);
    free(p->links);
    free(p);
}
static const struct transport_operations operations = { .name = "fabric",
    .send = fabric_send,
    .accept = fabric_accept,
    .release = fabric_release,
    .poll = fabric_poll,
    .cancel = fabric_cancel,
    .lose = fabric_lose,
    .readiness = fabric_readiness,
    .arm = fabric_arm,
    .destroy = fabric_destroy };

/* ---- the beginning ---- */
static void take_early(struct fabric_transport *p)
{
    struct fabric *fabric = p->fabric;
    for (int left = fabric->early.count; left > 0; left--) {
        struct saved_msg *msg = early_pop(fabric);
        if (msg->header.comm != p->comm || msg->header.to != p->rank) {
            early_push(fabric, msg);
            continue;
        }
        void *data = msg->announced ? msg->pending : msg->data;
        bool heard = !msg->from->faulty && port_hear(p, msg->from, &msg->header, data, msg->bytes, msg->announced);
        if (heard) msg->pending = NULL;
        saved_msg_free(fabric, msg);
    }
}
tutti_status fabric_connect(struct fabric *fabric, struct router *router, const struct fabric_callbacks *callbacks)
{
    struct fabric_transport *p = memory_zeroed(1, sizeof *p);
    struct fabric_link *links = memory_zeroed((size_t)router->size, sizeof *links);
    if (!p || !links) {
        free(p);
        free(links);
        return status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for links with %d ranks", router->rank,
            router->size);
    }
    *p = (struct fabric_transport){
        .base = { .operations = &operations, .router = router, .network = fabric->operations->name },
        .fabric = fabric,
        .comm = router->comm,
        .rank = router->rank,
        .size = router->size,
        .callbacks = *callbacks,
        .links = links
    };
    for (int r = 0; r < p->size; r++) links[r].rank = r;
    pthread_mutex_lock(&fabric->lock);
    /* Earlier breaks do not concern this group. */
    p->breaks = fabric->breaks;
    p->next = fabric->ports;
    fabric->ports = p;
    take_early(p);
    transport_unlock(p);
    router_add_network(router, &p->base);
    return TUTTI_OK;
}
