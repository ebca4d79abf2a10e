/* Finds reasons to fail, formats them, and publishes the first one to the other ranks. No function here waits. */
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/engine/comm.h"
#include "backend/engine/words.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STOPPED_MS = 1000, UNDER_WAY_MS = 500 };

/* ---- text ---- */
static void describe_running(const tutti_comm *comm, char *out, size_t bytes)
{
    char what[160];
    if (!comm->run_queue.running) { snprintf(out, bytes, comm->messages.open ? "a message" : "no operation"); return; }
    struct declaration mine = *comm->executor.run.declaration;
    /* After the roll call another algorithm may have been chosen than the declaration names. */
    const struct program *program = comm->executor.launch.program;
    if (program) mine.algorithm = (uint64_t)(program->plan->algorithm - collectives_table);
    words_of_call(&mine, what, sizeof what);
    snprintf(out, bytes, "%s, operation %llu of %s", what, (unsigned long long)comm->executor.run.declaration->sequence,
        comm->group.name);
}
static void say_where(const tutti_comm *comm, char *out, size_t bytes)
{
    char what[224];
    describe_running(comm, what, sizeof what);
    snprintf(out, bytes, " in %s", what);
}
/* Lists the ranks that have not made this call. It may miss ranks of other hosts. */
static void list_absent(const tutti_comm *comm, char *out, size_t bytes)
{
    const struct group *g = &comm->group;
    bool *absent = memory_zeroed((size_t)g->size, sizeof *absent);
    size_t used = 0;
    out[0] = 0;
    if (absent && comm->agreement) agreement_list_absent(comm->agreement, comm->run_queue.sequence, absent);
    for (int r = 0; absent && r < g->size && used + 16 < bytes; r++)
        if (absent[r] || (group_has_here(g, r) && !executor_has_arrived(&comm->executor, r)))
            used += (size_t)snprintf(out + used, bytes - used, "%s%d", used ? ", " : "", r);
    free(absent);
}

/* ---- failing ---- */
/* Claims to fail the group, so that ranks which arrive later stop. If all ranks have arrived already, all can continue,
   so this rank withdraws its claim and returns true. It returns false if another rank claims, too, because that
   rank may not have seen all arrive. */
static bool have_come_at_last(const tutti_comm *comm)
{
    _Atomic uint32_t *state = &comm->group.segment->failure->state;
    if (!comm->run_queue.running || comm->executor.run.arrived) return false;
    uint32_t alone = FAILURE_CLAIM;
    atomic_fetch_add(state, FAILURE_CLAIM);
    group_alert(&comm->group);
    /* A peer that arrives without a fence needs one between its arrival and its look at the alert. */
    if (comm->executor.publisher.may_be_bare && !fence_everywhere()) return false;
    return executor_is_complete(&comm->executor) && atomic_compare_exchange_strong(state, &alone, FAILURE_NONE);
}
/* Claims the right to write the failure. False: another rank was first. */
static bool may_tell(struct failure *failure)
{
    uint32_t found = atomic_load(&failure->state);
    while (!(found & FAILURE_CERTAIN))
        if (atomic_compare_exchange_weak(&failure->state, &found, found | FAILURE_TELLING)) return true;
    return false;
}
/* Wakes all sleepers on words of that rank. */
static void rank_wake(const struct segment *s, int index)
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
static uint64_t first_that_fails(const tutti_comm *comm)
{
    return comm->executor.operation + (comm->run_queue.running && comm->executor.run.arrived);
}
static void tell_others(const tutti_comm *comm)
{
    const struct group *g = &comm->group;
    if (!g->segment || !may_tell(g->segment->failure)) return;
    struct failure *failure = g->segment->failure;
    group_alert(g);
    failure->status = comm->outcome.status;
    failure->rank = g->rank;
    failure->operation = first_that_fails(comm);
    snprintf(failure->detail, sizeof failure->detail, "%.499s", comm->outcome.detail);
    atomic_fetch_or(&failure->state, FAILURE_READY);
    for (int peer = 0; peer < g->segment->ranks; peer++) rank_wake(g->segment, peer);
}
/* The kind of a reason, and the rank that it concerns, or -1. */
struct about { enum agree_kind kind; int other; };
__attribute__((format(printf, 3, 0))) static void keep_outcome(struct outcome *outcome, tutti_status status,
    const char *format, va_list arguments)
{
    vsnprintf(outcome->detail, sizeof outcome->detail, format, arguments);
    outcome->status = status;
    atomic_store_explicit(&outcome->failed, 1, memory_order_release);
}
static enum agree_kind kind_of(tutti_status status)
{
    return status == TUTTI_ABORTED ? AGREE_ABORTED : status == TUTTI_TIMEOUT ? AGREE_LATE : AGREE_FAILED;
}
/* The hosts agree on one cause first. Until then the communicator has not failed. */
static tutti_status failure_propose(tutti_comm *comm, const struct about *about, tutti_status status,
    const char *detail)
{
    struct agree_cause cause = { .kind = (int32_t)about->kind, .status = status, .other = about->other };
    snprintf(cause.detail, sizeof cause.detail, "%.*s", (int)sizeof cause.detail - 1, detail);
    status_fail(status, "%s", detail);
    agreement_fail(comm->agreement, &cause);
    return status;
}
__attribute__((format(printf, 4, 0))) static tutti_status fail(tutti_comm *comm, const struct about *about,
    tutti_status status, const char *format, va_list arguments)
{
    char detail[STATUS_DETAIL_BYTES];
    if (comm_has_failed(comm)) return comm_failure(comm);
    if (comm->agreement) {
        vsnprintf(detail, sizeof detail, format, arguments);
        bool known = agreement_is_failing(comm->agreement);
        return known ? status_repeat(status, detail) : failure_propose(comm, about, status, detail);
    }
    keep_outcome(&comm->outcome, status, format, arguments);
    status_fail(status, "%s", comm->outcome.detail);
    tell_others(comm);
    return status;
}
tutti_status comm_fail(tutti_comm *comm, tutti_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    status = fail(comm, &(struct about){ kind_of(status), -1 }, status, format, arguments);
    va_end(arguments);
    return status;
}
__attribute__((format(printf, 4, 5))) static tutti_status fail_about(tutti_comm *comm, struct about about,
    tutti_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    status = fail(comm, &about, status, format, arguments);
    va_end(arguments);
    return status;
}
void comm_fail_silently(tutti_comm *comm, tutti_status status, const char *format, ...)
{
    if (comm_has_failed(comm)) return;
    va_list arguments;
    va_start(arguments, format);
    keep_outcome(&comm->outcome, status, format, arguments);
    va_end(arguments);
}
tutti_status comm_failure(tutti_comm *comm)
{
    if (!atomic_load_explicit(&comm->outcome.failed, memory_order_acquire)) return TUTTI_OK;
    return status_repeat(comm->outcome.status, comm->outcome.detail);
}

/* ---- reasons ---- */
void failure_record_lost(tutti_comm *comm, int rank)
{
    uint32_t nobody = 0;
    if (comm_has_left(comm, rank)) return;
    atomic_compare_exchange_strong(&comm->outcome.lost, &nobody, (uint32_t)rank + 1);
    if (comm->agreement) agreement_record_lost(comm->agreement, rank);
    else comm_call(comm);
}
void failure_ask_to_stop(tutti_comm *comm, tutti_status status)
{
    uint32_t none = 0;
    atomic_compare_exchange_strong(&comm->outcome.stop, &none, (uint32_t)-status);
    comm_call(comm);
}
static tutti_status fail_with_others(tutti_comm *comm)
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
static tutti_status decision_adopt(tutti_comm *comm)
{
    struct agree_cause cause;
    char detail[STATUS_DETAIL_BYTES];
    if (comm_has_failed(comm)) return comm_failure(comm);
    agreement_get_decision(comm->agreement, &cause);
    tutti_status status = cause.status >= TUTTI_INTERNAL ? (tutti_status)cause.status : TUTTI_INTERNAL;
    words_of_cause(&comm->group, &cause, detail, sizeof detail);
    /* The open operation fails here even if the cause concerns a later one. So it must not succeed on other ranks of
       this host. */
    agreement_close_roll_call(comm->agreement, first_that_fails(comm));
    /* The other ranks know the decision, so it need not be published. */
    comm_fail_silently(comm, status, "%s", detail);
    /* This rank has logged its own reason already. */
    if (cause.reporter == comm->group.rank) return status_repeat(status, detail);
    return status_fail(status, "%s", detail);
}
static tutti_status fail_without(tutti_comm *comm, int dead)
{
    char where[WORDS_BYTES], text[STATUS_DETAIL_BYTES];
    say_where(comm, where, sizeof where);
    words_of_death(&comm->group, dead, comm->group.rank, where, text, sizeof text);
    return comm_fail(comm, TUTTI_PEER_LOST, "%s", text);
}
static tutti_status fail_left_alone(tutti_comm *comm, int peer)
{
    char where[WORDS_BYTES], text[STATUS_DETAIL_BYTES];
    say_where(comm, where, sizeof where);
    words_of_leaving(&comm->group, peer, comm->group.rank, where, text, sizeof text);
    return fail_about(comm, (struct about){ AGREE_LEFT_ALONE, peer }, TUTTI_PEER_LOST, "%s", text);
}
static tutti_status fail_late_message(tutti_comm *comm, const struct operation *op)
{
    bool sends = op->message.transfer.is_send;
    return comm_fail(comm, TUTTI_TIMEOUT,
        "rank %d of %s: %s rank %d with tag %u reached the timeout of %lld ms: no matching %s came", comm->group.rank,
        comm->group.name, sends ? "send to" : "receive from", op->message.transfer.peer, op->message.tag,
        (long long)atomic_load(&op->limit.timeout_ms), sends ? "receive" : "send");
}
static tutti_status fail_late(tutti_comm *comm, const struct operation *op)
{
    char what[224], absent[128] = "";
    if (op->family == POINT_TO_POINT) return fail_late_message(comm, op);
    describe_running(comm, what, sizeof what);
    list_absent(comm, absent, sizeof absent);
    return comm_fail(comm, TUTTI_TIMEOUT, "rank %d reached the timeout of %lld ms in %s: %s%s", comm->group.rank,
        (long long)atomic_load(&op->limit.timeout_ms), what,
        absent[0] ? "this call has not been made by rank " : "all ranks have come, but one is too slow or stopped",
        absent);
}
/* A message from a rank of another host may still be on its way when this rank learns that the sender has left. So the
   check waits for UNDER_WAY_MS. */
static bool is_left_alone(const tutti_comm *comm, struct operation *op)
{
    const struct transfer *t = &op->message.transfer;
    if (t->state != TRANSFER_POSTED || t->peer < 0 || !comm_has_left(comm, t->peer)) return false;
    if (group_has_here(&comm->group, t->peer)) return true;
    if (!op->limit.alone_ms) op->limit.alone_ms = clock_ms();
    return clock_ms() - op->limit.alone_ms >= UNDER_WAY_MS;
}
static struct operation *find_left_alone(const tutti_comm *comm)
{
    struct operation *op = comm->messages.open;
    while (op && !is_left_alone(comm, op)) op = op->next;
    return op;
}
static bool is_left_alone_after_all(const tutti_comm *comm)
{
    /* Messages that the peer sent before it left still count. */
    router_poll(comm->router);
    return find_left_alone(comm);
}
static tutti_status fail_left_alone_message(tutti_comm *comm)
{
    const struct operation *op = find_left_alone(comm);
    const struct transfer *t = &op->message.transfer;
    return fail_about(comm, (struct about){ AGREE_LEFT_ALONE, t->peer }, TUTTI_PEER_LOST,
        "rank %d of %s has destroyed its communicator, and rank %d still waits to %s it (tag %u)", t->peer,
        comm->group.name, comm->group.rank, t->is_send ? "send to" : "receive from", op->message.tag);
}
/* A driver checks every 20 ms. A gap of seconds means that the process was stopped (SIGSTOP, a frozen container, a
   paused virtual machine), perhaps with its peers. The operation then gets the lost time back. Gaps in a row come from
   a driver with much other work; its operations must still end in time. */
static void add_stopped_time(struct limit *l, int64_t now_ms)
{
    int64_t gap_ms = l->looked_ms ? now_ms - l->looked_ms : 0;
    bool stopped = gap_ms > STOPPED_MS && !l->was_stopped;
    l->looked_ms = now_ms;
    l->was_stopped = stopped;
    if (stopped && atomic_load(&l->deadline_ms) < INT64_MAX - gap_ms) atomic_fetch_add(&l->deadline_ms, gap_ms);
}
static bool is_late(struct limit *l)
{
    int64_t now_ms = clock_ms();
    add_stopped_time(l, now_ms);
    int64_t deadline_ms = atomic_load_explicit(&l->deadline_ms, memory_order_relaxed);
    if (!deadline_ms) {
        /* A deadline that a concurrent wait has just set stays. */
        deadline_ms = clock_deadline(atomic_load(&l->timeout_ms));
        atomic_compare_exchange_strong(&l->deadline_ms, &(int64_t){ 0 }, deadline_ms);
    }
    return now_ms >= atomic_load_explicit(&l->deadline_ms, memory_order_relaxed);
}
static struct operation *find_late(const tutti_comm *comm)
{
    for (struct operation *op = comm->run_queue.head; op; op = op->next)
        if (is_late(&op->limit)) return op;
    for (struct operation *op = comm->messages.open; op; op = op->next)
        if (is_late(&op->limit)) return op;
    return NULL;
}
/* Returns a rank of this host that has left in good order while the running operation waits for its part; or -1. */
static int find_departed(const tutti_comm *comm)
{
    int peer = comm->run_queue.running ? comm->executor.blocked_peer : -1;
    return peer >= 0 && comm_has_left(comm, peer) && !executor_has_arrived(&comm->executor, peer) ? peer : -1;
}
/* The reasons to fail. The find_ functions below check them in order of precedence. Those from PEER_DIED on lapse on
   one host if all ranks turn out to have arrived; see comm_check. */
enum cause { NONE, STOPPED, FAILED, FAILED_BY_ANOTHER, DECIDED, PEER_DIED, LEFT_ALONE, LATE, MESSAGE_LEFT_ALONE };
struct reason { enum cause cause; struct operation *late; int departed; };
static struct reason find_own_reason(const tutti_comm *comm)
{
    struct reason r = { .cause = NONE };
    if ((r.departed = find_departed(comm)) >= 0) r.cause = LEFT_ALONE;
    else if ((r.late = find_late(comm)) != NULL) r.cause = LATE;
    else if (find_left_alone(comm)) r.cause = MESSAGE_LEFT_ALONE;
    return r;
}
static struct reason find_reason(const tutti_comm *comm)
{
    const struct failure *f = comm->group.segment->failure;
    if (atomic_load_explicit(&comm->outcome.stop, memory_order_acquire)) return (struct reason){ .cause = STOPPED };
    if (atomic_load_explicit(&comm->outcome.failed, memory_order_acquire)) return (struct reason){ .cause = FAILED };
    if (atomic_load_explicit(&f->state, memory_order_acquire) & FAILURE_READY)
        return (struct reason){ .cause = FAILED_BY_ANOTHER };
    if (atomic_load_explicit(&comm->outcome.lost, memory_order_acquire)) return (struct reason){ .cause = PEER_DIED };
    return find_own_reason(comm);
}
/* In a group of several hosts, a reason known to any rank leads to a decision; this rank need not act. */
static struct reason find_reason_between_hosts(const tutti_comm *comm)
{
    const struct agreement *a = comm->agreement;
    if (comm_has_failed(comm)) return (struct reason){ .cause = FAILED };
    if (agreement_is_over(a)) return (struct reason){ .cause = DECIDED };
    if (agreement_has_lost(a)) return (struct reason){ .cause = PEER_DIED };
    if (agreement_is_failing(a)) return (struct reason){ .cause = NONE };
    if (atomic_load_explicit(&comm->outcome.stop, memory_order_acquire)) return (struct reason){ .cause = STOPPED };
    return find_own_reason(comm);
}
static struct reason reason_find(const tutti_comm *comm)
{
    return comm->agreement ? find_reason_between_hosts(comm) : find_reason(comm);
}
bool comm_is_alerted(const tutti_comm *comm) { return reason_find(comm).cause != NONE; }
static bool asks_first(const tutti_comm *comm, const struct operation *late)
{
    bool running = late == comm->run_queue.head && comm->run_queue.running;
    return comm->agreement && running && executor_is_complete(&comm->executor)
        && agreement_asks(comm->agreement, late->sequence);
}
static tutti_status reason_act(tutti_comm *comm, const struct reason *reason)
{
    switch (reason->cause) {
    case NONE: break;
    case STOPPED:
        return comm_fail(comm, (tutti_status)-(int)atomic_load(&comm->outcome.stop),
            "%s was aborted, or destroyed while operations ran, by rank %d", comm->group.name, comm->group.rank);
    case FAILED: return comm_failure(comm);
    case FAILED_BY_ANOTHER: return fail_with_others(comm);
    case DECIDED: return decision_adopt(comm);
    case PEER_DIED:
        if (!comm->agreement) return fail_without(comm, (int)atomic_load(&comm->outcome.lost) - 1);
        agreement_accept_deaths(comm->agreement);
        break;
    case LEFT_ALONE: return fail_left_alone(comm, reason->departed);
    case LATE: return asks_first(comm, reason->late) ? TUTTI_OK : fail_late(comm, reason->late);
    case MESSAGE_LEFT_ALONE: return fail_left_alone_message(comm);
    }
    return TUTTI_OK;
}
tutti_status comm_check(tutti_comm *comm)
{
    struct reason reason = reason_find(comm);
    if (reason.cause == MESSAGE_LEFT_ALONE && !is_left_alone_after_all(comm)) return TUTTI_OK;
    bool may_pass = reason.cause >= PEER_DIED && !comm->agreement;
    /* This claims the failure: if some rank has not arrived, the operation fails now. */
    if (may_pass && have_come_at_last(comm)) return TUTTI_OK;
    tutti_status status = reason_act(comm, &reason);
    if (!comm->agreement || comm_has_failed(comm)) return status;
    return agreement_is_over(comm->agreement) ? decision_adopt(comm) : TUTTI_OK;
}
bool failure_is_told(tutti_comm *comm, tutti_status status)
{
    return status == TUTTI_ABORTED && comm_check(comm) != TUTTI_OK;
}

/* ---- disagreement ---- */
/* Fails because a rank of this host made another call, perhaps in an earlier operation in which both ranks only
   sent. */
static tutti_status fail_disagreement(tutti_comm *comm, int other, uint64_t operation)
{
    const struct group *g = &comm->group;
    const struct executor *x = &comm->executor;
    struct declaration mine = *executor_declaration(x, x->site.index, operation);
    struct declaration theirs = *executor_declaration(x, group_index(g, other), operation);
    char what[2 * WORDS_BYTES + 256];
    words_of_disagreement(g, g->rank, &mine, other, &theirs, what, sizeof what);
    return fail_about(comm, (struct about){ AGREE_DISAGREEMENT, other }, TUTTI_MISMATCH, "%s", what);
}
static struct about about_pair(const tutti_comm *comm, int a, int b)
{
    return (struct about){ AGREE_DISAGREEMENT, a == comm->group.rank ? b : a };
}
/* Names the first rank whose counts differ from those of index 0, so that all ranks report the same two. */
static tutti_status mismatch_alike(tutti_comm *comm)
{
    const struct executor *x = &comm->executor;
    int alike = x->launch.uneven->agreement, parity = x->run.parity;
    const uint64_t *first = segment_counts(x->site.segment, 0, parity, alike);
    for (int a = 1; a < x->site.ranks; a++)
        for (int q = 0; q < comm->group.size; q++) {
            uint64_t here = segment_counts(x->site.segment, a, parity, alike)[q] / x->launch.element_bytes;
            uint64_t there = first[q] / x->launch.element_bytes;
            if (here != there)
                return fail_about(comm, about_pair(comm, group_rank(&comm->group, 0), group_rank(&comm->group, a)),
                    TUTTI_MISMATCH,
                    "%s with uneven counts, operation %llu of %s: rank %d gives "
                    "rank %d a count of %llu elements, but rank %d gives it %llu; all ranks must give the same counts",
                    alike == ALIKE_INPUT ? "reduce_scatter" : "all_gather",
                    (unsigned long long)x->run.declaration->sequence, comm->group.name, group_rank(&comm->group, 0), q,
                    (unsigned long long)there, group_rank(&comm->group, a), (unsigned long long)here);
        }
    return comm_fail(comm, TUTTI_INTERNAL, "a rank reported different counts, but the counts are equal");
}
static tutti_status mismatch_counts(tutti_comm *comm)
{
    const struct executor *x = &comm->executor;
    if (!x->launch.uneven)
        return comm_fail(comm, TUTTI_INTERNAL, "a rank reported a disagreement, but the calls are equal");
    if (uneven_is_alike(x->launch.uneven)) return mismatch_alike(comm);
    for (int i = 0; i < x->site.ranks; i++)
        for (int j = 0; j < x->site.ranks; j++) {
            int a = site_rank(&x->site, i), b = site_rank(&x->site, j);
            uint64_t sent = segment_counts(x->site.segment, i, x->run.parity, INPUT)[b] / x->launch.element_bytes;
            uint64_t expected = segment_counts(x->site.segment, j, x->run.parity, OUTPUT)[a] / x->launch.element_bytes;
            if (sent != expected)
                return fail_about(comm, about_pair(comm, a, b), TUTTI_MISMATCH,
                    "all_to_all with uneven counts, operation %llu of %s: rank %d "
                    "sends %llu elements to rank %d, which expects %llu",
                    (unsigned long long)x->run.declaration->sequence, comm->group.name, a, (unsigned long long)sent, b,
                    (unsigned long long)expected);
        }
    return comm_fail(comm, TUTTI_INTERNAL, "a rank reported different counts, but the counts are equal");
}
/* Reports a message of a schedule whose ends differ in size. The ranks of one host have agreed before, so the other end
   is on another host. */
static tutti_status mismatch_message(tutti_comm *comm, const struct transfer *t)
{
    const struct group *g = &comm->group;
    uint64_t mine = 0;
    char what[224];
    describe_running(comm, what, sizeof what);
    for (int i = 0; i < t->piece_count; i++) mine += t->pieces[i].wire;
    return fail_about(comm, (struct about){ AGREE_DISAGREEMENT, t->peer }, TUTTI_MISMATCH,
        "rank %d of %s runs %s and %s %llu bytes there, but rank %d on another host "
        "%s %llu: all ranks must make the same call",
        g->rank, g->name, what, t->is_send ? "sends" : "expects", (unsigned long long)mine, t->peer,
        t->is_send ? "expects" : "sends", (unsigned long long)t->theirs);
}
tutti_status comm_mismatch(tutti_comm *comm)
{
    const struct executor *x = &comm->executor;
    if (x->run.failed_message) return mismatch_message(comm, x->run.failed_message);
    uint64_t operation;
    int other = executor_disagreement(x, &operation);
    if (other < 0) return mismatch_counts(comm);
    return fail_disagreement(comm, other, operation);
}
