/* Positions. A rank publishes (tile, step) as one number, base + 2 + (tile / slots) * period + step, in the counter of
 * the tile's slot; base + 1 is the arrival. The executor keeps the highest value read from each peer, so it reads a
 * counter again only to find a higher one. Part of the executor. */
#pragma once
#include "backend/execute/execute.h"

/* Returns the value of a counter that means: arrived in this operation. */
static inline uint64_t counter_arrival(const struct executor *executor) { return executor->base + 1; }
/* Returns the value of a counter that means: `step` of `tile` is done. */
static inline uint64_t counter_position(const struct executor *executor, int tile, int step)
{
    unsigned round =
        executor->run.cut->is_single_tile ? 0 : (unsigned)tile / (unsigned)executor->launch.program->plan->slots;
    return executor->base + 2 + (uint64_t)round * (uint64_t)executor->launch.program->plan->period + (uint64_t)step;
}
/* Returns the slot that a tile uses, from 0. */
static inline int executor_slot_of_tile(const struct executor *executor, int tile)
{
    return executor->run.cut->is_single_tile ? 0
                                             : (int)((unsigned)tile % (unsigned)executor->launch.program->plan->slots);
}
/* Returns counter `index` (LINE_COUNTER, LINE_SLOTS …) in a line. */
static inline _Atomic uint64_t *line_counter_at(struct line *line, int index)
{
    return index == LINE_COUNTER ? &line->counter : &line->slots[index - LINE_SLOTS];
}
/* Returns the index of the counter in which positions of a tile are published. */
static inline int counter_index_of_tile(const struct executor *executor, int tile)
{
    return executor->run.cut->is_single_tile ? LINE_COUNTER : LINE_SLOTS + executor_slot_of_tile(executor, tile);
}
/* Reads counter `counter` in the line of a peer (a local rank) up to 1 + `polls` times. True: it has reached the
   target. False: it has been added to executor->blocked. */
bool counter_poll_peer(struct executor *executor, int peer, int counter, uint64_t target, int polls);
/* Reads the first counter in the peer's line of another track in the same way. */
bool track_poll_peer(struct executor *executor, int peer, int track, uint64_t target, int polls);
/* True if the peer's counter has reached the target, by the value read last or by up to 1 + `polls` reads. */
static inline bool counter_is_reached_within(struct executor *executor, int peer, int counter, uint64_t target,
    int polls)
{
    return executor->seen[peer][counter] >= target || counter_poll_peer(executor, peer, counter, target, polls);
}
/* Returns how often an unmet counter is read again: not at all if peers need this core. */
static inline int executor_poll_limit(const struct executor *executor)
{
    return executor->core_is_shared ? 0 : executor->site.polls;
}
/* True if the peer's counter has reached the target, by the value read last or by one read. */
static inline bool counter_is_reached(struct executor *executor, int peer, int counter, uint64_t target)
{
    return counter_is_reached_within(executor, peer, counter, target, 0);
}
/* Publishes a value in this rank's line and wakes sleepers. A rank that only sends is in a hurry to send more, so it
   may publish without a fence. If all await all, a fence does no harm, because the first poll should come after the
   line has become visible. */
static inline void executor_publish_counter(struct executor *executor, int index, uint64_t value)
{
    _Atomic uint64_t *counter = line_counter_at(&executor->site.lines[executor->run.track], index);
    counter_publish_and_wake(executor->run.one_sided ? &executor->publisher : NULL, counter, value,
        &executor->site.own_control->waiters);
}
/* Publishes the fingerprint and then the arrival. */
static inline void executor_publish_arrival(struct executor *executor)
{
    executor->site.lines[executor->run.track].fingerprint = executor->run.fingerprint;
    executor_publish_counter(executor, LINE_COUNTER, counter_arrival(executor));
}
