/* The reports of a fabric: a message has arrived, or an op has completed. A message goes to its transport, or is kept
 * if this process has not joined its group yet. */
#include "backend/transports/fabric/fabric_transport.h"

/* ---- arrived messages ---- */
/* Returns the open transport of this rank in this communicator, or NULL. */
static struct fabric_transport *fabric_transport_find(const struct fabric *fabric, uint64_t comm, int rank)
{
    struct fabric_transport *transport = fabric->transports;
    while (transport && (transport->comm != comm || transport->rank != rank)) transport = transport->next;
    return transport;
}
/* Returns whether the transport of this rank in this communicator was one of those closed last. */
static bool fabric_transport_was_closed(const struct fabric *fabric, uint64_t comm, int rank)
{
    const struct recently_closed *recently_closed = &fabric->recently_closed;
    for (unsigned i = 0; i < RECENTLY_CLOSED_MOST && i < recently_closed->count; i++)
        if (recently_closed->closed[i].comm == comm && recently_closed->closed[i].rank == rank) return true;
    return false;
}
/* Saves a message for a group that this process has not joined yet. A message beyond the limits of its endpoint, or
   without memory, makes the endpoint faulty. A message for a closed transport is dropped. true: the descriptor of an
   announced message is kept. */
static bool early_msgs_keep(struct fabric *fabric, struct endpoint *endpoint, const struct header *header, void *data,
    size_t bytes, bool is_announced)
{
    static const char too_much[] = "its process has sent too many messages to groups that this process has not "
                                   "joined";
    if (fabric_transport_was_closed(fabric, header->comm, header->to)) return false;
    bool has_room = endpoint->early_count < EARLY_MOST && endpoint->early_bytes < EARLY_BYTES;
    struct saved_msg *msg = has_room ? saved_msg_new(header, data, bytes, is_announced) : NULL;
    if (!msg) {
        endpoint_mark_faulty(fabric, endpoint, has_room ? "no memory for the messages of its process" : too_much);
        return false;
    }
    msg->endpoint = endpoint;
    early_msgs_push(fabric, msg);
    return is_announced;
}
/* Returns the fault of a message that follows from its header alone, or NULL if the header is valid. */
static const char *header_find_fault(const struct header *header, size_t bytes, bool is_announced)
{
    if (header->kind >= KINDS) return "its process has sent a message of an unknown kind";
    if (header->kind == MESSAGE && !is_announced && bytes == header->bytes && bytes <= EAGER_BYTES && !header->id)
        return NULL;
    bool is_message = header->kind == MESSAGE,
         is_long = is_announced && bytes >= 1 && bytes <= (header->bytes ? header->bytes : 1);
    bool is_short = !is_announced && bytes == (is_message ? header->bytes : 0) && bytes <= EAGER_BYTES;
    if (is_announced ? !is_message || !is_long : !is_short)
        return "its process has sent a message of an invalid length";
    return is_message && is_announced != (header->id != 0) ? "its process has sent a message with an invalid id" : NULL;
}
bool fabric_handle_message(struct fabric *fabric, struct endpoint *endpoint, const struct header *header, void *data,
    size_t bytes, bool is_announced)
{
    const char *fault = endpoint->is_faulty ? NULL : header_find_fault(header, bytes, is_announced);
    if (fault) endpoint_mark_faulty(fabric, endpoint, fault);
    if (endpoint->is_faulty) return false;
    struct fabric_transport *transport = fabric_transport_find(fabric, header->comm, header->to);
    return transport ? fabric_transport_handle_message(transport, endpoint, header, data, bytes, is_announced)
                     : early_msgs_keep(fabric, endpoint, header, data, bytes, is_announced);
}

/* ---- completed ops ---- */
/* Adds an op to the completed ops of its transport, and wakes the transport's rank if it sleeps. */
static void fabric_transport_complete_op(struct fabric_transport *transport, struct fabric_op *op)
{
    transport->fetch_count -= op->is_fetch;
    fabric_op_add(op, &transport->completed);
    if (transport->fabric->polling != transport) fabric_transport_wake(transport);
}
void fabric_op_complete(struct fabric *fabric, struct fabric_op *op, const char *why)
{
    op->why = why;
    if (why && op->endpoint) endpoint_mark_broken(fabric, op->endpoint, why);
    fabric_op_remove(op);
    if (op->owner) fabric_transport_complete_op(op->owner, op);
    else fabric_op_free(fabric, op);
}
