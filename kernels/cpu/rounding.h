/* Rounding float32 to a format with fewer bits, by one addition: next to a power of two whose last bit weighs as much
 * as the last bit that is to stay, float32 drops all others, to nearest even. (A known trick.) It holds for the
 * format's denormals too, whose last bit weighs as much as that of the smallest normal number, and does not depend on
 * whether the thread flushes float32's own to zero. The including file has vector_select. */
#pragma once
#include "kernels/cpu/vector.h"

/* Of lanes below 2^31. (As signed numbers: AVX2 compares no others.) */
INLINE vector lanes_smaller(vector a, vector b) { return vector_select((vector)((lanes_i32)a < (lanes_i32)b), a, b); }
INLINE vector lanes_larger(vector a, vector b) { return vector_select((vector)((lanes_i32)a > (lanes_i32)b), a, b); }

/* The power of two that rounds each magnitude to `mantissa` bits. */
INLINE vector rounding_magic(vector magnitude, int mantissa, uint32_t smallest_normal)
{
    vector exponent = lanes_larger(magnitude & 0x7f800000u, vector_all(smallest_normal));
    return exponent + ((uint32_t)(23 - mantissa) << 23);
}
