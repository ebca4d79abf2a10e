/* Reads CLOCK_MONOTONIC in nanoseconds and milliseconds. */
#include "backend/base/clock.h"
#include <time.h>

int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
int64_t clock_ms(void) { return clock_ns() / 1000000; }
int64_t clock_deadline(int64_t timeout_ms)
{
    int64_t now = clock_ms();
    return timeout_ms <= 0 || timeout_ms > INT64_MAX - now ? INT64_MAX : now + timeout_ms;
}
int clock_limit_sleep(int most_ms, int64_t deadline_ms)
{
    int64_t left_ms = deadline_ms - clock_ms();
    return left_ms < 1 ? 1 : left_ms < most_ms ? (int)left_ms : most_ms;
}
void clock_condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}
