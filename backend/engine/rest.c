/* Decides which operations may be deferred, and rings the peers that have deferred theirs. */
#include "backend/engine/comm.h"

/* Limits of deferred operations: the bytes of all ranks together, and the number in a list. */
enum { SMALL_BYTES = 131072, MOST_RESTING = 64 };

bool rest_is_small(const tutti_comm *comm, const struct operation *op)
{
    return op->part_bytes <= SMALL_BYTES / (size_t)comm->group.size && !group_is_spread(&comm->group);
}
static bool is_urgent(const struct operation *op)
{
    const tutti_request *request = op->request;
    return !request || (request->done && !request->on_demand)
        || atomic_load_explicit(&op->hastened, memory_order_relaxed);
}
static bool all_may_rest(const tutti_comm *comm, const struct operation *op)
{
    for (int n = 0; op; op = op->next)
        if (++n > MOST_RESTING || !rest_is_small(comm, op) || is_urgent(op)) return false;
    return true;
}
bool rest_is_possible(tutti_comm *comm)
{
    return !comm->messages.reaching && !comm_has_failed(comm) && !atomic_load(&comm->gate.inside)
        && all_may_rest(comm, comm->run_queue.head) && all_may_rest(comm, comm->messages.open);
}
void rest_record(tutti_comm *comm, bool deferred)
{
    if (atomic_load_explicit(&comm->gate.resting, memory_order_relaxed) == deferred) return;
    atomic_store_explicit(&comm->gate.resting, deferred, memory_order_relaxed);
}
void comm_awake(tutti_comm *comm)
{
    _Atomic uint32_t *listening = &comm->executor.site.contact->listening;
    if (atomic_load_explicit(listening, memory_order_relaxed) != LISTENS_NOT)
        atomic_store_explicit(listening, LISTENS_NOT, memory_order_relaxed);
}
void peers_rouse(const tutti_comm *comm)
{
    const struct site *s = &comm->executor.site;
    for (int peer = 0; peer < s->ranks; peer++) {
        struct control *c = group_contact(&comm->group, group_rank(&comm->group, peer));
        if (peer != s->index && atomic_load_explicit(&c->listening, memory_order_relaxed) == DEFERRED)
            word_ring(&c->bell, &c->bell_waiters, true);
    }
}
