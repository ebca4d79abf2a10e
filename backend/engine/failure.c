/* Fails a communicator: here, on the other ranks of the host through the segment, and on other hosts through the
   agreement. */
#include "backend/base/clock.h"
#include "backend/engine/comm.h"
#include "backend/engine/error_text.h"
#include "backend/engine/stream_comm.h"
#include <stdio.h>
#include <string.h>

void failure_describe_running(const tutti_comm *comm, char *out, size_t bytes)
{
    char what[160];
    const struct operation *beside = comm->windows.open;
    if (!comm->run_queue.head_has_begun && beside && !comm->messages.open) {
        error_text_of_window(beside, out, bytes);
        return;
    }
    struct stream_comm *streams = atomic_load(&comm->streams);
    if (!comm->run_queue.head_has_begun && !comm->messages.open && streams
        && stream_comm_describe_first(streams, out, bytes))
        return;
    if (!comm->run_queue.head_has_begun) {
        snprintf(out, bytes, comm->messages.open ? "a message" : "no operation");
        return;
    }
    struct declaration mine = *comm->executor.run.declaration;
    /* After the roll call another algorithm may have been chosen than the declaration names. */
    const struct program *program = comm->executor.launch.program;
    if (program) mine.algorithm = (uint64_t)(program->plan->algorithm - collectives_table);
    error_text_of_call(&mine, what, sizeof what);
    snprintf(out, bytes, "%s, operation %llu of %s", what, (unsigned long long)comm->executor.run.declaration->sequence,
        comm->group.name);
}

/* ---- failing ---- */
/* A rank completes its record within microseconds, unless it dies or loses its core meanwhile. */
enum { RECORD_WAIT_MS = 1000 };

/* Claims the right to write the failure record of this host. Returns false if another rank was first. */
static bool failure_acquire_record(struct failure *failure)
{
    uint32_t found = atomic_load(&failure->state);
    while (!(found & FAILURE_CERTAIN))
        if (atomic_compare_exchange_weak(&failure->state, &found, found | FAILURE_TELLING)) return true;
    return false;
}
/* Wakes all threads that sleep on words of the rank with this index. */
static void rank_wake_sleepers(const struct segment *segment, int index)
{
    struct control *c = segment_control(segment, index);
    atomic_fetch_add(&c->bell, 1);
    word_wake(&c->bell, true);
    for (int track = 0; track < TRACKS; track++)
        for (int i = -1; i < MAX_SLOTS; i++) {
            struct line *line = segment_line(segment, index, track);
            word_wake((_Atomic uint32_t *)(void *)(i < 0 ? &line->counter : &line->slots[i]), true);
        }
}
/* Returns the number of the first operation that fails, counted from 0: the running one, or the next if all ranks have
   arrived in the running one, because other ranks may then succeed in it. */
static uint64_t failure_first_operation(const tutti_comm *comm)
{
    return comm->executor.operation + (comm->run_queue.head_has_begun && comm->executor.run.arrived);
}
/* Waits until the failure record of this host is complete. Returns false after RECORD_WAIT_MS: its writer has died. */
static bool failure_await_record(const struct group *group)
{
    int64_t deadline_ms = clock_deadline(RECORD_WAIT_MS);
    for (int64_t n = 0; !(atomic_load(&group->segment->failure->state) & FAILURE_READY); n++) {
        if (clock_ms() >= deadline_ms) return false;
        group_back_off(group, n);
    }
    return true;
}
/* Writes the failure record, which this rank has acquired, and wakes the ranks of this host. */
static void failure_publish(const tutti_comm *comm)
{
    const struct group *group = &comm->group;
    struct failure *failure = group->segment->failure;
    group_alert(group);
    failure->status = comm->outcome.status;
    failure->rank = group->rank;
    failure->operation = failure_first_operation(comm);
    snprintf(failure->detail, sizeof failure->detail, "%.499s", comm->outcome.detail);
    atomic_fetch_or(&failure->state, FAILURE_READY);
    for (int peer = 0; peer < group->segment->ranks; peer++) rank_wake_sleepers(group->segment, peer);
}
/* Stores status and text, and marks the communicator as failed. */
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
/* Proposes a cause to the agreement of the hosts, sets this thread's last error, and returns `status`. The communicator
   has not failed until the hosts have agreed. */
static tutti_status failure_propose_cause(tutti_comm *comm, const struct failure_subject *about, tutti_status status,
    const char *detail)
{
    struct agree_cause cause = { .kind = (int32_t)about->kind, .status = status, .other = about->other };
    snprintf(cause.detail, sizeof cause.detail, "%.*s", (int)sizeof cause.detail - 1, detail);
    status_fail(status, "%s", detail);
    agreement_propose_cause(comm->agreement, &cause);
    return status;
}
/* Fails the communicator and returns the status. If another rank has failed before, fails with that rank's error
   instead, so that all ranks report the same one. With several hosts it proposes the cause `about`. */
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
    const struct segment *segment = comm->group.segment;
    bool first = segment && failure_acquire_record(segment->failure);
    /* All ranks report the first error, except that a rank keeps two errors of its own: its abort, and a disagreement
       that it has found, because that text begins with its own call. */
    bool keeps_own = status == TUTTI_ABORTED || status == TUTTI_MISMATCH;
    if (segment && !first && !keeps_own && failure_await_record(&comm->group)) return comm_adopt_peer_failure(comm);
    outcome_store(&comm->outcome, status, format, arguments);
    status_fail(status, "%s", comm->outcome.detail);
    if (first) failure_publish(comm);
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
tutti_status comm_fail_about_rank(tutti_comm *comm, struct failure_subject about, tutti_status status,
    const char *format, ...)
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
tutti_status comm_adopt_peer_failure(tutti_comm *comm)
{
    const struct failure *f = comm->group.segment->failure;
    char detail[sizeof f->detail];
    memcpy(detail, f->detail, sizeof detail);
    detail[sizeof detail - 1] = 0;
    int rank = f->rank;
    tutti_status status = (tutti_status)f->status;
    if (status >= 0 || status < TUTTI_INTERNAL) status = TUTTI_INTERNAL;
    comm_fail_locally(comm, status, "rank %d failed the group: %s", rank, detail);
    return status_fail(status, "%s", comm->outcome.detail);
}
tutti_status comm_adopt_decision(tutti_comm *comm)
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

/* ---- any thread ---- */
bool comm_rank_has_left(const tutti_comm *comm, int rank)
{
    const struct group *group = &comm->group;
    if (!group_rank_is_here(group, rank)) return agreement_rank_has_left(comm->agreement, rank);
    return atomic_load_explicit(&group_control_at_index(group, group_index_of_rank(group, rank))->departed,
               memory_order_acquire)
        != 0;
}
void failure_record_lost_rank(tutti_comm *comm, int rank)
{
    uint32_t none = 0;
    if (comm_rank_has_left(comm, rank)) return;
    atomic_compare_exchange_strong(&comm->outcome.lost, &none, (uint32_t)rank + 1);
    if (comm->agreement) agreement_record_lost(comm->agreement, rank);
    else comm_wake_driver(comm);
}
/* Stores why the communicator must stop, unless it must stop already, and wakes the driver. */
static void outcome_request_stop(tutti_comm *comm, uint32_t why)
{
    uint32_t none = 0;
    atomic_compare_exchange_strong(&comm->outcome.stop, &none, why);
    comm_wake_driver(comm);
}
void failure_request_stop(tutti_comm *comm, tutti_status status) { outcome_request_stop(comm, (uint32_t)-status); }
void failure_request_interrupt(tutti_comm *comm) { outcome_request_stop(comm, STOP_INTERRUPTED); }
