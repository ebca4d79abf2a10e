/* The loops of kernels/compress.h in plain C, compiled and vectorized once per instruction set. A group of numbers is
 * loaded into `x`, which fits the first cache. Packing leaves the residual there. */
#include "kernels/compress.h"
#include "kernels/update.h"

static const uint32_t NOT_FINITE = 0x7f800000u, MAGNITUDE = 0x7fffffffu;

/* Returns the bits of a float as an integer. */
INLINE uint32_t float_get_bits(float number)
{
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}
INLINE float float_from_bits(uint32_t bits)
{
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}
/* Returns the bits of a float without its sign, the magnitude. Magnitudes have the order of the absolute values. */
INLINE uint32_t float_get_magnitude(float number) { return float_get_bits(number) & MAGNITUDE; }
INLINE bool float_is_finite(float number) { return float_get_magnitude(number) < NOT_FINITE; }
/* Replaces NaNs and infinities by 0. */
INLINE void numbers_clear_nonfinite(float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) x[i] = float_is_finite(x[i]) ? x[i] : 0;
}
/* Returns a random number that depends only on `seed` and `number`. The constants are those of Wellons, hash-prospector
   ("lowbias32"). */
INLINE uint32_t random_draw(uint32_t seed, uint32_t number)
{
    uint32_t x = number ^ seed;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* ---- 16 bits ---- */
/* Returns the bits of the nearest float16, ties to even. Too large finite numbers become the largest float16, and NaNs
   the quiet NaN. It uses integer arithmetic that any instruction set has. */
INLINE uint16_t float16_from_float_saturated(float number)
{
    uint32_t sign = float_get_bits(number) >> 16 & 0x8000u, whole = float_get_magnitude(number);
    /* The limit is 65504, the largest float16. */
    uint32_t magnitude = whole < 0x477fe000u ? whole : 0x477fe000u;
    uint32_t normal = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
    uint32_t denormal = float_get_bits(float_from_bits(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t finite = magnitude < 113u << 23 ? denormal : normal;
    uint32_t other = whole > NOT_FINITE ? 0x7e00u : 0x7c00u;
    return (uint16_t)(sign | (whole < NOT_FINITE ? finite : other));
}
/* Returns the bits of the nearest bfloat16, ties to even. Too large finite numbers become the largest bfloat16. */
INLINE uint16_t bfloat16_from_float_saturated(float number)
{
    uint16_t rounded = bfloat16_from_float(number);
    bool overflows = float_is_finite(number) && (rounded & 0x7fffu) == 0x7f80u;
    return overflows ? (uint16_t)(rounded - 1) : rounded;
}
/* Packs `count` numbers as float16 if is_float16, else as bfloat16, and leaves the rounding errors in `x`, 0 for NaNs
   and infinities. */
INLINE void numbers_pack_16_bits(uint16_t *restrict to, float *restrict x, size_t count, bool is_float16)
{
    for (size_t i = 0; i < count; i++) {
        uint16_t code = is_float16 ? float16_from_float_saturated(x[i]) : bfloat16_from_float_saturated(x[i]);
        float rest = x[i] - (is_float16 ? float16_to_float(code) : bfloat16_to_float(code));
        to[i] = code;
        x[i] = float_is_finite(x[i]) ? rest : 0;
    }
}
/* Adds `count` packed numbers to `x`: float16 if is_float16, else bfloat16. */
INLINE void numbers_add_16_bits(float *restrict x, const uint16_t *restrict from, size_t count, bool is_float16)
{
    for (size_t i = 0; i < count; i++) x[i] += is_float16 ? float16_to_float(from[i]) : bfloat16_to_float(from[i]);
}

/* ---- integers ---- */
/* Returns the largest magnitude, as the bits of a float. */
INLINE uint32_t numbers_find_largest(const float *x, size_t count)
{
    uint32_t largest = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t magnitude = float_get_magnitude(x[i]);
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}
/* Rounds a block of numbers to codes of 1 to 2 * most + 1, of which most + 1 is zero, leaves the rounding errors in
   `x`, and returns the scale: a number is about scale * (code - most - 1). A block with a NaN or infinity gets scale
   NaN and no errors; one of only tiny numbers gets scale 0. If is_stochastic, rounds up or down at random, by `seed`
   and the number of each element, `first` for x[0]; otherwise to nearest. Codes are positive, so truncation rounds them
   down. The largest number is scaled a little below the largest code, because a random number near one would otherwise
   carry it above. */
INLINE float block_round_to_codes(uint8_t *restrict code, float *restrict x, size_t count, int most, bool is_stochastic,
    uint32_t seed, uint32_t first)
{
    /* `tiny` is 2^-100. */
    const uint32_t largest = numbers_find_largest(x, count), tiny = 27u << 23;
    const float scale = float_from_bits(largest) / (float)most, zero = (float)(most + 1);
    const float inverse = (float)most / float_from_bits(largest) * (1 - 0x1p-22f);
    if (largest < tiny || largest >= NOT_FINITE) {
        memset(code, most + 1, count);
        if (largest < tiny) return 0;
        memset(x, 0, count * sizeof *x);
        return float_from_bits(0x7fc00000u);
    }
    for (size_t i = 0; i < count; i++) {
        float up = is_stochastic ? (float)(int32_t)(random_draw(seed, first + (uint32_t)i) >> 16) * 0x1p-16f : 0.5f;
        int32_t whole = (int32_t)(x[i] * inverse + (zero + up));
        code[i] = (uint8_t)whole;
        x[i] -= scale * (float)(whole - most - 1);
    }
    return scale;
}
/* Packs a block of at most PACKING_BLOCK numbers: its scale to `scale` (a float), and codes of 8 bits to `codes`, or of
   4 bits if is_int4; then a byte has a code of each half of the block. Leaves the rounding errors in `x`. */
INLINE void block_pack_integers(char *scale, uint8_t *codes, float *x, size_t count, const struct packing *how,
    uint32_t first, bool is_int4)
{
    uint8_t code[PACKING_BLOCK] = { 0 };
    size_t half = (count + 1) / 2;
    int most = is_int4 ? 7 : 127;
    float found = how->stochastic ? block_round_to_codes(is_int4 ? code : codes, x, count, most, true, how->seed, first)
                                  : block_round_to_codes(is_int4 ? code : codes, x, count, most, false, 0, 0);
    memcpy(scale, &found, sizeof found);
    for (size_t i = 0; is_int4 && i < half; i++) codes[i] = (uint8_t)(code[i] | code[half + i] << 4);
}
/* Packs a group of numbers in blocks, as int4 if is_int4, else as int8: first the scales of all blocks, then the codes.
   Leaves the rounding errors in `x`. */
INLINE void numbers_pack_integers(char *to, float *x, size_t count, const struct packing *how, uint32_t first,
    bool is_int4)
{
    uint8_t *codes = (uint8_t *)to + (count + PACKING_BLOCK - 1) / PACKING_BLOCK * sizeof(float);
    size_t at = 0;
    for (; at + PACKING_BLOCK <= count; at += PACKING_BLOCK, to += sizeof(float)) {
        block_pack_integers(to, codes, x + at, PACKING_BLOCK, how, first + (uint32_t)at, is_int4);
        codes += is_int4 ? PACKING_BLOCK / 2 : PACKING_BLOCK;
    }
    if (at < count) block_pack_integers(to, codes, x + at, count - at, how, first + (uint32_t)at, is_int4);
}
/* Adds a block of codes of 8 bits, times the scale, to `x`. */
INLINE void block_add_int8(float *restrict x, const uint8_t *restrict code, size_t count, float scale)
{
    for (size_t i = 0; i < count; i++) x[i] += scale * (float)(code[i] - 128);
}
/* Adds a block of codes of 4 bits, times the scale, to `x`. The lower half of each byte has a code of the first half of
   the block. */
INLINE void block_add_int4(float *restrict x, const uint8_t *restrict code, size_t count, float scale)
{
    size_t half = (count + 1) / 2;
    for (size_t i = 0; i < half; i++) x[i] += scale * (float)((code[i] & 15) - 8);
    for (size_t i = half; i < count; i++) x[i] += scale * (float)((code[i - half] >> 4) - 8);
}
/* Adds a group of packed integers, int4 if is_int4 else int8, times their scales, to `x`. */
INLINE void numbers_add_integers(float *x, const char *from, size_t count, bool is_int4)
{
    const uint8_t *codes = (const uint8_t *)from + (count + PACKING_BLOCK - 1) / PACKING_BLOCK * sizeof(float);
    for (size_t at = 0; at < count; at += PACKING_BLOCK, from += sizeof(float)) {
        size_t n = count - at < PACKING_BLOCK ? count - at : PACKING_BLOCK;
        float scale;
        memcpy(&scale, from, sizeof scale);
        if (is_int4) block_add_int4(x + at, codes, n, scale);
        else block_add_int8(x + at, codes, n, scale);
        codes += is_int4 ? (n + 1) / 2 : n;
    }
}

/* ---- selected numbers ---- */
#include "kernels/cpu/largest.h"
/* Returns the place of the i-th number that RANDOMK packs from a group of `count`: one from the i-th of `kept` equal
   parts. `first` is the number of the group's first element in its array. */
INLINE size_t randomk_draw_place(const struct packing *how, size_t count, size_t kept, size_t i, uint32_t first)
{
    size_t begin = i * count / kept, end = (i + 1) * count / kept;
    return begin + random_draw(how->seed, first + (uint32_t)begin) % (end - begin);
}
/* Packs the numbers of a group at random places, which the receiver draws again from the same seed. The others stay in
   `x` as residual. */
INLINE void numbers_pack_randomk(float *to, float *x, size_t count, const struct packing *how, uint32_t first)
{
    size_t kept = packing_count_kept(how, count);
    for (size_t i = 0; i < kept; i++) {
        size_t place = randomk_draw_place(how, count, kept, i, first);
        to[i] = x[place];
        x[place] = 0;
    }
    if (numbers_find_largest(x, count) < NOT_FINITE) return;
    /* A NaN reports an infinity or NaN that was not drawn. */
    to[0] = float_from_bits(0x7fc00000u);
    numbers_clear_nonfinite(x, count);
}
/* Adds the packed numbers of RANDOMK to `x` at their places. */
INLINE void numbers_add_randomk(float *x, const float *from, size_t count, const struct packing *how, uint32_t first)
{
    size_t kept = packing_count_kept(how, count);
    for (size_t i = 0; i < kept; i++) x[randomk_draw_place(how, count, kept, i, first)] += from[i];
}

/* ---- all forms ---- */
/* Packs a group of `count` numbers in a form that packs groups (not TOPK or THRESHOLD), and leaves the residual in
   `x`. */
static void numbers_pack_group(void *to, float *x, size_t count, const struct packing *how, uint32_t first)
{
    switch (how->form) {
    case PACKING_FLOAT16: numbers_pack_16_bits(to, x, count, true); break;
    case PACKING_BFLOAT16: numbers_pack_16_bits(to, x, count, false); break;
    case PACKING_INT8: numbers_pack_integers(to, x, count, how, first, false); break;
    case PACKING_INT4: numbers_pack_integers(to, x, count, how, first, true); break;
    default: numbers_pack_randomk(to, x, count, how, first);
    }
}
/* Adds a packed group of `count` numbers to `x`, in a form that packs groups (not TOPK or THRESHOLD). */
static void numbers_add_group(float *x, const void *from, size_t count, const struct packing *how, uint32_t first)
{
    switch (how->form) {
    case PACKING_FLOAT16: numbers_add_16_bits(x, from, count, true); break;
    case PACKING_BFLOAT16: numbers_add_16_bits(x, from, count, false); break;
    case PACKING_INT8: numbers_add_integers(x, from, count, false); break;
    case PACKING_INT4: numbers_add_integers(x, from, count, true); break;
    default: numbers_add_randomk(x, from, count, how, first);
    }
}
/* Packs an array of gradients in any form (pack_function). The gradients are float32 if is_float32, else bfloat16. */
INLINE void array_pack_groups(char *packed, const void *from, float *restrict residual, size_t count,
    const struct packing *how, uint64_t first, bool is_float32)
{
    float x[PACKING_GROUP];
    if (how->form == PACKING_TOPK) {
        if (count)
            strips_pack_largest(packed, &(struct strips){ from, residual, count, is_float32, false },
                packing_count_kept(how, count));
        return;
    }
    if (how->form == PACKING_THRESHOLD) {
        struct strips s = { from, residual, count, is_float32, false };
        if (count) strips_pack_reaching(packed, &s, packing_count_kept(how, count), float_get_bits(how->threshold));
        return;
    }
    for (size_t at = 0; at < count; at += PACKING_GROUP) {
        size_t n = count - at < PACKING_GROUP ? count - at : PACKING_GROUP;
        for (size_t i = 0; i < n; i++) x[i] = gradient_load_float(from, at + i, is_float32);
        for (size_t i = 0; residual && i < n; i++) x[i] += residual[at + i];
        numbers_pack_group(packed, x, n, how, (uint32_t)(first + at));
        if (residual) memcpy(residual + at, x, n * sizeof *x);
        packed += packing_bytes(how, n);
    }
}
/* Stores factor * the sum of several packed arrays (unpack_function). `to` is float32 if is_float32, else bfloat16. */
INLINE void array_unpack_groups(void *to, const void *const *packed, int sources, size_t count,
    const struct packing *how, uint64_t first, float factor, bool is_float32)
{
    float x[PACKING_GROUP];
    const size_t whole = packing_bytes(how, PACKING_GROUP);
    for (size_t at = 0; at < count; at += PACKING_GROUP) {
        size_t n = count - at < PACKING_GROUP ? count - at : PACKING_GROUP;
        memset(x, 0, sizeof x);
        for (int s = 0; s < sources; s++) {
            const char *from = packed[s];
            if (how->form == PACKING_TOPK) packed_add_largest(x, from, packing_count_kept(how, count), at, n);
            else if (how->form == PACKING_THRESHOLD)
                packed_add_reaching(x, from, packing_count_kept(how, count), at, n);
            else numbers_add_group(x, from + at / PACKING_GROUP * whole, n, how, (uint32_t)(first + at));
        }
        for (size_t i = 0; is_float32 && i < n; i++) ((float *)to)[at + i] = x[i] * factor;
        for (size_t i = 0; !is_float32 && i < n; i++) ((uint16_t *)to)[at + i] = bfloat16_from_float(x[i] * factor);
    }
}
#define PACKING_MAP(X) X(FLOAT32, true) X(BFLOAT16, false)
#define X(dtype, is_float32)                                                                                           \
    static void pack_##dtype(void *packed, const void *from, float *residual, size_t count, const struct packing *how, \
        uint64_t first)                                                                                                \
    {                                                                                                                  \
        array_pack_groups(packed, from, residual, count, how, first, is_float32);                                      \
    }                                                                                                                  \
    static void unpack_##dtype(void *to, const void *const *packed, int sources, size_t count,                         \
        const struct packing *how, uint64_t first, float factor)                                                       \
    {                                                                                                                  \
        array_unpack_groups(to, packed, sources, count, how, first, factor, is_float32);                               \
    }
PACKING_MAP(X)
#undef X
