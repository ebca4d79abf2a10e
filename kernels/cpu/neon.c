/* The instruction set "neon" needs 64-bit Arm. On 32-bit Arm, NEON flushes denormals to zero, so "scalar" is used
   there. */
#define ISA     "neon"
#define KERNELS kernels_neon
#define BELOW   NULL
enum { WIDTH = 16 };
#include "kernels/cpu/bfloat16.h"
#include "kernels/cpu/partial.h"
#include "kernels/cpu/select.h"
#include "kernels/cpu/stored.h"
#include "kernels/cpu/widened.h"
#include <arm_neon.h>

INLINE vector vector_load_some(const char *from, size_t bytes) { return partial_load(from, bytes); }
INLINE void vector_store_some(char *to, vector v, size_t bytes) { partial_store(to, v, bytes); }

#define FLOAT16_BY_PARITY false
INLINE void float16_unpack(const char *from, vector *part)
{
    float16x8_t halves = (float16x8_t)vector_load(from);
    part[0] = (vector)vcvt_f32_f16(vget_low_f16(halves));
    part[1] = (vector)vcvt_high_f32_f16(halves);
}

INLINE vector float16_pack(const vector *part)
{
    return (vector)vcvt_high_f16_f32(vcvt_f16_f32((float32x4_t)part[0]), (float32x4_t)part[1]);
}
#include "kernels/cpu/loops.h"
