/* Collectives and algorithms by the names that people write. */
#pragma once
#include "backend/collectives/collectives.h"
#include <stdatomic.h>

/* Of a collective, index 0, 1, … until NULL; NULL, too, of an unknown one. */
const char *algorithm_name(const char *family, int index);
tutti_status algorithm_by_name(const char *family, const char *name, const struct algorithm **out);
/* `text`: a name, or a list as below, in which those of other families are only checked; *out NULL: none is chosen */
tutti_status algorithm_for(enum family family, const char *text, const struct algorithm **out);
/* "allreduce=ring,broadcast=chain": checks every name and stores the choices. */
tutti_status algorithms_parse(const char *text, _Atomic(const struct algorithm *) chosen[FAMILY_COUNT]);
tutti_status algorithms_of_settings(_Atomic(const struct algorithm *) chosen[FAMILY_COUNT]);
