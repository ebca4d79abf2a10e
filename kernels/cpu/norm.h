/* The loops of kernels/norm.h, once per instruction set. A block is 64 elements; the last columns, fewer than that, are
 * taken one by one, so that no sum sees what is not there. */
#include "kernels/norm.h"
#include <math.h>

enum { NORM_BLOCK = 64, NORM_LANES = WIDTH / 4, NORM_PARTS = NORM_BLOCK / NORM_LANES };
/* Of float16 and bfloat16, which may change places: see unpack. */
INLINE int norm_element(tutti_dtype dtype, int part, int lane)
{
    bool by_parity = dtype == TUTTI_BFLOAT16 || (dtype == TUTTI_FLOAT16 && FLOAT16_BY_PARITY);
    int pair = part / 2 * 2 * NORM_LANES;
    return by_parity ? pair + 2 * lane + part % 2 : part * NORM_LANES + lane;
}
INLINE size_t norm_bytes(tutti_dtype dtype) { return dtype == TUTTI_FLOAT32 ? 4 : 2; }

/* ---- a block, or one element in the first lane ---- */
INLINE void norm_load(tutti_dtype dtype, const char *from, vector *out)
{
    for (int k = 0; k < NORM_PARTS / parts_of(dtype); k++) unpack(dtype, from + k * WIDTH, out + k * parts_of(dtype));
}
INLINE void norm_canonical(vector *part)
{
    if (__builtin_expect(!widened_any_nan(part, NORM_PARTS), 1)) return;
    for (int p = 0; p < NORM_PARTS; p++) part[p] = lanes_canonical(TUTTI_FLOAT32, part[p]);
}
/* The parts become what they are as stored. */
INLINE void norm_round(tutti_dtype dtype, char *to, vector *part)
{
    norm_canonical(part);
    for (int k = 0; k < NORM_PARTS / parts_of(dtype); k++) {
        vector packed = pack(dtype, part + k * parts_of(dtype));
        vector_store(to + k * WIDTH, packed);
        unpack(dtype, (const char *)&packed, part + k * parts_of(dtype));
    }
}
INLINE void norm_store(tutti_dtype dtype, char *to, vector *part)
{
    norm_canonical(part);
    for (int k = 0; k < NORM_PARTS / parts_of(dtype); k++)
        vector_store(to + k * WIDTH, pack(dtype, part + k * parts_of(dtype)));
}
INLINE float norm_load_one(tutti_dtype dtype, const char *from)
{
    vector part[2], some = vector_load_some(from, norm_bytes(dtype));
    unpack(dtype, (const char *)&some, part);
    return ((lanes_f32)part[0])[0];
}
INLINE float norm_store_one(tutti_dtype dtype, char *to, float number)
{
    vector part[2] = { (vector)((lanes_f32){ number }), vector_all(0) };
    canonical(dtype, part, parts_of(dtype));
    vector packed = pack(dtype, part);
    vector_store_some(to, packed, norm_bytes(dtype));
    return norm_load_one(dtype, to);
}

/* ---- sums over a row ---- */
/* Parts that are half of all apart hold elements that are as far apart. */
INLINE float norm_total(tutti_dtype dtype, lanes_f32 *part)
{
    int parts = NORM_PARTS;
    float sum[NORM_BLOCK];
    while (parts > parts_of(dtype)) {
        parts /= 2;
        for (int p = 0; p < parts; p++) part[p] += part[p + parts];
    }
    for (int p = 0; p < parts; p++)
        for (int l = 0; l < NORM_LANES; l++) sum[norm_element(dtype, p, l)] = part[p][l];
    for (int apart = parts * NORM_LANES / 2; apart > 0; apart /= 2)
        for (int i = 0; i < apart; i++) sum[i] += sum[i + apart];
    return sum[0];
}
INLINE float norm_term(float x, bool squares, float mean) { return squares ? (x - mean) * (x - mean) : x - mean; }
/* What is to be normalised: elements of a row, or their sums with the residual, which becomes those. */
INLINE void norm_join(tutti_dtype dtype, const char *row, char *residual, vector *block)
{
    vector kept[NORM_PARTS];
    norm_load(dtype, row, block);
    if (!residual) return;
    norm_load(dtype, residual, kept);
    for (int p = 0; p < NORM_PARTS; p++) block[p] = (vector)((lanes_f32)block[p] + (lanes_f32)kept[p]);
    norm_round(dtype, residual, block);
}
INLINE float norm_join_one(tutti_dtype dtype, const char *row, char *residual)
{
    float x = norm_load_one(dtype, row);
    return residual ? norm_store_one(dtype, residual, x + norm_load_one(dtype, residual)) : x;
}
/* Over a row that is joined on the way: the sum of its elements, or of their squared distances from the mean. */
INLINE float norm_sum(tutti_dtype dtype, const char *row, char *residual, size_t columns, bool squares, float mean)
{
    lanes_f32 sum[NORM_PARTS] = { 0 };
    size_t size = norm_bytes(dtype), whole = columns / NORM_BLOCK * NORM_BLOCK;
    for (size_t i = 0; i < whole; i += NORM_BLOCK) {
        vector block[NORM_PARTS];
        norm_join(dtype, row + i * size, residual ? residual + i * size : NULL, block);
        for (int p = 0; p < NORM_PARTS; p++) {
            lanes_f32 x = (lanes_f32)block[p] - mean;
            sum[p] += squares ? x * x : x;
        }
    }
    if (whole < columns) {
        float rest[NORM_BLOCK] = { 0 };
        for (size_t i = whole; i < columns; i++)
            rest[i - whole] =
                norm_term(norm_join_one(dtype, row + i * size, residual ? residual + i * size : NULL), squares, mean);
        for (int p = 0; p < NORM_PARTS; p++)
            for (int l = 0; l < NORM_LANES; l++) sum[p][l] += rest[norm_element(dtype, p, l)];
    }
    return norm_total(dtype, sum);
}

/* ---- a row ---- */
INLINE void norm_write(tutti_dtype dtype, const struct norm *n, char *row, const char *from, float mean, float scale,
    bool weighted, bool biased)
{
    size_t size = norm_bytes(dtype), whole = n->columns / NORM_BLOCK * NORM_BLOCK;
    const char *weight = n->weight, *bias = n->bias;
    for (size_t i = 0; i < whole; i += NORM_BLOCK) {
        vector block[NORM_PARTS], factor[NORM_PARTS], more[NORM_PARTS];
        norm_load(dtype, from + i * size, block);
        if (weighted) norm_load(dtype, weight + i * size, factor);
        if (biased) norm_load(dtype, bias + i * size, more);
        for (int p = 0; p < NORM_PARTS; p++) {
            lanes_f32 y = ((lanes_f32)block[p] - mean) * scale;
            if (weighted) y *= (lanes_f32)factor[p];
            if (biased) y += (lanes_f32)more[p];
            block[p] = (vector)y;
        }
        norm_store(dtype, row + i * size, block);
    }
    for (size_t i = whole; i < n->columns; i++) {
        float y = (norm_load_one(dtype, from + i * size) - mean) * scale;
        if (weighted) y *= norm_load_one(dtype, weight + i * size);
        if (biased) y += norm_load_one(dtype, bias + i * size);
        norm_store_one(dtype, row + i * size, y);
    }
}
INLINE void norm_row(tutti_dtype dtype, const struct norm *n, char *row, char *residual)
{
    const char *from = residual ? residual : row;
    float columns = (float)n->columns, mean = 0, squares;
    if (n->centred) {
        mean = norm_sum(dtype, row, residual, n->columns, false, 0) / columns;
        squares = norm_sum(dtype, from, NULL, n->columns, true, mean);
    } else {
        squares = norm_sum(dtype, row, residual, n->columns, true, 0);
    }
    float scale = 1.0f / sqrtf(squares / columns + n->epsilon);
    if (n->weight && !n->bias && !n->centred) norm_write(dtype, n, row, from, 0, scale, true, false);
    else norm_write(dtype, n, row, from, mean, scale, n->weight != NULL, n->bias != NULL);
}

#define NORM_MAP(X) FLOAT16_MAP(X) X(BFLOAT16, 2) X(FLOAT32, 4)
#define X(dtype, bytes)                                                                                                \
    static void norm_##dtype(const struct norm *norm, void *rows, void *residual, size_t count)                        \
    {                                                                                                                  \
        for (size_t r = 0, at = 0; r < count; r++, at += norm->columns * bytes)                                        \
            norm_row(TUTTI_##dtype, norm, (char *)rows + at, residual ? (char *)residual + at : NULL);                 \
    }
NORM_MAP(X)
#undef X
