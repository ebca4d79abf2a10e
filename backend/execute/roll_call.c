/* The roll call: which ranks have arrived, whether all agree, and which of them needs this core. */
#include "backend/execute/roll_call.h"
#include "backend/base/pause.h"
#include "backend/execute/counters.h"
#include "backend/execute/tracks.h"

/* ---- the roll call ---- */
/* The factors are odd, so a difference in a single member always changes the hash. */
void executor_hash_declaration(struct executor *x)
{
    const struct declaration *d = x->run.declaration;
    uint64_t kind = (uint64_t)d->operation << 48 ^ (uint64_t)d->dtype << 40 ^ (uint64_t)d->op << 32 ^ (uint32_t)d->root;
    x->run.kind = d->count * 0xbf58476d1ce4e5b9u + kind * 0x94d049bb133111ebu + d->bits * 0xd6e8feb86659fd93u
        + (d->algorithm << 48 ^ d->slots << 40 ^ d->tile_bytes) * 0xff51afd7ed558ccdu + d->tuner * 0xc4ceb9fe1a85ec53u;
}
void executor_make_fingerprint(struct executor *x)
{
    uint64_t sum = x->run.declaration->sequence * 0x9e3779b97f4a7c15u + x->run.kind + x->tracks.one_sided_hash;
    x->run.fingerprint = sum ^ sum >> 29;
}
/* If a rank fails an operation before all ranks that it awaits have arrived, the operation fails on every rank that
   arrives later. That rank claims the failure and then reads the arrivals; the others arrive and then read the claim.
   The fence between these is that of counter_publish_and_wake. If ranks publish bare, the claiming rank inserts a fence
   into all of them. */
static bool roll_call_is_refused(const struct executor *x)
{
    if (!atomic_load(&x->site.mine->alert)) return false;
    const struct failure *f = x->site.segment->failure;
    uint32_t state = atomic_load(&f->state);
    return state != FAILURE_NONE && (!(state & FAILURE_READY) || f->operation <= x->operation);
}
static const struct line *executor_peer_line(const struct executor *x, int peer)
{
    return segment_line(x->site.segment, peer, x->run.track);
}
/* True if the peer has arrived and its fingerprint is equal. */
static inline bool peer_has_arrived_and_agrees(struct executor *x, int peer, tutti_status *status)
{
    if (!counter_is_reached_within(x, peer, SEEN_COUNTER, counter_arrival(x), executor_poll_limit(x))) return false;
    if (executor_peer_line(x, peer)->fingerprint == x->run.fingerprint) return true;
    *status = TUTTI_MISMATCH;
    return false;
}
/* A rank that reads a line just before its owner writes it takes the line away from the owner, and both wait for it
   again. Ranks that arrive together announce together, and each sees the other's line some 10 ns later. So a rank whose
   first read came too early delays it in the next operation, until one read in 64 is too early. If a long delay does
   not help, the peer is late for other reasons: the rank then reads at once, and tries again AT_ONCE operations
   later. */
enum { STEP = 256, IN_VAIN = STEP / 4, LATEST = 80 * STEP, AT_ONCE = 1000 };
static void first_poll_record_result(struct first_poll *f, bool in_vain)
{
    if (in_vain) f->after += IN_VAIN;
    else if (f->after) f->after--;
    if (f->after >= LATEST) *f = (struct first_poll){ .at_once = AT_ONCE };
}
static void executor_poll_first_peer(struct executor *x)
{
    struct first_poll *f = &x->first_poll;
    x->run.first_poll_done = true;
    if (x->core_is_shared || (f->at_once && f->at_once--)) return;
    cpu_spin_steps(f->after / STEP);
    const struct line *line = executor_peer_line(x, x->site.index ? 0 : 1);
    first_poll_record_result(f, atomic_load_explicit(&line->counter, memory_order_acquire) < counter_arrival(x));
}
/* Prefetches a line of a peer that arrived first, because it may be some operations ahead. That is its next line, or a
   later one if each line announces a slot that must be fetched too. */
static void executor_prefetch_peer_line(const struct executor *x, int peer)
{
    int ahead = x->run.cut->in_line ? 1 : 3;
    __builtin_prefetch(segment_line(x->site.segment, peer, (x->tracks.newest + ahead) % TRACKS));
}
static inline bool roll_call_all_have_arrived(struct executor *x, tutti_status *status)
{
    if (!x->run.first_poll_done) executor_poll_first_peer(x);
    for (; x->run.roll < x->site.ranks; x->run.roll++)
        if (x->run.roll != x->site.index && !peer_has_arrived_and_agrees(x, x->run.roll, status)) return false;
    return true;
}
__attribute__((noinline)) static bool roll_call_needed_have_arrived(struct executor *x, tutti_status *status)
{
    const struct program *p = x->launch.program;
    for (; x->run.roll < p->needed.count; x->run.roll++) {
        int peer = site_index(&x->site, p->needed.ranks[x->run.roll]);
        bool at_once = counter_is_reached(x, peer, SEEN_COUNTER, counter_arrival(x));
        if (!peer_has_arrived_and_agrees(x, peer, status)) return false;
        if (at_once) executor_prefetch_peer_line(x, peer);
    }
    if (p->needed.count < x->site.ranks - 1) return tracks_next_is_free(x, status);
    x->tracks.joined = x->operation + 1;
    return true;
}
/* After the roll call, peers read this rank's next line only once it is written for the next operation. So the rank
   fetches that line for writing now. */
bool executor_poll_roll_call(struct executor *x, tutti_status *status)
{
    if (!(x->run.one_sided ? roll_call_needed_have_arrived(x, status) : roll_call_all_have_arrived(x, status)))
        return false;
    if (roll_call_is_refused(x)) return false;
    cache_line_prefetch_write(&x->site.lines[tracks_next(x)]);
    return x->run.arrived = true;
}
static bool peer_has_arrived(const struct executor *x, int peer)
{
    return peer == x->site.index || atomic_load(&executor_peer_line(x, peer)->counter) >= counter_arrival(x);
}
bool executor_rank_has_arrived(const struct executor *x, int rank)
{
    return peer_has_arrived(x, site_index(&x->site, rank));
}
bool executor_roll_call_is_complete(const struct executor *x)
{
    const struct program *p = x->launch.program;
    if (!x->run.one_sided) {
        for (int peer = 0; peer < x->site.ranks; peer++)
            if (!peer_has_arrived(x, peer)) return false;
        return true;
    }
    for (int i = 0; i < p->needed.count; i++)
        if (!executor_rank_has_arrived(x, p->needed.ranks[i])) return false;
    return p->needed.count == x->site.ranks - 1 || tracks_next_may_be_free(x);
}
/* Compares the last operation of this track. If it is not the running one, its line may be reused already, so its
   declarations are compared. */
static int track_find_disagreement(const struct executor *x, int track)
{
    uint64_t operation = x->tracks.last[track].number - 1;
    bool runs = track == x->run.track;
    uint64_t mine = runs ? x->run.fingerprint : executor_declaration(x, x->site.index, operation)->fingerprint;
    for (int peer = 0; peer < x->site.ranks; peer++) {
        if (peer == x->site.index || !track_is_reached_by_peer(x, peer, track)) continue;
        uint64_t its =
            runs ? executor_peer_line(x, peer)->fingerprint : executor_declaration(x, peer, operation)->fingerprint;
        if (its != mine) return site_rank(&x->site, peer);
    }
    return -1;
}
/* Looks only at operations after tracks.joined, because all ranks have agreed up to that one. */
int executor_find_disagreement(const struct executor *x, uint64_t *out)
{
    int first = -1;
    *out = UINT64_MAX;
    for (int track = 0; track < TRACKS; track++) {
        uint64_t number = x->tracks.last[track].number;
        int other = number > x->tracks.joined && number <= *out ? track_find_disagreement(x, track) : -1;
        if (other < 0) continue;
        first = other;
        *out = number - 1;
    }
    return first;
}

/* ---- who needs this rank's core ---- */
/* Before all have arrived, a peer on this core needs it only if it is missing; afterwards any peer may need it. */
bool executor_core_is_wanted(struct executor *x)
{
    uint32_t core = wait_core();
    if (atomic_load_explicit(&x->site.mine->core, memory_order_relaxed) != core)
        atomic_store_explicit(&x->site.mine->core, core, memory_order_relaxed);
    x->core_is_shared = false;
    for (int peer = 0; core && peer < x->site.ranks; peer++) {
        const struct control *c = segment_control(x->site.segment, peer);
        if (peer == x->site.index || atomic_load_explicit(&c->core, memory_order_relaxed) != core) continue;
        x->core_is_shared = true;
        if (x->run.arrived || !peer_has_arrived(x, peer)) return true;
    }
    return false;
}
