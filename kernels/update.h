/* Takes optimizer steps in one pass over a rank's elements. Each element is read once and scaled, updates the moments
 * and the value, and is stored. Models in bfloat16 or float16 also get a copy in their type.
 *
 * All arithmetic is in float32. Each operation, also a fused multiply-add, is correctly rounded, so results are the
 * same on every instruction set, but for square roots that the caller computes. For float32, results are bit-identical
 * to torch.optim with fused=True on a CPU, and without fused if torch computes the square roots (tested with torch
 * 2.13). */
#pragma once
#include "include/tutti.h"
#include <string.h>

/* ---- bfloat16 ---- */
/* Returns the value of the bfloat16 with these bits. */
static inline float bfloat16_to_float(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float number;
    memcpy(&number, &wide, sizeof number);
    return number;
}
/* Returns the bits of the nearest bfloat16, ties to even. NaNs become the NaN of torch. */
static inline uint16_t bfloat16_from_float(float number)
{
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

/* ---- float16 ---- */
/* Returns the value of the float16 with these bits. */
static inline float float16_to_float(uint16_t bits)
{
    uint32_t magnitude = bits & 0x7fffu, sign = (uint32_t)(bits & 0x8000u) << 16, denormal, wide;
    float number = (float)(int32_t)magnitude * 0x1p-24f;
    memcpy(&denormal, &number, sizeof denormal);
    wide = magnitude < 0x400u ? denormal : (magnitude << 13) + (112u << 23);
    wide |= sign | (magnitude >= 0x7c00u ? 0x7f800000u : 0u);
    memcpy(&number, &wide, sizeof number);
    return number;
}
/* Returns the bits of the nearest float16, ties to even. Too large numbers become infinite, and NaNs the quiet NaN. */
static inline uint16_t float16_from_float(float number)
{
    uint32_t bits, denormal;
    memcpy(&bits, &number, sizeof bits);
    uint32_t whole = bits & 0x7fffffffu, magnitude = whole < 0x47800000u ? whole : 0x47800000u;
    uint32_t normal = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
    memcpy(&number, &magnitude, sizeof number);
    number += 0.5f;
    memcpy(&denormal, &number, sizeof denormal);
    uint32_t rounded = magnitude < 113u << 23 ? denormal - 0x3f000000u : normal;
    return (uint16_t)(whole > 0x7f800000u ? 0x7e00u : (bits >> 16 & 0x8000u) | rounded);
}

/* ---- either ---- */
/* Converts a number from and to `dtype`, BFLOAT16 or FLOAT16. */
static inline float narrow_to_float(uint16_t bits, tutti_dtype dtype)
{
    return dtype == TUTTI_BFLOAT16 ? bfloat16_to_float(bits) : float16_to_float(bits);
}
static inline uint16_t narrow_from_float(float number, tutti_dtype dtype)
{
    return dtype == TUTTI_BFLOAT16 ? bfloat16_from_float(number) : float16_from_float(number);
}
/* Convert `count` numbers from and to `dtype`, BFLOAT16 or FLOAT16. The arrays must not overlap. */
static inline void narrow_to_floats(float *restrict to, const uint16_t *restrict from, size_t count, tutti_dtype dtype)
{
    if (dtype == TUTTI_BFLOAT16)
        for (size_t i = 0; i < count; i++) to[i] = bfloat16_to_float(from[i]);
    else
        for (size_t i = 0; i < count; i++) to[i] = float16_to_float(from[i]);
}
static inline void narrow_from_floats(uint16_t *restrict to, const float *restrict from, size_t count,
    tutti_dtype dtype)
{
    if (dtype == TUTTI_BFLOAT16)
        for (size_t i = 0; i < count; i++) to[i] = bfloat16_from_float(from[i]);
    else
        for (size_t i = 0; i < count; i++) to[i] = float16_from_float(from[i]);
}

/* ---- steps ---- */
enum update_rule { UPDATE_SGD, UPDATE_ADAM, UPDATE_ADAMW, UPDATE_RULES };
/* Computes the square roots of `count` numbers; `to` may be `from`. The form is that of vmsSqrt of Intel's MKL, whose
   `mode` selects the accuracy. */
typedef void square_roots_function(int count, const float *from, float *to, int64_t mode);
/* The factors of one step, the same for all elements. The caller computes them in float64, then rounds. */
struct update_factors {
    /* Gradients are multiplied by this: 1 ÷ the loss's scale, times the factor of clipping. */
    float scale;
    /* SGD uses the learning rate, Adam the learning rate ÷ (1 - beta1^step). */
    float rate;
    /* SGD and Adam add decay * value to the gradient. AdamW multiplies the value by 1 - learning rate * weight
       decay. */
    float decay;
    /* Only SGD has momentum. */
    float momentum;
    /* Adam uses 1 - beta1, beta2, 1 - beta2, and sqrt(1 - beta2^step) as root. */
    float take1, keep2, take2;
    float root, epsilon;
    /* True in the first step of SGD: the moment becomes the gradient. */
    bool is_first_step;
    /* Adam calls this for the square roots of the second moments. NULL: they are correctly rounded. */
    square_roots_function *square_roots;
    int64_t square_roots_mode;
};
/* The arrays of an update, each of `count` elements. They must not overlap. */
struct update_arrays {
    /* `first` and `second` are moments. SGD has no `second`, and without momentum no `first`; they are NULL. */
    float *value, *first, *second;
    const void *gradient;
    /* With bfloat16 or float16 gradients this gets the value in their type. */
    uint16_t *narrow;
};
/* Takes one optimizer step for `count` elements. */
typedef void update_function(const struct update_arrays *arrays, size_t count, const struct update_factors *factors);
/* Returns the function of a rule for gradients of a type, or NULL for an unknown rule and for gradients of other types
   than FLOAT32, BFLOAT16 and FLOAT16. */
update_function *update_find(enum update_rule rule, tutti_dtype gradient);

/* ---- norms ---- */
/* Returns the sum of the squares of `count` numbers, in float64, added in an order that depends only on `count`. */
typedef double squares_function(const void *from, size_t count);
/* Returns the function for numbers of this type, or NULL for types other than FLOAT64, FLOAT32, BFLOAT16 and
   FLOAT16. */
squares_function *squares_find(tutti_dtype dtype);
