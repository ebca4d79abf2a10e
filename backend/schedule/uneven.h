/* The counts of an operation whose parts differ in length. */
#pragma once
#include "backend/schedule/schedule.h"

/* The buffer whose lengths must be equal on all ranks. IN_PAIRS: a rank sends what its peer expects. */
enum { EQUAL_INPUT = INPUT, EQUAL_OUTPUT = OUTPUT, IN_PAIRS };
struct uneven {
    /* [buffer][rank]: bytes of INPUT or OUTPUT that belong to each rank, and where they begin. A buffer of one part
       uses rank 0 only. */
    size_t *lengths[2], *offsets[2];
    /* The lengths that must agree: EQUAL_OUTPUT for all_gather_v, EQUAL_INPUT for reduce_scatter_v, IN_PAIRS for
       all_to_all_v. */
    int agreement;
};
/* True if all ranks must give the same lengths. False: only each pair of ranks must agree. */
static inline bool uneven_is_equal_on_ranks(const struct uneven *uneven) { return uneven->agreement != IN_PAIRS; }
