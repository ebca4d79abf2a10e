/* What a model is cut into: constant, the same on all ranks but for the pieces, which are this rank's. */
#pragma once
#include "include/tutti_zero.h"

struct place_of_parameter { size_t count, offset; int unit, group; };  /* offset: in its unit, in elements */
struct slice_piece {
    int parameter;
    size_t at, from, count;
}; /* of a parameter, from element `at`; `from`: in the slice */
struct unit_partition {
    tutti_dtype dtype;
    size_t element;                                     /* bytes of one */
    size_t slice, count;                                /* elements of a slice, and of all, with padding */
    int first_parameter, parameters;
    int first_piece, pieces;                            /* of this rank */
};
struct partition {
    int rank, ranks, parameters, units, groups;
    int slices;                                         /* of a unit: one for each rank, or one for all */
    struct place_of_parameter *parameter;               /* [parameters] */
    struct unit_partition *unit;                             /* [units] */
    struct slice_piece *piece;                                /* [parameters] at most */
};
/* INVALID_ARGUMENT, NO_MEMORY. partition_finish is due in every case. */
tutti_status partition_init(struct partition *partition, const tutti_zero_config *config, int rank, int ranks);
void partition_finish(struct partition *partition);
/* Of a unit's flat array, padding included. */
static inline size_t partition_bytes(const struct partition *partition, int unit)
{
    return partition->unit[unit].count * partition->unit[unit].element;
}
/* Which slice is that of a rank. */
static inline int partition_slice(const struct partition *partition, int rank)
{
    return partition->slices == 1 ? 0 : rank;
}
/* What of a parameter lies in the slice of a rank. */
struct slice_piece partition_piece(const struct partition *partition, int parameter, int rank);
/* Equal partitions have equal ones. */
uint64_t partition_digest(const struct partition *partition, const tutti_zero_config *config);
