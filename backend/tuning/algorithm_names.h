/* Collectives and algorithms by the names that users write. */
#pragma once
#include "backend/collectives/collectives.h"
#include <stdatomic.h>

/* Returns the name of the algorithm with that index (0, 1, …) of a collective. NULL: past the last one, or the
   collective is unknown. */
const char *algorithm_name_at_index(const char *collective, int index);
/* Finds an algorithm by the names of its collective and of itself. INVALID_ARGUMENT, with the nearest name. */
tutti_status algorithm_find_by_name(const char *collective, const char *name, const struct algorithm **out);
/* Finds the algorithm that `text` names for a collective. `text` is a name, or a list as below, whose entries for other
   collectives are only checked. *out is NULL if the list has no entry for this collective. */
tutti_status algorithm_find_for_collective(enum collective collective, const char *text, const struct algorithm **out);
/* Parses "allreduce=ring,broadcast=chain": sets chosen[collective] for each entry. INVALID_ARGUMENT for an unknown
   name. */
tutti_status algorithms_parse_list(const char *text, _Atomic(const struct algorithm *) chosen[COLLECTIVE_COUNT]);
/* Parses the list of TUTTI_ALGORITHM. */
tutti_status algorithms_read_settings(_Atomic(const struct algorithm *) chosen[COLLECTIVE_COUNT]);
