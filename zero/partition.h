/* Divides a model into units and slices. A partition is constant and the same on all ranks, except for the pieces,
   which are this rank's. */
#pragma once
#include "include/tutti_zero.h"

/* The offset of a parameter in its unit is in elements. */
struct place_of_parameter { size_t count, offset; int unit, group; };
/* A piece is the part of a parameter in a slice: `count` elements from element `at` of the parameter and element `from`
   of the slice. */
struct slice_piece {
    int parameter;
    size_t at, from, count;
};
struct unit_partition {
    tutti_dtype dtype;
    size_t element;                                     /* bytes of one */
    size_t slice, count;                                /* elements of a slice and of the unit, with padding */
    int first_parameter, parameters;
    /* These are the pieces of this rank. */
    int first_piece, pieces;
};
struct partition {
    int rank, ranks, parameters, units, groups;
    /* A unit has one slice for each rank, or one for all. */
    int slices;
    struct place_of_parameter *parameter;               /* [parameters], owned */
    struct unit_partition *unit;                        /* [units], owned */
    struct slice_piece *piece;                          /* up to [parameters], owned */
};
/* Errors: INVALID_ARGUMENT, NO_MEMORY. The caller must call partition_finish in every case. */
tutti_status partition_init(struct partition *partition, const tutti_zero_config *config, int rank, int ranks);
void partition_finish(struct partition *partition);
/* Returns the bytes of a unit's flat array, with padding. */
static inline size_t partition_bytes(const struct partition *partition, int unit)
{
    return partition->unit[unit].count * partition->unit[unit].element;
}
/* Returns the slice of a rank. */
static inline int partition_slice(const struct partition *partition, int rank)
{
    return partition->slices == 1 ? 0 : rank;
}
/* Returns the part of a parameter in the slice of a rank. */
struct slice_piece partition_piece(const struct partition *partition, int parameter, int rank);
/* Equal partitions have equal digests. */
uint64_t partition_digest(const struct partition *partition, const tutti_zero_config *config);
