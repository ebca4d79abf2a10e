/* The loops of kernels/update.h in plain C, compiled and vectorized once per instruction set. fmaf is one instruction
 * if the set has it. -ffp-contract=off keeps all other operations separate. */
#include "kernels/update.h"
#include <math.h>

INLINE float gradient_load_float(const void *from, size_t i, bool wide)
{
    return wide ? ((const float *)from)[i] : bfloat16_to_float(((const uint16_t *)from)[i]);
}

/* ---- one element; the moments are updated in place ---- */
/* Updates one element and both moments by Adam, and returns its new value. */
INLINE float adam_update_element(const struct update_factors *f, float gradient, float value, float *first,
    float *second)
{
    /* The interpolation starts from the nearer end, as in torch. */
    bool near = f->take1 < 0.5f;
    *first = fmaf(near ? f->take1 : f->take1 - 1.0f, gradient - *first, near ? *first : gradient);
    *second = fmaf(f->take2 * gradient, gradient, *second * f->keep2);
    return value - f->rate * *first / (sqrtf(*second) / f->root + f->epsilon);
}
INLINE float sgd_update_element(const struct update_factors *f, float gradient, float value, float *first)
{
    gradient = fmaf(value, f->decay, gradient);
    if (first) gradient = *first = f->begins ? gradient : *first * f->momentum + gradient;
    return fmaf(gradient, -f->rate, value);
}

/* ---- arrays ---- */
/* Updates a piece by Adam, or by AdamW (`decoupled`). `wide`: gradients are float32, else bfloat16 with a copy of the
   values in `narrow`. */
INLINE void update_adam(const struct update_arrays *a, size_t count, const struct update_factors *given, bool decoupled,
    bool wide)
{
    const struct update_factors f = *given;
    float *restrict value = a->value, *restrict first = a->first, *restrict second = a->second;
    uint16_t *restrict narrow = a->narrow;
    for (size_t i = 0; i < count; i++) {
        float g = gradient_load_float(a->gradient, i, wide) * f.scale, old = value[i], m = first[i], v = second[i];
        float new = decoupled ? adam_update_element(&f, g, old * f.decay, &m, &v)
                              : adam_update_element(&f, fmaf(old, f.decay, g), old, &m, &v);
        first[i] = m;
        second[i] = v;
        value[i] = new;
        if (!wide) narrow[i] = bfloat16_from_float(new);
    }
}
/* Updates a piece by SGD, with momentum if `moves`. */
INLINE void update_sgd(const struct update_arrays *a, size_t count, const struct update_factors *given, bool moves,
    bool wide)
{
    const struct update_factors f = *given;
    float *restrict value = a->value, *restrict first = a->first;
    uint16_t *restrict narrow = a->narrow;
    for (size_t i = 0; i < count; i++) {
        float m = moves ? first[i] : 0;
        float new =
            sgd_update_element(&f, gradient_load_float(a->gradient, i, wide) * f.scale, value[i], moves ? &m : NULL);
        if (moves) first[i] = m;
        value[i] = new;
        if (!wide) narrow[i] = bfloat16_from_float(new);
    }
}
/* Adds squares in sixteen sums, for every vector width. */
INLINE double update_squares(const void *from, size_t count, bool wide)
{
    enum { SUMS = 16 };
    double sum[SUMS] = { 0 };
    for (size_t i = 0; i + SUMS <= count; i += SUMS)
        for (size_t k = 0; k < SUMS; k++) {
            double number = gradient_load_float(from, i + k, wide);
            sum[k] += number * number;
        }
    for (size_t i = count / SUMS * SUMS; i < count; i++) {
        double number = gradient_load_float(from, i, wide);
        sum[i % SUMS] += number * number;
    }
    for (size_t k = SUMS / 2; k > 0; k /= 2)
        for (size_t l = 0; l < k; l++) sum[l] += sum[l + k];
    return sum[0];
}
#define UPDATE_MAP(X) X(FLOAT32, true) X(BFLOAT16, false)
#define X(dtype, wide)                                                                                                 \
    static void sgd_##dtype(const struct update_arrays *a, size_t count, const struct update_factors *f)               \
    {                                                                                                                  \
        if (a->first) update_sgd(a, count, f, true, wide);                                                             \
        else update_sgd(a, count, f, false, wide);                                                                     \
    }                                                                                                                  \
    static void adam_##dtype(const struct update_arrays *a, size_t count, const struct update_factors *f)              \
    {                                                                                                                  \
        update_adam(a, count, f, false, wide);                                                                         \
    }                                                                                                                  \
    static void adamw_##dtype(const struct update_arrays *a, size_t count, const struct update_factors *f)             \
    {                                                                                                                  \
        update_adam(a, count, f, true, wide);                                                                          \
    }                                                                                                                  \
    static double squares_##dtype(const void *from, size_t count) { return update_squares(from, count, wide); }
UPDATE_MAP(X)
#undef X
