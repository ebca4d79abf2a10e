/* Time that only moves forward. */
#pragma once
#include <pthread.h>
#include <stdint.h>

/* These return the time of CLOCK_MONOTONIC in nanoseconds and in milliseconds. */
int64_t clock_ns(void);
int64_t clock_ms(void);
/* Returns the clock_ms() at which a timeout that begins now ends. It is INT64_MAX (never) if timeout_ms <= 0, or if the
   sum would overflow. */
int64_t clock_deadline(int64_t timeout_ms);
/* Returns for how many ms a thread may sleep so that it wakes up by deadline_ms: at least 1, and at most `most_ms`. */
int clock_limit_sleep(int most_ms, int64_t deadline_ms);
/* Initializes a condition whose timed waits use CLOCK_MONOTONIC, which is never set back. */
void clock_condition_init(pthread_cond_t *condition);
