/* Gets random bytes from the operating system, for ids, names and tokens. */
#pragma once
#include "include/tutti.h"

/* Fills `out` with random bytes. SYSTEM: getrandom failed. */
tutti_status random_fill(void *out, size_t bytes);
