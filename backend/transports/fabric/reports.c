/* The reports of a fabric: a message has arrived, or an op has completed. A message goes to its transport, or is kept
 * if this process has not joined its group yet. */
#include "backend/transports/fabric/fabric_transport.h"

/* ---- arrived messages ---- */
static struct fabric_transport *fabric_transport_find(const struct fabric *fabric, uint64_t comm, int rank)
{
    struct fabric_transport *transport = fabric->transports;
    while (transport && (transport->comm != comm || transport->rank != rank)) transport = transport->next;
    return transport;
}
static bool fabric_transport_was_closed(const struct fabric *fabric, uint64_t comm, int rank)
{
    const struct recently_closed *recently_closed = &fabric->recently_closed;
    for (unsigned i = 0; i < RECENTLY_CLOSED_MOST && i < recently_closed->count; i++)
        if (recently_closed->closed[i].comm == comm && recently_closed->closed[i].rank == rank) return true;
    return false;
}
/* Saves a message for a group that this process has not joined yet. Limits per peer bound the memory. Returns whether
   the announced message's descriptor is kept. */
static bool early_msgs_keep(struct fabric *fabric, struct endpoint *from, const struct header *header, void *data,
    size_t bytes, bool announced)
{
    static const char too_much[] = "its process has sent too many messages to groups that this process has not "
                                   "joined";
    if (fabric_transport_was_closed(fabric, header->comm, header->to)) return false;
    bool room = from->early < EARLY_MOST && from->early_bytes < EARLY_BYTES;
    struct saved_msg *msg = room ? saved_msg_new(header, data, bytes, announced) : NULL;
    if (!msg) {
        endpoint_mark_faulty(fabric, from, room ? "no memory for the messages of its process" : too_much);
        return false;
    }
    msg->from = from;
    early_msgs_push(fabric, msg);
    return announced;
}
/* Returns a fault that is independent of the sender and the receiver of the message, or NULL. */
static const char *header_find_fault(const struct header *header, size_t bytes, bool announced)
{
    if (header->kind >= KINDS) return "its process has sent a message of an unknown kind";
    if (header->kind == MESSAGE && !announced && bytes == header->bytes && bytes <= EAGER_BYTES && !header->id)
        return NULL;
    bool carries = header->kind == MESSAGE,
         is_long = announced && bytes >= 1 && bytes <= (header->bytes ? header->bytes : 1);
    bool is_short = !announced && bytes == (carries ? header->bytes : 0) && bytes <= EAGER_BYTES;
    if (announced ? !carries || !is_long : !is_short) return "its process has sent a message of an invalid length";
    return carries && announced != (header->id != 0) ? "its process has sent a message with an invalid id" : NULL;
}
bool fabric_handle_message(struct fabric *fabric, struct endpoint *from, const struct header *header, void *data,
    size_t bytes, bool announced)
{
    const char *fault = from->faulty ? NULL : header_find_fault(header, bytes, announced);
    if (fault) endpoint_mark_faulty(fabric, from, fault);
    if (from->faulty) return false;
    struct fabric_transport *transport = fabric_transport_find(fabric, header->comm, header->to);
    return transport ? fabric_transport_handle_message(transport, from, header, data, bytes, announced)
                     : early_msgs_keep(fabric, from, header, data, bytes, announced);
}

/* ---- completed ops ---- */
static void fabric_transport_complete_op(struct fabric_transport *transport, struct fabric_op *op)
{
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
