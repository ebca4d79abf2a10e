/* Positions. A rank publishes (tile, step) as one number, base + 2 + (tile / slots) * period + step, in the counter of
 * the tile's slot; base + 1 is the arrival. The executor keeps the highest value read from each peer, so it reads a
 * counter again only to find a higher one. Part of the executor. */
#pragma once
#include "backend/execute/execute.h"

static inline uint64_t counter_arrival(const struct executor *executor) { return executor->base + 1; }
static inline uint64_t counter_position(const struct executor *executor, int tile, int step)
{
    unsigned round = executor->run.cut->single ? 0 : (unsigned)tile / (unsigned)executor->launch.program->plan->slots;
    return executor->base + 2 + (uint64_t)round * (uint64_t)executor->launch.program->plan->period + (uint64_t)step;
}
static inline int executor_slot_of_tile(const struct executor *executor, int tile)
{
    return executor->run.cut->single ? 0 : (int)((unsigned)tile % (unsigned)executor->launch.program->plan->slots);
}
static inline _Atomic uint64_t *line_counter_at(struct line *line, int index)
{
    return index == SEEN_COUNTER ? &line->counter : &line->slots[index - SEEN_SLOTS];
}
static inline int counter_index_of_tile(const struct executor *executor, int tile)
{
    return executor->run.cut->single ? SEEN_COUNTER : SEEN_SLOTS + executor_slot_of_tile(executor, tile);
}
/* Reads a counter of the peer with that index up to 1 + `polls` times. False: the target is not reached, and the
   counter has been added to x->blocked. */
bool counter_poll_peer(struct executor *executor, int peer, int counter, uint64_t target, int polls);
/* Reads the counter in the peer's line of another track. */
bool track_poll_peer(struct executor *executor, int peer, int track, uint64_t target, int polls);
static inline bool counter_is_reached_within(struct executor *executor, int peer, int counter, uint64_t target,
    int polls)
{
    return executor->seen[peer][counter] >= target || counter_poll_peer(executor, peer, counter, target, polls);
}
static inline int executor_poll_limit(const struct executor *executor)
{
    return executor->core_is_shared ? 0 : executor->site.polls;
}
static inline bool counter_is_reached(struct executor *executor, int peer, int counter, uint64_t target)
{
    return counter_is_reached_within(executor, peer, counter, target, 0);
}
/* A rank that only sends is in a hurry to send more, so it may publish without a fence. If all await all, a fence does
   no harm, because the first poll should come after the line has become visible. */
static inline void executor_publish_counter(struct executor *executor, int index, uint64_t value)
{
    _Atomic uint64_t *counter = line_counter_at(&executor->site.lines[executor->run.track], index);
    counter_publish_and_wake(executor->run.one_sided ? &executor->publisher : NULL, counter, value,
        &executor->site.mine->waiters);
}
static inline void executor_publish_arrival(struct executor *executor)
{
    executor->site.lines[executor->run.track].fingerprint = executor->run.fingerprint;
    executor_publish_counter(executor, SEEN_COUNTER, counter_arrival(executor));
}
