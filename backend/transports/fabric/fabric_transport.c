/* The contract of a transport (transport.h), and the polls of a transport. */
#include "backend/transports/fabric/fabric_transport.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include <stdlib.h>
#include <string.h>

/* Takes the lock of the fabric, and returns the fabric_transport that begins with this struct. */
static struct fabric_transport *fabric_transport_lock(struct transport *base)
{
    struct fabric_transport *transport = (struct fabric_transport *)base;
    fabric_lock(transport->fabric);
    return transport;
}
static void fabric_transport_unlock(struct fabric_transport *transport)
{
    pthread_mutex_unlock(&transport->fabric->lock);
}

/* ---- the contract: the functions of transport_operations, which take and release the lock ---- */
static void fabric_send(struct transport *base, int member, struct transfer *transfer)
{
    struct fabric_transport *transport = fabric_transport_lock(base);
    fabric_link_send(transport, fabric_transport_link(transport, member), transfer);
    fabric_transport_unlock(transport);
}
static enum readiness fabric_readiness(struct transport *base, int member)
{
    struct fabric_transport *transport = fabric_transport_lock(base);
    enum readiness readiness = fabric_link_readiness(transport, fabric_transport_link(transport, member));
    fabric_transport_unlock(transport);
    return readiness;
}
static void fabric_accept(struct transport *base, int member, struct transfer *transfer, const struct arrival *arrival)
{
    struct fabric_transport *transport = fabric_transport_lock(base);
    fabric_transport_accept_rndv(transport, fabric_transport_link(transport, member), transfer, arrival->id,
        arrival->bytes);
    fabric_transport_end_completed(transport);
    fabric_transport_unlock(transport);
}
static void fabric_release(struct transport *base, int member, uint64_t bytes)
{
    struct fabric_transport *transport = fabric_transport_lock(base);
    fabric_link_owe_credit(transport, fabric_transport_link(transport, member), bytes);
    fabric_transport_unlock(transport);
}
/* Does the work that is due: handles messages whose turn has come, starts fetches, ends completed ops, sends waiting
   messages, credit and refusals. true: something moved. */
static bool fabric_transport_handle_due_work(struct fabric_transport *transport)
{
    bool moved = transport->due_fetches.first || transport->completed;
    if (transport->ahead.first) moved |= fabric_transport_handle_ahead(transport);
    if (transport->due_fetches.first) fabric_transport_fetch_met(transport);
    if (transport->completed) fabric_transport_end_completed(transport);
    if (transport->waiting_links) moved |= fabric_transport_send_waiting(transport);
    if (transport->owes_credit) fabric_transport_return_credit(transport);
    if (transport->due_refusals.first) fabric_transport_send_refusals(transport);
    return moved;
}
/* Marks the links to processes whose endpoints broke since the last call, as broken or as refused. This includes links
   that have no endpoint yet: UCX silently drops what their rank announces while this process has no endpoint to it. */
static void fabric_transport_record_breaks(struct fabric_transport *transport)
{
    bool has_other_networks = transport->base.router->first_network->next_network;
    unsigned seen_before = transport->seen_breaks;
    transport->seen_breaks = transport->fabric->break_count;
    for (const struct endpoint *endpoint = transport->fabric->endpoints; endpoint; endpoint = endpoint->next) {
        if (!endpoint_is_broken(endpoint) || endpoint->has_left || (int)(endpoint->break_number - seen_before) <= 0)
            continue;
        for (int r = 0; r < transport->size; r++) {
            struct fabric_link *link = &transport->links[r];
            bool leads_to_rank = link->endpoint
                ? link->endpoint == endpoint
                : memcmp(transport->callbacks.process(transport->callbacks.context, r), endpoint->process, 16) == 0;
            if (leads_to_rank) link->rank = r;
            if (leads_to_rank && has_other_networks && !endpoint->is_open && !link->waiting_sends.first)
                fabric_link_mark_refused(transport, link, endpoint->why);
            else if (leads_to_rank) fabric_link_mark_broken(transport, link, endpoint->why);
        }
    }
}
/* Handles saved messages, progresses the network, and does the work that is due. true: something moved. Called with the
   lock. */
static bool fabric_transport_progress(struct fabric_transport *transport)
{
    struct fabric *fabric = transport->fabric;
    bool moved = transport->saved_msgs.first;
    fabric_transport_disarm(transport);
    fabric->poll_count++;
    if (moved) fabric_transport_handle_saved_msgs(transport);
    fabric->polling = transport;
    moved |= fabric->operations->progress(fabric);
    moved |= fabric_transport_handle_due_work(transport);
    transport->base.is_receiving = transport->fetch_count > 0;
    fabric->polling = NULL;
    if (fabric->has_faulty) moved |= fabric_disconnect_faulty(fabric);
    if (transport->seen_breaks != fabric->break_count) fabric_transport_record_breaks(transport);
    return moved;
}
/* Returns a link that has been broken for HOLD_MS or can get no endpoint, so that its rank must be lost, or NULL. */
static struct fabric_link *fabric_transport_find_broken(const struct fabric_transport *transport)
{
    int64_t now_ms = clock_ms();
    for (int r = 0; transport->broken_links && r < transport->size; r++) {
        struct fabric_link *link = &transport->links[r];
        if (link->broken_ms && !link->is_lost && (link->unreachable || now_ms - link->broken_ms >= HOLD_MS))
            return link;
    }
    return NULL;
}
/* Makes the router lose the rank of a broken link. Called without the lock. */
static void fabric_link_lose(struct fabric_transport *transport, const struct fabric_link *link)
{
    char name[256];
    transport->callbacks.name(transport->callbacks.context, link->rank, name, sizeof name);
    router_lose_peer(transport->base.router, link->rank,
        status_fail(link->unreachable ? link->unreachable : TUTTI_PEER_LOST,
            "the connection of rank %d to rank %d on %s broke: %s", transport->rank, link->rank, name, link->why));
}
/* Makes progress (transport.h). Errors are reported to the router after the lock is released, because router_lose_peer
   calls fabric_lose, which takes the lock. */
static bool fabric_poll(struct transport *base)
{
    struct fabric_transport *transport = fabric_transport_lock(base);
    bool moved = fabric_transport_progress(transport);
    const struct fabric_link *broken = transport->broken_links ? fabric_transport_find_broken(transport) : NULL;
    bool out_of_memory = transport->out_of_memory;
    fabric_transport_unlock(transport);
    if (broken) fabric_link_lose(transport, broken);
    if (out_of_memory)
        router_fail(base->router, status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for messages", transport->rank));
    return moved || broken || out_of_memory;
}
/* Makes the progress thread ring this rank's bell when a message arrives. false: there is work now, so the caller must
   poll. */
static bool fabric_arm(struct transport *base)
{
    struct fabric_transport *transport = fabric_transport_lock(base);
    bool is_quiet = !transport->saved_msgs.first && !transport->completed && !transport->due_fetches.first
        && !transport->waiting_links && !transport->owes_credit && !transport->broken_links
        && !transport->due_refusals.first && !transport->out_of_memory;
    if (is_quiet && !transport->is_armed) {
        transport->is_armed = true;
        transport->fabric->armed_count++;
        fabric_thread_wake(transport->fabric);
    }
    fabric_transport_unlock(transport);
    return is_quiet;
}

/* ---- cancelling ---- */
/* Returns the op in flight of this transfer, or NULL. */
static struct fabric_op *fabric_op_find(const struct fabric_transport *transport, const struct transfer *transfer)
{
    struct fabric_op *op = transport->ops;
    while (op && op->transfer != transfer) op = op->next;
    return op;
}
/* Withdraws an op in flight. The first call records the time, and sends WITHDRAWN if the op is a send, because only the
   receiver can end a rendezvous. Returns true if the first call was TRANSPORT_CANCEL_MS ago, so that the caller must
   lose the peer. */
static bool fabric_op_withdraw(struct fabric_transport *transport, struct fabric_op *op)
{
    int64_t now_ms = clock_ms();
    if (op->withdrawn_ms) return now_ms - op->withdrawn_ms >= TRANSPORT_CANCEL_MS;
    op->withdrawn_ms = now_ms;
    if (op->transfer->is_send)
        fabric_link_send_control(transport, op->link,
            &(struct header){ .kind = WITHDRAWN, .name = op->header.name, .id = op->header.id });
    return false;
}
/* Removes a send from those that wait for an endpoint. false: it does not wait. */
static bool fabric_link_remove_waiting(struct fabric_transport *transport, struct fabric_link *link,
    const struct transfer *transfer)
{
    if (!transfer_list_remove(&link->waiting_sends, transfer)) return false;
    transport->waiting_links -= !link->waiting_sends.first;
    return true;
}
/* Forgets a transfer. false: the network still uses its memory; the caller polls and calls again. */
static bool fabric_cancel(struct transport *base, int member, struct transfer *transfer)
{
    struct fabric_transport *transport = fabric_transport_lock(base);
    struct fabric_link *link = fabric_transport_link(transport, member);
    bool forgotten = fabric_link_remove_waiting(transport, link, transfer)
        || transfer_list_remove(&link->held_transfers, transfer)
        || fabric_link_forget_receive(transport, link, transfer),
         is_overdue = false;
    struct fabric_op *op = forgotten ? NULL : fabric_op_find(transport, transfer);
    if (op) is_overdue = fabric_op_withdraw(transport, op);
    if (!forgotten) fabric_transport_progress(transport);
    fabric_transport_unlock(transport);
    if (is_overdue)
        router_lose_peer(base->router, member,
            status_fail(TUTTI_PEER_LOST, "rank %d has not released a message of rank %d within %d ms", member,
                transport->rank, TRANSPORT_CANCEL_MS));
    return forgotten;
}

/* ---- losing and ending ---- */
/* Returns whether an op of the link reads or writes memory of a transfer, not a buffer of its own. */
static bool fabric_link_uses_caller_memory(const struct fabric_transport *transport, const struct fabric_link *link)
{
    const struct fabric_op *op = transport->ops;
    while (op && (op->link != link || !op->transfer || op->is_packed)) op = op->next;
    return op;
}
/* Disconnects the endpoint by force, which completes its ops. fabric->polling is NULL meanwhile, so that messages which
   arrive within the call are saved. */
static void fabric_break_endpoint(struct fabric *fabric, struct endpoint *endpoint)
{
    struct fabric_transport *polling = fabric->polling;
    endpoint_mark_broken(fabric, endpoint, "this process closed it");
    fabric->polling = NULL;
    fabric->operations->disconnect(fabric, endpoint);
    fabric->polling = polling;
}
/* Ends the ops of the link that use memory of a transfer, by disconnecting the endpoint. Waits up to
   TRANSPORT_CANCEL_MS for that, and then logs an error. */
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
/* Fails all transfers of a link with `status`, and ignores the rank's later messages. Ops that are still in flight go
   on without a transfer. */
static void fabric_link_end(struct fabric_transport *transport, struct fabric_link *link, tutti_status status)
{
    link->is_lost = true;
    for (struct pending_rndv *at = transport->due_fetches.first; at; at = at->next_due)
        if (at->link == link) transfer_fail(at->receive, status);
    fabric_transport_free_rndvs(transport, link);
    fabric_link_release_memory(transport, link);
    fabric_transport_end_completed(transport);
    transport->broken_links -= link->broken_ms != 0;
    transport->waiting_links -= link->waiting_sends.first != NULL;
    transfer_list_fail_all(&link->held_transfers, status);
    transfer_list_fail_all(&link->waiting_sends, status);
    for (struct fabric_op *op = transport->ops; op; op = op->next)
        if (op->link == link && op->transfer) {
            transfer_fail(op->transfer, status);
            op->transfer = NULL;
        }
}
/* Fails all transfers with the member (transport.h). */
static void fabric_lose(struct transport *base, int member, tutti_status status)
{
    struct fabric_transport *transport = fabric_transport_lock(base);
    fabric_link_end(transport, fabric_transport_link(transport, member), status);
    fabric_transport_unlock(transport);
}
/* Gives the ops in flight to fabric->orphans, where they are freed when they complete. Frees the completed ops. */
static void fabric_transport_orphan_ops(struct fabric_transport *transport)
{
    for (struct fabric_op *op; (op = transport->ops) != NULL; op->owner = NULL) {
        fabric_op_remove(op);
        fabric_op_add(op, &transport->fabric->orphans);
    }
    for (struct fabric_op *op; (op = transport->completed) != NULL; fabric_op_free(transport->fabric, op))
        fabric_op_remove(op);
}
/* Adds the transport to those that were closed last. */
static void fabric_transport_record_closed(const struct fabric_transport *transport)
{
    struct recently_closed *recently_closed = &transport->fabric->recently_closed;
    recently_closed->closed[recently_closed->count % RECENTLY_CLOSED_MOST].comm = transport->comm;
    recently_closed->closed[recently_closed->count++ % RECENTLY_CLOSED_MOST].rank = transport->rank;
}
/* Removes the transport from its fabric and frees it. Later messages for it are dropped. */
static void fabric_destroy(struct transport *base)
{
    struct fabric_transport *transport = fabric_transport_lock(base);
    struct fabric_transport **at = &transport->fabric->transports;
    while (*at && *at != transport) at = &(*at)->next;
    if (*at) *at = transport->next;
    fabric_transport_record_closed(transport);
    fabric_transport_disarm(transport);
    for (int r = 0; r < transport->size; r++) fabric_link_release_memory(transport, &transport->links[r]);
    fabric_transport_free_rndvs(transport, NULL);
    fabric_transport_orphan_ops(transport);
    for (struct saved_msg *msg; (msg = saved_msgs_pop(&transport->saved_msgs)) != NULL;)
        saved_msg_free(transport->fabric, msg);
    for (struct saved_msg *msg; (msg = saved_msgs_pop(&transport->ahead)) != NULL;)
        saved_msg_free(transport->fabric, msg);
    fabric_transport_unlock(transport);
    memory_free_sparse(transport->links, (size_t)transport->size * sizeof *transport->links);
    free(transport);
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
        void *data = msg->is_announced ? msg->descriptor : msg->data;
        bool handled = !msg->endpoint->is_faulty
            && fabric_transport_handle_message(transport, msg->endpoint, &msg->header, data, msg->bytes,
                msg->is_announced);
        if (handled) msg->descriptor = NULL;
        saved_msg_free(fabric, msg);
    }
}
tutti_status fabric_connect(struct fabric *fabric, struct router *router, const struct fabric_callbacks *callbacks)
{
    struct fabric_transport *transport = memory_alloc_zeroed(1, sizeof *transport);
    const size_t link_bytes = (size_t)router->size * sizeof(struct fabric_link);
    struct fabric_link *links = memory_alloc_sparse(link_bytes);
    if (!transport || !links) {
        free(transport);
        memory_free_sparse(links, link_bytes);
        return status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for links with %d ranks", router->rank,
            router->size);
    }
    *transport = (struct fabric_transport){
        .base = { .operations = &operations, .router = router, .network_name = fabric->operations->name },
        .fabric = fabric,
        .comm = router->comm,
        .rank = router->rank,
        .size = router->size,
        .callbacks = *callbacks,
        .links = links
    };
    fabric_lock(fabric);
    /* Earlier breaks do not concern this group. */
    transport->seen_breaks = fabric->break_count;
    transport->next = fabric->transports;
    fabric->transports = transport;
    fabric_transport_take_early(transport);
    fabric_transport_unlock(transport);
    router_add_network(router, &transport->base);
    return TUTTI_OK;
}
