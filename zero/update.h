/* What a rank keeps of the optimizer: the moments of its slices, and a float32 copy of slices in bfloat16. */
#pragma once
#include "kernels/update.h"
#include "zero/partition.h"

struct optimizer_state {
    float *value, *first, *second;
    void *slice;
};          /* of one unit; value: slice, or a copy of its own */
struct optimizer {
    const struct partition *partition;
    tutti_zero_rule rule;
    struct optimizer_state *state;                                /* [units] */
    uint64_t *steps;                                    /* [parameters] that have updated it */
    uint64_t state_bytes;
};
tutti_status optimizer_init(struct optimizer *optimizer, const struct partition *partition, tutti_zero_rule rule);
void optimizer_finish(struct optimizer *optimizer);
/* The slice has its first values, and lies there from now on. */
tutti_status optimizer_begin(struct optimizer *optimizer, int unit, void *slice);
/* One step of the unit's pieces that are used. gradient: averaged, of the slice. */
void optimizer_update(struct optimizer *optimizer, int unit, const void *gradient, const uint8_t *used,
    const tutti_zero_rates *rates, double scale);
/* What the caller has written to `value` is what the slice has. */
void optimizer_copy(struct optimizer *optimizer, int unit);
double optimizer_squares(const struct optimizer *optimizer, int unit, const void *gradient);
