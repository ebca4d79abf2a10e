/* Finds reasons to fail: a death, a rank that has left, the timeout, a stop, or the failure of another rank. It formats
   the reason and fails the communicator with it. */
#include "backend/engine/reasons.h"
#include "backend/base/clock.h"
#include "backend/engine/comm.h"
#include "backend/engine/error_text.h"
#include "backend/engine/stream_comm.h"
#include <stdio.h>

/* A driver that has not checked for STOPPED_MS was stopped. A message of a rank that has left may take UNDER_WAY_MS. */
enum { STOPPED_MS = 1000, UNDER_WAY_MS = 500 };

/* ---- text ---- */
/* Writes " in " and a description of the running operation. */
static void failure_format_where(const tutti_comm *comm, char *out, size_t bytes)
{
    char what[224];
    failure_describe_running(comm, what, sizeof what);
    snprintf(out, bytes, " in %s", what);
}
/* Describes a call on streams that a rank has made instead of the running operation of the host, or writes an empty
   text. */
static void failure_describe_call_ahead(const tutti_comm *comm, char *out, size_t bytes)
{
    struct stream_comm *streams = atomic_load(&comm->streams);
    out[0] = 0;
    for (int r = 0; streams && r < comm->group.size && !out[0]; r++) {
        uint64_t number = executor_rank_has_arrived(&comm->executor, r) ? 0 : stream_comm_find_call_ahead(streams, r);
        if (number)
            snprintf(out, bytes,
                "; rank %d has called operation %llu on CUDA streams, which rank %d has not called: do some ranks have "
                "CPU tensors and others CUDA tensors?",
                r, (unsigned long long)number, comm->group.rank);
    }
}

/* ---- reasons ---- */
/* Returns false at once if no roll call is running. Otherwise it claims to fail the group, so that ranks which arrive
   later in the running operation stop. If all ranks have arrived already, all can continue, so it withdraws the claim
   and returns true. Otherwise the claim stays, and it returns false: a rank is missing, or another rank claims, too,
   because that rank may not have seen all arrive. */
static bool failure_claim_unless_arrived(const tutti_comm *comm)
{
    _Atomic uint32_t *state = &comm->group.segment->failure->state;
    if (!comm->run_queue.head_has_begun || comm->executor.run.arrived) return false;
    uint32_t alone = FAILURE_CLAIM;
    atomic_fetch_add(state, FAILURE_CLAIM);
    group_alert(&comm->group);
    /* A peer that arrives without a fence needs one between its arrival and its look at the alert. */
    if (comm->executor.publisher.may_be_unfenced && !fence_all_threads()) return false;
    return executor_roll_call_is_complete(&comm->executor)
        && atomic_compare_exchange_strong(state, &alone, FAILURE_NONE);
}
static tutti_status comm_fail_peer_died(tutti_comm *comm, int dead)
{
    char where[ERROR_TEXT_BYTES], text[STATUS_DETAIL_BYTES];
    failure_format_where(comm, where, sizeof where);
    error_text_of_death(&comm->group, dead, comm->group.rank, where, text, sizeof text);
    return comm_fail(comm, TUTTI_PEER_LOST, "%s", text);
}
static tutti_status comm_fail_peer_left(tutti_comm *comm, int peer)
{
    char where[ERROR_TEXT_BYTES], text[STATUS_DETAIL_BYTES];
    failure_format_where(comm, where, sizeof where);
    error_text_of_leaving(&comm->group, peer, comm->group.rank, where, text, sizeof text);
    return comm_fail_about_rank(comm, (struct failure_subject){ AGREE_LEFT_ALONE, peer }, TUTTI_PEER_LOST, "%s", text);
}
/* Fails the communicator because a send or receive found no match in time. */
static tutti_status comm_fail_late_message(tutti_comm *comm, const struct operation *op)
{
    bool sends = op->message.transfer.is_send;
    return comm_fail(comm, TUTTI_TIMEOUT,
        "rank %d of %s: %s rank %d with tag %u reached the timeout of %lld ms: no matching %s came", comm->group.rank,
        comm->group.name, sends ? "send to" : "receive from", op->message.transfer.peer, op->message.tag,
        (long long)atomic_load(&op->limit.timeout_ms), sends ? "receive" : "send");
}
/* Fails the communicator because an operation of a window reached its timeout. */
static tutti_status comm_fail_late_window(tutti_comm *comm, const struct operation *op)
{
    static const char *const why[] = { [WINDOW_PUT] = "it did not take the bytes",
        [WINDOW_SIGNAL] = "it did not take the signal",
        [WINDOW_AWAIT] = "it sent no signal that this rank has not awaited yet",
        [WINDOW_FLUSH] = "an earlier call on the window is still open",
        [WINDOW_DRAIN] = "some are still under way",
        [WINDOW_ATTACH] = "another call of this rank takes too long",
        [WINDOW_DETACH] = "a transport still uses its memory",
        [WINDOW_FREE] = "a transport still uses its memory" };
    char what[64];
    error_text_of_window(op, what, sizeof what);
    return comm_fail(comm, TUTTI_TIMEOUT, "rank %d of %s reached the timeout of %lld ms in %s: %s", comm->group.rank,
        comm->group.name, (long long)atomic_load(&op->limit.timeout_ms), what, why[op->message.window.kind]);
}
/* Fails the communicator because an operation reached its timeout, and names the ranks that have not called it. */
static tutti_status comm_fail_late_operation(tutti_comm *comm, const struct operation *op)
{
    /* Without an answer in time this rank knows nothing about the ranks of other hosts. */
    char what[224], absent[128] = "", ahead[192], places[PLACES_TEXT_BYTES] = "";
    if (op->collective == POINT_TO_POINT) return comm_fail_late_message(comm, op);
    if (op->collective == WINDOW_OPERATION) return comm_fail_late_window(comm, op);
    failure_describe_running(comm, what, sizeof what);
    late_ranks_list(comm, absent, sizeof absent);
    failure_describe_call_ahead(comm, ahead, sizeof ahead);
    if (!ahead[0]) late_ranks_describe_programs(comm, places, sizeof places);
    return comm_fail(comm, TUTTI_TIMEOUT, "rank %d reached the timeout of %lld ms in %s: %s%s%s%s", comm->group.rank,
        (long long)atomic_load(&op->limit.timeout_ms), what,
        absent[0] ? "this call has not been made by rank " : late_ranks_describe_none(comm), absent, ahead, places);
}
/* Returns true if the message waits for a peer that has left. A message from a rank of another host may still be on its
   way when this rank learns that the sender has left. So that peer counts only after UNDER_WAY_MS, which begin with the
   first call that finds the peer gone. */
static bool message_poll_abandoned(const tutti_comm *comm, struct operation *op)
{
    const struct transfer *t = &op->message.transfer;
    if (t->state != TRANSFER_POSTED || t->peer < 0 || !comm_rank_has_left(comm, t->peer)) return false;
    if (group_rank_is_here(&comm->group, t->peer)) return true;
    if (!op->limit.alone_ms) op->limit.alone_ms = clock_ms();
    return clock_ms() - op->limit.alone_ms >= UNDER_WAY_MS;
}
/* Returns true if the operation of a window waits for a peer that has left. A signal that came before the peer left
   still counts, and so does one that is under way from another host: the first call that finds the peer gone starts the
   UNDER_WAY_MS that it has. */
static bool window_operation_poll_abandoned(const tutti_comm *comm, struct operation *op)
{
    int peer = op->message.window.peer;
    if (op->message.window.kind > WINDOW_AWAIT || peer == comm->group.rank || !comm_rank_has_left(comm, peer))
        return false;
    if (op->message.window.kind == WINDOW_AWAIT && window_has_signal(op->message.window.of, peer)) return false;
    if (!op->limit.alone_ms) op->limit.alone_ms = clock_ms();
    return op->message.window.of->peers[peer].direct || clock_ms() - op->limit.alone_ms >= UNDER_WAY_MS;
}
/* Returns an open operation of a window that waits for a peer that has left, or NULL. */
static struct operation *windows_find_abandoned(const tutti_comm *comm)
{
    struct operation *op = comm->windows.open;
    while (op && !window_operation_poll_abandoned(comm, op)) op = op->next;
    return op;
}
/* Returns an open message or operation of a window that waits for a peer that has left, or NULL. */
static struct operation *messages_find_abandoned(const tutti_comm *comm)
{
    struct operation *op = comm->messages.open;
    while (op && !message_poll_abandoned(comm, op)) op = op->next;
    return op ? op : windows_find_abandoned(comm);
}
/* Polls the router and receives what has arrived for windows. Returns true if an operation then still waits for a peer
   that has left. */
static bool messages_poll_abandoned(const tutti_comm *comm)
{
    /* Messages that the peer sent before it left still count. */
    router_poll(comm->router);
    bool progressed = false;
    for (struct tutti_window *w = comm->windows.first; w; w = w->next)
        window_handle_inbound(w, comm->router, &progressed);
    return messages_find_abandoned(comm);
}
/* Fails the communicator because the peer of an operation of a window has destroyed its communicator. */
static tutti_status comm_fail_abandoned_window(tutti_comm *comm, const struct operation *op)
{
    char what[64];
    error_text_of_window(op, what, sizeof what);
    return comm_fail_about_rank(comm, (struct failure_subject){ AGREE_LEFT_ALONE, op->message.window.peer },
        TUTTI_PEER_LOST, "rank %d of %s has ended or destroyed its group, and rank %d is still in %s",
        op->message.window.peer, comm->group.name, comm->group.rank, what);
}
/* Fails the communicator because the peer of an open message has destroyed its own. */
static tutti_status comm_fail_abandoned_message(tutti_comm *comm)
{
    const struct operation *op = messages_find_abandoned(comm);
    const struct transfer *t = &op->message.transfer;
    if (op->collective == WINDOW_OPERATION) return comm_fail_abandoned_window(comm, op);
    return comm_fail_about_rank(comm, (struct failure_subject){ AGREE_LEFT_ALONE, t->peer }, TUTTI_PEER_LOST,
        "rank %d of %s has ended or destroyed its group, and rank %d still waits to %s it (tag %u)", t->peer,
        comm->group.name, comm->group.rank, t->is_send ? "send to" : "receive from", op->message.tag);
}
/* Extends the deadline by the time since the last check if the process was stopped meanwhile (SIGSTOP, a frozen
   container, a paused virtual machine), perhaps with its peers. A driver checks every 20 ms, so one gap of more than
   STOPPED_MS means that the process was stopped. Gaps in a row come from a driver with much other work, and do not
   extend the deadline. */
static void limit_add_stopped_time(struct limit *l, int64_t now_ms)
{
    int64_t gap_ms = l->checked_ms ? now_ms - l->checked_ms : 0;
    bool stopped = gap_ms > STOPPED_MS && !l->was_stopped;
    l->checked_ms = now_ms;
    l->was_stopped = stopped;
    if (stopped && atomic_load(&l->deadline_ms) < INT64_MAX - gap_ms) atomic_fetch_add(&l->deadline_ms, gap_ms);
}
bool limit_poll_deadline(struct limit *l)
{
    int64_t now_ms = clock_ms();
    limit_add_stopped_time(l, now_ms);
    int64_t deadline_ms = atomic_load_explicit(&l->deadline_ms, memory_order_relaxed);
    if (!deadline_ms) {
        /* A deadline that a concurrent wait has just set stays. */
        deadline_ms = clock_deadline(atomic_load(&l->timeout_ms));
        atomic_compare_exchange_strong(&l->deadline_ms, &(int64_t){ 0 }, deadline_ms);
    }
    return now_ms >= atomic_load_explicit(&l->deadline_ms, memory_order_relaxed);
}
/* Returns an open operation that is past its deadline, or NULL. */
static struct operation *comm_find_late_operation(const tutti_comm *comm)
{
    for (struct operation *op = comm->run_queue.head; op; op = op->next)
        if (limit_poll_deadline(&op->limit)) return op;
    for (struct operation *op = comm->messages.open; op; op = op->next)
        if (limit_poll_deadline(&op->limit)) return op;
    for (struct operation *op = comm->windows.open; op; op = op->next)
        if (limit_poll_deadline(&op->limit)) return op;
    return NULL;
}
/* Returns a rank of this host that has left in good order while the running operation waits for its part; or -1. */
static int comm_find_departed_peer(const tutti_comm *comm)
{
    int peer = comm->run_queue.head_has_begun ? comm->executor.blocked_peer : -1;
    return peer >= 0 && comm_rank_has_left(comm, peer) && !executor_rank_has_arrived(&comm->executor, peer) ? peer : -1;
}
/* The reasons to fail. The find functions below check them in order of precedence. STOPPED: failure_request_stop was
   called. FAILED: the communicator has failed. FAILED_BY_ANOTHER: a rank of this host has. DECIDED: the hosts have
   agreed. STREAMS_FAILED: operations on streams have failed. LEFT_ALONE: a rank has left that this rank waits for.
   LATE: a timeout. The reasons from PEER_DIED on lapse on one host if all ranks turn out to have arrived; see
   comm_fail_if_due. */
enum cause {
    NONE,
    STOPPED,
    FAILED,
    FAILED_BY_ANOTHER,
    DECIDED,
    STREAMS_FAILED,
    PEER_DIED,
    LEFT_ALONE,
    LATE,
    MESSAGE_LEFT_ALONE
};
/* `late` is the operation of LATE, and `departed` the rank of LEFT_ALONE. */
struct reason { enum cause cause; struct operation *late; int departed; };
/* Finds a reason to fail that this rank detects itself: a rank that left, or a timeout. */
static struct reason reason_find_own(const tutti_comm *comm)
{
    struct reason r = { .cause = NONE };
    if ((r.departed = comm_find_departed_peer(comm)) >= 0) r.cause = LEFT_ALONE;
    else if ((r.late = comm_find_late_operation(comm)) != NULL) r.cause = LATE;
    else if (messages_find_abandoned(comm)) r.cause = MESSAGE_LEFT_ALONE;
    return r;
}
/* Returns true if the communicator must stop while operations are open. Without open operations it leaves without a
   failure, even if a window still takes messages. */
static bool comm_is_stopped_at_work(const tutti_comm *comm)
{
    return atomic_load_explicit(&comm->outcome.stop, memory_order_acquire)
        && (comm->run_queue.head || comm->messages.open || comm->windows.open);
}
/* Finds a reason to fail in the flags and records that other threads and ranks of the host set. */
static struct reason reason_find_on_host(const tutti_comm *comm)
{
    const struct failure *f = comm->group.segment->failure;
    if (comm_is_stopped_at_work(comm)) return (struct reason){ .cause = STOPPED };
    if (atomic_load_explicit(&comm->outcome.failed, memory_order_acquire)) return (struct reason){ .cause = FAILED };
    if (atomic_load_explicit(&f->state, memory_order_acquire) & FAILURE_READY)
        return (struct reason){ .cause = FAILED_BY_ANOTHER };
    if (stream_comm_has_failed(atomic_load_explicit(&comm->streams, memory_order_acquire)))
        return (struct reason){ .cause = STREAMS_FAILED };
    if (atomic_load_explicit(&comm->outcome.lost, memory_order_acquire)) return (struct reason){ .cause = PEER_DIED };
    return reason_find_own(comm);
}
/* Finds a reason to fail in a group of several hosts. A reason that any rank knows leads to a decision, and this rank
   need not act until then. */
static struct reason reason_find_between_hosts(const tutti_comm *comm)
{
    const struct agreement *agreement = comm->agreement;
    if (comm_has_failed(comm)) return (struct reason){ .cause = FAILED };
    if (agreement_has_decided(agreement)) return (struct reason){ .cause = DECIDED };
    if (agreement_has_lost_ranks(agreement)) return (struct reason){ .cause = PEER_DIED };
    if (agreement_is_failing(agreement)) return (struct reason){ .cause = NONE };
    if (comm_is_stopped_at_work(comm)) return (struct reason){ .cause = STOPPED };
    return reason_find_own(comm);
}
static struct reason reason_find_first(const tutti_comm *comm)
{
    return comm->agreement ? reason_find_between_hosts(comm) : reason_find_on_host(comm);
}
bool comm_poll_reason_to_fail(const tutti_comm *comm) { return reason_find_first(comm).cause != NONE; }
/* Asks the other hosts about the late operation, once. Returns true if its timeout waits for their answers
   (agreement_ask_before_timeout). */
static bool comm_ask_before_timeout(const tutti_comm *comm, const struct operation *late)
{
    bool running = late == comm->run_queue.head && comm->run_queue.head_has_begun;
    return comm->agreement && running && executor_roll_call_is_complete(&comm->executor)
        && agreement_ask_before_timeout(comm->agreement, late->sequence, atomic_load(&late->limit.timeout_ms));
}
static tutti_status comm_fail_with_streams(tutti_comm *comm, const struct stream_comm *streams)
{
    return comm_fail(comm, streams->failure.status, "%s", streams->failure.detail);
}
/* Fails the communicator because this rank has requested it. */
static tutti_status comm_fail_stopped(tutti_comm *comm)
{
    char what[STATUS_DETAIL_BYTES / 2];
    const struct group *group = &comm->group;
    uint32_t why = atomic_load(&comm->outcome.stop);
    if (why != STOP_INTERRUPTED)
        return comm_fail(comm, (tutti_status)-(int)why, "%s was aborted, or destroyed while operations ran, by rank %d",
            group->name, group->rank);
    failure_describe_running(comm, what, sizeof what);
    return comm_fail(comm, TUTTI_ABORTED,
        "rank %d of %s was interrupted (by Ctrl-C or another signal) while it waited in %s", group->rank, group->name,
        what);
}
/* Fails the communicator for a reason. Returns OK if it may go on. */
static tutti_status reason_handle(tutti_comm *comm, const struct reason *reason)
{
    switch (reason->cause) {
    case NONE: break;
    case STOPPED: return comm_fail_stopped(comm);
    case FAILED: return comm_get_failure(comm);
    case FAILED_BY_ANOTHER: return comm_adopt_peer_failure(comm);
    case DECIDED: return comm_adopt_decision(comm);
    case STREAMS_FAILED: return comm_fail_with_streams(comm, atomic_load(&comm->streams));
    case PEER_DIED:
        if (!comm->agreement) return comm_fail_peer_died(comm, (int)atomic_load(&comm->outcome.lost) - 1);
        agreement_accept_deaths(comm->agreement);
        break;
    case LEFT_ALONE: return comm_fail_peer_left(comm, reason->departed);
    case LATE:
        return comm_ask_before_timeout(comm, reason->late) ? TUTTI_OK : comm_fail_late_operation(comm, reason->late);
    case MESSAGE_LEFT_ALONE: return comm_fail_abandoned_message(comm);
    }
    return TUTTI_OK;
}
tutti_status comm_fail_if_due(tutti_comm *comm)
{
    struct reason reason = reason_find_first(comm);
    if (reason.cause == MESSAGE_LEFT_ALONE && !messages_poll_abandoned(comm)) return TUTTI_OK;
    bool may_pass = reason.cause >= PEER_DIED && !comm->agreement;
    /* This claims the failure: if some rank has not arrived, the operation fails now. */
    if (may_pass && failure_claim_unless_arrived(comm)) return TUTTI_OK;
    tutti_status status = reason_handle(comm, &reason);
    if (!comm->agreement || comm_has_failed(comm)) return status;
    return agreement_has_decided(comm->agreement) ? comm_adopt_decision(comm) : TUTTI_OK;
}
tutti_status comm_fail_if_stopped(tutti_comm *comm)
{
    struct reason stopped = { .cause = STOPPED };
    tutti_status status = comm_fail_if_due(comm);
    if (comm_has_failed(comm) || !atomic_load(&comm->outcome.stop)) return status;
    if (!comm->agreement || !agreement_is_failing(comm->agreement)) reason_handle(comm, &stopped);
    return comm_fail_if_due(comm);
}
bool failure_adopt_from_peer(tutti_comm *comm, tutti_status status)
{
    return status == TUTTI_ABORTED && comm_fail_if_due(comm) != TUTTI_OK;
}
