/* Takes windows out of a communicator, and runs operations of windows for their caller. */
#include "backend/engine/window_list.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/engine/comm.h"

/* Returns a living rank of this host that is writing this rank's memory, or -1. */
static int window_find_writer(const tutti_comm *comm, const struct tutti_window *w)
{
    for (int r = 0; r < w->size; r++) {
        const struct peer *process = comm->group.peers[r];
        if (r != w->rank && window_peer_is_copying(w, r) && !(process && peer_is_gone(process))) return r;
    }
    return -1;
}
/* Waits, at most RELEASE_MS, until no living rank of this host writes this rank's memory, and logs a rank that still
   does. */
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
/* Polls and backs off in round `n` of a wait for a transport. */
static void windows_await_transport(tutti_comm *comm, int64_t n)
{
    router_poll(comm->router);
    group_back_off(&comm->group, n);
}
void windows_detach_all(tutti_comm *comm)
{
    for (int64_t n = 0; !windows_forget_freed(comm); n++) windows_await_transport(comm, n);
    for (struct tutti_window *w; (w = comm->windows.first) != NULL;) {
        for (int64_t n = 0; !windows_take_out(comm, w); n++) windows_await_transport(comm, n);
        window_await_writers(comm, w);
    }
}
tutti_status window_run_operation(tutti_comm *comm, struct tutti_window *w, enum window_kind kind, const void *input)
{
    struct operation op;
    operation_init(&op, comm, WINDOW_OPERATION, 0, TUTTI_UINT8, 0);
    op.part_bytes = 0;
    op.input = input;
    op.message.window = (struct window_operation){ .of = w, .kind = kind, .peer = w->rank };
    op.limit.timeout_ms = comm->timeout_ms;
    return operation_run(&op, true);
}
/* A closed communicator has no windows and no peers. */
void windows_detach(tutti_comm *comm, struct tutti_window *w, enum window_kind kind)
{
    atomic_fetch_add(&comm->submission.inside, 1);
    if (!atomic_load(&comm->submission.closed)) {
        window_run_operation(comm, w, kind, NULL);
        window_await_writers(comm, w);
    }
    atomic_fetch_sub(&comm->submission.inside, 1);
}
