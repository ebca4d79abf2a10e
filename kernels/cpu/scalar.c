/* Any machine: a vector is one 64-bit word, and float16 is converted by integer arithmetic, without reading or making
 * a float32 denormal, so that the result does not depend on whether the thread flushes those to zero. */
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

enum { DROPPED = 23 - 10 };                         /* bits of a float32 that float16 has no room for */
static const uint32_t SMALLEST_NORMAL = 113u << 23; /* 2^-14 as a float32 */

/* Each lane has a float16 in its lower half. */
INLINE vector float16_widen(vector half)
{
    vector sign = (half & 0x8000u) << 16, magnitude = (half & 0x7fffu) << DROPPED;
    vector normal = magnitude + (112u << 23);
    vector denormal = (vector)((lanes_f32)(magnitude + SMALLEST_NORMAL) - (lanes_f32)vector_all(SMALLEST_NORMAL));
    vector infinity_or_nan = (vector)(magnitude >= 0x7c00u << DROPPED) & 0x7f800000u;
    return vector_select((vector)(magnitude < 1u << 23), denormal, normal) | infinity_or_nan | sign;
}

/* The upper halves of the lanes become zero. The NaNs that come here have payload bits that stay. */
INLINE vector float16_narrow(vector number)
{
    vector sign = (number >> 16) & 0x8000u, whole = number & 0x7fffffffu;
    vector magnitude = lanes_smaller(whole, vector_all(143u << 23)); /* 65536 and above become infinity */
    vector magic = rounding_magic(magnitude, 10, SMALLEST_NORMAL);
    vector quanta = (vector)((lanes_f32)magnitude + (lanes_f32)magic) - magic;
    vector above_denormals = magic - (SMALLEST_NORMAL + ((uint32_t)DROPPED << 23));
    vector payload = (vector)(whole > 0x7f800000u) & (whole >> DROPPED) & 0x3ffu;
    return sign | (quanta + (above_denormals >> DROPPED)) | payload;
}

#define FLOAT16_BY_PARITY true /* elements 0, 2, … are in one part, 1, 3, … in the other */
INLINE void float16_unpack(const char *from, vector *part)
{
    vector v = vector_load(from);
    part[0] = float16_widen(v);
    part[1] = float16_widen(v >> 16);
}

INLINE vector float16_pack(const vector *part) { return float16_narrow(part[0]) | float16_narrow(part[1]) << 16; }
#include "kernels/cpu/loops.h"
