/* Rounds float32 to a format with fewer bits, by one addition. The summand is a power of two whose last bit has the
 * weight of the last bit that stays, so float32 rounds off all lower bits to nearest even. (A known trick.) The
 * format's denormals have the last bit of the smallest normal number, so the trick holds for them too. A thread that
 * flushes float32's denormals to zero gets the same result. The including file defines vector_select. */
#pragma once
#include "kernels/cpu/vector.h"

/* Return the smaller or larger number in each lane. The lanes must be below 2^31. They are compared as signed numbers,
   because AVX2 compares only those. */
INLINE vector lanes_smaller(vector a, vector b) { return vector_select((vector)((lanes_i32)a < (lanes_i32)b), a, b); }
INLINE vector lanes_larger(vector a, vector b) { return vector_select((vector)((lanes_i32)a > (lanes_i32)b), a, b); }

/* Returns, for each magnitude (a float32 without sign), the power of two whose addition rounds the magnitude to
   `mantissa` bits. The callers then subtract it again. smallest_normal: the smallest normal number of the format, as
   the bits of a float32. */
INLINE vector rounding_magic(vector magnitude, int mantissa, uint32_t smallest_normal)
{
    vector exponent = lanes_larger(magnitude & 0x7f800000u, vector_all(smallest_normal));
    return exponent + ((uint32_t)(23 - mantissa) << 23);
}
