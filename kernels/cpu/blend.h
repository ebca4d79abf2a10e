/* The loops of kernels/blend.h, compiled once per instruction set. */
#include "kernels/blend.h"

/* Stores the sum of from[k] * weight[k] over `count` rows for the block of 64 elements at byte `at`. Rows that are NULL
   are left out. weight NULL means weights of 1. */
INLINE void blend_block(tutti_dtype dtype, char *to, const char *const *from, const float *weight, int count, size_t at)
{
    vector sum[ROW_PARTS] = { 0 }, block[ROW_PARTS];
    bool first = true;
    for (int k = 0; k < count; k++) {
        if (!from[k]) continue;
        row_load(dtype, from[k] + at, block);
        float factor = weight ? weight[k] : 1;
        for (int p = 0; p < ROW_PARTS; p++) {
            lanes_f32 x = (lanes_f32)block[p] * factor;
            sum[p] = (vector)(first ? x : (lanes_f32)sum[p] + x);
        }
        first = false;
    }
    row_store(dtype, to + at, sum);
}
/* Stores the same sum as blend_block for the one element at byte `at`. */
INLINE void blend_one(tutti_dtype dtype, char *to, const char *const *from, const float *weight, int count, size_t at)
{
    float sum = 0;
    bool first = true;
    for (int k = 0; k < count; k++) {
        if (!from[k]) continue;
        float x = row_load_one(dtype, from[k] + at) * (weight ? weight[k] : 1);
        sum = first ? x : sum + x;
        first = false;
    }
    row_store_one(dtype, to + at, sum);
}
/* Stores the weighted sum of `count` rows of `columns` elements (blend_function). */
INLINE void rows_blend(tutti_dtype dtype, void *to, const void *const *from, const float *weight, int count,
    size_t columns)
{
    size_t size = row_element_bytes(dtype), whole = columns / ROW_BLOCK * ROW_BLOCK;
    const char *const *rows = (const char *const *)from;
    for (size_t i = 0; i < whole; i += ROW_BLOCK) blend_block(dtype, to, rows, weight, count, i * size);
    for (size_t i = whole; i < columns; i++) blend_one(dtype, to, rows, weight, count, i * size);
}
/* Returns the dot product of two rows. Lanes are added in a fixed order, so the result is equal on all instruction
   sets. */
INLINE float rows_dot(tutti_dtype dtype, const char *a, const char *b, size_t columns)
{
    lanes_f32 sum[ROW_PARTS] = { 0 };
    size_t size = row_element_bytes(dtype), whole = columns / ROW_BLOCK * ROW_BLOCK;
    for (size_t i = 0; i < whole; i += ROW_BLOCK) {
        vector x[ROW_PARTS], y[ROW_PARTS];
        row_load(dtype, a + i * size, x);
        row_load(dtype, b + i * size, y);
        for (int p = 0; p < ROW_PARTS; p++) sum[p] += (lanes_f32)x[p] * (lanes_f32)y[p];
    }
    float rest[ROW_BLOCK] = { 0 };
    for (size_t i = whole; i < columns; i++)
        rest[i - whole] = row_load_one(dtype, a + i * size) * row_load_one(dtype, b + i * size);
    if (whole < columns)
        for (int p = 0; p < ROW_PARTS; p++)
            for (int l = 0; l < ROW_LANES; l++) sum[p][l] += rest[row_element(dtype, p, l)];
    return row_sum_block(dtype, sum);
}

#define X(dtype, bytes)                                                                                                \
    static void blend_##dtype(void *to, const void *const *from, const float *weight, int count, size_t columns)       \
    {                                                                                                                  \
        if (weight) rows_blend(TUTTI_##dtype, to, from, weight, count, columns);                                       \
        else rows_blend(TUTTI_##dtype, to, from, NULL, count, columns);                                                \
    }                                                                                                                  \
    static float dot_##dtype(const void *a, const void *b, size_t columns)                                             \
    {                                                                                                                  \
        return rows_dot(TUTTI_##dtype, a, b, columns);                                                                 \
    }
ROW_MAP(X)
#undef X
