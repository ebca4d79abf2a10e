/* The table of all algorithms, and readable names of collectives. */
#pragma once
#include "backend/schedule/schedule.h"

/* Grouped by collective; the last row has name NULL. */
extern const struct algorithm collectives_table[];
/* Returns a name such as "allreduce" or "reduce_scatter". */
const char *family_name(enum family family);
/* NULL: the collective has no algorithm of that name. */
const struct algorithm *collectives_find(enum family family, const char *name);
