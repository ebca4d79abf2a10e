/* Reads the counters of peers, in their lines. */
#include "backend/execute/counters.h"
#include "backend/base/pause.h"

/* Reads a counter up to 1 + `executor_poll_limit` times, until it has reached the target. */
static inline bool peer_poll_counter(struct executor *x, int peer, uint64_t *seen, _Atomic uint64_t *counter,
    uint64_t target, int counter_polls)
{
    struct control *c = segment_control(x->site.segment, peer);
    uint64_t now = atomic_load_explicit(counter, memory_order_acquire);
    for (int n = 0; n < counter_polls && now < target; n++) {
        cpu_pause_briefly();
        now = atomic_load_explicit(counter, memory_order_acquire);
    }
    if (now >= target) { *seen = now; return true; }
    if (x->blocked_peer < 0) x->blocked_peer = site_rank(&x->site, peer);
    wait_set_add(&x->blocked, (_Atomic uint32_t *)(void *)counter, (uint32_t)now, &c->waiters, true);
    return false;
}
bool counter_poll_peer(struct executor *x, int peer, int which, uint64_t target, int counter_polls)
{
    struct line *line = segment_line(x->site.segment, peer, x->run.track);
    return peer_poll_counter(x, peer, &x->seen[peer][which], line_counter_at(line, which), target, counter_polls);
}
bool track_poll_peer(struct executor *x, int peer, int track, uint64_t target, int counter_polls)
{
    struct line *line = segment_line(x->site.segment, peer, track);
    return peer_poll_counter(x, peer, &x->seen[peer][SEEN_COUNTER], &line->counter, target, counter_polls);
}
