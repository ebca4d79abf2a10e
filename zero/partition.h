/* Divides a model into units and slices. A partition is constant and the same on all ranks, except for the pieces,
   which are this rank's. */
#pragma once
#include "include/tutti_zero.h"

/* A parameter has `count` elements from element `offset` of its unit's flat array. `group` selects its rates. */
struct place_of_parameter { size_t count, offset; int unit, group; };
/* A piece is the part of a parameter in a slice: `count` elements, which begin at element `at` of the parameter and at
   element `from` of the slice. */
struct slice_piece {
    int parameter;
    size_t at, from, count;
};
struct unit_partition {
    /* Parameters and their gradients have `dtype`. Sums of gradients over ranks have sum_dtype. */
    tutti_dtype dtype, sum_dtype;
    size_t element, sum_element;                        /* bytes of one element of the two types */
    size_t slice, count;                                /* elements of a slice and of the unit, with padding */
    /* The unit has `parameters` parameters from number first_parameter on. */
    int first_parameter, parameters;
    /* This rank's pieces of the unit are `pieces` entries of partition.piece from first_piece on. */
    int first_piece, pieces;
};
struct partition {
    /* `rank` is this rank. The others are counts. */
    int rank, ranks, parameters, units, groups;
    /* The number of slices of each unit: one for each rank, or 1 if all ranks have the same single slice (WHOLE). */
    int slices;
    struct place_of_parameter *parameter;               /* [parameters], owned */
    struct unit_partition *unit;                        /* [units], owned */
    struct slice_piece *piece;                          /* up to [parameters], owned */
};
/* Checks the model in `config`, and lays out its units, slices and pieces for this rank of `ranks`. Returns
   INVALID_ARGUMENT or NO_MEMORY on failure. The caller must call partition_finish in every case. */
tutti_status partition_init(struct partition *partition, const tutti_zero_config *config, int rank, int ranks);
void partition_finish(struct partition *partition);
/* Returns the bytes of a unit's flat array, with padding. */
static inline size_t partition_unit_bytes(const struct partition *partition, int unit)
{
    return partition->unit[unit].count * partition->unit[unit].element;
}
/* Returns the bytes of a unit's gradients in the type of sums, with padding. */
static inline size_t partition_sum_bytes(const struct partition *partition, int unit)
{
    return partition->unit[unit].count * partition->unit[unit].sum_element;
}
/* Returns the number of the slice that a rank owns: 0 if there is one slice for all ranks. */
static inline int partition_find_slice(const struct partition *partition, int rank)
{
    return partition->slices == 1 ? 0 : rank;
}
/* Returns the part of a parameter in the slice of a rank. Its count is 0 if the slice has none of the parameter. */
struct slice_piece partition_find_piece(const struct partition *partition, int parameter, int rank);
/* Returns a hash of the model, the placement, the rule, whether the caller computes square roots, the types of sums,
   and prefetch or `ahead`, by which ranks compare their models: equal inputs give equal digests. */
uint64_t partition_digest(const struct partition *partition, const tutti_zero_config *config);
