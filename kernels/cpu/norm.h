/* The loops of kernels/norm.h, compiled once per instruction set. The last columns, fewer than a block of rows.h, are
 * processed one by one, so that sums contain only elements of the row. */
#include "kernels/norm.h"
#include <math.h>

/* ---- sums over a row ---- */
/* Returns x - mean, or its square if `squares`. */
INLINE float norm_compute_term(float x, bool squares, float mean)
{
    return squares ? (x - mean) * (x - mean) : x - mean;
}
/* Loads a block of 64 elements of a row. If residual is not NULL, adds the block to the residual, rounds, and returns
   the rounded sums in `block`. */
INLINE void norm_add_residual(tutti_dtype dtype, const char *row, char *residual, vector *block)
{
    vector kept[ROW_PARTS];
    row_load(dtype, row, block);
    if (!residual) return;
    row_load(dtype, residual, kept);
    for (int p = 0; p < ROW_PARTS; p++) block[p] = (vector)((lanes_f32)block[p] + (lanes_f32)kept[p]);
    row_round(dtype, residual, block);
}
/* Returns one element of a row. If residual is not NULL, adds the element to the residual, and returns the rounded
   sum. */
INLINE float norm_add_residual_one(tutti_dtype dtype, const char *row, char *residual)
{
    float x = row_load_one(dtype, row);
    return residual ? row_store_one(dtype, residual, x + row_load_one(dtype, residual)) : x;
}
/* Adds a row to its residual, if that is not NULL, and returns the sum of x - mean over the resulting elements x, or
   the sum of its square if `squares`. */
INLINE float norm_sum_row(tutti_dtype dtype, const char *row, char *residual, size_t columns, bool squares, float mean)
{
    lanes_f32 sum[ROW_PARTS] = { 0 };
    size_t size = row_element_bytes(dtype), whole = columns / ROW_BLOCK * ROW_BLOCK;
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
    return row_sum_block(dtype, sum);
}

/* ---- a row ---- */
/* Stores (from[i] - mean) * scale for each element to `row`, times n->weight if has_weight, and plus n->bias if
   has_bias. */
INLINE void norm_write_row(tutti_dtype dtype, const struct norm *n, char *row, const char *from, float mean,
    float scale, bool has_weight, bool has_bias)
{
    size_t size = row_element_bytes(dtype), whole = n->columns / ROW_BLOCK * ROW_BLOCK;
    const char *weight = n->weight, *bias = n->bias;
    for (size_t i = 0; i < whole; i += ROW_BLOCK) {
        vector block[ROW_PARTS], factor[ROW_PARTS], more[ROW_PARTS];
        row_load(dtype, from + i * size, block);
        if (has_weight) row_load(dtype, weight + i * size, factor);
        if (has_bias) row_load(dtype, bias + i * size, more);
        for (int p = 0; p < ROW_PARTS; p++) {
            lanes_f32 y = ((lanes_f32)block[p] - mean) * scale;
            if (has_weight) y *= (lanes_f32)factor[p];
            if (has_bias) y += (lanes_f32)more[p];
            block[p] = (vector)y;
        }
        row_store(dtype, row + i * size, block);
    }
    for (size_t i = whole; i < n->columns; i++) {
        float y = (row_load_one(dtype, from + i * size) - mean) * scale;
        if (has_weight) y *= row_load_one(dtype, weight + i * size);
        if (has_bias) y += row_load_one(dtype, bias + i * size);
        row_store_one(dtype, row + i * size, y);
    }
}
/* Normalises a row in place. If residual is not NULL, first adds the row to it (residual += row), and stores the
   normalised residual in the row. */
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
