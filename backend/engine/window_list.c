/* Adds windows to a communicator and takes them out. Threads that call this become the driver. */
#include "backend/engine/window_list.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/engine/comm.h"

/* False: the communicator is closed. It has no windows then, and the role of its driver is never free again. */
static bool comm_enter_as_driver(tutti_comm *comm)
{
    atomic_fetch_add(&comm->submission.inside, 1);
    bool closed = atomic_load(&comm->submission.closed);
    if (closed) atomic_fetch_sub(&comm->submission.inside, 1);
    else driver_acquire_role(comm);
    return !closed;
}
static void comm_leave_as_driver(tutti_comm *comm)
{
    atomic_fetch_sub(&comm->submission.inside, 1);
    driver_hand_over_role(comm);
}
tutti_status windows_attach(tutti_comm *comm, struct tutti_window *w)
{
    if (!comm_enter_as_driver(comm)) return comm_get_failure(comm);
    tutti_status status = comm_get_failure(comm);
    if (status == TUTTI_OK) {
        atomic_store(&w->attached, true);
        w->next = comm->windows.first;
        comm->windows.first = w;
        window_open_inbound(w, comm->router);
    }
    comm_leave_as_driver(comm);
    return status;
}
/* Returns a living rank of this host that is writing this rank's memory, or -1. */
static int window_find_writer(const tutti_comm *comm, const struct tutti_window *w)
{
    for (int r = 0; r < w->size; r++) {
        const struct peer *process = comm->group.peers[r];
        if (r != w->rank && window_peer_is_copying(w, r) && !(process && peer_is_gone(process))) return r;
    }
    return -1;
}
static void window_await_writers(const tutti_comm *comm, const struct tutti_window *w)
{
    int64_t deadline_ms = clock_deadline(RELEASE_MS);
    int writer = -1;
    for (int64_t n = 0; (writer = window_find_writer(comm, w)) >= 0 && clock_ms() < deadline_ms; n++)
        group_back_off(&comm->group, n);
    if (writer >= 0)
        LOG(WARN, "%s: rank %d is stopped or too slow in a put to rank %d, and may still write its window",
            comm->group.name, writer, w->rank);
}
static void window_detach_as_driver(tutti_comm *comm, struct tutti_window *w)
{
    struct tutti_window **at = &comm->windows.first;
    while (*at && *at != w) at = &(*at)->next;
    if (!*at) return;
    for (int64_t n = 0; !window_close_inbound(w, comm->router); n++) {
        router_poll(comm->router);
        group_back_off(&comm->group, n);
    }
    *at = w->next;
    atomic_store(&w->attached, false);
    window_revoke(w);
    window_await_writers(comm, w);
}
void windows_detach_all(tutti_comm *comm)
{
    while (comm->windows.first) window_detach_as_driver(comm, comm->windows.first);
}
void windows_detach(tutti_comm *comm, struct tutti_window *w)
{
    if (!comm_enter_as_driver(comm)) return;
    /* Operations hold the window from now on. */
    driver_take_submitted(comm);
    window_detach_as_driver(comm, w);
    comm_leave_as_driver(comm);
}
