/* Time that only moves forward. */
#pragma once
#include <pthread.h>
#include <stdint.h>

int64_t clock_ns(void);
int64_t clock_ms(void);
/* now + timeout_ms, without overflow; timeout_ms <= 0 means never. */
int64_t clock_deadline(int64_t timeout_ms);
/* A condition whose timed waits go by this clock (CLOCK_MONOTONIC), which nobody sets. */
void clock_condition_init(pthread_cond_t *condition);
