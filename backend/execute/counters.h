/* Positions. (tile, step) is published as one number, base + 2 + (tile / slots) * period + step, in the counter of the
 * tile's slot; base + 1 is the arrival. What was read of a peer is kept, so a counter is looked at again only when more
 * than that is wanted. Part of the executor. */
#pragma once
#include "backend/execute/execute.h"

static inline uint64_t counter_arrival(const struct executor *x) { return x->base + 1; }
static inline uint64_t counter_position(const struct executor *x, int tile, int step)
{
    unsigned round = x->run.cut->single ? 0 : (unsigned)tile / (unsigned)x->launch.program->plan->slots;
    return x->base + 2 + (uint64_t)round * (uint64_t)x->launch.program->plan->period + (uint64_t)step;
}
static inline int slot_of(const struct executor *x, int tile)
{
    return x->run.cut->single ? 0 : (int)((unsigned)tile % (unsigned)x->launch.program->plan->slots);
}
static inline _Atomic uint64_t *counter_in(struct line *line, int index)
{
    return index == SEEN_COUNTER ? &line->counter : &line->slots[index - SEEN_SLOTS];
}
static inline int counter_index(const struct executor *x, int tile)
{
    return x->run.cut->single ? SEEN_COUNTER : SEEN_SLOTS + slot_of(x, tile);
}
/* Of the peer with that index on this host: looks once, and then `polls` times more. False: notes what is waited
   for. */
bool counter_look(struct executor *x, int peer, int counter, uint64_t target, int polls);
/* The same, at the line of another track. */
bool track_look(struct executor *x, int peer, int track, uint64_t target, int polls);
static inline bool reached_soon(struct executor *x, int peer, int counter, uint64_t target, int polls)
{
    return x->seen[peer][counter] >= target || counter_look(x, peer, counter, target, polls);
}
static inline int counter_polls(const struct executor *x) { return x->core_is_shared ? 0 : x->site.polls; }
static inline bool counter_reached(struct executor *x, int peer, int counter, uint64_t target)
{
    return reached_soon(x, peer, counter, target, 0);
}
/* Who only sends has more to send. Where all await all, the first look is better not before the line can be seen. */
static inline void own_counter_publish(struct executor *x, int index, uint64_t value)
{
    _Atomic uint64_t *counter = counter_in(&x->site.lines[x->run.track], index);
    counter_publish(x->run.one_sided ? &x->publisher : NULL, counter, value, &x->site.mine->waiters);
}
static inline void counter_arrive(struct executor *x)
{
    x->site.lines[x->run.track].fingerprint = x->run.fingerprint;
    own_counter_publish(x, SEEN_COUNTER, counter_arrival(x));
}
