/* The instruction set "scalar" runs on any machine. A vector is one 64-bit word. Integer arithmetic converts float16
 * without reading or making a float32 denormal, so a thread that flushes denormals to zero gets the same result. */
#define ISA     "scalar"
#define KERNELS kernels_scalar
#define BELOW   NULL
enum { WIDTH = 8 };
#include "kernels/cpu/bfloat16.h"
#include "kernels/cpu/partial.h"
#include "kernels/cpu/select.h"
#include "kernels/cpu/stored.h"
#include "kernels/cpu/widened.h"

#include "kernels/cpu/rounding.h"

INLINE vector vector_load_some(const char *from, size_t bytes) { return partial_load(from, bytes); }
INLINE void vector_store_some(char *to, vector v, size_t bytes) { partial_store(to, v, bytes); }

/* float16 lacks this many of float32's bits. Its smallest normal number is 2^-14. */
enum { DROPPED = 23 - 10 };
static const uint32_t SMALLEST_NORMAL = 113u << 23;

/* Returns the float16 in the lower half of each lane as float32. The upper halves are ignored. */
INLINE vector float16_widen(vector half)
{
    vector sign = (half & 0x8000u) << 16, magnitude = (half & 0x7fffu) << DROPPED;
    vector normal = magnitude + (112u << 23);
    vector denormal = (vector)((lanes_f32)(magnitude + SMALLEST_NORMAL) - (lanes_f32)vector_all(SMALLEST_NORMAL));
    vector infinity_or_nan = (vector)(magnitude >= 0x7c00u << DROPPED) & 0x7f800000u;
    return vector_select((vector)(magnitude < 1u << 23), denormal, normal) | infinity_or_nan | sign;
}

/* Rounds each float32 to a float16 in the lower half of its lane, and clears the upper half. The payload bits of a NaN
   must fit float16. */
INLINE vector float16_narrow(vector number)
{
    vector sign = (number >> 16) & 0x8000u, whole = number & 0x7fffffffu;
    /* 65536 and above become infinity. */
    vector magnitude = lanes_smaller(whole, vector_all(143u << 23));
    vector magic = rounding_magic(magnitude, 10, SMALLEST_NORMAL);
    vector quanta = (vector)((lanes_f32)magnitude + (lanes_f32)magic) - magic;
    vector above_denormals = magic - (SMALLEST_NORMAL + ((uint32_t)DROPPED << 23));
    vector payload = (vector)(whole > 0x7f800000u) & (whole >> DROPPED) & 0x3ffu;
    return sign | (quanta + (above_denormals >> DROPPED)) | payload;
}

/* Unpacking puts elements 0, 2, … into one part, and elements 1, 3, … into the other. */
#define FLOAT16_BY_PARITY true
INLINE void float16_unpack(const char *from, vector *part)
{
    vector v = vector_load(from);
    part[0] = float16_widen(v);
    part[1] = float16_widen(v >> 16);
}

INLINE vector float16_pack(const vector *part) { return float16_narrow(part[0]) | float16_narrow(part[1]) << 16; }
#include "kernels/cpu/loops.h"
