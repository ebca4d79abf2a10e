/* The loops of kernels/update.h in plain C, compiled and vectorized once per instruction set. fmaf is one instruction
 * if the set has it. -ffp-contract=off keeps all other operations separate. */
#include "kernels/update.h"
#include <math.h>

/* Returns element i of `from`, which has float32 if is_float32, else bfloat16. */
INLINE float gradient_load_float(const void *from, size_t i, bool is_float32)
{
    return is_float32 ? ((const float *)from)[i] : bfloat16_to_float(((const uint16_t *)from)[i]);
}
/* Returns element i of `from`, whose numbers are FLOAT32, BFLOAT16 or FLOAT16. */
INLINE float number_load_float(const void *from, size_t i, tutti_dtype dtype)
{
    return dtype == TUTTI_FLOAT32 ? ((const float *)from)[i] : narrow_to_float(((const uint16_t *)from)[i], dtype);
}

/* ---- one element; the moments are updated in place ---- */
/* Updates the moments of one element by Adam. The caller has multiplied the gradient by f->scale, and for Adam applied
   f->decay. */
INLINE void adam_update_moments(const struct update_factors *f, float gradient, float *first, float *second)
{
    /* The interpolation starts from the nearer end, as in torch. */
    bool near = f->take1 < 0.5f;
    *first = fmaf(near ? f->take1 : f->take1 - 1.0f, gradient - *first, near ? *first : gradient);
    *second = fmaf(f->take2 * gradient, gradient, *second * f->keep2);
}
/* Returns the new value of one element by Adam. For AdamW the caller has applied f->decay. square_root: of the second
   moment. */
INLINE float adam_update_value(const struct update_factors *f, float value, float first, float square_root)
{
    return value - f->rate * first / (square_root / f->root + f->epsilon);
}
/* Returns the new value of one element by SGD, and updates its moment *first; first is NULL without momentum. The
   caller has multiplied the gradient by f->scale. */
INLINE float sgd_update_element(const struct update_factors *f, float gradient, float value, float *first)
{
    gradient = fmaf(value, f->decay, gradient);
    if (first) gradient = *first = f->is_first_step ? gradient : *first * f->momentum + gradient;
    return fmaf(gradient, -f->rate, value);
}

/* ---- arrays ---- */
/* Updates `count` elements by AdamW if is_adamw, else by Adam. The gradients are of type `dtype`. If that is not
   FLOAT32, a->narrow gets a copy of the values in `dtype`. */
INLINE void update_adam(const struct update_arrays *a, size_t count, const struct update_factors *factors,
    bool is_adamw, tutti_dtype dtype)
{
    const struct update_factors f = *factors;
    float *restrict value = a->value, *restrict first = a->first, *restrict second = a->second;
    uint16_t *restrict narrow = a->narrow;
    for (size_t i = 0; i < count; i++) {
        float g = number_load_float(a->gradient, i, dtype) * f.scale, old = value[i], m = first[i], v = second[i];
        adam_update_moments(&f, is_adamw ? g : fmaf(old, f.decay, g), &m, &v);
        float new = adam_update_value(&f, is_adamw ? old * f.decay : old, m, sqrtf(v));
        first[i] = m;
        second[i] = v;
        value[i] = new;
        if (dtype != TUTTI_FLOAT32) narrow[i] = narrow_from_float(new, dtype);
    }
}
/* Does what update_adam does for the elements from `begin` to `end`, at most ROOTS, with the caller's square roots. */
enum { ROOTS = 2048 };
INLINE void update_adam_some(const struct update_arrays *a, size_t begin, size_t end,
    const struct update_factors *factors, bool is_adamw, tutti_dtype dtype)
{
    const struct update_factors f = *factors;
    float *restrict value = a->value, *restrict first = a->first, *restrict second = a->second;
    uint16_t *restrict narrow = a->narrow;
    float root[ROOTS];
    for (size_t i = begin; i < end; i++) {
        float g = number_load_float(a->gradient, i, dtype) * f.scale, m = first[i], v = second[i];
        adam_update_moments(&f, is_adamw ? g : fmaf(value[i], f.decay, g), &m, &v);
        first[i] = m;
        second[i] = v;
    }
    f.square_roots((int)(end - begin), second + begin, root, f.square_roots_mode);
    for (size_t i = begin; i < end; i++) {
        float old = value[i], new = adam_update_value(&f, is_adamw ? old * f.decay : old, first[i], root[i - begin]);
        value[i] = new;
        if (dtype != TUTTI_FLOAT32) narrow[i] = narrow_from_float(new, dtype);
    }
}
/* Calls update_adam, or update_adam_some for each part of the elements if the caller computes the square roots. */
INLINE void update_adam_all(const struct update_arrays *a, size_t count, const struct update_factors *f, bool is_adamw,
    tutti_dtype dtype)
{
    if (!f->square_roots) update_adam(a, count, f, is_adamw, dtype);
    else
        for (size_t i = 0; i < count; i += ROOTS)
            update_adam_some(a, i, count - i < ROOTS ? count : i + ROOTS, f, is_adamw, dtype);
}
/* Updates `count` elements by SGD, with momentum in a->first if has_momentum. dtype is as in update_adam. */
INLINE void update_sgd(const struct update_arrays *a, size_t count, const struct update_factors *factors,
    bool has_momentum, tutti_dtype dtype)
{
    const struct update_factors f = *factors;
    float *restrict value = a->value, *restrict first = a->first;
    uint16_t *restrict narrow = a->narrow;
    for (size_t i = 0; i < count; i++) {
        float m = has_momentum ? first[i] : 0;
        float gradient = number_load_float(a->gradient, i, dtype) * f.scale;
        float new = sgd_update_element(&f, gradient, value[i], has_momentum ? &m : NULL);
        if (has_momentum) first[i] = m;
        value[i] = new;
        if (dtype != TUTTI_FLOAT32) narrow[i] = narrow_from_float(new, dtype);
    }
}
/* Returns element i of `from`, whose numbers are of type `dtype`. */
INLINE double number_load_double(const void *from, size_t i, tutti_dtype dtype)
{
    return dtype == TUTTI_FLOAT64 ? ((const double *)from)[i] : (double)number_load_float(from, i, dtype);
}
/* Returns the sum of the squares of `count` numbers of type `dtype`. It adds them in sixteen sums for any vector width,
   so that the result is equal on all instruction sets. */
INLINE double numbers_sum_squares(const void *from, size_t count, tutti_dtype dtype)
{
    enum { SUMS = 16 };
    double sum[SUMS] = { 0 };
    for (size_t i = 0; i + SUMS <= count; i += SUMS)
        for (size_t k = 0; k < SUMS; k++) {
            double number = number_load_double(from, i + k, dtype);
            sum[k] += number * number;
        }
    for (size_t i = count / SUMS * SUMS; i < count; i++) {
        double number = number_load_double(from, i, dtype);
        sum[i % SUMS] += number * number;
    }
    for (size_t k = SUMS / 2; k > 0; k /= 2)
        for (size_t l = 0; l < k; l++) sum[l] += sum[l + k];
    return sum[0];
}
#define UPDATE_MAP(X)  X(FLOAT32) X(BFLOAT16) X(FLOAT16)
#define SQUARES_MAP(X) UPDATE_MAP(X) X(FLOAT64)
#define X(dtype)                                                                                                       \
    static void sgd_##dtype(const struct update_arrays *a, size_t count, const struct update_factors *f)               \
    {                                                                                                                  \
        if (a->first) update_sgd(a, count, f, true, TUTTI_##dtype);                                                    \
        else update_sgd(a, count, f, false, TUTTI_##dtype);                                                            \
    }                                                                                                                  \
    static void adam_##dtype(const struct update_arrays *a, size_t count, const struct update_factors *f)              \
    {                                                                                                                  \
        update_adam_all(a, count, f, false, TUTTI_##dtype);                                                            \
    }                                                                                                                  \
    static void adamw_##dtype(const struct update_arrays *a, size_t count, const struct update_factors *f)             \
    {                                                                                                                  \
        update_adam_all(a, count, f, true, TUTTI_##dtype);                                                             \
    }
UPDATE_MAP(X)
#undef X
#define X(dtype)                                                                                                       \
    static double squares_##dtype(const void *from, size_t count)                                                      \
    {                                                                                                                  \
        return numbers_sum_squares(from, count, TUTTI_##dtype);                                                        \
    }
SQUARES_MAP(X)
#undef X
