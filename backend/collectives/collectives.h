/* The table of all algorithms, and readable names of collectives. */
#pragma once
#include "backend/schedule/schedule.h"

/* All algorithms, grouped by collective; the last row has name NULL. */
extern const struct algorithm collectives_table[];
/* Returns a name such as "allreduce" or "reduce_scatter". */
const char *collective_name(enum collective collective);
/* Returns the algorithm of that name for a collective, or NULL. */
const struct algorithm *collectives_find_algorithm(enum collective collective, const char *name);
