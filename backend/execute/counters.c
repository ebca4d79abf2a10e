/* Reads the counters of peers, in their lines. */
#include "backend/execute/counters.h"
#include "backend/base/pause.h"

/* Reads a counter up to 1 + `executor_poll_limit` times, until it has reached the target. */
static inline bool peer_poll_counter(struct executor *executor, int peer, uint64_t *seen, _Atomic uint64_t *counter,
    uint64_t target, int counter_polls)
{
    struct control *c = segment_control(executor->site.segment, peer);
    uint64_t now = atomic_load_explicit(counter, memory_order_acquire);
    for (int n = 0; n < counter_polls && now < target; n++) {
        cpu_pause_briefly();
        now = atomic_load_explicit(counter, memory_order_acquire);
    }
    if (now >= target) { *seen = now; return true; }
    if (executor->blocked_peer < 0) executor->blocked_peer = site_rank(&executor->site, peer);
    wait_set_add(&executor->blocked, (_Atomic uint32_t *)(void *)counter, (uint32_t)now, &c->waiters, true);
    return false;
}
bool counter_poll_peer(struct executor *executor, int peer, int which, uint64_t target, int counter_polls)
{
    struct line *line = segment_line(executor->site.segment, peer, executor->run.track);
    return peer_poll_counter(executor, peer, &executor->seen[peer][which], line_counter_at(line, which), target,
        counter_polls);
}
bool track_poll_peer(struct executor *executor, int peer, int track, uint64_t target, int counter_polls)
{
    struct line *line = segment_line(executor->site.segment, peer, track);
    return peer_poll_counter(executor, peer, &executor->seen[peer][SEEN_COUNTER], &line->counter, target,
        counter_polls);
}
