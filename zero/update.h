/* Each rank keeps its part of the optimizer: the moments of its slices, and a float32 copy of slices in bfloat16. */
#pragma once
#include "kernels/update.h"
#include "zero/partition.h"

/* Each unit has one of these. `value` is the slice itself, or an owned copy. */
struct optimizer_state {
    float *value, *first, *second;
    void *slice;
};
struct optimizer {
    const struct partition *partition;
    tutti_zero_rule rule;
    struct optimizer_state *state;                      /* [units], owned */
    /* This many steps have updated each parameter. */
    uint64_t *steps;                                    /* [parameters], owned */
    uint64_t state_bytes;
};
tutti_status optimizer_init(struct optimizer *optimizer, const struct partition *partition, tutti_zero_rule rule);
void optimizer_finish(struct optimizer *optimizer);
/* Takes the first values from the slice, which must stay in place. */
tutti_status optimizer_set_slice(struct optimizer *optimizer, int unit, void *slice);
/* Takes one step of the unit's pieces that are used. gradient: the averaged gradient of the slice. */
void optimizer_update_unit(struct optimizer *optimizer, int unit, const void *gradient, const uint8_t *used,
    const tutti_zero_rates *rates, double scale);
/* Copies the values that the caller has written to the slice. */
void optimizer_copy_to_slice(struct optimizer *optimizer, int unit);
/* Returns the sum of squares of this rank's gradients of the unit. */
double optimizer_sum_squares(const struct optimizer *optimizer, int unit, const void *gradient);
