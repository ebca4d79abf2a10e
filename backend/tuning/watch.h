/* Watches how long the calls of the incumbent take, and finds out when the machine has changed: when a hypervisor has
 * moved the cores, say. Times are in ns, from when the last rank has begun until the decider has ended. One long call
 * is an interruption; so a change needs several calls in a row. */
#pragma once
#include <stdbool.h>

enum { WATCH_SAMPLES = 5, WATCH_SLOW_CALLS = 2, WATCH_FAST_CALLS = 3 };
struct watch {
    /* The time that a call usually takes; valid once `learned` is WATCH_SAMPLES. */
    double usual_ns;
    int learned;
    double sample[WATCH_SAMPLES];
    /* How many calls in a row, with the last one, took much longer (slow) or much shorter (fast) than usual, and the
       shortest time of them; if the last call took its usual time, usual_ns. */
    int slow, fast;
    double level_ns;
};
/* Forgets what a call usually takes. */
void watch_reset(struct watch *watch);
/* Returns true if the last calls differ so much from the usual time that the machine must have changed. */
bool watch_has_changed(const struct watch *watch);
/* Adds the time of a call. Returns watch_has_changed. */
bool watch_add(struct watch *watch, double ns);
/* Returns true if the usual time is known. */
bool watch_knows(const struct watch *watch);
