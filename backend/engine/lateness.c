#include "backend/engine/lateness.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/base/settings.h"
#include "backend/engine/comm.h"
#include "backend/engine/error_text.h"
#include "backend/engine/remote_states.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* The time that other processes have to tell where their programs are, and their number. */
enum { ASK_MS = 300, MOST_ASKED = 4 };
/* The first calls of a group wait for ranks that still load, and are never slow. A collective is slow if it waits
   SLOW_FACTOR times as long as expected. Time is added in steps of at least STEP_MS. If two checks are GAP_MS apart,
   the process was stopped. */
enum { FIRST_CALLS = 16, SLOW_FACTOR = 10, STEP_MS = 10, GAP_MS = 1000 };

tutti_status lateness_init(struct lateness *lateness, int ranks)
{
    lateness->ranks = memory_alloc_zeroed((size_t)ranks, sizeof *lateness->ranks);
    return lateness->ranks ? TUTTI_OK : status_fail(TUTTI_NO_MEMORY, "no memory for the waits for %d ranks", ranks);
}
void lateness_finish(struct lateness *lateness)
{
    free(lateness->ranks);
    lateness->ranks = NULL;
}

/* ---- ranks that have not come ---- */
/* Returns an array that has true for each rank that has not begun the running operation, or NULL if memory is short. It
   may miss ranks of other hosts. The caller frees it. */
static bool *comm_find_absent(const tutti_comm *comm)
{
    const struct group *group = &comm->group;
    bool *absent = memory_alloc_zeroed((size_t)group->size, sizeof *absent);
    if (absent && comm->agreement) agreement_list_absent(comm->agreement, comm->run_queue.sequence, absent);
    for (int r = 0; absent && r < group->size; r++)
        absent[r] |= group_rank_is_here(group, r) && !executor_rank_has_arrived(&comm->executor, r);
    return absent;
}
void late_ranks_list(const tutti_comm *comm, char *out, size_t bytes)
{
    bool *absent = comm_find_absent(comm);
    size_t used = 0;
    out[0] = 0;
    for (int r = 0; absent && r < comm->group.size; r++)
        if (absent[r]) used = error_text_append_rank(out, bytes, used, r);
    free(absent);
}
/* Ranks whose programs are asked where they are, and the answers. */
struct places {
    int ranks[MOST_ASKED], count;
    char texts[MOST_ASKED][PLACE_BYTES];
};
/* Asks processes of this host, all at once. */
static void places_ask_here(const tutti_comm *comm, struct places *places, int64_t deadline_ms)
{
    int processes[MOST_ASKED];
    for (int i = 0; i < places->count; i++) {
        const struct member *member = &comm->group.members[places->ranks[i]];
        processes[i] = group_rank_is_here(&comm->group, places->ranks[i]) ? snapshot_ask(member->identity.nonce) : -1;
    }
    for (int i = 0; i < places->count; i++) snapshot_receive_place(processes[i], deadline_ms, places->texts[i]);
}
/* Asks processes of other hosts, again and again: their programs answer later than their watch threads. */
static void places_ask_elsewhere(const tutti_comm *comm, struct places *places, int64_t begin_ms, int64_t deadline_ms)
{
    struct remote_states *states = comm->agreement ? agreement_get_states(comm->agreement) : NULL;
    struct remote_state told;
    for (bool waits = states; waits && clock_ms() < deadline_ms;) {
        waits = false;
        for (int i = 0; i < places->count; i++) {
            int rank = places->ranks[i];
            if (group_rank_is_here(&comm->group, rank)) continue;
            bool is_known = remote_states_find(states, rank, begin_ms, &told) && !told.state.place_is_due;
            if (is_known) snprintf(places->texts[i], PLACE_BYTES, "%s", told.state.place);
            else remote_states_ask(states, rank);
            waits |= !is_known;
        }
        if (waits) nanosleep(&(struct timespec){ 0, ASK_AGAIN_MS * 1000000 }, NULL);
    }
}
void late_ranks_describe_programs(const tutti_comm *comm, char *out, size_t bytes)
{
    const struct member *members = comm->group.members, *mine = &members[comm->group.rank];
    struct places places = { .count = 0 };
    bool *absent = comm_find_absent(comm);
    int64_t now_ms = clock_ms();
    size_t used = 0;
    out[0] = 0;
    for (int r = 0; absent && r < comm->group.size && places.count < MOST_ASKED; r++)
        if (absent[r] && !member_shares_process(&members[r], mine)) places.ranks[places.count++] = r;
    free(absent);
    places_ask_here(comm, &places, now_ms + ASK_MS);
    places_ask_elsewhere(comm, &places, now_ms, now_ms + ASK_MS);
    for (int i = 0; i < places.count; i++)
        if (places.texts[i][0] && bytes - used > PLACE_BYTES + 32)
            used += (size_t)snprintf(out + used, bytes - used, "; rank %d is at %s", places.ranks[i], places.texts[i]);
}

const char *late_ranks_describe_none(const tutti_comm *comm)
{
    return comm->agreement
        ? "no rank is known to be missing: one is too slow or stopped, or one of another host has not made this call"
        : "all ranks have come, but one is too slow or stopped";
}

/* ---- waits ---- */
/* Begins with the wait of another collective. */
static void lateness_begin_call(struct lateness *lateness, uint64_t number, int64_t now_ms)
{
    if (lateness->number > FIRST_CALLS) lateness->earlier_ms += lateness->waited_ms;
    lateness->number = number;
    lateness->waited_ms = 0;
    lateness->checked_ms = now_ms;
}
/* Adds a time to the wait of the running collective, and to that for the rank of this host that has not come. */
static void running_call_add_wait(tutti_comm *comm, int64_t ms)
{
    struct lateness *lateness = &comm->lateness;
    int peer = comm->executor.blocked_peer;
    lateness->waited_ms += ms;
    if (peer < 0 || executor_rank_has_arrived(&comm->executor, peer)) return;
    struct late_rank *late = &lateness->ranks[group_index_of_rank(&comm->group, peer)];
    atomic_fetch_add_explicit(&late->waited_ms, ms, memory_order_relaxed);
    if (late->last_number == lateness->number) return;
    late->last_number = lateness->number;
    atomic_fetch_add_explicit(&late->calls, 1, memory_order_relaxed);
}
void lateness_log_straggler(const tutti_comm *comm)
{
    const struct late_rank *ranks = comm->lateness.ranks;
    int most = 0;
    for (int i = 1; i < comm->group.segment->ranks; i++)
        if (atomic_load(&ranks[i].waited_ms) > atomic_load(&ranks[most].waited_ms)) most = i;
    if (atomic_load(&ranks[most].calls) < LATE_OFTEN) return;
    LOG(INFO, "%s: rank %d has waited %lld ms for rank %d, which was late in %llu of %llu calls", comm->group.name,
        comm->group.rank, (long long)atomic_load(&ranks[most].waited_ms), group_rank_at_index(&comm->group, most),
        (unsigned long long)atomic_load(&ranks[most].calls), (unsigned long long)comm->run_queue.sequence);
}

/* ---- slow collectives ---- */
/* Returns how long the collectives between the first ones and the running one waited on average. */
static int64_t lateness_usual_ms(const struct lateness *lateness)
{
    return lateness->earlier_ms / (int64_t)(lateness->number - FIRST_CALLS);
}
static bool running_call_is_slow(const tutti_comm *comm, int64_t least_ms)
{
    const struct lateness *lateness = &comm->lateness;
    double predicted_ms = comm->launcher.recent[comm->run_queue.head->collective].chosen.cost / 1e6;
    return lateness->number > FIRST_CALLS && lateness->waited_ms >= least_ms
        && lateness->waited_ms >= SLOW_FACTOR * lateness_usual_ms(lateness)
        && (double)lateness->waited_ms >= SLOW_FACTOR * predicted_ms;
}
/* Logs that the running collective is slow. The first rank of the host to find it warns, and the log of the others has
   it as information. */
static void running_call_log_slow(const tutti_comm *comm)
{
    bool is_first = !atomic_exchange(&comm->group.segment->failure->slow_was_told, 1);
    enum log_level level = is_first ? LOG_WARN : LOG_INFO;
    char what[224], late[128], places[PLACES_TEXT_BYTES];
    if ((int)level > log_limit) return;
    failure_describe_running(comm, what, sizeof what);
    late_ranks_list(comm, late, sizeof late);
    late_ranks_describe_programs(comm, places, sizeof places);
    log_write(level,
        "rank %d has waited %lld ms in %s; earlier calls waited %lld ms on average: %s%s%s (a group warns once; "
        "TUTTI_SLOW_MS)",
        comm->group.rank, (long long)comm->lateness.waited_ms, what, (long long)lateness_usual_ms(&comm->lateness),
        late[0] ? "this call has not been made by rank " : late_ranks_describe_none(comm), late, places);
}
void lateness_check(tutti_comm *comm)
{
    struct lateness *lateness = &comm->lateness;
    int64_t least_ms = settings_get()->slow_ms, now_ms = clock_ms(), gap_ms = now_ms - lateness->checked_ms;
    if (!comm->run_queue.head_has_begun) return;
    if (lateness->number != comm->run_queue.head->sequence) {
        lateness_begin_call(lateness, comm->run_queue.head->sequence, now_ms);
        return;
    }
    if (gap_ms < STEP_MS) return;
    lateness->checked_ms = now_ms;
    /* Without a waiting thread the program computes meanwhile. */
    bool is_awaited = atomic_load_explicit(&comm->activity.operation, memory_order_relaxed);
    if (gap_ms < GAP_MS && is_awaited) running_call_add_wait(comm, gap_ms);
    if (!least_ms || lateness->has_warned || !running_call_is_slow(comm, least_ms)) return;
    lateness->has_warned = true;
    running_call_log_slow(comm);
}
