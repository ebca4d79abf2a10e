/* Learns how long the calls of the incumbent usually take, and counts the calls in a row that differ much from that. */
#include "backend/tuning/watch.h"
#include "backend/base/sorted.h"

/* A change is a factor of at least this. A smaller one is left to the A/B tests. */
static const double CHANGED = 1.5;
/* The weight of a new call in the usual time, which follows slow changes. */
static const double NEW_SHARE = 1.0 / 32;

void watch_reset(struct watch *watch) { *watch = (struct watch){ 0 }; }
bool watch_knows(const struct watch *watch) { return watch->learned == WATCH_SAMPLES; }
/* Learns the usual time from the first calls. */
static void watch_learn(struct watch *watch, double ns)
{
    watch->sample[watch->learned++] = ns;
    if (watch_knows(watch))
        watch->level_ns = watch->usual_ns = doubles_sort_and_get(watch->sample, WATCH_SAMPLES, WATCH_SAMPLES / 2);
}
/* Counts one more call in *calls, the length of the present run, and resets *others, the length of the other one. */
static void watch_count(struct watch *watch, int *calls, int *others, double ns)
{
    *others = 0;
    if (!(*calls)++ || ns < watch->level_ns) watch->level_ns = ns;
}
bool watch_has_changed(const struct watch *watch)
{
    return watch->slow >= WATCH_SLOW_CALLS || watch->fast >= WATCH_FAST_CALLS;
}
bool watch_add(struct watch *watch, double ns)
{
    if (!watch_knows(watch)) { watch_learn(watch, ns); return false; }
    if (ns > CHANGED * watch->usual_ns) watch_count(watch, &watch->slow, &watch->fast, ns);
    else if (CHANGED * ns < watch->usual_ns) watch_count(watch, &watch->fast, &watch->slow, ns);
    else {
        watch->slow = watch->fast = 0;
        watch->level_ns = watch->usual_ns += NEW_SHARE * (ns - watch->usual_ns);
    }
    return watch_has_changed(watch);
}
