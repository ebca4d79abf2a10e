/* Decides which operations may be deferred, and rings the peers that have deferred theirs. */
#include "backend/engine/comm.h"

/* Limits of deferred operations: the bytes of all ranks together, and the number in a list. */
enum { SMALL_BYTES = 131072, MOST_DEFERRED = 64 };

bool operation_is_small(const tutti_comm *comm, const struct operation *op)
{
    return op->part_bytes <= SMALL_BYTES / (size_t)comm->group.size && !group_has_several_hosts(&comm->group);
}
/* Returns true if the operation must end without a wait, test or detach of its caller. */
static bool operation_is_urgent(const struct operation *op)
{
    const tutti_request *request = op->request;
    return !request || (request->done && !request->on_demand)
        || atomic_load_explicit(&op->detached, memory_order_relaxed);
}
/* Returns true if all operations of the list `op` may be deferred. */
static bool operations_are_deferrable(const tutti_comm *comm, const struct operation *op)
{
    for (int n = 0; op; op = op->next)
        if (++n > MOST_DEFERRED || !operation_is_small(comm, op) || operation_is_urgent(op)) return false;
    return true;
}
bool driver_may_defer(tutti_comm *comm)
{
    return !comm->messages.is_mapping && !windows_are_active(&comm->windows) && !comm_has_failed(comm)
        && !atomic_load(&comm->submission.inside) && operations_are_deferrable(comm, comm->run_queue.head)
        && operations_are_deferrable(comm, comm->messages.open);
}
void driver_set_deferred(tutti_comm *comm, bool deferred)
{
    if (atomic_load_explicit(&comm->submission.deferred, memory_order_relaxed) == deferred) return;
    atomic_store_explicit(&comm->submission.deferred, deferred, memory_order_relaxed);
}
void comm_stop_listening(tutti_comm *comm)
{
    _Atomic uint32_t *listening = &comm->executor.site.contact->listening;
    if (atomic_load_explicit(listening, memory_order_relaxed) != LISTENS_NOT)
        atomic_store_explicit(listening, LISTENS_NOT, memory_order_relaxed);
}
void peers_ring_deferred(const tutti_comm *comm)
{
    const struct site *s = &comm->executor.site;
    for (int peer = 0; peer < s->ranks; peer++) {
        struct control *c = group_control_of_rank(&comm->group, group_rank_at_index(&comm->group, peer));
        if (peer != s->index && atomic_load_explicit(&c->listening, memory_order_relaxed) == DEFERRED)
            word_ring_bell(&c->bell, &c->bell_waiters, true);
    }
}
