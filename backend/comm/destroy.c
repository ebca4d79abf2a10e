/* Destroys communicators. A rank leaves a group without waiting for other ranks; it waits only for threads of this
   process that are in an operation, and makes them return. The memory stays until the last reference is released, so a
   later call gets an error. */
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/comm/comm.h"
#include "backend/join/join.h"
#include "backend/join/terms.h"

enum { GRACE_MS = 10 };

/* Ends the running operations. `always`: fails the communicator even if it is idle. The driver sees `stop` within
   milliseconds. A peer that touches a shared tensor gets the time to finish. */
static void stop_running(tutti_comm *comm, bool always, bool leaves)
{
    const struct group *g = &comm->group;
    failure_ask_to_stop(comm, TUTTI_ABORTED);
    driver_acquire(comm);
    /* Operations that the other ranks have completed still succeed. */
    if (!always) operations_go_on(comm);
    bool open = always || comm->run_queue.head || comm->messages.open || atomic_load(&comm->gate.intake);
    for (int64_t n = 0; open && !operations_abandon(comm); n++) comm_pause(comm, n);
    if (leaves)
        comm_fail_silently(comm, TUTTI_ABORTED, "this communicator (%s, rank %d) was destroyed; make a new one",
            g->name, g->rank);
    driver_release(comm);
}
void comm_abort(tutti_comm *comm)
{
    atomic_fetch_add(&comm->gate.inside, 1);
    if (!atomic_load(&comm->gate.closed)) stop_running(comm, true, false);
    atomic_fetch_sub(&comm->gate.inside, 1);
}
tutti_status comm_poll_failure(tutti_comm *comm)
{
    /* If another thread drives, it checks for failures itself. */
    if (!driver_try(comm)) return comm_failure(comm);
    operations_check(comm);
    driver_release(comm);
    return comm_failure(comm);
}
/* Lets calls of other threads end for up to GRACE_MS, so that calls that are about to end still succeed. */
static void grant_grace(const tutti_comm *comm)
{
    int64_t until_ms = clock_ms() + GRACE_MS;
    for (int64_t n = 0; atomic_load(&comm->gate.inside) || atomic_load(&comm->gate.driver); n++) {
        if (clock_ms() >= until_ms) return;
        comm_pause(comm, n);
    }
}
static void comm_end(tutti_comm *comm)
{
    const struct group *g = &comm->group;
    LOG(INFO, "%s: rank %d of %d leaves", g->name, g->rank, g->size);
    if (g->segment) {
        grant_grace(comm);
        stop_running(comm, false, true);
        operations_close(comm);
        comm_leave(comm);
        job_end(&g->members[0]);
    }
    struct membership *membership = comm->membership;
    join_unwatch(comm);
    comm_finish(comm);
    join_undo(membership);
}
/* True in a forked child, whose copy of the communicator still belongs to its parent. */
static bool is_inherited(const tutti_comm *comm)
{
    return comm->group.generation && comm->group.generation != process_generation();
}
void comm_retain(tutti_comm *comm) { atomic_fetch_add(&comm->holders, 1); }
void comm_release(tutti_comm *comm)
{
    if (!comm || is_inherited(comm) || atomic_fetch_sub(&comm->holders, 1) != 1) return;
    if (!atomic_exchange(&comm->ended, true)) comm_end(comm);
    comm_free(comm);
}
void comm_destroy(tutti_comm *comm)
{
    if (!comm || is_inherited(comm)) return;
    if (!atomic_exchange(&comm->ended, true)) comm_end(comm);
    comm_release(comm);
}
