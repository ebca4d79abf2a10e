/* Converts float8 through float16, which the instruction sets convert. float8_e5m2 is the upper half of a float16.
 * float8_e4m3fn has the same bits one place lower, except for a factor 2^8 and the NaN. On the way back the number is
 * rounded once to the format in float32, so all further steps are exact. The including file defines float16_unpack and
 * float16_pack. */
#pragma once
#include "kernels/cpu/rounding.h"

/* A format of 8 bits. */
struct float8 {
    /* The explicit bits of the mantissa. */
    int mantissa;
    /* Both are bits of a float32. Larger magnitudes become `limit`. */
    uint32_t smallest_normal;
    uint32_t limit;
    /* A float16 with the format's bits is multiplied by `factor`. */
    float factor;
};
/* The limit of E5M2 is 65536, which becomes infinity. E4M3 has no infinity, so it saturates at 448, as torch does. */
static const struct float8 E5M2 = { 2, 113u << 23, 0x47800000, 1.0f };
static const struct float8 E4M3 = { 3, 121u << 23, 0x43e00000, 256.0f };

/* Widens a vector of float8_e5m2 to four vectors of float32. */
INLINE void float8_e5m2_unpack(vector v, vector *part)
{
    vector half[2] = { (v << 8) & 0xff00ff00u, v & 0xff00ff00u };
    float16_unpack((const char *)&half[0], part);
    float16_unpack((const char *)&half[1], part + 2);
}

/* Widens a vector of float8_e4m3fn to four vectors of float32. */
INLINE void float8_e4m3_unpack(vector v, vector *part)
{
    for (int i = 0; i < 2; i++) {
        vector byte = (v >> (8 * i)) & 0x00ff00ffu, magnitude = byte & 0x007f007fu;
        vector nan = (vector)((lanes_u16)magnitude == 0x7f) & 0x7c007c00u;
        vector half = (byte << 8 & 0x80008000u) | magnitude << 7 | nan;
        float16_unpack((const char *)&half, part + 2 * i);
    }
    for (int i = 0; i < 4; i++) part[i] = (vector)((lanes_f32)part[i] * E4M3.factor);
}

/* Rounds float32 lanes to the nearest number of the format, ties to even, and divides them by format.factor, so that
   float16_pack is exact. A NaN becomes one whose bits in the format are 0x7f. */
INLINE vector float8_round(struct float8 format, vector number)
{
    vector whole = number & 0x7fffffffu, sign = number & 0x80000000u;
    vector magnitude = lanes_smaller(whole, vector_all(format.limit));
    lanes_f32 magic = (lanes_f32)rounding_magic(magnitude, format.mantissa, format.smallest_normal);
    vector rounded = (vector)((((lanes_f32)magnitude + magic) - magic) * (1 / format.factor)) | sign;
    return vector_select((vector)((lanes_i32)whole > 0x7f800000), vector_all(0x7fffe000u), rounded);
}

/* Rounds four vectors of float32 to one of float8_e5m2. Overwrites `part`. */
INLINE vector float8_e5m2_pack(vector *part)
{
    for (int i = 0; i < 4; i++) part[i] = float8_round(E5M2, part[i]);
    return (float16_pack(part) >> 8 & 0x00ff00ffu) | (float16_pack(part + 2) & 0xff00ff00u);
}

/* Rounds four vectors of float32 to one of float8_e4m3fn. Overwrites `part`. */
INLINE vector float8_e4m3_pack(vector *part)
{
    for (int i = 0; i < 4; i++) part[i] = float8_round(E4M3, part[i]);
    vector low = float16_pack(part), high = float16_pack(part + 2);
    vector magnitude = (low >> 7 & 0x007f007fu) | (high << 1 & 0x7f007f00u);
    return magnitude | (low >> 8 & 0x00800080u) | (high & 0x80008000u);
}
