/* The table of all algorithms, and readable names of collectives. */
#pragma once
#include "backend/schedule/schedule.h"

/* Grouped by collective; the last row has name NULL. */
extern const struct algorithm collectives_table[];
/* Returns a name such as "allreduce" or "reduce_scatter". */
const char *collective_name(enum collective collective);
/* NULL: the collective has no algorithm of that name. */
const struct algorithm *collectives_find_algorithm(enum collective collective, const char *name);
