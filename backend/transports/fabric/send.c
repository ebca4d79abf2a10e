/* The sending side. A small message is copied into the room of an op, so that its send is done at once. A large message
   is announced and stays in place. A message of several pieces is packed into one, because UCX moves lists of pieces
   over TCP at a third of the speed. */
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/transports/fabric/fabric_transport.h"
#include "backend/transports/pieces.h"
#include <stdio.h>
#include <stdlib.h>

static const char reset[] = "the connection was reset";

/* Returns an op with a buffer of this size for a message on the link. Its header also returns the credit that is owed.
   NULL: memory is exhausted. */
static struct fabric_op *fabric_op_new_for_link(struct fabric_transport *transport, struct fabric_link *link,
    size_t room)
{
    struct fabric_op *op = fabric_op_new(transport->fabric, room);
    if (!op) return NULL;
    op->owner = transport;
    op->link = link;
    op->endpoint = link->endpoint;
    op->header =
        (struct header){ .comm = transport->comm, .from = transport->rank, .to = link->rank, .returned = link->owed };
    link->reported = link->owed;
    return op;
}
void fabric_link_mark_broken(struct fabric_transport *transport, struct fabric_link *link, const char *why)
{
    if (link->broken_ms || link->is_lost) return;
    link->broken_ms = clock_ms();
    link->why = why;
    transport->broken_links++;
}
/* Marks the link as broken if this completed op has failed (op->why is set) and carried a MESSAGE to a process that has
   not left. The receiver waits for the sequence number of that message, so it would never handle later ones. */
static void fabric_op_break_link_if_lost(struct fabric_transport *transport, const struct fabric_op *op)
{
    bool is_awaited = op->header.kind == MESSAGE && op->endpoint && !op->endpoint->has_left;
    if (op->why && is_awaited) fabric_link_mark_broken(transport, op->link, op->why);
}
/* Sends the message of an op, with the bytes of `data` (NULL: of op->buffer). `send` returns true if the op is in
   flight. Otherwise the op has completed, and op->why is its error, or NULL. Then it goes to `completed`, or is freed
   if it has no transfer and no error. */
static void fabric_op_post(struct fabric_transport *transport, struct fabric_op *op, const void *data,
    bool is_announced)
{
    bool is_in_flight = transport->fabric->operations->send(transport->fabric, op, data, is_announced);
    if (!is_in_flight) fabric_op_break_link_if_lost(transport, op);
    if (!is_in_flight && !op->why && !op->transfer) fabric_op_free(transport->fabric, op);
    else fabric_op_add(op, is_in_flight ? &transport->ops : &transport->completed);
}
/* Returns an op with the header of this transfer and a buffer of this size. NULL: memory is exhausted, and the transfer
   has failed. */
static struct fabric_op *fabric_op_new_for_message(struct fabric_transport *transport, struct fabric_link *link,
    struct transfer *transfer, size_t room)
{
    struct fabric_op *op = fabric_op_new_for_link(transport, link, room);
    if (!op) {
        router_fail_transfer(transport->base.router, transfer,
            status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for a message to rank %d", transport->rank,
                link->rank));
        return NULL;
    }
    op->header.kind = MESSAGE;
    op->header.sequence = transport->base.router->routes[link->rank].sent++;
    op->header.name = transfer->name;
    op->header.bytes = transfer->wire;
    return op;
}
/* Returns whether the link has credit for an eager message of this size. */
static bool fabric_link_has_credit(const struct fabric_link *link, uint64_t bytes)
{
    return link->charged - link->returned + eager_message_charge(bytes) <= CREDIT_BYTES;
}
/* Sends a small message with its bytes. They are copied into the op, so the transfer is complete at once. */
static void fabric_link_send_eager(struct fabric_transport *transport, struct fabric_link *link,
    struct transfer *transfer)
{
    struct fabric_op *op = fabric_op_new_for_message(transport, link, transfer, (size_t)transfer->wire);
    if (!op) return;
    op->bytes = (size_t)transfer->wire;
    link->charged += eager_message_charge(transfer->wire);
    pieces_gather(transfer, op->buffer, op->bytes);
    fabric_op_post(transport, op, NULL, false);
    transfer_complete(transfer);
}
/* Returns whether the transfer has one piece, with some bytes in memory. */
static bool transfer_is_one_run(const struct transfer *transfer)
{
    return transfer->piece_count == 1 && transfer->pieces[0].length > 0;
}
/* Announces a large message; its receiver fetches the bytes. Several pieces are packed into one buffer first. */
static void fabric_link_announce_transfer(struct fabric_transport *transport, struct fabric_link *link,
    struct transfer *transfer)
{
    bool is_packed = !transfer_is_one_run(transfer);
    /* An empty message is announced with one byte, because an announcement needs at least one. */
    size_t room = transfer->wire ? (size_t)transfer->wire : 1;
    struct fabric_op *op = fabric_op_new_for_message(transport, link, transfer, is_packed ? room : 0);
    if (!op) return;
    op->header.id = transfer->key = ++transport->last_id;
    op->transfer = transfer;
    op->is_packed = is_packed;
    op->bytes = is_packed ? room : transfer->pieces[0].length;
    if (is_packed) pieces_gather(transfer, op->buffer, (size_t)transfer->wire);
    fabric_op_post(transport, op, is_packed ? NULL : transfer->pieces[0].at, true);
}
/* Holds a transfer whose connection has broken. The control connection reports whether the process died or ended. The
   transfer fails with `why` only if no report arrives in time. */
static void fabric_link_hold_transfer(struct fabric_transport *transport, struct fabric_link *link,
    struct transfer *transfer, const char *why)
{
    transfer_list_push(&link->held_transfers, transfer);
    fabric_link_mark_broken(transport, link, why);
}
/* Sends a message eagerly if it is small and the peer has given credit, else announces it. On a broken link it is held
   until the failure is reported. */
static void fabric_link_send_now(struct fabric_transport *transport, struct fabric_link *link,
    struct transfer *transfer)
{
    if (link->broken_ms) fabric_link_hold_transfer(transport, link, transfer, link->why);
    else if (endpoint_is_broken(link->endpoint))
        fabric_link_hold_transfer(transport, link, transfer, link->endpoint->why);
    else if (transfer->wire <= EAGER_BYTES && fabric_link_has_credit(link, transfer->wire))
        fabric_link_send_eager(transport, link, transfer);
    else fabric_link_announce_transfer(transport, link, transfer);
}
/* Sets link->endpoint to an open endpoint to the process of the link's rank; creates the endpoint if it is missing.
   IN_PROGRESS: its address is not known yet, or its handshake goes on. */
static tutti_status fabric_link_find_endpoint(struct fabric_transport *transport, struct fabric_link *link)
{
    unsigned char address[FABRIC_ADDRESS_BYTES];
    const unsigned char *process = transport->callbacks.process(transport->callbacks.context, link->rank);
    size_t bytes = 0;
    struct endpoint *endpoint = endpoint_find(transport->fabric, process);
    if (!endpoint) {
        tutti_status status =
            transport->callbacks.address(transport->callbacks.context, transport->fabric, link->rank, address, &bytes);
        if (status != TUTTI_OK) return status;
        TRY(transport->fabric->operations->connect(transport->fabric, process, &transport->callbacks.key, address,
            bytes, &endpoint));
    }
    if (!endpoint->is_open) return TUTTI_IN_PROGRESS;
    link->endpoint = endpoint;
    return TUTTI_OK;
}
bool fabric_link_connect(struct fabric_transport *transport, struct fabric_link *link)
{
    char name[256], why[STATUS_DETAIL_BYTES / 2];
    if (link->endpoint || link->unreachable || link->broken_ms) return link->endpoint;
    tutti_status status = fabric_link_find_endpoint(transport, link);
    if (status == TUTTI_OK || status == TUTTI_IN_PROGRESS) return status == TUTTI_OK;
    /* The code that has lost the peer also reports the reason. */
    if (status == TUTTI_PEER_LOST) {
        fabric_link_mark_broken(transport, link, reset);
        return false;
    }
    snprintf(why, sizeof why, "%.500s", status_detail());
    transport->callbacks.name(transport->callbacks.context, link->rank, name, sizeof name);
    status_fail(status, "rank %d cannot send to rank %d on %s: %s", transport->rank, link->rank, name, why);
    router_keep_reason(transport->base.router);
    link->unreachable = status;
    fabric_link_mark_broken(transport, link, "no connection is possible");
    for (struct transfer *transfer; link->waiting_sends.first;) {
        transfer = transfer_list_take(&link->waiting_sends, NULL);
        router_fail_transfer(transport->base.router, transfer, status);
    }
    return false;
}

/* ---- several networks: messages take another network while this one is not connected ---- */
/* Logs that messages of the link go by another network, for the reason `why`. */
static void fabric_link_log_unconnected(const struct fabric_transport *transport, const struct fabric_link *link,
    const char *why)
{
    char name[256];
    transport->callbacks.name(transport->callbacks.context, link->rank, name, sizeof name);
    LOG(WARN, "rank %d has no connection by %s with rank %d on %s (%s): messages go by another network",
        transport->rank, transport->base.network_name, link->rank, name, why);
}
void fabric_link_mark_refused(struct fabric_transport *transport, struct fabric_link *link, const char *why)
{
    if (!link->is_refused) fabric_link_log_unconnected(transport, link, why);
    link->is_refused = true;
}
/* Starts, in its first call, the link's time for getting a connection. Returns true if UNCONNECTED_MS have passed. */
static bool fabric_link_poll_timeout(struct fabric_link *link)
{
    int64_t now_ms = clock_ms();
    if (!link->asked_ms) link->asked_ms = now_ms;
    return now_ms - link->asked_ms >= UNCONNECTED_MS;
}
/* On a broken link sends wait behind the held transfers, because by another network they would overtake them. */
enum readiness fabric_link_readiness(struct fabric_transport *transport, struct fabric_link *link)
{
    if (link->waiting_sends.first || link->broken_ms) return SENDS_WAIT;
    if (link->is_refused) return UNCONNECTED;
    if (fabric_link_connect(transport, link)) return CONNECTED;
    if (fabric_link_poll_timeout(link)) {
        fabric_link_log_unconnected(transport, link, "it is still asked for");
        link->asked_ms = INT64_MAX;
    }
    return UNCONNECTED;
}

/* ---- sending ---- */
/* Sends a message, after the messages that wait for the endpoint to open. */
void fabric_link_send(struct fabric_transport *transport, struct fabric_link *link, struct transfer *transfer)
{
    bool others_wait = link->waiting_sends.first;
    if (link->endpoint && !others_wait) {
        fabric_link_send_now(transport, link, transfer);
        return;
    }
    transfer_list_push(&link->waiting_sends, transfer);
    transport->waiting_links += !others_wait;
    if (!others_wait) fabric_transport_send_waiting(transport);
}
bool fabric_transport_send_waiting(struct fabric_transport *transport)
{
    bool moved = false;
    transport->waiting_links = 0;
    for (int r = 0; r < transport->size; r++) {
        struct fabric_link *link = &transport->links[r];
        if (!link->waiting_sends.first) continue;
        if (fabric_link_connect(transport, link))
            while (link->waiting_sends.first)
                fabric_link_send_now(transport, link, transfer_list_take(&link->waiting_sends, NULL));
        moved |= !link->waiting_sends.first;
        transport->waiting_links += link->waiting_sends.first != NULL;
    }
    return moved;
}
bool fabric_link_send_control(struct fabric_transport *transport, struct fabric_link *link,
    const struct header *control)
{
    bool is_connected = fabric_link_connect(transport, link) && !endpoint_is_broken(link->endpoint);
    struct fabric_op *op = is_connected ? fabric_op_new_for_link(transport, link, 0) : NULL;
    /* A missing credit message is harmless, because a peer without credit announces its messages. */
    if (!op) return false;
    op->header.kind = control->kind;
    op->header.name = control->name;
    op->header.id = control->id;
    op->header.bytes = control->bytes;
    fabric_op_post(transport, op, NULL, false);
    return true;
}
/* Sends CREDIT to ranks that only send to this one. Other ranks get their credit with the next message. */
void fabric_transport_return_credit(struct fabric_transport *transport)
{
    transport->owes_credit = false;
    for (int r = 0; r < transport->size; r++) {
        struct fabric_link *link = &transport->links[r];
        if (fabric_link_owes_much(link) && !link->is_lost)
            fabric_link_send_control(transport, link, &(struct header){ .kind = CREDIT });
    }
}

/* ---- completed ops ---- */
/* Ends the transfer of a completed send: fails it if it was refused, holds it if the op has failed. */
static void fabric_op_end_send(struct fabric_transport *transport, struct fabric_op *op)
{
    struct transfer *transfer = op->transfer;
    if (op->is_refused) transfer_fail_mismatch(transfer, op->wanted_name, op->wanted_bytes);
    else if (!op->why) transfer_complete(transfer);
    else fabric_link_hold_transfer(transport, op->link, transfer, op->why);
}
/* Ends the transfer of a completed fetch: copies its bytes from the op's buffer if they are there, holds it if the op
   has failed. */
static void fabric_op_end_receive(struct fabric_transport *transport, struct fabric_op *op)
{
    struct transfer *transfer = op->transfer;
    if (op->why) {
        fabric_link_hold_transfer(transport, op->link, transfer, op->why);
        return;
    }
    if (op->is_packed) pieces_scatter(transfer, op->buffer, size_smaller(op->bytes, (size_t)transfer->wire));
    transfer_complete(transfer);
}
void fabric_transport_end_completed(struct fabric_transport *transport)
{
    for (struct fabric_op *op; (op = transport->completed) != NULL; fabric_op_free(transport->fabric, op)) {
        fabric_op_remove(op);
        if (!op->transfer) {
            fabric_op_break_link_if_lost(transport, op);
            continue;
        }
        if (op->transfer->is_send) fabric_op_end_send(transport, op);
        else fabric_op_end_receive(transport, op);
    }
}
void fabric_transport_handle_refused(struct fabric_transport *transport, const struct header *header)
{
    for (struct fabric_op *op = transport->ops; op; op = op->next)
        if (op->transfer && op->transfer->is_send && op->link->rank == header->from && op->header.id == header->id) {
            if (op->is_refused) return;
            op->is_refused = true;
            op->wanted_name = header->name;
            op->wanted_bytes = header->bytes;
            if (!fabric_link_send_control(transport, op->link, &(struct header){ .kind = WITHDRAWN, .id = header->id }))
                fabric_link_mark_broken(transport, op->link, "no memory to take a message back");
            return;
        }
}
