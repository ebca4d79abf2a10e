/* The receiving side. While its rank polls, a message goes from the fabric's memory into its receive or into the
   matching. Otherwise it becomes a saved message, which the next poll handles in order. A message that must wait for
   earlier ones, which come by another network, is saved, too. */
#include "backend/base/memory.h"
#include "backend/transports/fabric/fabric_transport.h"
#include "backend/transports/pieces.h"
#include <stdlib.h>
#include <string.h>

static const char twice[] = "its process has sent a message twice", missing[] = "a message of its process is missing";

static struct matching *fabric_transport_matching(struct fabric_transport *transport)
{
    return &transport->base.router->matching;
}
/* Fails the router with this status and the text of status_fail. */
static void fabric_transport_fail(struct fabric_transport *transport, tutti_status status)
{
    router_fail(transport->base.router, status);
}
/* Fails the router because a message of the rank `sender` cannot be kept for lack of memory. */
static void fabric_transport_fail_memory(struct fabric_transport *transport, int sender)
{
    fabric_transport_fail(transport,
        status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for an unexpected message of rank %d", transport->rank,
            sender));
}

/* ---- announced messages ---- */
/* Returns the list of pending rendezvous that an id belongs to. */
static struct pending_rndv **pending_rndv_bucket(struct fabric_transport *transport, uint64_t id)
{
    return &transport->pending_buckets[id % PENDING_RNDV_BUCKETS];
}
/* Returns the pending rendezvous of the link with this id, or NULL. */
static struct pending_rndv *pending_rndv_find(struct fabric_transport *transport, const struct fabric_link *link,
    uint64_t id)
{
    struct pending_rndv *pending = *pending_rndv_bucket(transport, id);
    while (pending && (pending->id != id || pending->link != link)) pending = pending->next;
    return pending;
}
/* Records an announced message that has just arrived; a fetch of it brings `bytes` bytes. NULL: memory is exhausted. */
static struct pending_rndv *pending_rndv_new(struct fabric_transport *transport, struct fabric_link *link,
    const struct header *header, void *descriptor, size_t bytes)
{
    struct pending_rndv *pending = memory_alloc_zeroed(1, sizeof *pending),
                        **at = pending_rndv_bucket(transport, header->id);
    if (!pending) return NULL;
    *pending = (struct pending_rndv){
        .next = *at, .at = at, .link = link, .name = header->name, .id = header->id, .message_bytes = header->bytes
    };
    pending->descriptor = descriptor;
    pending->fetch_bytes = bytes;
    if (*at) (*at)->at = &pending->next;
    link->pending_count++;
    return *at = pending;
}
/* Appends a rendezvous to the list. */
static void due_list_push(struct due_list *due, struct pending_rndv *pending)
{
    pending->next_due = NULL;
    pending->is_due = true;
    if (due->first) due->last->next_due = pending;
    else due->first = pending;
    due->last = pending;
}
/* Removes a rendezvous from the list, if it is there. */
static void due_list_remove(struct due_list *due, const struct pending_rndv *pending)
{
    struct pending_rndv *before = NULL, *at = due->first;
    for (; at && at != pending; at = at->next_due) before = at;
    if (!at) return;
    if (before) before->next_due = at->next_due;
    else due->first = at->next_due;
    if (due->last == at) due->last = before;
    at->is_due = false;
}
/* Removes and returns the oldest rendezvous of the list, or NULL if it is empty. */
static struct pending_rndv *due_list_pop(struct due_list *due)
{
    struct pending_rndv *pending = due->first;
    if (pending) due_list_remove(due, pending);
    return pending;
}
/* Gives the message back to the fabric, unless that is done already. Its send then completes with success. */
static void pending_rndv_release(struct fabric_transport *transport, struct pending_rndv *pending)
{
    if (pending->descriptor) transport->fabric->operations->release(transport->fabric, pending->descriptor);
    pending->descriptor = NULL;
}
/* Releases the message if it still has a descriptor, removes the rendezvous from all lists, and frees it. */
static void pending_rndv_free(struct fabric_transport *transport, struct pending_rndv *pending)
{
    pending_rndv_release(transport, pending);
    if (pending->is_due) due_list_remove(&transport->due_fetches, pending);
    if (pending->is_due) due_list_remove(&transport->due_refusals, pending);
    *pending->at = pending->next;
    if (pending->next) pending->next->at = pending->at;
    pending->link->pending_count--;
    free(pending);
}
/* Starts to fetch the bytes of an announced message into its receive. They go directly into the tensor if it takes all
   of them in one piece, and if a fetch can be ended when the peer is lost: fabric_link_release_memory then disconnects
   the endpoint, which must exist and be whole. Other bytes go to the op's buffer, and are copied when the fetch is
   complete. */
static void pending_rndv_fetch(struct fabric_transport *transport, struct fabric_link *link, struct transfer *transfer,
    struct pending_rndv *pending)
{
    bool is_connected = fabric_link_connect(transport, link) && !endpoint_is_broken(link->endpoint);
    bool is_direct = is_connected && transfer->piece_count == 1 && transfer->pieces[0].length >= pending->fetch_bytes;
    struct fabric_op *op = fabric_op_new(transport->fabric, is_direct ? 0 : pending->fetch_bytes);
    if (!op) {
        pending_rndv_release(transport, pending);
        router_fail_transfer(transport->base.router, transfer,
            status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for a message of rank %d", transport->rank,
                link->rank));
        return;
    }
    op->owner = transport;
    op->link = link;
    op->endpoint = link->endpoint;
    op->transfer = transfer;
    op->is_packed = !is_direct;
    op->is_fetch = true;
    op->bytes = pending->fetch_bytes;
    void *descriptor = pending->descriptor;
    pending->descriptor = NULL;
    /* The op is added before the fetch, because it may complete within that call. */
    fabric_op_add(op, &transport->ops);
    transport->fetch_count++;
    if (transport->fabric->operations->fetch(transport->fabric, op, descriptor,
            is_direct ? transfer->pieces[0].at : NULL))
        return;
    transport->fetch_count--;
    fabric_op_remove(op);
    fabric_op_add(op, &transport->completed);
}
/* A refused message stays pending until its sender gets the refusal and withdraws the message, because a release would
   mean success to the sender. */
void fabric_transport_accept_rndv(struct fabric_transport *transport, struct fabric_link *link,
    struct transfer *transfer, uint64_t id, uint64_t bytes)
{
    struct pending_rndv *pending = pending_rndv_find(transport, link, id);
    transfer->key = id;
    if (pending) pending->receive = NULL;
    if (!pending || !pending->descriptor) transfer_fail(transfer, TUTTI_ABORTED);
    else if (transfer_meet_message(transfer, link->rank, pending->name, bytes))
        pending_rndv_fetch(transport, link, transfer, pending);
    else {
        pending->name = transfer->name;
        pending->wanted_bytes = transfer->wire;
        due_list_push(&transport->due_refusals, pending);
        return;
    }
    if (pending) pending_rndv_free(transport, pending);
}
/* A refusal that was not sent stays in due_refusals, unless the connection has broken. */
void fabric_transport_send_refusals(struct fabric_transport *transport)
{
    struct due_list due = transport->due_refusals;
    transport->due_refusals = (struct due_list){ NULL, NULL };
    for (struct pending_rndv *at; (at = due_list_pop(&due)) != NULL;) {
        bool is_sent = fabric_link_send_control(transport, at->link,
            &(struct header){ .kind = REFUSED, .name = at->name, .id = at->id, .bytes = at->wanted_bytes });
        if (!is_sent && !at->link->broken_ms && !at->link->unreachable) due_list_push(&transport->due_refusals, at);
    }
}
void fabric_transport_fetch_met(struct fabric_transport *transport)
{
    for (struct pending_rndv *at; (at = due_list_pop(&transport->due_fetches)) != NULL;)
        fabric_transport_accept_rndv(transport, at->link, at->receive, at->id, at->message_bytes);
}
/* Handles WITHDRAWN: releases the message `id`, which its sender takes back. A receive that has already met the message
   fails in fabric_transport_accept_rndv. A message whose fetch has started is no longer pending, and the function does
   nothing. */
static void pending_rndv_withdraw(struct fabric_transport *transport, const struct fabric_link *link, uint64_t id)
{
    struct pending_rndv *pending = pending_rndv_find(transport, link, id);
    if (!pending) return;
    pending_rndv_release(transport, pending);
    if (pending->receive) return;
    struct arrival *arrival = matching_withdraw_arrival(fabric_transport_matching(transport), &transport->base,
        link->rank, pending->name, id);
    if (arrival) matching_arrival_free(fabric_transport_matching(transport), arrival);
    pending_rndv_free(transport, pending);
}
void fabric_transport_free_rndvs(struct fabric_transport *transport, const struct fabric_link *link)
{
    for (int i = 0; i < PENDING_RNDV_BUCKETS; i++)
        for (struct pending_rndv *at = transport->pending_buckets[i], *next; at; at = next) {
            next = at->next;
            if (!link || at->link == link) pending_rndv_free(transport, at);
        }
}
bool fabric_link_forget_receive(struct fabric_transport *transport, struct fabric_link *link,
    const struct transfer *transfer)
{
    struct pending_rndv *pending = transport->due_fetches.first;
    while (pending && (pending->link != link || pending->receive != transfer)) pending = pending->next_due;
    if (pending) pending_rndv_free(transport, pending);
    return pending;
}

/* ---- messages ---- */
/* Gives an announced message to the receive that it meets, or keeps an arrival. Rare paths are not inlined, so that the
   path of short expected messages stays small. */
__attribute__((noinline)) static void fabric_link_handle_announced(struct fabric_transport *transport,
    struct fabric_link *link, const struct header *header)
{
    struct pending_rndv *pending = pending_rndv_find(transport, link, header->id);
    /* The message was withdrawn before its turn came. */
    if (!pending) return;
    pending->receive = matching_take_receive(fabric_transport_matching(transport), link->rank, header->name);
    if (pending->receive) {
        pending->receive->source = link->rank;
        due_list_push(&transport->due_fetches, pending);
        return;
    }
    struct arrival *arrival = matching_arrival_new(fabric_transport_matching(transport), 0);
    if (!arrival) {
        fabric_transport_fail_memory(transport, link->rank);
        return;
    }
    arrival->name = header->name;
    arrival->bytes = header->bytes;
    arrival->id = header->id;
    arrival->source = link->rank;
    arrival->transport = &transport->base;
    arrival->is_announced = true;
    matching_keep_arrival(fabric_transport_matching(transport), arrival);
}
/* Copies an eager message into its receive, or keeps it until one is posted. */
static void fabric_link_handle_eager(struct fabric_transport *transport, struct fabric_link *link,
    const struct header *header, const unsigned char *data)
{
    struct transfer *transfer = matching_take_receive(fabric_transport_matching(transport), link->rank, header->name);
    if (transfer) {
        fabric_link_owe_credit(transport, link, header->bytes);
        if (!transfer_meet_message(transfer, link->rank, header->name, header->bytes)) return;
        pieces_scatter(transfer, data, (size_t)header->bytes);
        transfer_complete(transfer);
        return;
    }
    struct arrival *arrival = matching_arrival_new(fabric_transport_matching(transport), (size_t)header->bytes);
    if (!arrival) {
        fabric_transport_fail_memory(transport, link->rank);
        return;
    }
    arrival->name = header->name;
    arrival->bytes = header->bytes;
    arrival->source = link->rank;
    arrival->transport = &transport->base;
    memcpy(arrival->data, data, (size_t)header->bytes);
    matching_keep_arrival(fabric_transport_matching(transport), arrival);
}
/* Returns how many messages of the same sender left before this one and have not been handled. Negative: this message
   was handled already. */
static int messages_missing_before(const struct fabric_transport *transport, const struct header *header)
{
    return (int)(header->sequence - transport->base.router->routes[header->from].handled);
}
/* Handles a message whose sequence number is the next one of the link's rank. */
static inline void fabric_link_handle_next(struct fabric_transport *transport, struct fabric_link *link,
    const struct header *header, const void *data)
{
    transport->base.router->routes[link->rank].handled++;
    if (header->id) fabric_link_handle_announced(transport, link, header);
    else fabric_link_handle_eager(transport, link, header, data);
}
/* Returns a saved message of a message that this rank cannot handle yet, and counts it in link->pending_count. An
   announced one has no descriptor, which its pending rendezvous has. NULL: memory is exhausted. */
static struct saved_msg *saved_msg_from_header(struct fabric_link *link, struct endpoint *endpoint,
    const struct header *header, const void *data)
{
    bool is_announced = header->kind == MESSAGE && header->id;
    struct saved_msg *msg = saved_msg_new(header, is_announced ? NULL : data,
        header->kind == MESSAGE ? (size_t)header->bytes : 0, is_announced);
    if (!msg) return NULL;
    msg->endpoint = endpoint;
    /* An announced message already counts as a pending rendezvous. */
    link->pending_count += !msg->is_announced;
    return msg;
}
/* Frees a message of saved_msg_from_header, and removes it from the count of its link. */
static void saved_msg_finish(struct fabric_transport *transport, struct saved_msg *msg)
{
    transport->links[msg->header.from].pending_count -= !msg->is_announced;
    saved_msg_free(transport->fabric, msg);
}
/* Saves a message that must wait for earlier ones, which come by another network. */
static void fabric_transport_push_ahead(struct fabric_transport *transport, struct saved_msg *msg)
{
    saved_msgs_push(&transport->ahead, msg);
    transport->base.router->ahead_count++;
}
/* Handles a message whose sequence number is not the next one: it waits for the missing ones if several networks carry
   messages, else the endpoint is faulty. */
__attribute__((noinline)) static void fabric_link_handle_out_of_turn(struct fabric_transport *transport,
    struct fabric_link *link, struct endpoint *endpoint, const struct header *header, const void *data)
{
    int missing_count = messages_missing_before(transport, header);
    if (missing_count < 0 || !transport->base.router->first_network->next_network) {
        endpoint_mark_faulty(transport->fabric, endpoint, missing_count < 0 ? twice : missing);
        return;
    }
    struct saved_msg *msg = saved_msg_from_header(link, endpoint, header, data);
    if (msg) fabric_transport_push_ahead(transport, msg);
    else fabric_transport_fail_memory(transport, link->rank);
}
/* Handles a MESSAGE, whether its sequence number is the next one or not. */
static inline void fabric_link_handle_message(struct fabric_transport *transport, struct fabric_link *link,
    struct endpoint *endpoint, const struct header *header, const void *data)
{
    if (messages_missing_before(transport, header) == 0) fabric_link_handle_next(transport, link, header, data);
    else fabric_link_handle_out_of_turn(transport, link, endpoint, header, data);
}
/* The messages of one rank are in the order of their sequence numbers, so one pass finds all whose turn has come. */
bool fabric_transport_handle_ahead(struct fabric_transport *transport)
{
    struct router *router = transport->base.router;
    struct saved_msgs all = transport->ahead;
    bool handled = false;
    transport->ahead = (struct saved_msgs){ NULL, NULL, 0 };
    router->ahead_count -= all.count;
    for (struct saved_msg *msg; (msg = saved_msgs_pop(&all)) != NULL;) {
        struct fabric_link *link = fabric_transport_link(transport, msg->header.from);
        int missing_count = link->is_lost ? 0 : messages_missing_before(transport, &msg->header);
        if (missing_count > 0) {
            fabric_transport_push_ahead(transport, msg);
            continue;
        }
        handled = true;
        if (missing_count < 0) endpoint_mark_faulty(transport->fabric, msg->endpoint, twice);
        else if (!link->is_lost) fabric_link_handle_next(transport, link, &msg->header, msg->data);
        saved_msg_finish(transport, msg);
    }
    return handled;
}
/* Handles a message of any kind, while its transport polls. */
static inline void fabric_link_handle_header(struct fabric_transport *transport, struct fabric_link *link,
    struct endpoint *endpoint, const struct header *header, const void *data)
{
    switch ((enum fabric_kind)header->kind) {
    case MESSAGE: fabric_link_handle_message(transport, link, endpoint, header, data); return;
    case WITHDRAWN: pending_rndv_withdraw(transport, link, header->id); return;
    case REFUSED: fabric_transport_handle_refused(transport, header); return;
    /* fabric_link_record_arrival has already recorded the credit. */
    default: return;
    }
}
void fabric_transport_handle_saved_msgs(struct fabric_transport *transport)
{
    for (struct saved_msg *msg; (msg = saved_msgs_pop(&transport->saved_msgs)) != NULL;
        saved_msg_finish(transport, msg)) {
        struct fabric_link *link = fabric_transport_link(transport, msg->header.from);
        if (!link->is_lost && !msg->endpoint->is_faulty)
            fabric_link_handle_header(transport, link, msg->endpoint, &msg->header, msg->data);
    }
}

/* ---- checks of arrivals ---- */
/* Returns whether the endpoint leads to the process of the link's rank, and records that in the link. */
static bool fabric_link_owns_endpoint(const struct fabric_transport *transport, struct fabric_link *link,
    const struct endpoint *endpoint)
{
    if (link->verified_endpoint == endpoint) return true;
    if (memcmp(transport->callbacks.process(transport->callbacks.context, link->rank), endpoint->process,
            sizeof endpoint->process)
        != 0)
        return false;
    link->verified_endpoint = endpoint;
    return true;
}
/* Returns the fault of a message to this transport, or NULL if it is valid or comes from a lost rank. */
static const char *fabric_transport_find_fault(const struct fabric_transport *transport,
    const struct endpoint *endpoint, const struct header *header, bool is_announced)
{
    struct fabric_link *link =
        header->from >= 0 && header->from < transport->size ? fabric_transport_link(transport, header->from) : NULL;
    if (!link || !fabric_link_owns_endpoint(transport, link, endpoint))
        return "its process has sent a message as another process";
    if (link->is_lost) return NULL;
    if (header->returned - link->returned > link->charged - link->returned)
        return "its process has returned more credit than it had";
    if (is_announced && header->id <= link->last_announced_id) return "its process has announced a message twice";
    if (link->pending_count >= PENDING_RNDV_MOST) return "more than 65536 messages of its process wait to be received";
    bool is_eager = header->kind == MESSAGE && !is_announced;
    if (is_eager && link->arrived - link->owed + eager_message_charge(header->bytes) > CREDIT_BYTES)
        return "its process has sent more eager bytes than it has credit for";
    return NULL;
}
_Static_assert(PENDING_RNDV_MOST == 65536, "as the text says");
/* Records an arrival at once, even if the transport does not poll: the credit that it returns, an announcement, or a
   withdrawal, for which the sender waits. false: memory is exhausted. */
static bool fabric_link_record_arrival(struct fabric_transport *transport, struct fabric_link *link,
    const struct header *header, void *data, size_t bytes, bool is_announced)
{
    link->returned = header->returned;
    if (header->kind == WITHDRAWN) {
        struct pending_rndv *pending = pending_rndv_find(transport, link, header->id);
        if (pending) pending_rndv_release(transport, pending);
    } else if (is_announced) {
        link->last_announced_id = header->id;
        return pending_rndv_new(transport, link, header, data, bytes);
    } else if (header->kind == MESSAGE) link->arrived += eager_message_charge(header->bytes);
    return true;
}
/* Saves a message that the transport handles in its next poll. */
static void fabric_transport_save_msg(struct fabric_transport *transport, struct saved_msg *msg)
{
    saved_msgs_push(&transport->saved_msgs, msg);
    fabric_transport_wake(transport);
}
/* Records that memory for a saved message was missing: the next poll of the transport fails its router. */
static void fabric_transport_mark_out_of_memory(struct fabric_transport *transport)
{
    transport->out_of_memory = true;
    fabric_transport_wake(transport);
}
bool fabric_transport_handle_message(struct fabric_transport *transport, struct endpoint *endpoint,
    const struct header *header, void *data, size_t bytes, bool is_announced)
{
    const char *fault = fabric_transport_find_fault(transport, endpoint, header, is_announced);
    if (fault) endpoint_mark_faulty(transport->fabric, endpoint, fault);
    struct fabric_link *link = fault ? NULL : fabric_transport_link(transport, header->from);
    if (!link || link->is_lost) return false;
    if (!fabric_link_record_arrival(transport, link, header, data, bytes, is_announced)) {
        fabric_transport_mark_out_of_memory(transport);
        return false;
    }
    if (transport == transport->fabric->polling) fabric_link_handle_header(transport, link, endpoint, header, data);
    else if (header->kind != CREDIT) {
        struct saved_msg *msg = saved_msg_from_header(link, endpoint, header, data);
        if (msg) fabric_transport_save_msg(transport, msg);
        else fabric_transport_mark_out_of_memory(transport);
    }
    return is_announced;
}
