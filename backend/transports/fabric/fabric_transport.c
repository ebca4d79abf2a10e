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
static void fabric_transport_unlock(struct fabric_transport *transport)
{
    pthread_mutex_unlock(&transport->fabric->lock);
}

/* ---- the contract ---- */
static void fabric_send(struct transport *t, int member, struct transfer *transfer)
{
    struct fabric_transport *p = fabric_transport_lock(t);
    fabric_link_send(p, &p->links[member], transfer);
    fabric_transport_unlock(p);
}
static enum readiness fabric_readiness(struct transport *t, int member)
{
    struct fabric_transport *p = fabric_transport_lock(t);
    enum readiness readiness = fabric_link_readiness(p, &p->links[member]);
    fabric_transport_unlock(p);
    return readiness;
}
static void fabric_accept(struct transport *t, int member, struct transfer *transfer, const struct arrival *arrival)
{
    struct fabric_transport *p = fabric_transport_lock(t);
    fabric_transport_accept_rndv(p, &p->links[member], transfer, arrival->id, arrival->bytes);
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
static bool fabric_transport_settle(struct fabric_transport *transport)
{
    bool moved = transport->met.first || transport->completed;
    if (transport->ahead.first) moved |= fabric_transport_handle_ahead(transport);
    if (transport->met.first) fabric_transport_fetch_met(transport);
    if (transport->completed) fabric_transport_end_completed(transport);
    if (transport->waiting) moved |= fabric_transport_send_waiting(transport);
    if (transport->owes) fabric_transport_return_credit(transport);
    if (transport->refusing.first) fabric_transport_send_refusals(transport);
    return moved;
}
/* Marks the links of endpoints that broke since the last call, in any communicator. This includes links without an
   endpoint: UCX silently drops messages that a rank announces to a process without an endpoint here. */
static void fabric_transport_record_breaks(struct fabric_transport *transport)
{
    bool beside = transport->base.router->network->beside;
    unsigned known = transport->breaks;
    transport->breaks = transport->fabric->breaks;
    for (const struct endpoint *endpoint = transport->fabric->endpoints; endpoint; endpoint = endpoint->next) {
        if (!endpoint_is_broken(endpoint) || endpoint->left || (int)(endpoint->broke - known) <= 0) continue;
        for (int r = 0; r < transport->size; r++) {
            struct fabric_link *link = &transport->links[r];
            bool its = link->endpoint
                ? link->endpoint == endpoint
                : memcmp(transport->callbacks.process(transport->callbacks.context, r), endpoint->process, 16) == 0;
            if (its && beside && !endpoint->open && !link->waiting.first)
                fabric_link_mark_refused(transport, link, endpoint->why);
            else if (its) fabric_link_mark_broken(transport, link, endpoint->why);
        }
    }
}
/* Handles saved messages, progresses the network, and completes this transport's messages. True: something moved.
   Called with the lock. */
static bool fabric_transport_progress(struct fabric_transport *transport)
{
    struct fabric *fabric = transport->fabric;
    bool moved = transport->saved_msgs.first;
    fabric_transport_disarm(transport);
    fabric->touched++;
    if (moved) fabric_transport_handle_saved_msgs(transport);
    fabric->polling = transport;
    moved |= fabric->operations->progress(fabric);
    moved |= fabric_transport_settle(transport);
    fabric->polling = NULL;
    if (fabric->faults) moved |= fabric_disconnect_faulty(fabric);
    if (transport->breaks != fabric->breaks) fabric_transport_record_breaks(transport);
    return moved;
}
/* Returns a broken link that is unreachable or was held until its time was up. */
static struct fabric_link *fabric_transport_find_broken(const struct fabric_transport *transport)
{
    int64_t now_ms = clock_ms();
    for (int r = 0; transport->broken && r < transport->size; r++) {
        struct fabric_link *link = &transport->links[r];
        if (link->broken_ms && !link->lost && (link->unreachable || now_ms - link->broken_ms >= HOLD_MS)) return link;
    }
    return NULL;
}
static void fabric_link_lose(struct fabric_transport *transport, const struct fabric_link *link)
{
    char name[256];
    transport->callbacks.name(transport->callbacks.context, link->rank, name, sizeof name);
    router_lose_peer(transport->base.router, link->rank,
        status_fail(link->unreachable ? link->unreachable : TUTTI_PEER_LOST,
            "the connection of rank %d to rank %d on %s broke: %s", transport->rank, link->rank, name, link->why));
}
/* Polls (see transport.h). Errors are reported after the lock is released, because the router then calls back. */
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
/* Lets the network's thread wake this rank when a message arrives. False: there is work now, so poll again. */
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
static struct fabric_op *fabric_op_find(const struct fabric_transport *transport, const struct transfer *transfer)
{
    struct fabric_op *op = transport->ops;
    while (op && op->transfer != transfer) op = op->next;
    return op;
}
/* A rendezvous cannot be cancelled from one side. The sender asks the receiver to release it; after TRANSPORT_CANCEL_MS
   the connection is closed, which ends all its ops. */
static bool fabric_op_cancel_is_overdue(struct fabric_transport *transport, struct fabric_op *op)
{
    int64_t now_ms = clock_ms();
    if (op->withdrawn_ms) return now_ms - op->withdrawn_ms >= TRANSPORT_CANCEL_MS;
    op->withdrawn_ms = now_ms;
    if (op->transfer->is_send)
        fabric_link_send_control(transport, op->link,
            &(struct header){ .kind = WITHDRAWN, .name = op->header.name, .id = op->header.id });
    return false;
}
static bool fabric_link_remove_waiting(struct fabric_transport *transport, struct fabric_link *link,
    const struct transfer *transfer)
{
    if (!transfer_list_remove(&link->waiting, transfer)) return false;
    transport->waiting -= !link->waiting.first;
    return true;
}
/* Cancels a transfer. False: the network still uses its buffer; the caller polls and calls again. */
static bool fabric_cancel(struct transport *t, int member, struct transfer *transfer)
{
    struct fabric_transport *p = fabric_transport_lock(t);
    struct fabric_link *link = &p->links[member];
    bool forgotten = fabric_link_remove_waiting(p, link, transfer) || transfer_list_remove(&link->held, transfer)
        || fabric_link_forget_receive(p, link, transfer),
         late = false;
    struct fabric_op *op = forgotten ? NULL : fabric_op_find(p, transfer);
    if (op) late = fabric_op_cancel_is_overdue(p, op);
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
static bool fabric_link_uses_caller_memory(const struct fabric_transport *transport, const struct fabric_link *link)
{
    const struct fabric_op *op = transport->ops;
    while (op && (op->link != link || !op->transfer || op->packed)) op = op->next;
    return op;
}
/* Clears fabric->polling meanwhile, so that messages which arrive within the disconnect are saved. */
static void fabric_break_endpoint(struct fabric *fabric, struct endpoint *endpoint)
{
    struct fabric_transport *polling = fabric->polling;
    endpoint_mark_broken(fabric, endpoint, "this process closed it");
    fabric->polling = NULL;
    fabric->operations->disconnect(fabric, endpoint);
    fabric->polling = polling;
}
/* Ends the ops of the link that use memory of a caller. Such ops have an endpoint, and its disconnect ends them. */
static void fabric_link_release_memory(struct fabric_transport *transport, struct fabric_link *link)
{
    if (link->endpoint && fabric_link_uses_caller_memory(transport, link))
        fabric_break_endpoint(transport->fabric, link->endpoint);
    for (int64_t until_ms = clock_ms() + TRANSPORT_CANCEL_MS;
        fabric_link_uses_caller_memory(transport, link) && clock_ms() < until_ms;)
        transport->fabric->operations->progress(transport->fabric);
    if (fabric_link_uses_caller_memory(transport, link))
        LOG(ERROR, "%s does not release memory of rank %d, whose connection was closed",
            transport->fabric->operations->name, transport->rank);
}
/* Fails all transfers of a link with `status` and frees its state. Ops that the network still holds lose their
   transfer. */
static void fabric_link_end(struct fabric_transport *transport, struct fabric_link *link, tutti_status status)
{
    link->lost = true;
    for (struct pending_rndv *at = transport->met.first; at; at = at->next_due)
        if (at->link == link) transfer_fail(at->receive, status, 0);
    fabric_transport_free_rndvs(transport, link);
    fabric_link_release_memory(transport, link);
    fabric_transport_end_completed(transport);
    transport->broken -= link->broken_ms != 0;
    transport->waiting -= link->waiting.first != NULL;
    transfer_list_fail_all(&link->held, status);
    transfer_list_fail_all(&link->waiting, status);
    for (struct fabric_op *op = transport->ops; op; op = op->next)
        if (op->link == link && op->transfer) {
            transfer_fail(op->transfer, status, 0);
            op->transfer = NULL;
        }
}
static void fabric_lose(struct transport *t, int member, tutti_status status)
{
    struct fabric_transport *p = fabric_transport_lock(t);
    fabric_link_end(p, &p->links[member], status);
    fabric_transport_unlock(p);
}
/* Leaves the ops that are in flight to the fabric, which frees them when they complete. */
static void fabric_transport_orphan_ops(struct fabric_transport *transport)
{
    for (struct fabric_op *op; (op = transport->ops) != NULL; op->owner = NULL) {
        fabric_op_remove(op);
        fabric_op_add(op, &transport->fabric->orphans);
    }
    for (struct fabric_op *op; (op = transport->completed) != NULL; fabric_op_free(transport->fabric, op))
        fabric_op_remove(op);
}
static void fabric_transport_record_closed(const struct fabric_transport *transport)
{
    struct recently_closed *recently_closed = &transport->fabric->recently_closed;
    recently_closed->closed[recently_closed->count % RECENTLY_CLOSED_MOST].comm = transport->comm;
    recently_closed->closed[recently_closed->count++ % RECENTLY_CLOSED_MOST].rank = transport->rank;
}
/* Removes the transport from its fabric and frees it. Later messages for it are dropped. */
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
static void fabric_transport_take_early(struct fabric_transport *transport)
{
    struct fabric *fabric = transport->fabric;
    for (int left = fabric->early.count; left > 0; left--) {
        struct saved_msg *msg = early_msgs_pop(fabric);
        if (msg->header.comm != transport->comm || msg->header.to != transport->rank) {
            early_msgs_push(fabric, msg);
            continue;
        }
        void *data = msg->announced ? msg->pending : msg->data;
        bool handled = !msg->from->faulty
            && fabric_transport_handle_message(transport, msg->from, &msg->header, data, msg->bytes, msg->announced);
        if (handled) msg->pending = NULL;
        saved_msg_free(fabric, msg);
    }
}
tutti_status fabric_connect(struct fabric *fabric, struct router *router, const struct fabric_callbacks *callbacks)
{
    struct fabric_transport *transport = memory_alloc_zeroed(1, sizeof *transport);
    struct fabric_link *links = memory_alloc_zeroed((size_t)router->size, sizeof *links);
    if (!transport || !links) {
        free(transport);
        free(links);
        return status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for links with %d ranks", router->rank,
            router->size);
    }
    *transport = (struct fabric_transport){
        .base = { .operations = &operations, .router = router, .network = fabric->operations->name },
        .fabric = fabric,
        .comm = router->comm,
        .rank = router->rank,
        .size = router->size,
        .callbacks = *callbacks,
        .links = links
    };
    for (int r = 0; r < transport->size; r++) links[r].rank = r;
    pthread_mutex_lock(&fabric->lock);
    /* Earlier breaks do not concern this group. */
    transport->breaks = fabric->breaks;
    transport->next = fabric->transports;
    fabric->transports = transport;
    fabric_transport_take_early(transport);
    fabric_transport_unlock(transport);
    router_add_network(router, &transport->base);
    return TUTTI_OK;
}
