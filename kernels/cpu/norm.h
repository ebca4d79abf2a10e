/* The loops of kernels/norm.h, compiled once per instruction set. The last columns, fewer than a block of rows.h, are
 * processed one by one, so that sums contain only elements of the row. */
#include "kernels/norm.h"
#include <math.h>

/* ---- sums over a row ---- */
INLINE float norm_compute_term(float x, bool squares, float mean)
{
    return squares ? (x - mean) * (x - mean) : x - mean;
}
/* Loads a block of a row. With a residual, adds the row to it, and loads the sums. */
INLINE void norm_add_residual(tutti_dtype dtype, const char *row, char *residual, vector *block)
{
    vector kept[ROW_PARTS];
    row_load(dtype, row, block);
    if (!residual) return;
    row_load(dtype, residual, kept);
    for (int p = 0; p < ROW_PARTS; p++) block[p] = (vector)((lanes_f32)block[p] + (lanes_f32)kept[p]);
    row_round(dtype, residual, block);
}
INLINE float norm_add_residual_one(tutti_dtype dtype, const char *row, char *residual)
{
    float x = row_load_one(dtype, row);
    return residual ? row_store_one(dtype, residual, x + row_load_one(dtype, residual)) : x;
}
/* Joins a row with its residual and returns the sum of x - mean over its elements, or of its squares. */
INLINE float norm_sum_row(tutti_dtype dtype, const char *row, char *residual, size_t columns, bool squares, float mean)
{
    lanes_f32 sum[ROW_PARTS] = { 0 };
    size_t size = row_bytes(dtype), whole = columns / ROW_BLOCK * ROW_BLOCK;
    for (size_t i = 0; i < whole; i += ROW_BLOCK) {
        vector block[ROW_PARTS];
        norm_add_residual(dtype, row + i * size, residual ? residual + i * size : NULL, block);
        for (int p = 0; p < ROW_PARTS; p++) {
            lanes_f32 x = (lanes_f32)block[p] - mean;
            sum[p] += squares ? x * x : x;
        }
    }
    if (whole < columns) {
        float rest[ROW_BLOCK] = { 0 };
        for (size_t i = whole; i < columns; i++)
            rest[i - whole] =
                norm_compute_term(norm_add_residual_one(dtype, row + i * size, residual ? residual + i * size : NULL),
                    squares, mean);
        for (int p = 0; p < ROW_PARTS; p++)
            for (int l = 0; l < ROW_LANES; l++) sum[p][l] += rest[row_element(dtype, p, l)];
    }
    return row_total(dtype, sum);
}

/* ---- a row ---- */
/* Stores (from - mean) * scale, times weight and plus bias if given. */
INLINE void norm_write_row(tutti_dtype dtype, const struct norm *n, char *row, const char *from, float mean,
    float scale, bool weighted, bool biased)
{
    size_t size = row_bytes(dtype), whole = n->columns / ROW_BLOCK * ROW_BLOCK;
    const char *weight = n->weight, *bias = n->bias;
    for (size_t i = 0; i < whole; i += ROW_BLOCK) {
        vector block[ROW_PARTS], factor[ROW_PARTS], more[ROW_PARTS];
        row_load(dtype, from + i * size, block);
        if (weighted) row_load(dtype, weight + i * size, factor);
        if (biased) row_load(dtype, bias + i * size, more);
        for (int p = 0; p < ROW_PARTS; p++) {
            lanes_f32 y = ((lanes_f32)block[p] - mean) * scale;
            if (weighted) y *= (lanes_f32)factor[p];
            if (biased) y += (lanes_f32)more[p];
            block[p] = (vector)y;
        }
        row_store(dtype, row + i * size, block);
    }
    for (size_t i = whole; i < n->columns; i++) {
        float y = (row_load_one(dtype, from + i * size) - mean) * scale;
        if (weighted) y *= row_load_one(dtype, weight + i * size);
        if (biased) y += row_load_one(dtype, bias + i * size);
        row_store_one(dtype, row + i * size, y);
    }
}
/* Normalises a row. With a residual, adds the row to it first (residual += row) and normalises that. */
INLINE void norm_normalize_row(tutti_dtype dtype, const struct norm *n, char *row, char *residual)
{
    const char *from = residual ? residual : row;
    float columns = (float)n->columns, mean = 0, squares;
    if (n->centred) {
        mean = norm_sum_row(dtype, row, residual, n->columns, false, 0) / columns;
        squares = norm_sum_row(dtype, from, NULL, n->columns, true, mean);
    } else {
        squares = norm_sum_row(dtype, row, residual, n->columns, true, 0);
    }
    float scale = 1.0f / sqrtf(squares / columns + n->epsilon);
    if (n->weight && !n->bias && !n->centred) norm_write_row(dtype, n, row, from, 0, scale, true, false);
    else norm_write_row(dtype, n, row, from, mean, scale, n->weight != NULL, n->bias != NULL);
}

#define X(dtype, bytes)                                                                                                \
    static void norm_##dtype(const struct norm *norm, void *rows, void *residual, size_t count)                        \
    {                                                                                                                  \
        for (size_t r = 0, at = 0; r < count; r++, at += norm->columns * bytes)                                        \
            norm_normalize_row(TUTTI_##dtype, norm, (char *)rows + at, residual ? (char *)residual + at : NULL);       \
    }
ROW_MAP(X)
#undef X
