/* The contract of a transport (transport.h), and the polls of a transport. */
#include "backend/transports/fabric/fabric_transport.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include <stdlib.h>
#include <string.h>

static struct fabric_transport *fabric_transport_lock(struct transport *t)
{
    struct fabric_transport *p = (struct fabric_transport *)t;
    pthread_mutex_lock(&p->fabric->lock);
    return p;
}
static void fabric_transport_unlock(struct fabric_transport *p) { pthread_mutex_unlock(&p->fabric->lock); }

/* ---- the contract ---- */
static void fabric_send(struct transport *t, int member, struct transfer *x)
{
    struct fabric_transport *p = fabric_transport_lock(t);
    fabric_link_send(p, &p->links[member], x);
    fabric_transport_unlock(p);
}
static enum readiness fabric_readiness(struct transport *t, int member)
{
    struct fabric_transport *p = fabric_transport_lock(t);
    enum readiness readiness = fabric_link_readiness(p, &p->links[member]);
    fabric_transport_unlock(p);
    return readiness;
}
static void fabric_accept(struct transport *t, int member, struct transfer *x, const struct arrival *a)
{
    struct fabric_transport *p = fabric_transport_lock(t);
    fabric_transport_accept_rndv(p, &p->links[member], x, a->id, a->bytes);
    fabric_transport_end_completed(p);
    fabric_transport_unlock(p);
}
static void fabric_release(struct transport *t, int member, uint64_t bytes)
{
    struct fabric_transport *p = fabric_transport_lock(t);
    fabric_link_owe_credit(p, &p->links[member], bytes);
    fabric_transport_unlock(p);
}
/* Does the work that saved messages and callbacks of the fabric have left. */
static bool fabric_transport_settle(struct fabric_transport *p)
{
    bool moved = p->met.first || p->completed;
    if (p->ahead.first) moved |= fabric_transport_handle_ahead(p);
    if (p->met.first) fabric_transport_fetch_met(p);
    if (p->completed) fabric_transport_end_completed(p);
    if (p->waiting) moved |= fabric_transport_send_waiting(p);
    if (p->owes) fabric_transport_return_credit(p);
    if (p->refusing.first) fabric_transport_send_refusals(p);
    return moved;
}
/* Marks the links of endpoints that broke since the last call, in any communicator. This includes links without an
   endpoint: UCX silently drops messages that a rank announces to a process without an endpoint here. */
static void fabric_transport_record_breaks(struct fabric_transport *p)
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
            if (its && beside && !e->open && !link->waiting.first) fabric_link_mark_refused(p, link, e->why);
            else if (its) fabric_link_mark_broken(p, link, e->why);
        }
    }
}
static bool fabric_transport_progress(struct fabric_transport *p)
{
    struct fabric *fabric = p->fabric;
    bool moved = p->saved_msgs.first;
    fabric_transport_disarm(p);
    fabric->touched++;
    if (moved) fabric_transport_handle_saved_msgs(p);
    fabric->polling = p;
    moved |= fabric->operations->progress(fabric);
    moved |= fabric_transport_settle(p);
    fabric->polling = NULL;
    if (fabric->faults) moved |= fabric_disconnect_faulty(fabric);
    if (p->breaks != fabric->breaks) fabric_transport_record_breaks(p);
    return moved;
}
/* Returns a broken link that is unreachable or was held until its time was up. */
static struct fabric_link *fabric_transport_find_broken(const struct fabric_transport *p)
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
    router_lose_peer(p->base.router, link->rank,
        status_fail(link->unreachable ? link->unreachable : TUTTI_PEER_LOST,
            "the connection of rank %d to rank %d on %s broke: %s", p->rank, link->rank, name, link->why));
}
static bool fabric_poll(struct transport *t)
{
    struct fabric_transport *p = fabric_transport_lock(t);
    bool moved = fabric_transport_progress(p);
    const struct fabric_link *broken = p->broken ? fabric_transport_find_broken(p) : NULL;
    bool out_of_memory = p->out_of_memory;
    fabric_transport_unlock(p);
    if (broken) fabric_link_lose(p, broken);
    if (out_of_memory)
        router_fail(t->router, status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for messages", p->rank));
    return moved || broken || out_of_memory;
}
static bool fabric_arm(struct transport *t)
{
    struct fabric_transport *p = fabric_transport_lock(t);
    bool ready = !p->saved_msgs.first && !p->completed && !p->met.first && !p->waiting && !p->owes && !p->broken
        && !p->refusing.first && !p->out_of_memory;
    if (ready && !p->armed) {
        p->armed = true;
        p->fabric->armed++;
        fabric_thread_wake(p->fabric);
    }
    fabric_transport_unlock(p);
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
static bool fabric_op_cancel_is_overdue(struct fabric_transport *p, struct fabric_op *f)
{
    int64_t now_ms = clock_ms();
    if (f->withdrawn_ms) return now_ms - f->withdrawn_ms >= TRANSPORT_CANCEL_MS;
    f->withdrawn_ms = now_ms;
    if (f->transfer->is_send)
        fabric_link_send_control(p, f->link,
            &(struct header){ .kind = WITHDRAWN, .name = f->header.name, .id = f->header.id });
    return false;
}
static bool fabric_link_remove_waiting(struct fabric_transport *p, struct fabric_link *link, const struct transfer *x)
{
    if (!transfer_list_remove(&link->waiting, x)) return false;
    p->waiting -= !link->waiting.first;
    return true;
}
static bool fabric_cancel(struct transport *t, int member, struct transfer *x)
{
    struct fabric_transport *p = fabric_transport_lock(t);
    struct fabric_link *link = &p->links[member];
    bool forgotten = fabric_link_remove_waiting(p, link, x) || transfer_list_remove(&link->held, x)
        || fabric_link_forget_receive(p, link, x),
         late = false;
    struct fabric_op *f = forgotten ? NULL : fabric_op_find(p, x);
    if (f) late = fabric_op_cancel_is_overdue(p, f);
    if (!forgotten) fabric_transport_progress(p);
    fabric_transport_unlock(p);
    if (late)
        router_lose_peer(t->router, member,
            status_fail(TUTTI_PEER_LOST, "rank %d has not released a message of rank %d within %d ms", member, p->rank,
                TRANSPORT_CANCEL_MS));
    return forgotten;
}

/* ---- losing and ending ---- */
/* Returns whether an op of the link may still use memory of its caller. */
static bool fabric_link_uses_caller_memory(const struct fabric_transport *p, const struct fabric_link *link)
{
    const struct fabric_op *f = p->ops;
    while (f && (f->link != link || !f->transfer || f->packed)) f = f->next;
    return f;
}
/* Clears fabric->polling meanwhile, so that messages which arrive within the disconnect are saved. */
static void fabric_break_endpoint(struct fabric *fabric, struct endpoint *e)
{
    struct fabric_transport *polling = fabric->polling;
    endpoint_mark_broken(fabric, e, "this process closed it");
    fabric->polling = NULL;
    fabric->operations->disconnect(fabric, e);
    fabric->polling = polling;
}
/* Ends the ops of the link that use memory of a caller. Such ops have an endpoint, and its disconnect ends them. */
static void fabric_link_release_memory(struct fabric_transport *p, struct fabric_link *link)
{
    if (link->endpoint && fabric_link_uses_caller_memory(p, link)) fabric_break_endpoint(p->fabric, link->endpoint);
    for (int64_t until_ms = clock_ms() + TRANSPORT_CANCEL_MS;
        fabric_link_uses_caller_memory(p, link) && clock_ms() < until_ms;)
        p->fabric->operations->progress(p->fabric);
    if (fabric_link_uses_caller_memory(p, link))
        LOG(ERROR, "%s does not release memory of rank %d, whose connection was closed", p->fabric->operations->name,
            p->rank);
}
static void fabric_link_end(struct fabric_transport *p, struct fabric_link *link, tutti_status status)
{
    link->lost = true;
    for (struct pending_rndv *at = p->met.first; at; at = at->next_due)
        if (at->link == link) transfer_fail(at->receive, status, 0);
    fabric_transport_free_rndvs(p, link);
    fabric_link_release_memory(p, link);
    fabric_transport_end_completed(p);
    p->broken -= link->broken_ms != 0;
    p->waiting -= link->waiting.first != NULL;
    transfer_list_fail_all(&link->held, status);
    transfer_list_fail_all(&link->waiting, status);
    for (struct fabric_op *f = p->ops; f; f = f->next)
        if (f->link == link && f->transfer) {
            transfer_fail(f->transfer, status, 0);
            f->transfer = NULL;
        }
}
static void fabric_lose(struct transport *t, int member, tutti_status status)
{
    struct fabric_transport *p = fabric_transport_lock(t);
    fabric_link_end(p, &p->links[member], status);
    fabric_transport_unlock(p);
}
static void fabric_transport_orphan_ops(struct fabric_transport *p)
{
    for (struct fabric_op *f; (f = p->ops) != NULL; f->owner = NULL) {
        fabric_op_remove(f);
        fabric_op_add(f, &p->fabric->orphans);
    }
    for (struct fabric_op *f; (f = p->completed) != NULL; fabric_op_free(p->fabric, f)) fabric_op_remove(f);
}
static void fabric_transport_record_closed(const struct fabric_transport *p)
{
    struct recently_closed *recently_closed = &p->fabric->recently_closed;
    recently_closed->closed[recently_closed->count % RECENTLY_CLOSED_MOST].comm = p->comm;
    recently_closed->closed[recently_closed->count++ % RECENTLY_CLOSED_MOST].rank = p->rank;
}
static void fabric_destroy(struct transport *t)
{
    struct fabric_transport *p = fabric_transport_lock(t);
    struct fabric_transport **at = &p->fabric->transports;
    while (*at && *at != p) at = &(*at)->next;
    if (*at) *at = p->next;
    fabric_transport_record_closed(p);
    fabric_transport_disarm(p);
    for (int r = 0; r < p->size; r++) fabric_link_release_memory(p, &p->links[r]);
    fabric_transport_free_rndvs(p, NULL);
    fabric_transport_orphan_ops(p);
    for (struct saved_msg *msg; (msg = saved_msgs_pop(&p->saved_msgs)) != NULL;) saved_msg_free(p->fabric, msg);
    for (struct saved_msg *msg; (msg = saved_msgs_pop(&p->ahead)) != NULL;) saved_msg_free(p->fabric, msg);
    fabric_transport_unlock(p);
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
/* Handles the messages for this transport that arrived before it existed, and puts the others back in order. */
static void fabric_transport_take_early(struct fabric_transport *p)
{
    struct fabric *fabric = p->fabric;
    for (int left = fabric->early.count; left > 0; left--) {
        struct saved_msg *msg = early_msgs_pop(fabric);
        if (msg->header.comm != p->comm || msg->header.to != p->rank) {
            early_msgs_push(fabric, msg);
            continue;
        }
        void *data = msg->announced ? msg->pending : msg->data;
        bool handled = !msg->from->faulty
            && fabric_transport_handle_message(p, msg->from, &msg->header, data, msg->bytes, msg->announced);
        if (handled) msg->pending = NULL;
        saved_msg_free(fabric, msg);
    }
}
tutti_status fabric_connect(struct fabric *fabric, struct router *router, const struct fabric_callbacks *callbacks)
{
    struct fabric_transport *p = memory_alloc_zeroed(1, sizeof *p);
    struct fabric_link *links = memory_alloc_zeroed((size_t)router->size, sizeof *links);
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
    p->next = fabric->transports;
    fabric->transports = p;
    fabric_transport_take_early(p);
    fabric_transport_unlock(p);
    router_add_network(router, &p->base);
    return TUTTI_OK;
}
