/* Unmaking communicators. Destroying never waits for another rank. */
#include "backend/comm/comm.h"
#include "backend/base/log.h"
#include "backend/join/join.h"
#include <stdlib.h>

/* Ends what runs. `always`: fails the communicator even if nothing does. Whoever drives sees `stop` within
   milliseconds. A peer that is at a shared tensor is given the time to let go. */
static void stop_running(tutti_comm *comm, bool always)
{
    failure_ask_to_stop(comm, TUTTI_ABORTED);
    driver_acquire(comm);
    if (!always) operations_go_on(comm);                /* what the others have done already does not fail */
    bool open = always || comm->backlog.head || comm->messages.open || atomic_load(&comm->gate.intake);
    for (int n = 0; open && !operations_abandon(comm); n++) comm_pause(comm, n);
    driver_release(comm);
}
void comm_abort(tutti_comm *comm) { stop_running(comm, true); }
tutti_status comm_poll_failure(tutti_comm *comm)
{
    if (!driver_try(comm)) return comm_failure(comm);   /* whoever drives looks anyway */
    operations_check(comm);
    driver_release(comm);
    return comm_failure(comm);
}
void comm_destroy(tutti_comm *comm)
{
    if (!comm) return;
    const struct group *g = &comm->group;
    if (g->generation && g->generation != process_generation()) return;        /* a child's copy: nothing is its own */
    LOG(INFO, "%s: rank %d of %d leaves", g->name, g->rank, g->size);
    if (g->segment) {
        stop_running(comm, false);
        operations_await_leaving(comm);
        engine_forget(comm);
        comm_leave(comm);
    }
    struct membership *membership = comm->membership;
    join_unwatch(comm);
    comm_finish(comm);
    join_undo(membership);
    free(comm);
}
