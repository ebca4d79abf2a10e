/* AVX2 and F16C. */
#define ISA     "avx2"
#define KERNELS kernels_avx2
enum { WIDTH = 32 };
#include "kernels/cpu/partial.h"
#include <immintrin.h>

/* Where the mask is all ones a, elsewhere b. */
INLINE vector vector_select(vector mask, vector a, vector b)
{
    return (vector)_mm256_blendv_epi8((__m256i)b, (__m256i)a, (__m256i)mask);
}

INLINE void float16_unpack(vector v, vector *part)
{
    __m256i halves = (__m256i)v;
    part[0] = (vector)_mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    part[1] = (vector)_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
}

INLINE vector float16_pack(const vector *part)
{
    __m128i low = _mm256_cvtps_ph((__m256)part[0], _MM_FROUND_TO_NEAREST_INT);
    __m128i high = _mm256_cvtps_ph((__m256)part[1], _MM_FROUND_TO_NEAREST_INT);
    return (vector)_mm256_set_m128i(high, low);
}
#include "kernels/cpu/loops.h"
