/* The steps of optimizers, in one pass over what a rank owns: each element is read once, scaled, brought into the
 * moments and the value, and stored, with a copy in bfloat16 where that is what the model computes in.
 *
 * All arithmetic is in float32, each line one correctly rounded operation or one fused multiply-add, the same on every
 * instruction set. For float32 the bits are those of torch.optim with fused=True on a CPU (seen with torch 2.13). */
#pragma once
#include "include/tutti.h"
#include <string.h>

/* ---- bfloat16 ---- */
static inline float update_widen(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float number;
    memcpy(&number, &wide, sizeof number);
    return number;
}
static inline uint16_t update_narrow(float number) /* nearest, ties to even; NaN as torch has it */
{
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

/* ---- steps ---- */
enum update_rule { UPDATE_SGD, UPDATE_ADAM, UPDATE_ADAMW, UPDATE_RULES };
/* Of all elements alike; to be computed in float64, then rounded. */
struct update_factors {
    float scale;           /* of gradients: 1 ÷ the loss's scale, the share that clipping leaves */
    float rate;            /* SGD: the learning rate; Adam: the same ÷ (1 - beta1^step) */
    float decay;           /* SGD, Adam: what times the value joins the gradient; AdamW: what is left of the value, 1 -
                              the learning rate * weight decay */
    float momentum;        /* SGD */
    float take1, keep2, take2; /* Adam: 1 - beta1, beta2, 1 - beta2 */
    float root, epsilon;   /* Adam: sqrt(1 - beta2^step) */
    bool begins;           /* SGD: the first step; the moment becomes the gradient */
};
/* Of `count` elements; none overlaps another. */
struct update_arrays {
    float *value, *first, *second; /* the moments: of SGD `second` is NULL, without momentum `first` as well */
    const void *gradient;
    uint16_t *narrow;              /* of bfloat16 gradients: the value in bfloat16 */
};
typedef void update_function(const struct update_arrays *arrays, size_t count, const struct update_factors *factors);
/* NULL: no such rule, or gradients that are neither FLOAT32 nor BFLOAT16. */
update_function *update_find(enum update_rule rule, tutti_dtype gradient);

/* ---- norms ---- */
/* The sum of the squares, in float64, in an order that depends on `count` alone. NULL likewise. */
typedef double squares_function(const void *from, size_t count);
squares_function *squares_find(tutti_dtype dtype);
