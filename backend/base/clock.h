/* Time that only moves forward. */
#pragma once
#include <stdint.h>

int64_t clock_ns(void);
int64_t clock_ms(void);
/* now + timeout_ms, without overflow; timeout_ms <= 0 means never. */
int64_t clock_deadline(int64_t timeout_ms);
