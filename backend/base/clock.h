/* Time that only moves forward. */
#pragma once
#include <pthread.h>
#include <stdint.h>

int64_t clock_ns(void);
int64_t clock_ms(void);
/* Returns now + timeout_ms without overflow; timeout_ms <= 0 means never. */
int64_t clock_deadline(int64_t timeout_ms);
/* Initializes a condition whose timed waits use CLOCK_MONOTONIC, which is never set back. */
void clock_condition_init(pthread_cond_t *condition);
