/* An operation ends when the streams of this rank have run it and all ranks have declared it equally. A failure goes
   both ways: the communicator fails with the reason of its streams, and the streams of all ranks end when the
   communicator has failed. Operations that fail end when their streams have run them, at the latest after RELEASE_MS.
   */
#include "backend/engine/stream_progress.h"
#include "backend/base/clock.h"
#include "backend/engine/comm.h"
#include "backend/engine/error_text.h"
#include "backend/engine/stream_close.h"
#include <stdio.h>

/* LATE_CHECK_MS: how often the thread looks for late operations. TEXT_MS: how long a rank waits for the text of the
   rank that has found a failure, and CALL_TEXT_MS: for that of its own call. A rank that leaves waits RELEASE_MS for
   calls of other ranks and for peers that use its slots, and STREAM_END_MS for operations that all ranks have
   called. */
enum { LATE_CHECK_MS = 10, TEXT_MS = 20, CALL_TEXT_MS = 500, STREAM_END_MS = 10000 };

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
    if (!streams->failed_ms) streams->failed_ms = now_ms;
    while ((op = stream_comm_get_first(streams)) != NULL
        && (now_ms >= streams->failed_ms + RELEASE_MS || op->sequence <= stream_site_read_done_number(streams->site))) {
        stream_comm_remove_first(streams);
        operation_complete_on_stream(op, comm_get_failure(comm));
        some = true;
    }
    return some;
}

/* ---- reasons to fail ---- */
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
/* True if a rank has destroyed its communicator, and has not made the calls that are open here, or has ended without
   closing the slots of its peers, so that its own may be gone. */
static bool stream_comm_misses_rank(const struct stream_comm *streams, int index)
{
    const struct peer *peer = streams->peers[index];
    if (index == streams->rank || !comm_rank_has_left(streams->comm, group_rank_at_index(&streams->comm->group, index)))
        return false;
    return !stream_site_rank_has_enqueued(streams->site, index, atomic_load(&streams->site->enqueued))
        || (peer && peer_is_gone(peer) && !stream_words_is_disconnected(streams->words, index));
}
/* Records which ranks disagree about which operation. Returns false if it finds none, for example because they disagree
   about an operation of the host. */
static bool stream_comm_record_disagreement(struct stream_comm *streams)
{
    const struct group *group = &streams->comm->group;
    struct stream_disagreement found;
    if (!stream_site_find_disagreement(streams->site, &found)) return false;
    unsigned long long number = found.number;
    int one = group_rank_at_index(group, found.one), other = group_rank_at_index(group, found.other);
    if (found.is_about_counts)
        stream_comm_fail(streams, TUTTI_MISMATCH,
            "all_to_all with uneven counts, operation %llu on streams of %s: rank %d sends %llu bytes to rank %d, "
            "which expects %llu",
            number, group->name, one, (unsigned long long)found.sent, other, (unsigned long long)found.expected);
    else
        stream_comm_fail(streams, TUTTI_MISMATCH,
            "ranks disagree about operation %llu on streams of %s: rank %d and rank %d make different calls; all ranks "
            "must make the same calls in the same order, with the same counts, algorithm, TUTTI_TILE_BYTES and "
            "TUTTI_SLOTS",
            number, group->name, one, other);
    return true;
}
/* Records the failure of the streams of the group. `rank` is its cause, or -1: this rank's device, whose error is this
   thread's last one. */
static void stream_comm_record_site_failure(struct stream_comm *streams, tutti_status status, int rank)
{
    const struct group *group = &streams->comm->group;
    if (rank < 0)
        stream_comm_fail(streams, status, "rank %d of %s: its CUDA device has failed: %s", group->rank, group->name,
            status_detail());
    else if (status != TUTTI_MISMATCH || !stream_comm_record_disagreement(streams))
        stream_comm_fail(streams, status, "operations on streams of %s have failed because of rank %d: %s", group->name,
            group_rank_at_index(group, rank), status_message(status));
}
/* Returns how long this rank waits for a better text of a failure: that of the rank that has found it, and there that
   of a call that has failed. A disagreement is found by no call alone, and all ranks can tell it. */
static int64_t stream_comm_choose_text_wait(const struct stream_comm *streams, tutti_status status, int cause,
    int finder)
{
    bool is_own = finder == streams->rank, by_call = cause == finder && status != TUTTI_MISMATCH;
    if (is_own) return by_call && atomic_load(&streams->has_call) ? CALL_TEXT_MS : 0;
    return by_call ? CALL_TEXT_MS + TEXT_MS : TEXT_MS;
}
/* Looks for a failure of the streams, and records it unless a better text comes. */
static void stream_comm_check_site(struct stream_comm *streams)
{
    int cause, finder;
    tutti_status status = stream_site_poll_group(streams->site, &cause, &finder);
    if (status == TUTTI_OK || stream_comm_has_failed(streams) || comm_has_failed(streams->comm)) return;
    int64_t now_ms = clock_ms();
    if (!streams->site_failed_ms) streams->site_failed_ms = now_ms;
    if (now_ms >= streams->site_failed_ms + stream_comm_choose_text_wait(streams, status, cause, finder))
        stream_comm_record_site_failure(streams, status, cause);
}
static void stream_comm_check_departed(struct stream_comm *streams)
{
    const struct group *group = &streams->comm->group;
    char where[ERROR_TEXT_BYTES + 4] = " in ", text[STATUS_DETAIL_BYTES];
    for (int i = 0; i < streams->ranks; i++) {
        if (!stream_comm_misses_rank(streams, i)) continue;
        /* Operations that ended before the rank did must not fail. */
        stream_comm_check_site(streams);
        if (streams->site_failed_ms) return;
        stream_comm_complete_done(streams);
        if (!stream_comm_describe_first(streams, where + 4, sizeof where - 4)) return;
        error_text_of_leaving(group, group_rank_at_index(group, i), group->rank, where, text, sizeof text);
        stream_comm_fail(streams, TUTTI_PEER_LOST, "%s", text);
    }
}
/* Looks for other reasons to fail while there is work. */
static void stream_comm_find_reason(struct stream_comm *streams)
{
    int64_t now_ms = clock_ms();
    if (now_ms < streams->checked_ms + LATE_CHECK_MS || !stream_comm_has_work(streams)) return;
    streams->checked_ms = now_ms;
    if (stream_comm_has_failed(streams) || comm_has_failed(streams->comm)) return;
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
    bool works = streams->site_failed_ms || stream_comm_has_work(streams);
    bool failing = stream_comm_has_failed(streams) || (works && comm_may_have_reason(streams));
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
/* Disconnects when the streams have ended. Returns true when that is done. */
static bool stream_comm_try_disconnect(struct stream_comm *streams)
{
    if (!streams->disconnects && stream_site_is_idle(streams->site)) {
        streams->disconnects = true;
        stream_comm_start_disconnect(streams);
    }
    return stream_words_is_disconnected(streams->words, streams->rank);
}
/* Fails the work that keeps the communicator from leaving, after a time. */
static void stream_comm_end_work(struct stream_comm *streams, int64_t waited_ms)
{
    const struct group *group = &streams->comm->group;
    bool waits = !atomic_load(&streams->has_call) && stream_comm_all_have_enqueued(streams);
    if (waited_ms >= (waits ? STREAM_END_MS : RELEASE_MS))
        stream_comm_fail(streams, TUTTI_ABORTED, "%s was destroyed while operations ran on its streams, by rank %d",
            group->name, group->rank);
}
/* Leaves the communicator when its operations are over and the peers are done, or the time for that has passed. Returns
   true when it has left. */
static bool stream_comm_try_leave(struct stream_comm *streams)
{
    int64_t now_ms = clock_ms();
    if (!streams->leaves_ms) streams->leaves_ms = now_ms;
    int64_t waited_ms = now_ms - streams->leaves_ms;
    if (stream_comm_has_work(streams)) {
        stream_comm_end_work(streams, waited_ms);
        return false;
    }
    /* A process that ends after it has destroyed its communicator should not end with slots of peers open. */
    bool is_over = stream_comm_peers_are_done(streams) && stream_comm_try_disconnect(streams);
    if (!is_over && waited_ms < RELEASE_MS) return false;
    if (pthread_mutex_trylock(&streams->call_lock)) return false;
    bool leaves = !stream_comm_has_work(streams);
    if (leaves) atomic_store(&streams->state, STREAMS_LEFT);
    pthread_mutex_unlock(&streams->call_lock);
    return leaves;
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
/* Disconnects when the streams have ended. Returns true when no peer uses the slots. */
static bool stream_comm_is_closable(struct stream_comm *streams)
{
    int cause, finder;
    if (!streams->site) {
        if (streams->words) stream_words_set_disconnected(streams->words, streams->rank);
        return true;
    }
    /* Peers may need this rank to release their streams. */
    stream_site_poll_group(streams->site, &cause, &finder);
    return stream_comm_try_disconnect(streams) && stream_comm_is_unused(streams);
}

/* ---- a visit ---- */
static enum stream_visit stream_comm_serve(struct stream_comm *streams, bool *progressed)
{
    stream_comm_check_site(streams);
    *progressed |= stream_comm_complete_done(streams);
    stream_comm_find_reason(streams);
    stream_comm_pass_failure(streams);
    *progressed |= stream_comm_complete_failed(streams);
    bool has_failure = streams->site_failed_ms || stream_comm_has_failed(streams);
    bool open = stream_comm_has_work(streams) || (has_failure && !comm_has_failed(streams->comm));
    if (atomic_load(&streams->state) == STREAMS_LEAVING) open = !stream_comm_try_leave(streams);
    return open ? STREAM_VISIT_OPEN : STREAM_VISIT_IDLE;
}
enum stream_visit stream_comm_visit(struct stream_comm *streams, bool *progressed)
{
    switch (atomic_load(&streams->state)) {
    case STREAMS_OPEN:
    case STREAMS_LEAVING: return stream_comm_serve(streams, progressed);
    case STREAMS_LEFT: return stream_comm_is_closable(streams) ? STREAM_VISIT_OVER : STREAM_VISIT_IDLE;
    default: return STREAM_VISIT_IDLE;
    }
}
