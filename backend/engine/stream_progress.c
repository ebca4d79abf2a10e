/* An operation ends when the streams of this rank have run it and all ranks have declared it equally. A failure goes
   both ways: the communicator fails with the reason of its streams, and the streams of all ranks end when the
   communicator has failed. Operations that fail end when their streams have run them, at the latest after RELEASE_MS.
   */
#include "backend/engine/stream_progress.h"
#include "backend/base/clock.h"
#include "backend/engine/comm.h"
#include "backend/engine/error_text.h"
#include <stdio.h>

/* How often the thread looks for late operations. RELEASE_MS is also the longest wait for peers that use slots when a
   rank leaves. */
enum { LATE_CHECK_MS = 10 };

/* ---- ends ---- */
/* Ends the operations that are done. Returns true if there was one. */
static bool stream_comm_complete_done(struct stream_comm *streams)
{
    uint64_t completed = stream_site_get_completed_number(streams->site);
    bool some = false;
    struct operation *op;
    while ((op = stream_comm_get_first(streams)) != NULL && op->sequence <= completed) {
        stream_comm_remove_first(streams);
        operation_complete_on_stream(op, TUTTI_OK);
        some = true;
    }
    return some;
}
/* Ends the operations of a failed communicator that this rank's streams have run. */
static bool stream_comm_complete_failed(struct stream_comm *streams)
{
    tutti_comm *comm = streams->comm;
    if (!comm_has_failed(comm)) return false;
    int64_t now_ms = clock_ms();
    bool some = false;
    struct operation *op;
    if (!streams->failing_until_ms) streams->failing_until_ms = now_ms + RELEASE_MS;
    while ((op = stream_comm_get_first(streams)) != NULL
        && (now_ms >= streams->failing_until_ms || op->sequence <= stream_site_read_done_number(streams->site))) {
        stream_comm_remove_first(streams);
        operation_complete_on_stream(op, comm_get_failure(comm));
        some = true;
    }
    return some;
}

/* ---- reasons to fail ---- */
/* Writes the ranks that have not enqueued an operation, as "1, 3". */
static void stream_comm_list_absent_ranks(const struct stream_comm *streams, uint64_t number, char *out, size_t bytes)
{
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < streams->ranks && used + 16 < bytes; i++)
        if (!stream_site_rank_has_enqueued(streams->site, i, number))
            used += (size_t)snprintf(out + used, bytes - used, "%s%d", used ? ", " : "",
                group_rank_at_index(&streams->comm->group, i));
}
/* Records that an operation has reached its timeout. */
static void stream_comm_fail_late(struct stream_comm *streams, const struct operation *op)
{
    char what[ERROR_TEXT_BYTES], absent[128];
    stream_comm_describe_operation(streams->comm, op, what, sizeof what);
    stream_comm_list_absent_ranks(streams, op->sequence, absent, sizeof absent);
    stream_comm_fail(streams, TUTTI_TIMEOUT, "rank %d reached the timeout of %lld ms in %s: %s%s",
        streams->comm->group.rank, (long long)atomic_load(&op->limit.timeout_ms), what,
        absent[0] ? "this call has not been made by rank "
                  : "all ranks have made this call, but a stream is too slow, or waits for earlier work",
        absent);
}
/* Fails with an operation that is past its deadline. An operation with a higher number may have an earlier one. */
static void stream_comm_check_deadlines(struct stream_comm *streams)
{
    struct operation *late = NULL;
    pthread_mutex_lock(&streams->lock);
    for (struct operation *op = streams->first; op && !late; op = op->next)
        if (limit_poll_deadline(&op->limit)) late = op;
    pthread_mutex_unlock(&streams->lock);
    if (late) stream_comm_fail_late(streams, late);
}
/* Fails if a rank has destroyed its communicator and has not made the calls that are open here. */
static void stream_comm_check_departed(struct stream_comm *streams)
{
    const struct group *group = &streams->comm->group;
    char where[ERROR_TEXT_BYTES + 4] = " in ", text[STATUS_DETAIL_BYTES];
    uint64_t last = atomic_load(&streams->site->enqueued);
    for (int i = 0; i < streams->ranks; i++) {
        int rank = group_rank_at_index(group, i);
        if (i == streams->rank || !comm_rank_has_left(streams->comm, rank)
            || stream_site_rank_has_enqueued(streams->site, i, last))
            continue;
        if (!stream_comm_describe_first(streams, where + 4, sizeof where - 4)) return;
        error_text_of_leaving(group, rank, group->rank, where, text, sizeof text);
        stream_comm_fail(streams, TUTTI_PEER_LOST, "%s", text);
    }
}
/* Records the failure of the streams of the group. `rank` is its cause, or -1: this rank's device, whose error is this
   thread's last one. */
static void stream_comm_record_site_failure(struct stream_comm *streams, tutti_status status, int rank)
{
    const struct group *group = &streams->comm->group;
    unsigned long long number = atomic_load(&streams->site->compared) + 1;
    if (rank < 0)
        stream_comm_fail(streams, status, "rank %d of %s: its CUDA device has failed: %s", group->rank, group->name,
            status_detail());
    else if (status == TUTTI_MISMATCH)
        stream_comm_fail(streams, status,
            "ranks disagree about operation %llu on streams of %s: rank %d and another rank make different calls; all "
            "ranks must make the same calls in the same order",
            number, group->name, group_rank_at_index(group, rank));
    else
        stream_comm_fail(streams, status, "operations on streams of %s have failed because of rank %d: %s", group->name,
            group_rank_at_index(group, rank), status_message(status));
}
/* Looks for reasons to fail while operations are open. */
static void stream_comm_find_reason(struct stream_comm *streams, tutti_status status, int cause)
{
    int64_t now_ms = clock_ms();
    if (stream_comm_has_failed(streams) || comm_has_failed(streams->comm)) return;
    if (status != TUTTI_OK) { stream_comm_record_site_failure(streams, status, cause); return; }
    if (now_ms < streams->checked_ms + LATE_CHECK_MS || !stream_comm_get_first(streams)) return;
    streams->checked_ms = now_ms;
    stream_comm_check_deadlines(streams);
    stream_comm_check_departed(streams);
}

/* ---- failure ---- */
/* True if a driver would find a reason to fail the communicator. It reads only what other threads and ranks set, since
   this thread is not the driver. */
static bool comm_may_have_reason(const struct stream_comm *streams)
{
    const tutti_comm *comm = streams->comm;
    return atomic_load(&comm->outcome.lost) || atomic_load(&comm->outcome.stop)
        || (atomic_load(&comm->group.segment->failure->state) & FAILURE_READY);
}
/* Passes failures between the communicator and its streams. The role of the driver is taken only for a failure. */
static void stream_comm_pass_failure(struct stream_comm *streams)
{
    tutti_comm *comm = streams->comm;
    bool failing = stream_comm_has_failed(streams) || (stream_comm_get_first(streams) && comm_may_have_reason(streams));
    if (failing && !comm_has_failed(comm) && driver_try_acquire(comm)) {
        driver_fail_if_due(comm);
        driver_hand_over_role(comm);
    } else if (failing && !comm_has_failed(comm)) {
        driver_wake(comm);
    }
    if (comm_has_failed(comm)) stream_site_fail_group(streams->site, comm_get_failure(comm), streams->rank);
}

/* ---- leaving ---- */
/* True if no other rank that lives still reads this rank's slots for an operation of this rank. */
static bool stream_comm_peers_are_done(const struct stream_comm *streams)
{
    for (int i = 0; i < streams->ranks; i++) {
        const struct peer *peer = streams->peers[i];
        if (i != streams->rank && stream_site_rank_uses_slots(streams->site, i) && !(peer && peer_is_gone(peer)))
            return false;
    }
    return true;
}
static bool stream_comm_all_have_enqueued(const struct stream_comm *streams)
{
    uint64_t last = atomic_load(&streams->site->enqueued);
    for (int i = 0; i < streams->ranks; i++)
        if (!stream_site_rank_has_enqueued(streams->site, i, last)) return false;
    return true;
}
static void stream_comm_disconnect_if_idle(struct stream_comm *streams)
{
    if (streams->is_disconnected || !stream_site_is_idle(streams->site)) return;
    stream_site_disconnect_peers(streams->site);
    streams->is_disconnected = true;
}
/* Leaves the communicator when its operations are over and the peers are done, or the time for that has passed. */
static void stream_comm_try_leave(struct stream_comm *streams)
{
    const struct group *group = &streams->comm->group;
    int64_t now_ms = clock_ms();
    if (!streams->leaving_until_ms) streams->leaving_until_ms = now_ms + RELEASE_MS;
    bool is_late = now_ms >= streams->leaving_until_ms;
    if (stream_comm_get_first(streams)) {
        /* Operations that all ranks have called end without a call of any rank, or reach their timeout. */
        if (is_late && !stream_comm_all_have_enqueued(streams))
            stream_comm_fail(streams, TUTTI_ABORTED, "%s was destroyed while operations ran on its streams, by rank %d",
                group->name, group->rank);
        return;
    }
    if (!is_late && !stream_comm_peers_are_done(streams)) return;
    /* A call may be under way on another thread. */
    if (pthread_mutex_trylock(&streams->call_lock)) return;
    /* A process that ends after it has destroyed its communicator should not end with slots of peers open. */
    stream_comm_disconnect_if_idle(streams);
    atomic_store(&streams->state, STREAMS_LEFT);
    pthread_mutex_unlock(&streams->call_lock);
}
/* True if all other ranks have disconnected or died. */
static bool stream_comm_is_unused(const struct stream_comm *streams)
{
    for (int i = 0; i < streams->ranks; i++) {
        const struct peer *peer = streams->peers[i];
        if (!stream_words_is_disconnected(streams->words, i) && !(peer && peer_is_gone(peer))) return false;
    }
    return true;
}
/* Disconnects when the streams have ended, and frees everything when no peer uses it. Returns true then. */
static bool stream_comm_try_close(struct stream_comm *streams)
{
    int cause;
    if (streams->site) {
        /* Peers may need this rank to release their streams. */
        stream_site_poll_quietly(streams->site, &cause);
        stream_comm_disconnect_if_idle(streams);
        if (!streams->is_disconnected || !stream_comm_is_unused(streams)) return false;
    } else if (streams->words) {
        stream_words_set_disconnected(streams->words, streams->rank);
    }
    stream_comm_close(streams);
    return true;
}

/* ---- a visit ---- */
static enum stream_visit stream_comm_serve(struct stream_comm *streams, bool *progressed)
{
    int cause;
    tutti_status status = stream_site_poll_quietly(streams->site, &cause);
    *progressed |= stream_comm_complete_done(streams);
    stream_comm_find_reason(streams, status, cause);
    stream_comm_pass_failure(streams);
    *progressed |= stream_comm_complete_failed(streams);
    bool leaves = atomic_load(&streams->state) == STREAMS_LEAVING;
    if (leaves) stream_comm_try_leave(streams);
    bool failing = stream_comm_has_failed(streams) && !comm_has_failed(streams->comm);
    return leaves || failing || stream_comm_get_first(streams) ? STREAM_VISIT_OPEN : STREAM_VISIT_IDLE;
}
enum stream_visit stream_comm_visit(struct stream_comm *streams, bool *progressed)
{
    switch (atomic_load(&streams->state)) {
    case STREAMS_OPEN:
    case STREAMS_LEAVING: return stream_comm_serve(streams, progressed);
    case STREAMS_LEFT: return stream_comm_try_close(streams) ? STREAM_VISIT_OVER : STREAM_VISIT_IDLE;
    default: return STREAM_VISIT_IDLE;
    }
}
