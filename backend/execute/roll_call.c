/* The roll call: which ranks have arrived, whether all agree, and which of them needs this core. */
#include "backend/execute/roll_call.h"
#include "backend/base/pause.h"
#include "backend/execute/counters.h"
#include "backend/execute/tracks.h"

/* ---- the roll call ---- */
/* Hashes the declaration without its sequence number. The factors are odd, so a difference in a single member always
   changes the hash. */
void executor_hash_declaration(struct executor *executor)
{
    const struct declaration *declaration = executor->run.declaration;
    uint64_t kind = (uint64_t)declaration->operation << 48 ^ (uint64_t)declaration->dtype << 40
        ^ (uint64_t)declaration->op << 32 ^ (uint32_t)declaration->root;
    executor->run.kind = declaration->count * 0xbf58476d1ce4e5b9u + kind * 0x94d049bb133111ebu
        + declaration->bits * 0xd6e8feb86659fd93u
        + (declaration->algorithm << 48 ^ declaration->slots << 40 ^ declaration->tile_bytes) * 0xff51afd7ed558ccdu
        + declaration->tuner * 0xc4ceb9fe1a85ec53u;
}
void executor_make_fingerprint(struct executor *executor)
{
    uint64_t sum = executor->run.declaration->sequence * 0x9e3779b97f4a7c15u + executor->run.kind
        + executor->tracks.one_sided_hash;
    executor->run.fingerprint = sum ^ sum >> 29;
}
/* True if a rank has claimed the failure of this operation or an earlier one. If a rank fails an operation before all
   ranks that it awaits have arrived, the operation fails on every rank that arrives later. That rank claims the failure
   and then reads the arrivals; the others arrive and then read the claim. The fence between these is that of
   counter_publish_and_wake. If ranks publish unfenced, the claiming rank inserts a fence into all of them. */
static bool roll_call_has_failed(const struct executor *executor)
{
    if (!atomic_load(&executor->site.own_control->alert)) return false;
    const struct failure *failure = executor->site.segment->failure;
    uint32_t state = atomic_load(&failure->state);
    return state != FAILURE_NONE && (!(state & FAILURE_READY) || failure->operation <= executor->operation);
}
/* Returns the line that a peer (a local rank) writes in this operation. */
static const struct line *executor_peer_line(const struct executor *executor, int peer)
{
    return segment_line(executor->site.segment, peer, executor->run.track);
}
/* True if the peer has arrived and its fingerprint is equal. False: it has not arrived, or *status is set to
   MISMATCH. */
static inline bool peer_has_arrived_and_agrees(struct executor *executor, int peer, tutti_status *status)
{
    if (!counter_is_reached_within(executor, peer, LINE_COUNTER, counter_arrival(executor),
            executor_poll_limit(executor)))
        return false;
    if (executor_peer_line(executor, peer)->fingerprint == executor->run.fingerprint) return true;
    *status = TUTTI_MISMATCH;
    return false;
}
/* Why first polls are delayed: a rank that reads a line just before its owner writes it takes the line away from the
   owner, and both wait for it again. Ranks that arrive together announce together, and each sees the other's line some
   10 ns later. So a rank whose first read came too early delays it in the next operation, until one read in 64 is too
   early. If a long delay does not help, the peer is late for other reasons: the rank then reads at once, and tries
   again AT_ONCE operations later. */
enum { STEP = 256, EARLY_ADDS = STEP / 4, MAX_DELAY = 80 * STEP, AT_ONCE = 1000 };
/* Changes the delay: longer if the poll was too early, else a little shorter. A delay that has become too long is
   dropped for AT_ONCE operations. */
static void first_poll_record_result(struct first_poll *first_poll, bool was_early)
{
    if (was_early) first_poll->delay += EARLY_ADDS;
    else if (first_poll->delay) first_poll->delay--;
    if (first_poll->delay >= MAX_DELAY) *first_poll = (struct first_poll){ .undelayed_count = AT_ONCE };
}
/* Waits for the learned delay before the first poll of a tiny operation, then records whether that poll was too
   early. */
static void executor_poll_first_peer(struct executor *executor)
{
    struct first_poll *first_poll = &executor->first_poll;
    executor->run.first_poll_done = true;
    if (executor->core_is_shared || (first_poll->undelayed_count && first_poll->undelayed_count--)) return;
    cpu_spin_steps(first_poll->delay / STEP);
    const struct line *line = executor_peer_line(executor, executor->site.index ? 0 : 1);
    first_poll_record_result(first_poll,
        atomic_load_explicit(&line->counter, memory_order_acquire) < counter_arrival(executor));
}
/* Prefetches a line of a peer that arrived before this rank, because the peer may be some operations ahead: its next
   line, or a later one if each line announces a slot that must be fetched too. */
static void executor_prefetch_peer_line(const struct executor *executor, int peer)
{
    int ahead = executor->run.cut->is_in_line ? 1 : 3;
    __builtin_prefetch(segment_line(executor->site.segment, peer, (executor->tracks.newest + ahead) % TRACKS));
}
/* Continues the roll call over all ranks of the host. True: all have arrived and agree. False: as
   peer_has_arrived_and_agrees. */
static inline bool roll_call_all_have_arrived(struct executor *executor, tutti_status *status)
{
    if (!executor->run.first_poll_done) executor_poll_first_peer(executor);
    for (; executor->run.next_awaited < executor->site.ranks; executor->run.next_awaited++)
        if (executor->run.next_awaited != executor->site.index
            && !peer_has_arrived_and_agrees(executor, executor->run.next_awaited, status))
            return false;
    return true;
}
/* Continues the roll call of a one-sided operation, over the needed peers only. True: they have arrived and agree, and
   the next track is free. False: as peer_has_arrived_and_agrees. */
__attribute__((noinline)) static bool roll_call_needed_have_arrived(struct executor *executor, tutti_status *status)
{
    const struct program *program = executor->launch.program;
    for (; executor->run.next_awaited < program->needed.count; executor->run.next_awaited++) {
        int peer = site_index(&executor->site, program->needed.ranks[executor->run.next_awaited]);
        bool had_arrived = counter_is_reached(executor, peer, LINE_COUNTER, counter_arrival(executor));
        if (!peer_has_arrived_and_agrees(executor, peer, status)) return false;
        if (had_arrived) executor_prefetch_peer_line(executor, peer);
    }
    if (program->needed.count < executor->site.ranks - 1) return tracks_next_is_free(executor, status);
    executor->tracks.joined = executor->operation + 1;
    return true;
}
/* Runs the roll call of the kind of the operation. After it, peers read this rank's next line only once it is written
   for the next operation. So the rank fetches that line for writing now. */
bool executor_poll_roll_call(struct executor *executor, tutti_status *status)
{
    if (!(executor->run.one_sided ? roll_call_needed_have_arrived(executor, status)
                                  : roll_call_all_have_arrived(executor, status)))
        return false;
    if (roll_call_has_failed(executor)) return false;
    cache_line_prefetch_write(&executor->site.lines[tracks_next(executor)]);
    return executor->run.arrived = true;
}
/* True if the rank with local rank `peer` has arrived in this operation. It reads the line once. */
static bool peer_has_arrived(const struct executor *executor, int peer)
{
    return peer == executor->site.index
        || atomic_load(&executor_peer_line(executor, peer)->counter) >= counter_arrival(executor);
}
bool executor_rank_has_arrived(const struct executor *executor, int rank)
{
    return peer_has_arrived(executor, site_index(&executor->site, rank));
}
int executor_find_missing_index(const struct executor *executor)
{
    for (int peer = 0; peer < executor->site.ranks; peer++)
        if (!peer_has_arrived(executor, peer)) return peer;
    return -1;
}
bool executor_roll_call_is_complete(const struct executor *executor)
{
    const struct program *program = executor->launch.program;
    if (!executor->run.one_sided) return executor_find_missing_index(executor) < 0;
    for (int i = 0; i < program->needed.count; i++)
        if (!executor_rank_has_arrived(executor, program->needed.ranks[i])) return false;
    return program->needed.count == executor->site.ranks - 1 || tracks_next_may_be_free(executor);
}
/* Returns a rank that has called something else than this rank in the last operation of a track, or -1. If that is not
   the running operation, its line may be reused already, so fingerprints of declarations are compared. */
static int track_find_disagreement(const struct executor *executor, int track)
{
    uint64_t operation = executor->tracks.last[track].number - 1;
    bool is_running = track == executor->run.track;
    uint64_t own = is_running ? executor->run.fingerprint
                              : executor_declaration(executor, executor->site.index, operation)->fingerprint;
    for (int peer = 0; peer < executor->site.ranks; peer++) {
        if (peer == executor->site.index || !track_is_reached_by_peer(executor, peer, track)) continue;
        uint64_t theirs = is_running ? executor_peer_line(executor, peer)->fingerprint
                                     : executor_declaration(executor, peer, operation)->fingerprint;
        if (theirs != own) return site_rank(&executor->site, peer);
    }
    return -1;
}
/* Looks only at operations after tracks.joined, because all ranks have agreed up to that one. */
int executor_find_disagreement(const struct executor *executor, uint64_t *out)
{
    int first = -1;
    *out = UINT64_MAX;
    for (int track = 0; track < TRACKS; track++) {
        uint64_t number = executor->tracks.last[track].number;
        int other = number > executor->tracks.joined && number <= *out ? track_find_disagreement(executor, track) : -1;
        if (other < 0) continue;
        first = other;
        *out = number - 1;
    }
    return first;
}

/* ---- who needs this rank's core ---- */
/* Before all have arrived, a peer on this core needs it only if it is missing; afterwards any peer may need it. */
bool executor_publish_core(struct executor *executor)
{
    uint32_t core = wait_core();
    if (atomic_load_explicit(&executor->site.own_control->core, memory_order_relaxed) != core)
        atomic_store_explicit(&executor->site.own_control->core, core, memory_order_relaxed);
    executor->core_is_shared = false;
    for (int peer = 0; core && peer < executor->site.ranks; peer++) {
        const struct control *control = segment_control(executor->site.segment, peer);
        if (peer == executor->site.index || atomic_load_explicit(&control->core, memory_order_relaxed) != core)
            continue;
        executor->core_is_shared = true;
        if (executor->run.arrived || !peer_has_arrived(executor, peer)) return true;
    }
    return false;
}
