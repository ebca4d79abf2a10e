/* The instruction set "avx2" needs AVX2, F16C and FMA. */
#define ISA     "avx2"
#define KERNELS kernels_avx2
#define BELOW   NULL
enum { WIDTH = 32 };
#include "kernels/cpu/partial.h"
#include <immintrin.h>

/* Loads `bytes` bytes, fewer than WIDTH; the other lanes are 0. Whole words take one masked load, because reading a
   vector that was just assembled in memory stalls. Masked stores are slow, so vector_store_some has none. */
INLINE vector vector_load_some(const char *from, size_t bytes)
{
    if (bytes % 4 != 0) return partial_load(from, bytes);
    const __m256i word = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(bytes / 4)), word);
    return (vector)_mm256_maskload_epi32((const int *)(const void *)from, mask);
}

INLINE void vector_store_some(char *to, vector v, size_t bytes) { partial_store(to, v, bytes); }

INLINE void vector_stream(char *to, vector v) { _mm256_stream_si256((__m256i *)(void *)to, (__m256i)v); }
INLINE void vector_stream_end(void) { _mm_sfence(); }

/* Returns a vector that has the bytes of `a` where the mask has ones, and those of `b` elsewhere. */
INLINE vector vector_select(vector mask, vector a, vector b)
{
    return (vector)_mm256_blendv_epi8((__m256i)b, (__m256i)a, (__m256i)mask);
}

/* Returns true if any of the `count` vectors of float32 has a NaN. count must be even. */
INLINE bool widened_any_nan(const vector *part, int count)
{
    __m256 nan = _mm256_cmp_ps((__m256)part[0], (__m256)part[1], _CMP_UNORD_Q);
    for (int i = 2; i < count; i += 2)
        nan = _mm256_or_ps(nan, _mm256_cmp_ps((__m256)part[i], (__m256)part[i + 1], _CMP_UNORD_Q));
    return _mm256_movemask_ps(nan) != 0;
}

/* Adds float32 lanes by multiply-and-add, which rounds like an addition. Zen converts float16 in the two units that
   add, while the two units that multiply are idle. Sums of float16 are a fifth faster this way. */
INLINE vector widened_add(vector a, vector b)
{
    return (vector)_mm256_fmadd_ps((__m256)a, _mm256_set1_ps(1.0f), (__m256)b);
}

/* Rounds two vectors of float32 to bfloat16, by the method of avx512.c. AVX2 compares only signed numbers, so the
   middle becomes 0. */
INLINE vector bfloat16_pack(const vector *part)
{
    const __m256i one = _mm256_set1_epi16(1), middle = _mm256_set1_epi16(INT16_MIN);
    __m256i first = (__m256i)part[0], second = (__m256i)part[1];
    __m256i upper = _mm256_blend_epi16(_mm256_srli_epi32(first, 16), second, 0xaa);
    __m256i lower = _mm256_blend_epi16(first, _mm256_slli_epi32(second, 16), 0xaa);
    lower = _mm256_or_si256(_mm256_xor_si256(lower, middle), _mm256_and_si256(upper, one));
    return (vector)_mm256_sub_epi16(upper, _mm256_cmpgt_epi16(lower, _mm256_setzero_si256()));
}

#define FLOAT16_BY_PARITY false
INLINE void float16_unpack(const char *from, vector *part)
{
    part[0] = (vector)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)from));
    part[1] = (vector)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(from + WIDTH / 2)));
}

INLINE vector float16_pack(const vector *part)
{
    __m128i low = _mm256_cvtps_ph((__m256)part[0], _MM_FROUND_TO_NEAREST_INT);
    __m128i high = _mm256_cvtps_ph((__m256)part[1], _MM_FROUND_TO_NEAREST_INT);
    return (vector)_mm256_set_m128i(high, low);
}
#include "kernels/cpu/loops.h"
