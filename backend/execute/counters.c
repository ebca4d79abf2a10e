/* Reads the counters of peers, in their lines. */
#include "backend/execute/counters.h"
#include "backend/base/pause.h"

/* Reads a counter of a peer up to 1 + `polls` times. True: it has reached the target, and *seen gets its value. False:
   it is added to executor->blocked. */
static inline bool peer_poll_counter(struct executor *executor, int peer, uint64_t *seen, _Atomic uint64_t *counter,
    uint64_t target, int polls)
{
    struct control *control = segment_control(executor->site.segment, peer);
    uint64_t value = atomic_load_explicit(counter, memory_order_acquire);
    for (int n = 0; n < polls && value < target; n++) {
        cpu_pause_briefly();
        value = atomic_load_explicit(counter, memory_order_acquire);
    }
    if (value >= target) { *seen = value; return true; }
    if (executor->blocked_peer < 0) executor->blocked_peer = site_rank(&executor->site, peer);
    wait_set_add(&executor->blocked, (_Atomic uint32_t *)(void *)counter, (uint32_t)value, &control->waiters, true);
    return false;
}
bool counter_poll_peer(struct executor *executor, int peer, int index, uint64_t target, int polls)
{
    struct line *line = segment_line(executor->site.segment, peer, executor->run.track);
    return peer_poll_counter(executor, peer, &executor->seen[peer][index], line_counter_at(line, index), target, polls);
}
bool track_poll_peer(struct executor *executor, int peer, int track, uint64_t target, int polls)
{
    struct line *line = segment_line(executor->site.segment, peer, track);
    return peer_poll_counter(executor, peer, &executor->seen[peer][LINE_COUNTER], &line->counter, target, polls);
}
