#include "backend/engine/activity.h"
#include "backend/base/clock.h"
#include "backend/engine/comm.h"

#define STORE(field, value) atomic_store_explicit(&(field), (value), memory_order_relaxed)

/* Another thread may drive the operation and write it meanwhile. A torn value is harmless: it is only shown. */
__attribute__((no_sanitize("thread"))) void activity_begin(tutti_comm *comm, const struct operation *op)
{
    struct activity *activity = &comm->activity;
    if (atomic_load_explicit(&activity->operation, memory_order_relaxed) == op) return;
    bool is_message = op->collective == POINT_TO_POINT, is_window = op->collective == WINDOW_OPERATION;
    STORE(activity->since_ms, clock_ms());
    if (is_message) {
        STORE(activity->peer, op->message.transfer.peer);
        STORE(activity->tag, op->message.tag);
        STORE(activity->bytes, op->part_bytes);
        STORE(activity->is_send, op->message.transfer.is_send);
    }
    if (is_window) STORE(activity->peer, op->message.window.peer);
    STORE(activity->kind, is_message ? ACTIVITY_MESSAGE : is_window ? ACTIVITY_WINDOW : ACTIVITY_COLLECTIVE);
    atomic_store_explicit(&activity->operation, op, memory_order_release);
}
void activity_end(tutti_comm *comm, const struct operation *op)
{
    struct activity *activity = &comm->activity;
    if (atomic_load_explicit(&activity->operation, memory_order_relaxed) != op) return;
    STORE(activity->kind, ACTIVITY_NONE);
    STORE(activity->operation, NULL);
}
