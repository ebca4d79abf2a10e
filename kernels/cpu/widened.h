/* Arithmetic on the float32 parts of 16-bit floating-point types, for any instruction set. */
#pragma once
#include "kernels/cpu/vector.h"

INLINE vector widened_add(vector a, vector b) { return (vector)((lanes_f32)a + (lanes_f32)b); }

/* Returns true if any of the `count` vectors of float32 has a NaN. count must be even. */
INLINE bool widened_any_nan(const vector *part, int count)
{
    vector nan = { 0 };
    for (int i = 0; i < count; i++) nan |= (vector)((lanes_f32)part[i] != (lanes_f32)part[i]);
    uint64_t any = 0;
    for (int i = 0; i < WIDTH / 8; i++) any |= ((lanes_u64)nan)[i];
    return any != 0;
}
