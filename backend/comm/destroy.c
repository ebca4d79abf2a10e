/* Destroys communicators. A rank leaves a group without waiting until other ranks leave. It ends the operations on CUDA
   streams. It waits for threads of this process that are in an operation, and makes them return. It waits for peers
   that use its memory, for a limited time. The memory stays until the last reference is released, so a later call gets
   an error. */
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/comm/comm.h"
#include "backend/engine/stream_thread.h"
#include "backend/join/join.h"
#include "backend/join/terms.h"

enum { GRACE_MS = 10 };

/* Ends the open operations with ABORTED. fails_idle: fails the communicator even if it is idle. leaves: detaches its
   windows and fails it locally, because this rank leaves the group. The driver sees the request to stop within
   milliseconds. A peer that touches a shared tensor gets the time to finish. */
static void comm_stop_operations(tutti_comm *comm, bool fails_idle, bool leaves)
{
    const struct group *group = &comm->group;
    failure_request_stop(comm, TUTTI_ABORTED);
    driver_acquire_role(comm);
    /* Operations that the other ranks have completed still succeed. */
    if (!fails_idle) driver_continue_all(comm);
    bool open = fails_idle || driver_has_open_operations(comm) || atomic_load(&comm->submission.submitted);
    for (int64_t n = 0; open && !driver_abandon_operations(comm); n++) group_back_off(&comm->group, n);
    if (leaves) {
        windows_detach_all(comm);
        comm_fail_locally(comm, TUTTI_ABORTED, "this communicator (%s, rank %d) was destroyed; make a new one",
            group->name, group->rank);
    }
    driver_hand_over_role(comm);
}
/* Fails the communicator on all ranks. This rank stays in the group until comm_destroy or the last release. */
void comm_abort(tutti_comm *comm)
{
    atomic_fetch_add(&comm->submission.inside, 1);
    if (!atomic_load(&comm->submission.closed)) comm_stop_operations(comm, true, false);
    atomic_fetch_sub(&comm->submission.inside, 1);
}
/* Looks for a failure of the group, and returns its status or OK. */
tutti_status comm_poll_failure(tutti_comm *comm)
{
    /* If another thread drives, it checks for failures itself. */
    if (!driver_try_acquire(comm)) return comm_get_failure(comm);
    driver_fail_if_due(comm);
    driver_hand_over_role(comm);
    return comm_get_failure(comm);
}
/* Lets calls of other threads end for up to GRACE_MS, so that calls that are about to end still succeed. */
static void comm_wait_for_callers(const tutti_comm *comm)
{
    int64_t until_ms = clock_ms() + GRACE_MS;
    for (int64_t n = 0; atomic_load(&comm->submission.inside) || atomic_load(&comm->submission.driver); n++) {
        if (clock_ms() >= until_ms) return;
        group_back_off(&comm->group, n);
    }
}
/* Ends all operations, announces that this rank leaves, and releases all but the tables of the group. */
static void comm_leave_group(tutti_comm *comm)
{
    const struct group *group = &comm->group;
    LOG(INFO, "%s: rank %d of %d leaves", group->name, group->rank, group->size);
    if (group->segment) {
        stream_thread_leave(atomic_load(&comm->streams));
        comm_wait_for_callers(comm);
        comm_stop_operations(comm, false, true);
        operations_close_comm(comm);
        if (comm->lateness.ranks) lateness_log_straggler(comm);
        comm_announce_leaving(comm);
        job_end(&group->members[0]);
    }
    struct membership *membership = comm->membership;
    join_unwatch_peers(comm);
    comm_finish(comm);
    join_release_membership(membership);
}
/* Returns true in a forked child, whose copy of the communicator still belongs to its parent process. */
bool comm_is_inherited_by_fork(const tutti_comm *comm)
{
    return comm->group.generation && comm->group.generation != process_generation();
}
void comm_retain(tutti_comm *comm) { atomic_fetch_add(&comm->holders, 1); }
/* Drops a reference. The last one leaves the group, unless comm_destroy has, and frees the communicator. Does nothing
   for NULL and in a forked child. */
void comm_release(tutti_comm *comm)
{
    if (!comm || comm_is_inherited_by_fork(comm) || atomic_fetch_sub(&comm->holders, 1) != 1) return;
    if (!atomic_exchange(&comm->leaves_group, true)) comm_leave_group(comm);
    comm_free(comm);
}
/* Leaves the group, unless an earlier call has, and drops a reference. Does nothing for NULL and in a forked child. */
void comm_destroy(tutti_comm *comm)
{
    if (!comm || comm_is_inherited_by_fork(comm)) return;
    if (!atomic_exchange(&comm->leaves_group, true)) comm_leave_group(comm);
    comm_release(comm);
}
