/* A simulated clock, in place of backend/base/clock.c. It moves by 1 ns with each reading, and by the duration of each
   sleep, which returns at once. So no code waits, and the same input takes the same path each time. */
#pragma once
#include "backend/base/clock.h"
#include <time.h>

/* The time in ns, and the factor by which the time of a sleep is longer than its duration. */
static int64_t simulated_ns = 1000000000, simulated_sleep_factor = 1;

int64_t clock_ns(void) { return ++simulated_ns; }
int64_t clock_ms(void) { return clock_ns() / 1000000; }
int64_t clock_deadline(int64_t timeout_ms)
{
    int64_t now_ms = clock_ms();
    return timeout_ms <= 0 || timeout_ms > INT64_MAX - now_ms ? INT64_MAX : now_ms + timeout_ms;
}
void clock_condition_init(pthread_cond_t *condition) { pthread_cond_init(condition, NULL); }
int nanosleep(const struct timespec *duration, struct timespec *rest)
{
    (void)rest;
    simulated_ns += (duration->tv_sec * 1000000000 + duration->tv_nsec) * simulated_sleep_factor;
    return 0;
}
