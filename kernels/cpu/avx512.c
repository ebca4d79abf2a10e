/* The instruction set "avx512" needs AVX-512 F, BW, DQ and VL. Its own conversion to bfloat16 flushes denormals to
   zero, so it is not used. */
#define ISA     "avx512"
#define KERNELS kernels_avx512
#define BELOW   &kernels_avx2
/* AVX2 handles float16, because a Zen 4 converts 64 bytes at once more slowly than twice 32. */
#define FLOAT16_MAP(X)
enum { WIDTH = 64 };
#include "kernels/cpu/select.h"
#include <immintrin.h>

/* Loads `bytes` bytes, fewer than WIDTH; the other lanes are 0. Small operations load and store one number of four or
   eight bytes, without a mask. The processor cannot forward a masked store to the next load, which then waits for the
   cache. */
INLINE vector vector_load_some(const char *from, size_t bytes)
{
    if (bytes == 8) return (vector)_mm512_zextsi128_si512(_mm_loadu_si64(from));
    if (bytes == 4) return (vector)_mm512_zextsi128_si512(_mm_loadu_si32(from));
    return (vector)_mm512_maskz_loadu_epi8(~UINT64_C(0) >> (WIDTH - bytes), from);
}

INLINE void vector_store_some(char *to, vector v, size_t bytes)
{
    if (bytes == 8) _mm_storeu_si64(to, _mm512_castsi512_si128((__m512i)v));
    else if (bytes == 4) _mm_storeu_si32(to, _mm512_castsi512_si128((__m512i)v));
    else _mm512_mask_storeu_epi8(to, ~UINT64_C(0) >> (WIDTH - bytes), (__m512i)v);
}

INLINE void vector_stream(char *to, vector v) { _mm512_stream_si512((void *)to, (__m512i)v); }
INLINE void vector_stream_end(void) { _mm_sfence(); }

INLINE vector widened_add(vector a, vector b) { return (vector)((lanes_f32)a + (lanes_f32)b); }

/* Returns true if any of the `count` vectors of float32 has a NaN. count must be even. */
INLINE bool widened_any_nan(const vector *part, int count)
{
    __mmask16 nan = 0;
    for (int i = 0; i < count; i += 2) nan |= _mm512_cmp_ps_mask((__m512)part[i], (__m512)part[i + 1], _CMP_UNORD_Q);
    return nan != 0;
}

/* Rounds two vectors of float32 to bfloat16: part[0] to the lower halves of 32-bit lanes, part[1] to the upper halves.
   Collects the upper halves of both parts in one vector and the lower halves in another, then rounds lanes of 16 bits.
   An upper half is rounded up if the lower half is above the middle. It is also rounded up if the lower half is the
   middle and the last bit of the upper half is set. */
INLINE vector bfloat16_pack(const vector *part)
{
    const __m512i down = _mm512_set4_epi32(0x0f0e0f0e, 0x0b0a0b0a, 0x07060706, 0x03020302);
    const __m512i up = _mm512_set4_epi32(0x0d0c0d0c, 0x09080908, 0x05040504, 0x01000100);
    const __m512i one = _mm512_set1_epi16(1), middle = _mm512_set1_epi16(INT16_MIN);
    __m512i first = (__m512i)part[0], second = (__m512i)part[1];
    __m512i upper = _mm512_mask_shuffle_epi8(second, 0x3333333333333333, first, down);
    __m512i lower = _mm512_mask_shuffle_epi8(first, ~UINT64_C(0x3333333333333333), second, up);
    /* This computes lower | (upper & one). */
    lower = _mm512_ternarylogic_epi32(lower, upper, one, 0xf8);
    return (vector)_mm512_mask_add_epi16(upper, _mm512_cmpgt_epu16_mask(lower, middle), upper, one);
}

#define FLOAT16_BY_PARITY false
INLINE void float16_unpack(const char *from, vector *part)
{
    part[0] = (vector)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)from));
    part[1] = (vector)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(from + WIDTH / 2)));
}

INLINE vector float16_pack(const vector *part)
{
    __m256i low = _mm512_cvtps_ph((__m512)part[0], _MM_FROUND_TO_NEAREST_INT);
    __m256i high = _mm512_cvtps_ph((__m512)part[1], _MM_FROUND_TO_NEAREST_INT);
    return (vector)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
#include "kernels/cpu/loops.h"
