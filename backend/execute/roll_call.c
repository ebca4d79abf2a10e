/* The roll call: who has come, whether all mean the same, and who of them needs this core. */
#include "backend/execute/roll_call.h"
#include "backend/base/pause.h"
#include "backend/execute/counters.h"

/* ---- counters of peers ---- */
/* Looks once, and then `polls` times more, unless it has seen enough before. */
bool counter_look(struct executor *x, int peer, int which, uint64_t target, int polls)
{
    uint64_t *seen = &x->seen[peer][which];
    struct control *c = segment_control(x->site.segment, peer);
    _Atomic uint64_t *counter = counter_at(x, c, which);
    uint64_t now = atomic_load_explicit(counter, memory_order_acquire);
    for (int n = 0; n < polls && now < target; n++) {
        pause_briefly();
        now = atomic_load_explicit(counter, memory_order_acquire);
    }
    if (now >= target) { *seen = now; return true; }
    if (x->blocked_peer < 0) x->blocked_peer = site_rank(&x->site, peer);
    wait_add(&x->blocked, (_Atomic uint32_t *)(void *)counter, (uint32_t)now, &c->waiters, true);
    return false;
}

/* ---- the roll call ---- */
void executor_describe(struct executor *x)              /* odd factors: no single difference cancels */
{
    const struct declaration *d = x->run.declaration;
    uint64_t kind = (uint64_t)d->operation << 48 ^ (uint64_t)d->dtype << 40 ^ (uint64_t)d->op << 32 ^ (uint32_t)d->root;
    x->run.kind = d->count * 0xbf58476d1ce4e5b9u + kind * 0x94d049bb133111ebu + d->bits * 0xd6e8feb86659fd93u
        + (d->algorithm << 48 ^ d->slots << 40 ^ d->tile_bytes) * 0xff51afd7ed558ccdu;
}
void fingerprint_make(struct executor *x)
{
    uint64_t sum = x->run.declaration->sequence * 0x9e3779b97f4a7c15u + x->run.kind;
    x->run.fingerprint = sum ^ sum >> 29;
}
/* An operation that a rank has failed before all had arrived succeeds on none: that rank claims the failure and then
   looks for arrivals, the others arrive (with an exchange) and then look for a claim. */
static bool is_refused(const struct executor *x)
{
    if (!atomic_load(&x->site.mine->alert)) return false;
    const struct failure *f = x->site.segment->failure;
    uint32_t state = atomic_load(&f->state);
    return state != FAILURE_NONE && (!(state & FAILURE_READY) || f->operation <= x->operation);
}
static const struct line *line_of(const struct executor *x, int peer)
{
    return &segment_control(x->site.segment, peer)->line[x->run.parity];
}
/* Who has arrived will not look at my other line before I have written it for the next operation: time to fetch it. */
bool roll_call(struct executor *x, tutti_status *status)
{
    for (; x->run.roll < x->site.ranks; x->run.roll++) {
        int peer = x->run.roll;
        if (peer == x->site.index) continue;
        if (!reached_soon(x, peer, SEEN_COUNTER, arrival(x), polls(x))) return false;
        if (line_of(x, peer)->fingerprint != x->run.fingerprint) {
            *status = TUTTI_MISMATCH;
            return false;
        }
    }
    if (is_refused(x)) return false;
    line_own(&x->site.mine->line[1 - x->run.parity]);
    return x->run.arrived = true;
}
static bool has_arrived(const struct executor *x, int peer)
{
    return peer == x->site.index || atomic_load(&line_of(x, peer)->counter) >= arrival(x);
}
bool executor_has_arrived(const struct executor *x, int rank) { return has_arrived(x, site_index(&x->site, rank)); }
bool executor_is_complete(const struct executor *x)
{
    for (int peer = 0; peer < x->site.ranks; peer++)
        if (!has_arrived(x, peer)) return false;
    return true;
}
int executor_disagreement(const struct executor *x)
{
    for (int peer = 0; peer < x->site.ranks; peer++)
        if (has_arrived(x, peer) && line_of(x, peer)->fingerprint != x->run.fingerprint)
            return site_rank(&x->site, peer);
    return -1;
}

/* ---- who needs my core ---- */
/* Before all have arrived a neighbour has something to do if it is missing; afterwards, as far as I know, always. */
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
        if (x->run.arrived || !has_arrived(x, peer)) return true;
    }
    return false;
}
