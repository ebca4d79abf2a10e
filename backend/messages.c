/* Sends and receives of the user. They run beside the collectives of their communicator, in any order; matching is the
   transport's. Their names have the top bit set, the messages of schedules do not. */
#include "backend/comm.h"

static const uint64_t USER_NAME = (uint64_t)1 << 63;

void message_post(tutti_comm *comm, struct operation *op)
{
    op->piece = (struct piece){ op->transfer.is_send ? (unsigned char *)(uintptr_t)op->input : op->output,
        op->part_bytes, op->part_bytes };
    op->transfer.name = USER_NAME | op->tag;
    op->transfer.pieces = &op->piece;
    op->transfer.piece_count = 1;
    op->next = comm->messages;
    comm->messages = op;
    transport_post(comm->transport, &op->transfer);
}
static tutti_status fail_transfer(tutti_comm *comm, const struct operation *op)
{
    const struct transfer *t = &op->transfer;
    int other = t->is_send || t->peer >= 0 ? t->peer : t->source;
    if (t->status == TUTTI_MISMATCH)
        return comm_fail(comm, TUTTI_MISMATCH,
            "rank %d of %s %s %zu bytes %s rank %d with tag %u, but rank %d %s %llu bytes", comm->rank, comm->name,
                         t->is_send ? "sends" : "receives", op->part_bytes, t->is_send ? "to" : "from", other, op->tag,
                             other,
                         t->is_send ? "receives" : "sends", (unsigned long long)t->theirs);
    return comm_fail(comm, t->status, "rank %d of %s: the message %s rank %d with tag %u failed: %s", comm->rank,
        comm->name,
                     t->is_send ? "to" : "from", other, op->tag, status_message(t->status));
}
bool messages_progress(tutti_comm *comm, struct wait_set *blocked)
{
    struct control *mine = comm->executor.mine;
    uint32_t bell = atomic_load_explicit(&mine->bell, memory_order_acquire);
    bool moved = transport_poll(comm->transport);
    for (struct operation **at = &comm->messages, *op; (op = *at) != NULL;) {
        if (op->transfer.state == TRANSFER_POSTED) { at = &op->next; continue; }
        moved = true;
        tutti_status status = op->transfer.state == TRANSFER_DONE ? TUTTI_OK : fail_transfer(comm, op);
        *at = op->next;
        operation_complete(op, status);
    }
    wait_add(blocked, &mine->bell, bell, &mine->bell_waiters, true);
    return moved;
}
void messages_fail(tutti_comm *comm, tutti_status status)
{
    while (comm->messages) {
        struct operation *op = comm->messages;
        comm->messages = op->next;
        while (op->transfer.state == TRANSFER_POSTED && !transport_cancel(comm->transport, &op->transfer))
            transport_poll(comm->transport);
        operation_complete(op, status);
    }
}
tutti_status messages_check(tutti_comm *comm)
{
    for (struct operation *op = comm->messages; op; op = op->next) {
        int peer = op->transfer.peer;
        if (peer < 0 || peer == comm->rank || !comm_has_left(comm, peer)) continue;
        transport_poll(comm->transport);                /* what it sent before it left counts */
        if (op->transfer.state == TRANSFER_POSTED)
            return comm_fail(comm, TUTTI_PEER_LOST,
                "rank %d of %s has destroyed its communicator, and rank %d still waits to %s it (tag %u)", peer,
                             comm->name, comm->rank, op->transfer.is_send ? "send to" : "receive from", op->tag);
    }
    return TUTTI_OK;
}
