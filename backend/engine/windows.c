/* Runs the operations of windows. The list is in the order of the calls. A direct put stops the turn while it copies,
   so no later operation overtakes it. Puts and signals by message keep their order because the headers to a peer have
   one name, and the peer handles one message after the other. */
#include "backend/engine/windows.h"
#include "backend/engine/comm.h"
#include "backend/engine/error_text.h"

void windows_init(struct windows *all)
{
    all->open = NULL;
    all->end = &all->open;
    all->first = all->freed = NULL;
    all->last_number = 0;
}
void windows_accept_operation(tutti_comm *comm, struct operation *op)
{
    op->next = NULL;
    window_retain(op->message.window.of);
    *comm->windows.end = op;
    comm->windows.end = &op->next;
}
/* Takes the operation *at out of the list, and returns its window. Both may be freed once the operation is complete. */
static struct tutti_window *windows_remove(tutti_comm *comm, struct operation **at)
{
    struct operation *op = *at;
    *at = op->next;
    if (!*at) comm->windows.end = at;
    return op->message.window.of;
}
/* Takes the operation *at out of the list and ends it with `status`. */
static void windows_end_operation(tutti_comm *comm, struct operation **at, tutti_status status)
{
    struct operation *op = *at;
    struct tutti_window *window = windows_remove(comm, at);
    operation_complete(op, status);
    window_release(window);
}
/* Takes the operation *at out of the list and ends it with this thread's last error. The communicator is unchanged. */
static void windows_refuse_operation(tutti_comm *comm, struct operation **at, tutti_status status)
{
    struct operation *op = *at;
    struct tutti_window *window = windows_remove(comm, at);
    operation_refuse(op, status);
    window_release(window);
}

/* ---- messages to a peer ---- */
/* Posts a send of `bytes` bytes to the operation's peer. */
static void operation_send(tutti_comm *comm, struct operation *op, struct message_name name, const void *from,
    size_t bytes)
{
    struct message *m = &op->message;
    m->piece = (struct piece){ (unsigned char *)(uintptr_t)from, bytes, bytes };
    m->transfer = (struct transfer){
        .name = name, .peer = op->message.window.peer, .is_send = true, .pieces = &m->piece, .piece_count = 1
    };
    router_post(comm->router, &m->transfer);
}
/* Sends the header of a put or signal. */
static void operation_send_header(tutti_comm *comm, struct operation *op)
{
    struct tutti_window *w = op->message.window.of;
    struct window_peer *peer = &w->peers[op->message.window.peer];
    bool puts = op->message.window.kind == WINDOW_PUT;
    op->message.window.header = (struct window_header){ puts ? HEADER_PUT : HEADER_SIGNAL,
        puts ? op->message.window.offset : 0, puts ? op->part_bytes : 0, peer->sent++ };
    op->message.window.put = puts ? peer->puts++ : 0;
    op->message.window.stage = WINDOW_SENDS_HEADER;
    operation_send(comm, op, window_header_name(w), &op->message.window.header, sizeof op->message.window.header);
}
/* Cancels the operation's message. Returns false if a transport still uses its bytes. */
static bool operation_cancel_message(tutti_comm *comm, struct operation *op)
{
    struct transfer *t = &op->message.transfer;
    return op->message.window.stage == WINDOW_NEW || t->state != TRANSFER_POSTED || router_cancel(comm->router, t);
}
/* Fails the communicator because the operation's message has failed. Returns IN_PROGRESS: the operation ends with the
   communicator. A peer that cancelled the message has freed its window or failed the group, and reports which. */
static tutti_status operation_fail_message(tutti_comm *comm, const struct operation *op)
{
    const struct transfer *t = &op->message.transfer;
    char what[64];
    error_text_of_window(op, what, sizeof what);
    if (comm_is_failing(comm) || t->status == TUTTI_ABORTED) return TUTTI_IN_PROGRESS;
    const char *reason = comm->router->reason;
    comm_fail(comm, t->status, "rank %d of %s: %s failed: %s", comm->group.rank, comm->group.name, what,
        *reason ? reason : status_message(t->status));
    return TUTTI_IN_PROGRESS;
}
/* Continues a put or signal by message, and returns IN_PROGRESS, OK, or PEER_LOST if the peer has freed its window. The
   header is sent first, then the bytes under the number of the put. */
static tutti_status operation_continue_message(tutti_comm *comm, struct operation *op)
{
    const struct transfer *t = &op->message.transfer;
    uint64_t index = op->message.window.stage == WINDOW_NEW ? UINT64_MAX : op->message.window.header.index;
    if (window_peer_ignores_message(op->message.window.of, op->message.window.peer, index))
        return operation_cancel_message(comm, op) ? TUTTI_PEER_LOST : TUTTI_IN_PROGRESS;
    if (op->message.window.stage == WINDOW_NEW) operation_send_header(comm, op);
    if (t->state == TRANSFER_FAILED) return operation_fail_message(comm, op);
    if (t->state == TRANSFER_POSTED) return TUTTI_IN_PROGRESS;
    if (op->message.window.kind == WINDOW_SIGNAL || op->message.window.stage == WINDOW_SENDS_BYTES) return TUTTI_OK;
    op->message.window.stage = WINDOW_SENDS_BYTES;
    operation_send(comm, op, window_bytes_name(op->message.window.of, op->message.window.put), op->input,
        op->part_bytes);
    if (t->state == TRANSFER_FAILED) return operation_fail_message(comm, op);
    return t->state == TRANSFER_DONE ? TUTTI_OK : TUTTI_IN_PROGRESS;
}

/* ---- the list of windows ---- */
static void windows_add(tutti_comm *comm, struct tutti_window *w)
{
    atomic_store(&w->attached, true);
    w->next = comm->windows.first;
    comm->windows.first = w;
    window_open_inbound(w, comm->router);
}
/* Takes an attached window out of the list, and its memory from the other ranks. Returns false as windows_take_out. */
static bool windows_close(tutti_comm *comm, struct tutti_window *w)
{
    struct tutti_window **at = &comm->windows.first;
    while (*at && *at != w) at = &(*at)->next;
    if (!*at) return true;
    if (!window_close_inbound(w, comm->router)) return false;
    *at = w->next;
    atomic_store(&w->attached, false);
    window_take_back(w);
    return true;
}
bool windows_take_out(tutti_comm *comm, struct tutti_window *w)
{
    if (!atomic_load(&w->attached)) return true;
    bool cancelled = window_cancel_revocations(w, comm->router);
    return windows_close(comm, w) && cancelled;
}
/* Returns how many messages to rank `peer` arrive although this rank frees its window now: all before the first that is
   under way. */
static uint64_t windows_count_messages(const tutti_comm *comm, const struct tutti_window *w, int peer)
{
    uint64_t count = w->peers[peer].sent;
    for (const struct operation *op = comm->windows.open; op; op = op->next) {
        const struct window_operation *o = &op->message.window;
        bool is_under_way = o->of == w && o->peer == peer && o->stage != WINDOW_NEW;
        if (is_under_way && o->header.index < count) count = o->header.index;
    }
    return count;
}
/* Takes the window out as windows_take_out does, and reports this to the other ranks. */
static bool windows_free(tutti_comm *comm, struct tutti_window *w)
{
    if (!atomic_load(&w->attached)) return true;
    if (!windows_close(comm, w)) return false;
    window_publish_freed(w);
    for (int r = 0; r < w->size; r++) {
        if (w->peers[r].row && r != w->rank) message_ring_host_peer(comm, r);
        if (w->peers[r].revocations) window_send_revocation(w, comm->router, r, windows_count_messages(comm, w, r));
    }
    w->next = comm->windows.freed;
    comm->windows.freed = w;
    window_retain(w);
    return true;
}
/* Releases the windows that this rank has freed alone, and whose revocations are over. */
static void windows_release_freed(tutti_comm *comm)
{
    for (struct tutti_window **at = &comm->windows.freed, *w; (w = *at) != NULL;) {
        if (!window_revocations_are_over(w)) { at = &w->next; continue; }
        *at = w->next;
        window_release(w);
    }
}
bool windows_forget_freed(tutti_comm *comm)
{
    for (struct tutti_window *w = comm->windows.freed; w; w = w->next) window_cancel_revocations(w, comm->router);
    windows_release_freed(comm);
    return !comm->windows.freed;
}

/* ---- one operation ---- */
/* Returns true if no earlier operation of the same window is open. */
static bool operation_is_first_of_window(const tutti_comm *comm, const struct operation *op)
{
    const struct operation *other = comm->windows.open;
    while (other != op && other->message.window.of != op->message.window.of) other = other->next;
    return other == op;
}
static tutti_status operation_signal_directly(const tutti_comm *comm, struct operation *op)
{
    TRY(window_signal_directly(op->message.window.of, op->message.window.peer));
    message_ring_host_peer(comm, op->message.window.peer);
    return TUTTI_OK;
}
/* Copies the next part of a put. *copies becomes true if a part remains. */
static tutti_status operation_copy_directly(struct operation *op, bool *copies)
{
    struct tutti_window *w = op->message.window.of;
    tutti_status status = window_copy_part(w, op->message.window.peer, op->message.window.offset, op->input,
        op->part_bytes, &op->message.window.copied_bytes);
    *copies = status == TUTTI_IN_PROGRESS;
    return status;
}
/* Takes a signal of the operation's peer. Returns IN_PROGRESS if there is no signal yet, and PEER_LOST if
   the peer sends no more. */
static tutti_status operation_await_signal(const struct operation *op)
{
    struct tutti_window *w = op->message.window.of;
    int peer = op->message.window.peer;
    bool is_last = window_peer_signals_no_more(w, peer);
    return window_take_signal(w, peer) ? TUTTI_OK : is_last ? TUTTI_PEER_LOST : TUTTI_IN_PROGRESS;
}
/* Continues an operation as far as it gets. Returns IN_PROGRESS, OK, or PEER_LOST if the peer has taken its memory
 * back. copies becomes true if a direct put has a part left. */
static tutti_status operation_continue_window(tutti_comm *comm, struct operation *op, bool *copies)
{
    struct tutti_window *w = op->message.window.of;
    enum window_kind kind = op->message.window.kind;
    bool direct = w->peers[op->message.window.peer].direct, done = false;
    switch (kind) {
    case WINDOW_PUT:
        if (!op->part_bytes) return TUTTI_OK;
        break;
    case WINDOW_SIGNAL: break;
    case WINDOW_AWAIT: return operation_await_signal(op);
    case WINDOW_FLUSH: done = operation_is_first_of_window(comm, op); break;
    case WINDOW_ATTACH: windows_add(comm, w); return TUTTI_OK;
    case WINDOW_DETACH: return windows_take_out(comm, w) ? TUTTI_OK : TUTTI_IN_PROGRESS;
    case WINDOW_FREE: return windows_free(comm, w) ? TUTTI_OK : TUTTI_IN_PROGRESS;
    case WINDOW_DRAIN: done = window_has_handled(w, op->input); break;
    }
    if (kind > WINDOW_SIGNAL) return done ? TUTTI_OK : TUTTI_IN_PROGRESS;
    if (!direct) return operation_continue_message(comm, op);
    return kind == WINDOW_PUT ? operation_copy_directly(op, copies) : operation_signal_directly(comm, op);
}
/* Refuses an operation because its peer has taken its memory back. If the group has failed, does nothing, and the
   operation fails with the group. */
static void windows_refuse_peer(tutti_comm *comm, struct operation **at)
{
    const struct window_operation *o = &(*at)->message.window;
    const char *effect = o->kind == WINDOW_AWAIT ? "gets no more signals of it" : "can no longer write it";
    if (comm_fail_if_due(comm) != TUTTI_OK) return;
    windows_refuse_operation(comm, at, window_fail_freed(&comm->group, o->of, o->peer, effect));
}
/* Refuses an operation because its window was deregistered. Returns false if a transport still uses the bytes of the
   put. */
static bool windows_refuse_ended(tutti_comm *comm, struct operation **at)
{
    char what[64];
    if (!operation_cancel_message(comm, *at)) return false;
    error_text_of_window(*at, what, sizeof what);
    windows_refuse_operation(comm, at,
        status_fail(TUTTI_INVALID_ARGUMENT, "rank %d of %s: the window of %s was deregistered", comm->group.rank,
            comm->group.name, what));
    return true;
}
/* Returns true if the operation needs its window, but the window was deregistered. */
static bool operation_lacks_window(const struct operation *op)
{
    return op->message.window.kind < WINDOW_ATTACH
        && !atomic_load_explicit(&op->message.window.of->attached, memory_order_relaxed);
}
/* If the first open operation is a put or signal that has not begun, fails the communicator if there is a reason,
   because a direct put or signal would succeed without its peer. Returns true if the communicator has failed. */
static bool windows_fail_if_due(tutti_comm *comm)
{
    const struct operation *first = comm->windows.open;
    if (!first || first->message.window.kind > WINDOW_SIGNAL || first->message.window.stage != WINDOW_NEW) return false;
    if (comm->agreement) agreement_poll(comm);
    return comm_fail_if_due(comm) != TUTTI_OK;
}
/* Continues the open operations in their order, up to a direct put that has a part left. Returns true if one made
   progress. */
static bool windows_continue_operations(tutti_comm *comm)
{
    bool progressed = false, copies = false;
    if (windows_fail_if_due(comm)) return false;
    for (struct operation **at = &comm->windows.open, *op; (op = *at) != NULL && !copies;) {
        if (operation_lacks_window(op)) {
            progressed |= windows_refuse_ended(comm, at);
            if (*at == op) at = &op->next;
            continue;
        }
        enum window_stage stage = op->message.window.stage;
        tutti_status status = operation_continue_window(comm, op, &copies);
        progressed |= copies || status != TUTTI_IN_PROGRESS || stage != op->message.window.stage;
        if (status == TUTTI_OK) windows_end_operation(comm, at, TUTTI_OK);
        else if (status == TUTTI_PEER_LOST) windows_refuse_peer(comm, at);
        if (comm_has_failed(comm)) break;
        if (*at == op) at = &op->next;
    }
    return progressed;
}

/* ---- all windows ---- */
/* Fails the communicator if a thread deregisters the window, but another rank has freed it and does not take part. */
static void windows_check_deregistering(tutti_comm *comm, const struct tutti_window *w)
{
    int freed = atomic_load_explicit(&w->deregistering, memory_order_relaxed) ? window_find_freed_peer(w) : -1;
    if (freed >= 0 && comm_fail_if_due(comm) == TUTTI_OK)
        comm_fail(comm, TUTTI_MISMATCH,
            "rank %d of %s has freed its window (number %u), but rank %d deregisters it; all ranks must deregister a "
            "window together",
            freed, comm->group.name, w->number, comm->group.rank);
}
bool windows_make_progress(tutti_comm *comm)
{
    bool progressed = false;
    if (comm_has_failed(comm)) return false;
    for (struct tutti_window *w = comm->windows.first; w && !comm_is_failing(comm); w = w->next) {
        tutti_status status = window_handle_inbound(w, comm->router, &progressed);
        if (status != TUTTI_OK) comm_fail(comm, status, "%s: %s", comm->group.name, status_detail());
        windows_check_deregistering(comm, w);
    }
    windows_release_freed(comm);
    return windows_continue_operations(comm) || progressed;
}

/* ---- failing ---- */
bool windows_cancel(tutti_comm *comm)
{
    bool all = windows_forget_freed(comm);
    for (struct operation *op = comm->windows.open; op; op = op->next) all &= operation_cancel_message(comm, op);
    for (struct tutti_window *w = comm->windows.first; w; w = w->next) all &= window_close_inbound(w, comm->router);
    return all;
}
/* A DETACH or FREE succeeds in a failed communicator, because windows_cancel has closed the window. */
void windows_fail(tutti_comm *comm, tutti_status status)
{
    while (comm->windows.open) {
        struct window_operation *first = &comm->windows.open->message.window;
        bool detached = first->kind >= WINDOW_DETACH && windows_take_out(comm, first->of);
        windows_end_operation(comm, &comm->windows.open, detached ? TUTTI_OK : status);
    }
}
