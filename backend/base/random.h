/* Gets random bytes from the operating system, for ids, names and tokens. */
#pragma once
#include "include/tutti.h"

tutti_status random_fill(void *bytes, size_t count);
