/* Each rank keeps its part of the optimizer: the moments of its slices, and a float32 copy of slices in bfloat16 or
   float16. */
#pragma once
#include "kernels/update.h"
#include "zero/partition.h"
#include "zero/state_file.h"

/* The optimizer's arrays for this rank's slice of one unit. `value` is the slice itself if that is float32 or float64,
   or an owned float32 copy. `first` and `second` are moments; NULL if the rule has none. */
struct optimizer_state {
    void *value, *slice;
    float *first, *second;
};
struct optimizer {
    const struct partition *partition;
    tutti_zero_rule rule;
    /* Copied from the tutti_zero_config. */
    tutti_square_roots *square_roots;
    int64_t square_roots_mode;
    struct optimizer_state *state;                      /* [units], owned */
    /* The file that has the moments and float32 copies, if the caller has named a directory. */
    struct state_file file;
    /* This many steps have updated each parameter. */
    uint64_t *steps;                                    /* [parameters], owned */
    /* The bytes of moments and of float32 copies in memory, without those in the file. */
    uint64_t state_bytes;
};
/* Allocates the list of states, and creates the file for them if the config names a directory. optimizer_set_slice
   allocates the arrays. The caller must call optimizer_finish in every case. */
tutti_status optimizer_init(struct optimizer *optimizer, const struct partition *partition,
    const tutti_zero_config *config);
void optimizer_finish(struct optimizer *optimizer);
/* Sets this rank's slice of the unit, takes its values, and allocates its moments. The slice must stay in place. */
tutti_status optimizer_set_slice(struct optimizer *optimizer, int unit, void *slice);
/* Takes one optimizer step for this rank's slice of the unit. `gradient` is the averaged gradient of the slice in the
   type of sums, and is multiplied by `scale`. used[parameters] is 0 for parameters without a gradient, which stay.
   rates: [groups]. */
void optimizer_update_unit(struct optimizer *optimizer, int unit, const void *gradient, const uint8_t *used,
    const tutti_zero_rates *rates, double scale);
/* Rounds the float32 values, which the caller has written, to a bfloat16 or float16 slice. Other slices are themselves
   the values. */
void optimizer_copy_to_slice(struct optimizer *optimizer, int unit);
/* Returns the sum of the squares of `gradient`, the averaged gradient of this rank's slice, without padding. */
double optimizer_sum_squares(const struct optimizer *optimizer, int unit, const void *gradient);
