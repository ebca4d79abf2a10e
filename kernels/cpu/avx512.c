/* AVX-512 (F, BW, DQ, VL). Its own conversion to bfloat16 is not used: it flushes denormals to zero. */
#define ISA     "avx512"
#define KERNELS kernels_avx512
enum { WIDTH = 64 };
#include "kernels/cpu/select.h"
#include <immintrin.h>

INLINE vector vector_load_some(const char *from, size_t bytes)
{
    return (vector)_mm512_maskz_loadu_epi8(~UINT64_C(0) >> (WIDTH - bytes), from);
}

INLINE void vector_store_some(char *to, vector v, size_t bytes)
{
    _mm512_mask_storeu_epi8(to, ~UINT64_C(0) >> (WIDTH - bytes), (__m512i)v);
}

INLINE void float16_unpack(vector v, vector *part)
{
    __m512i halves = (__m512i)v;
    part[0] = (vector)_mm512_cvtph_ps(_mm512_castsi512_si256(halves));
    part[1] = (vector)_mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
}

INLINE vector float16_pack(const vector *part)
{
    __m256i low = _mm512_cvtps_ph((__m512)part[0], _MM_FROUND_TO_NEAREST_INT);
    __m256i high = _mm512_cvtps_ph((__m512)part[1], _MM_FROUND_TO_NEAREST_INT);
    return (vector)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
#include "kernels/cpu/loops.h"
