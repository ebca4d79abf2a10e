/* Collectives and algorithms by the names that users write. */
#pragma once
#include "backend/collectives/collectives.h"
#include <stdatomic.h>

/* Returns the name of the algorithm with that index (0, 1, …) of a collective. NULL: past the last one, or the
   collective is unknown. */
const char *algorithm_name(const char *family, int index);
tutti_status algorithm_by_name(const char *family, const char *name, const struct algorithm **out);
/* `text` is a name, or a list as below. Entries of a list for other collectives are only checked. *out is NULL if the
   list names no algorithm for this collective. */
tutti_status algorithm_for(enum family family, const char *text, const struct algorithm **out);
/* Parses "allreduce=ring,broadcast=chain": checks every name and stores the choices. */
tutti_status algorithms_parse(const char *text, _Atomic(const struct algorithm *) chosen[FAMILY_COUNT]);
tutti_status algorithms_of_settings(_Atomic(const struct algorithm *) chosen[FAMILY_COUNT]);
