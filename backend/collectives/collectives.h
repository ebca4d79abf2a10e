/* The table of all algorithms, and names for people. */
#pragma once
#include "backend/schedule/schedule.h"

extern const struct algorithm collectives_table[];                     /* grouped by family; ends with name NULL */
const char *family_name(enum family family);                           /* "allreduce", "reduce_scatter", … */
const struct algorithm *collectives_find(enum family family, const char *name);        /* NULL: none of that name */
