#include "backend/engine/activity.h"
#include "backend/base/clock.h"
#include "backend/engine/comm.h"

/* Returns the operation to record, or NULL, and sets *kind. */
static const struct operation *comm_find_awaited(const tutti_comm *comm, enum activity_kind *kind)
{
    const struct operation *op = comm->run_queue.head;
    *kind = op ? ACTIVITY_COLLECTIVE : comm->messages.open ? ACTIVITY_MESSAGE : ACTIVITY_WINDOW;
    if (op) return op;
    /* The newest message is first in its list, and the oldest operation of a window in its own. */
    for (op = comm->messages.open; op && op->next;) op = op->next;
    if (!op) op = comm->windows.open;
    if (!op) *kind = ACTIVITY_NONE;
    return op;
}
void activity_record(tutti_comm *comm)
{
    enum activity_kind kind;
    struct activity *activity = &comm->activity;
    const struct operation *op = comm_find_awaited(comm, &kind);
    bool is_same = op == activity->operation && kind == atomic_load_explicit(&activity->kind, memory_order_relaxed)
        && (!op || op->sequence == atomic_load_explicit(&activity->number, memory_order_relaxed));
    if (is_same) return;
    activity->operation = op;
    atomic_store_explicit(&activity->since_ms, clock_ms(), memory_order_relaxed);
    if (op) {
        atomic_store_explicit(&activity->number, op->sequence, memory_order_relaxed);
        atomic_store_explicit(&activity->bytes, op->part_bytes, memory_order_relaxed);
    }
    if (kind == ACTIVITY_MESSAGE) {
        atomic_store_explicit(&activity->peer, op->message.transfer.peer, memory_order_relaxed);
        atomic_store_explicit(&activity->tag, op->message.tag, memory_order_relaxed);
        atomic_store_explicit(&activity->is_send, op->message.transfer.is_send, memory_order_relaxed);
    }
    if (kind == ACTIVITY_WINDOW) atomic_store_explicit(&activity->peer, op->message.window.peer, memory_order_relaxed);
    atomic_store_explicit(&activity->kind, (uint32_t)kind, memory_order_release);
}
void activity_forget(tutti_comm *comm, const struct operation *operation)
{
    if (comm->activity.operation == operation) comm->activity.operation = NULL;
}
