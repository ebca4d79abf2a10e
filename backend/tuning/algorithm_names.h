/* Collectives and algorithms by the names that users write. */
#pragma once
#include "backend/collectives/collectives.h"
#include <stdatomic.h>

/* Returns the name of the algorithm with that index (0, 1, …) of a collective. NULL: past the last one, or the
   collective is unknown. */
const char *algorithm_name_at_index(const char *collective, int index);
tutti_status algorithm_find_by_name(const char *collective, const char *name, const struct algorithm **out);
/* `text` is a name, or a list as below. Entries of a list for other collectives are only checked. *out is NULL if the
   list names no algorithm for this collective. */
tutti_status algorithm_find_for_collective(enum collective collective, const char *text, const struct algorithm **out);
/* Parses "allreduce=ring,broadcast=chain": checks every name and stores the choices. */
tutti_status algorithms_parse_list(const char *text, _Atomic(const struct algorithm *) chosen[COLLECTIVE_COUNT]);
tutti_status algorithms_read_settings(_Atomic(const struct algorithm *) chosen[COLLECTIVE_COUNT]);
