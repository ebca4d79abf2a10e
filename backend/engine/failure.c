/* Finds reasons to fail, formats them, and publishes the first one to the other ranks. No function here waits. */
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/engine/comm.h"
#include "backend/engine/error_text.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STOPPED_MS = 1000, UNDER_WAY_MS = 500 };

/* ---- text ---- */
static void failure_describe_running(const tutti_comm *comm, char *out, size_t bytes)
{
    char what[160];
    if (!comm->run_queue.running) { snprintf(out, bytes, comm->messages.open ? "a message" : "no operation"); return; }
    struct declaration mine = *comm->executor.run.declaration;
    /* After the roll call another algorithm may have been chosen than the declaration names. */
    const struct program *program = comm->executor.launch.program;
    if (program) mine.algorithm = (uint64_t)(program->plan->algorithm - collectives_table);
    error_text_of_call(&mine, what, sizeof what);
    snprintf(out, bytes, "%s, operation %llu of %s", what, (unsigned long long)comm->executor.run.declaration->sequence,
        comm->group.name);
}
static void failure_format_where(const tutti_comm *comm, char *out, size_t bytes)
{
    char what[224];
    failure_describe_running(comm, what, sizeof what);
    snprintf(out, bytes, " in %s", what);
}
/* Lists the ranks that have not made this call. It may miss ranks of other hosts. */
static void failure_list_absent_ranks(const tutti_comm *comm, char *out, size_t bytes)
{
    const struct group *g = &comm->group;
    bool *absent = memory_alloc_zeroed((size_t)g->size, sizeof *absent);
    size_t used = 0;
    out[0] = 0;
    if (absent && comm->agreement) agreement_list_absent(comm->agreement, comm->run_queue.sequence, absent);
    for (int r = 0; absent && r < g->size && used + 16 < bytes; r++)
        if (absent[r] || (group_rank_is_here(g, r) && !executor_rank_has_arrived(&comm->executor, r)))
            used += (size_t)snprintf(out + used, bytes - used, "%s%d", used ? ", " : "", r);
    free(absent);
}

/* ---- failing ---- */
/* Claims to fail the group, so that ranks which arrive later stop. If all ranks have arrived already, all can continue,
   so this rank withdraws its claim and returns true. It returns false if another rank claims, too, because that
   rank may not have seen all arrive. */
static bool failure_all_arrived_after_claim(const tutti_comm *comm)
{
    _Atomic uint32_t *state = &comm->group.segment->failure->state;
    if (!comm->run_queue.running || comm->executor.run.arrived) return false;
    uint32_t alone = FAILURE_CLAIM;
    atomic_fetch_add(state, FAILURE_CLAIM);
    group_alert(&comm->group);
    /* A peer that arrives without a fence needs one between its arrival and its look at the alert. */
    if (comm->executor.publisher.may_be_unfenced && !fence_all_threads()) return false;
    return executor_roll_call_is_complete(&comm->executor)
        && atomic_compare_exchange_strong(state, &alone, FAILURE_NONE);
}
/* Claims the right to write the failure. False: another rank was first. */
static bool failure_acquire_record(struct failure *failure)
{
    uint32_t found = atomic_load(&failure->state);
    while (!(found & FAILURE_CERTAIN))
        if (atomic_compare_exchange_weak(&failure->state, &found, found | FAILURE_TELLING)) return true;
    return false;
}
/* Wakes all sleepers on words of that rank. */
static void rank_wake_sleepers(const struct segment *s, int index)
{
    struct control *c = segment_control(s, index);
    atomic_fetch_add(&c->bell, 1);
    word_wake(&c->bell, true);
    for (int track = 0; track < TRACKS; track++)
        for (int i = -1; i < MAX_SLOTS; i++) {
            struct line *line = segment_line(s, index, track);
            word_wake((_Atomic uint32_t *)(void *)(i < 0 ? &line->counter : &line->slots[i]), true);
        }
}
/* Returns the first operation that fails, counted from 0. Other ranks may still succeed in the running one if all have
   arrived in it. */
static uint64_t failure_first_operation(const tutti_comm *comm)
{
    return comm->executor.operation + (comm->run_queue.running && comm->executor.run.arrived);
}
static void failure_publish(const tutti_comm *comm)
{
    const struct group *g = &comm->group;
    if (!g->segment || !failure_acquire_record(g->segment->failure)) return;
    struct failure *failure = g->segment->failure;
    group_alert(g);
    failure->status = comm->outcome.status;
    failure->rank = g->rank;
    failure->operation = failure_first_operation(comm);
    snprintf(failure->detail, sizeof failure->detail, "%.499s", comm->outcome.detail);
    atomic_fetch_or(&failure->state, FAILURE_READY);
    for (int peer = 0; peer < g->segment->ranks; peer++) rank_wake_sleepers(g->segment, peer);
}
/* The kind of a reason, and the rank that it concerns, or -1. */
struct failure_subject { enum agree_kind kind; int other; };
__attribute__((format(printf, 3, 0))) static void outcome_store(struct outcome *outcome, tutti_status status,
    const char *format, va_list arguments)
{
    vsnprintf(outcome->detail, sizeof outcome->detail, format, arguments);
    outcome->status = status;
    atomic_store_explicit(&outcome->failed, 1, memory_order_release);
}
static enum agree_kind failure_kind_of_status(tutti_status status)
{
    return status == TUTTI_ABORTED ? AGREE_ABORTED : status == TUTTI_TIMEOUT ? AGREE_LATE : AGREE_FAILED;
}
/* The hosts agree on one cause first. Until then the communicator has not failed. */
static tutti_status failure_propose_cause(tutti_comm *comm, const struct failure_subject *about, tutti_status status,
    const char *detail)
{
    struct agree_cause cause = { .kind = (int32_t)about->kind, .status = status, .other = about->other };
    snprintf(cause.detail, sizeof cause.detail, "%.*s", (int)sizeof cause.detail - 1, detail);
    status_fail(status, "%s", detail);
    agreement_propose_cause(comm->agreement, &cause);
    return status;
}
__attribute__((format(printf, 4, 0))) static tutti_status comm_fail_with_arguments(tutti_comm *comm,
    const struct failure_subject *about, tutti_status status, const char *format, va_list arguments)
{
    char detail[STATUS_DETAIL_BYTES];
    if (comm_has_failed(comm)) return comm_get_failure(comm);
    if (comm->agreement) {
        vsnprintf(detail, sizeof detail, format, arguments);
        bool known = agreement_is_failing(comm->agreement);
        return known ? status_repeat(status, detail) : failure_propose_cause(comm, about, status, detail);
    }
    outcome_store(&comm->outcome, status, format, arguments);
    status_fail(status, "%s", comm->outcome.detail);
    failure_publish(comm);
    return status;
}
tutti_status comm_fail(tutti_comm *comm, tutti_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    status = comm_fail_with_arguments(comm, &(struct failure_subject){ failure_kind_of_status(status), -1 }, status,
        format, arguments);
    va_end(arguments);
    return status;
}
__attribute__((format(printf, 4, 5))) static tutti_status comm_fail_about_rank(tutti_comm *comm,
    struct failure_subject about, tutti_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    status = comm_fail_with_arguments(comm, &about, status, format, arguments);
    va_end(arguments);
    return status;
}
void comm_fail_locally(tutti_comm *comm, tutti_status status, const char *format, ...)
{
    if (comm_has_failed(comm)) return;
    va_list arguments;
    va_start(arguments, format);
    outcome_store(&comm->outcome, status, format, arguments);
    va_end(arguments);
}
tutti_status comm_get_failure(tutti_comm *comm)
{
    if (!atomic_load_explicit(&comm->outcome.failed, memory_order_acquire)) return TUTTI_OK;
    return status_repeat(comm->outcome.status, comm->outcome.detail);
}

/* ---- reasons ---- */
bool comm_rank_has_left(const tutti_comm *comm, int rank)
{
    const struct group *g = &comm->group;
    if (!group_rank_is_here(g, rank)) return agreement_rank_has_left(comm->agreement, rank);
    return atomic_load_explicit(&group_control_at_index(g, group_index_of_rank(g, rank))->departed,
               memory_order_acquire)
        != 0;
}
void failure_record_lost_rank(tutti_comm *comm, int rank)
{
    uint32_t nobody = 0;
    if (comm_rank_has_left(comm, rank)) return;
    atomic_compare_exchange_strong(&comm->outcome.lost, &nobody, (uint32_t)rank + 1);
    if (comm->agreement) agreement_record_lost(comm->agreement, rank);
    else comm_wake_driver(comm);
}
void failure_request_stop(tutti_comm *comm, tutti_status status)
{
    uint32_t none = 0;
    atomic_compare_exchange_strong(&comm->outcome.stop, &none, (uint32_t)-status);
    comm_wake_driver(comm);
}
static tutti_status comm_adopt_peer_failure(tutti_comm *comm)
{
    const struct failure *f = comm->group.segment->failure;
    char detail[sizeof f->detail];
    memcpy(detail, f->detail, sizeof detail);
    detail[sizeof detail - 1] = 0;
    int rank = f->rank;
    tutti_status status = (tutti_status)f->status;
    if (status >= 0 || status < TUTTI_INTERNAL) status = TUTTI_INTERNAL;
    return comm_fail(comm, status, "rank %d failed the group: %s", rank, detail);
}
static tutti_status comm_adopt_decision(tutti_comm *comm)
{
    struct agree_cause cause;
    char detail[STATUS_DETAIL_BYTES];
    if (comm_has_failed(comm)) return comm_get_failure(comm);
    agreement_get_decision(comm->agreement, &cause);
    tutti_status status = cause.status >= TUTTI_INTERNAL ? (tutti_status)cause.status : TUTTI_INTERNAL;
    error_text_of_cause(&comm->group, &cause, detail, sizeof detail);
    /* The open operation fails here even if the cause concerns a later one. So it must not succeed on other ranks of
       this host. */
    agreement_close_roll_call(comm->agreement, failure_first_operation(comm));
    /* The other ranks know the decision, so it need not be published. */
    comm_fail_locally(comm, status, "%s", detail);
    /* This rank has logged its own reason already. */
    if (cause.reporter == comm->group.rank) return status_repeat(status, detail);
    return status_fail(status, "%s", detail);
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
static tutti_status comm_fail_late_message(tutti_comm *comm, const struct operation *op)
{
    bool sends = op->message.transfer.is_send;
    return comm_fail(comm, TUTTI_TIMEOUT,
        "rank %d of %s: %s rank %d with tag %u reached the timeout of %lld ms: no matching %s came", comm->group.rank,
        comm->group.name, sends ? "send to" : "receive from", op->message.transfer.peer, op->message.tag,
        (long long)atomic_load(&op->limit.timeout_ms), sends ? "receive" : "send");
}
static tutti_status comm_fail_late_operation(tutti_comm *comm, const struct operation *op)
{
    char what[224], absent[128] = "";
    if (op->collective == POINT_TO_POINT) return comm_fail_late_message(comm, op);
    failure_describe_running(comm, what, sizeof what);
    failure_list_absent_ranks(comm, absent, sizeof absent);
    return comm_fail(comm, TUTTI_TIMEOUT, "rank %d reached the timeout of %lld ms in %s: %s%s", comm->group.rank,
        (long long)atomic_load(&op->limit.timeout_ms), what,
        absent[0] ? "this call has not been made by rank " : "all ranks have come, but one is too slow or stopped",
        absent);
}
/* A message from a rank of another host may still be on its way when this rank learns that the sender has left. So the
   check waits for UNDER_WAY_MS. */
static bool message_is_abandoned(const tutti_comm *comm, struct operation *op)
{
    const struct transfer *t = &op->message.transfer;
    if (t->state != TRANSFER_POSTED || t->peer < 0 || !comm_rank_has_left(comm, t->peer)) return false;
    if (group_rank_is_here(&comm->group, t->peer)) return true;
    if (!op->limit.alone_ms) op->limit.alone_ms = clock_ms();
    return clock_ms() - op->limit.alone_ms >= UNDER_WAY_MS;
}
static struct operation *messages_find_abandoned(const tutti_comm *comm)
{
    struct operation *op = comm->messages.open;
    while (op && !message_is_abandoned(comm, op)) op = op->next;
    return op;
}
static bool messages_recheck_abandoned(const tutti_comm *comm)
{
    /* Messages that the peer sent before it left still count. */
    router_poll(comm->router);
    return messages_find_abandoned(comm);
}
static tutti_status comm_fail_abandoned_message(tutti_comm *comm)
{
    const struct operation *op = messages_find_abandoned(comm);
    const struct transfer *t = &op->message.transfer;
    return comm_fail_about_rank(comm, (struct failure_subject){ AGREE_LEFT_ALONE, t->peer }, TUTTI_PEER_LOST,
        "rank %d of %s has destroyed its communicator, and rank %d still waits to %s it (tag %u)", t->peer,
        comm->group.name, comm->group.rank, t->is_send ? "send to" : "receive from", op->message.tag);
}
/* A driver checks every 20 ms. A gap of seconds means that the process was stopped (SIGSTOP, a frozen container, a
   paused virtual machine), perhaps with its peers. The operation then gets the lost time back. Gaps in a row come from
   a driver with much other work; its operations must still end in time. */
static void limit_add_stopped_time(struct limit *l, int64_t now_ms)
{
    int64_t gap_ms = l->checked_ms ? now_ms - l->checked_ms : 0;
    bool stopped = gap_ms > STOPPED_MS && !l->was_stopped;
    l->checked_ms = now_ms;
    l->was_stopped = stopped;
    if (stopped && atomic_load(&l->deadline_ms) < INT64_MAX - gap_ms) atomic_fetch_add(&l->deadline_ms, gap_ms);
}
static bool limit_is_reached(struct limit *l)
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
static struct operation *comm_find_late_operation(const tutti_comm *comm)
{
    for (struct operation *op = comm->run_queue.head; op; op = op->next)
        if (limit_is_reached(&op->limit)) return op;
    for (struct operation *op = comm->messages.open; op; op = op->next)
        if (limit_is_reached(&op->limit)) return op;
    return NULL;
}
/* Returns a rank of this host that has left in good order while the running operation waits for its part; or -1. */
static int comm_find_departed_peer(const tutti_comm *comm)
{
    int peer = comm->run_queue.running ? comm->executor.blocked_peer : -1;
    return peer >= 0 && comm_rank_has_left(comm, peer) && !executor_rank_has_arrived(&comm->executor, peer) ? peer : -1;
}
/* The reasons to fail. The find_ functions below check them in order of precedence. Those from PEER_DIED on lapse on
   one host if all ranks turn out to have arrived; see comm_check. */
enum cause { NONE, STOPPED, FAILED, FAILED_BY_ANOTHER, DECIDED, PEER_DIED, LEFT_ALONE, LATE, MESSAGE_LEFT_ALONE };
struct reason { enum cause cause; struct operation *late; int departed; };
static struct reason reason_find_own(const tutti_comm *comm)
{
    struct reason r = { .cause = NONE };
    if ((r.departed = comm_find_departed_peer(comm)) >= 0) r.cause = LEFT_ALONE;
    else if ((r.late = comm_find_late_operation(comm)) != NULL) r.cause = LATE;
    else if (messages_find_abandoned(comm)) r.cause = MESSAGE_LEFT_ALONE;
    return r;
}
static struct reason reason_find_on_host(const tutti_comm *comm)
{
    const struct failure *f = comm->group.segment->failure;
    if (atomic_load_explicit(&comm->outcome.stop, memory_order_acquire)) return (struct reason){ .cause = STOPPED };
    if (atomic_load_explicit(&comm->outcome.failed, memory_order_acquire)) return (struct reason){ .cause = FAILED };
    if (atomic_load_explicit(&f->state, memory_order_acquire) & FAILURE_READY)
        return (struct reason){ .cause = FAILED_BY_ANOTHER };
    if (atomic_load_explicit(&comm->outcome.lost, memory_order_acquire)) return (struct reason){ .cause = PEER_DIED };
    return reason_find_own(comm);
}
/* In a group of several hosts, a reason known to any rank leads to a decision; this rank need not act. */
static struct reason reason_find_between_hosts(const tutti_comm *comm)
{
    const struct agreement *a = comm->agreement;
    if (comm_has_failed(comm)) return (struct reason){ .cause = FAILED };
    if (agreement_has_decided(a)) return (struct reason){ .cause = DECIDED };
    if (agreement_has_lost_ranks(a)) return (struct reason){ .cause = PEER_DIED };
    if (agreement_is_failing(a)) return (struct reason){ .cause = NONE };
    if (atomic_load_explicit(&comm->outcome.stop, memory_order_acquire)) return (struct reason){ .cause = STOPPED };
    return reason_find_own(comm);
}
static struct reason reason_find_first(const tutti_comm *comm)
{
    return comm->agreement ? reason_find_between_hosts(comm) : reason_find_on_host(comm);
}
bool comm_has_reason_to_fail(const tutti_comm *comm) { return reason_find_first(comm).cause != NONE; }
static bool comm_delays_timeout(const tutti_comm *comm, const struct operation *late)
{
    bool running = late == comm->run_queue.head && comm->run_queue.running;
    return comm->agreement && running && executor_roll_call_is_complete(&comm->executor)
        && agreement_delays_timeout(comm->agreement, late->sequence);
}
static tutti_status reason_handle(tutti_comm *comm, const struct reason *reason)
{
    switch (reason->cause) {
    case NONE: break;
    case STOPPED:
        return comm_fail(comm, (tutti_status)-(int)atomic_load(&comm->outcome.stop),
            "%s was aborted, or destroyed while operations ran, by rank %d", comm->group.name, comm->group.rank);
    case FAILED: return comm_get_failure(comm);
    case FAILED_BY_ANOTHER: return comm_adopt_peer_failure(comm);
    case DECIDED: return comm_adopt_decision(comm);
    case PEER_DIED:
        if (!comm->agreement) return comm_fail_peer_died(comm, (int)atomic_load(&comm->outcome.lost) - 1);
        agreement_accept_deaths(comm->agreement);
        break;
    case LEFT_ALONE: return comm_fail_peer_left(comm, reason->departed);
    case LATE: return comm_delays_timeout(comm, reason->late) ? TUTTI_OK : comm_fail_late_operation(comm, reason->late);
    case MESSAGE_LEFT_ALONE: return comm_fail_abandoned_message(comm);
    }
    return TUTTI_OK;
}
tutti_status comm_check(tutti_comm *comm)
{
    struct reason reason = reason_find_first(comm);
    if (reason.cause == MESSAGE_LEFT_ALONE && !messages_recheck_abandoned(comm)) return TUTTI_OK;
    bool may_pass = reason.cause >= PEER_DIED && !comm->agreement;
    /* This claims the failure: if some rank has not arrived, the operation fails now. */
    if (may_pass && failure_all_arrived_after_claim(comm)) return TUTTI_OK;
    tutti_status status = reason_handle(comm, &reason);
    if (!comm->agreement || comm_has_failed(comm)) return status;
    return agreement_has_decided(comm->agreement) ? comm_adopt_decision(comm) : TUTTI_OK;
}
bool failure_came_from_peer(tutti_comm *comm, tutti_status status)
{
    return status == TUTTI_ABORTED && comm_check(comm) != TUTTI_OK;
}

/* ---- disagreement ---- */
/* Fails because a rank of this host made another call, perhaps in an earlier operation in which both ranks only
   sent. */
static tutti_status comm_fail_disagreement(tutti_comm *comm, int other, uint64_t operation)
{
    const struct group *g = &comm->group;
    const struct executor *x = &comm->executor;
    struct declaration mine = *executor_declaration(x, x->site.index, operation);
    struct declaration theirs = *executor_declaration(x, group_index_of_rank(g, other), operation);
    char what[2 * ERROR_TEXT_BYTES + 256];
    error_text_of_disagreement(g, g->rank, &mine, other, &theirs, what, sizeof what);
    return comm_fail_about_rank(comm, (struct failure_subject){ AGREE_DISAGREEMENT, other }, TUTTI_MISMATCH, "%s",
        what);
}
static struct failure_subject about_other_of_pair(const tutti_comm *comm, int a, int b)
{
    return (struct failure_subject){ AGREE_DISAGREEMENT, a == comm->group.rank ? b : a };
}
/* Names the first rank whose counts differ from those of index 0, so that all ranks report the same two. */
static tutti_status comm_fail_unequal_counts(tutti_comm *comm)
{
    const struct executor *x = &comm->executor;
    int alike = x->launch.uneven->agreement, parity = x->run.parity;
    const uint64_t *first = segment_counts(x->site.segment, 0, parity, alike);
    for (int a = 1; a < x->site.ranks; a++)
        for (int q = 0; q < comm->group.size; q++) {
            uint64_t here = segment_counts(x->site.segment, a, parity, alike)[q] / x->launch.element_bytes;
            uint64_t there = first[q] / x->launch.element_bytes;
            if (here != there)
                return comm_fail_about_rank(comm,
                    about_other_of_pair(comm, group_rank_at_index(&comm->group, 0),
                        group_rank_at_index(&comm->group, a)),
                    TUTTI_MISMATCH,
                    "%s with uneven counts, operation %llu of %s: rank %d gives "
                    "rank %d a count of %llu elements, but rank %d gives it %llu; all ranks must give the same counts",
                    alike == EQUAL_INPUT ? "reduce_scatter" : "all_gather",
                    (unsigned long long)x->run.declaration->sequence, comm->group.name,
                    group_rank_at_index(&comm->group, 0), q, (unsigned long long)there,
                    group_rank_at_index(&comm->group, a), (unsigned long long)here);
        }
    return comm_fail(comm, TUTTI_INTERNAL, "a rank reported different counts, but the counts are equal");
}
static tutti_status comm_fail_counts_mismatch(tutti_comm *comm)
{
    const struct executor *x = &comm->executor;
    if (!x->launch.uneven)
        return comm_fail(comm, TUTTI_INTERNAL, "a rank reported a disagreement, but the calls are equal");
    if (uneven_is_equal_on_ranks(x->launch.uneven)) return comm_fail_unequal_counts(comm);
    for (int i = 0; i < x->site.ranks; i++)
        for (int j = 0; j < x->site.ranks; j++) {
            int a = site_rank(&x->site, i), b = site_rank(&x->site, j);
            uint64_t sent = segment_counts(x->site.segment, i, x->run.parity, INPUT)[b] / x->launch.element_bytes;
            uint64_t expected = segment_counts(x->site.segment, j, x->run.parity, OUTPUT)[a] / x->launch.element_bytes;
            if (sent != expected)
                return comm_fail_about_rank(comm, about_other_of_pair(comm, a, b), TUTTI_MISMATCH,
                    "all_to_all with uneven counts, operation %llu of %s: rank %d "
                    "sends %llu elements to rank %d, which expects %llu",
                    (unsigned long long)x->run.declaration->sequence, comm->group.name, a, (unsigned long long)sent, b,
                    (unsigned long long)expected);
        }
    return comm_fail(comm, TUTTI_INTERNAL, "a rank reported different counts, but the counts are equal");
}
/* Reports a message of a schedule whose ends differ in size. The ranks of one host have agreed before, so the other end
   is on another host. */
static tutti_status comm_fail_message_mismatch(tutti_comm *comm, const struct transfer *t)
{
    const struct group *g = &comm->group;
    uint64_t mine = 0;
    char what[224];
    failure_describe_running(comm, what, sizeof what);
    for (int i = 0; i < t->piece_count; i++) mine += t->pieces[i].wire;
    return comm_fail_about_rank(comm, (struct failure_subject){ AGREE_DISAGREEMENT, t->peer }, TUTTI_MISMATCH,
        "rank %d of %s runs %s and %s %llu bytes there, but rank %d on another host "
        "%s %llu: all ranks must make the same call",
        g->rank, g->name, what, t->is_send ? "sends" : "expects", (unsigned long long)mine, t->peer,
        t->is_send ? "expects" : "sends", (unsigned long long)t->theirs);
}
tutti_status comm_fail_mismatch(tutti_comm *comm)
{
    const struct executor *x = &comm->executor;
    if (x->run.failed_message) return comm_fail_message_mismatch(comm, x->run.failed_message);
    uint64_t operation;
    int other = executor_find_disagreement(x, &operation);
    if (other < 0) return comm_fail_counts_mismatch(comm);
    return comm_fail_disagreement(comm, other, operation);
}
