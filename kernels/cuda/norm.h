/* The kernel of kernels/norm.h. A warp computes a row: lane l of 32 has columns 2l and 2l + 1 of each 64, so its two
 * sums are two of the 64 of norm.h. A lane reads only what it has written itself, so lanes exchange only sums. */
#pragma once
#include "kernels/cuda/arrays.h"
#include "kernels/cuda/launch.h"

enum { WARP = 32, ROW_SUMS = 64 };
/* The lanes that one thread computes: on the host, the first thread of a warp computes all. */
#if defined(__CUDACC__)
enum { LANES = 1 };
#else
enum { LANES = WARP };
#endif
/* The sums of a lane. */
struct sums2 { float at[2]; };

/* Returns the sum of the 64 sums of a warp, added in pairs that are 32, 16, … 1 apart. Pairs 32 apart lie 16 lanes
   apart, and those 1 apart in one lane. */
DEVICE float warp_sum(struct sums2 *sums)
{
#if defined(__CUDACC__)
    UNROLL
    for (int apart = WARP / 2; apart > 0; apart /= 2) {
        sums->at[0] += __shfl_down_sync(0xffffffffu, sums->at[0], apart);
        sums->at[1] += __shfl_down_sync(0xffffffffu, sums->at[1], apart);
    }
    return __shfl_sync(0xffffffffu, sums->at[0] + sums->at[1], 0);
#else
    for (int apart = WARP / 2; apart > 0; apart /= 2)
        for (int l = 0; l < apart; l++)
            for (int i = 0; i < 2; i++) sums[l].at[i] += sums[l + apart].at[i];
    return sums[0].at[0] + sums[0].at[1];
#endif
}
DEVICE float row_get(tutti_dtype dtype, const char *row, size_t i)
{
    const size_t bytes = (size_t)element_bytes(dtype);
    return float_from_bits((uint32_t)lane_unpack(dtype, code_load(dtype, row + i * bytes)));
}
/* Stores a number as element i of a row, and returns it as rounded. */
DEVICE float row_set(tutti_dtype dtype, char *row, size_t i, float number)
{
    const size_t bytes = (size_t)element_bytes(dtype);
    uint64_t code = lane_pack(dtype, float_to_bits(number));
    code_store(dtype, row + i * bytes, code);
    return float_from_bits((uint32_t)lane_unpack(dtype, code));
}
/* Returns the sums of x - mean over a lane's elements x, or of their squares. If residual is not NULL, first adds the
   row to it, and x are the sums. */
DEVICE struct sums2 norm_sum_lane(tutti_dtype dtype, const char *row, char *residual, size_t columns, bool squares,
    float mean, int lane)
{
    struct sums2 sums = { { 0, 0 } };
    UNROLL_FOUR
    for (size_t i = 2 * (size_t)lane; i < columns; i += ROW_SUMS) {
        UNROLL
        for (int k = 0; k < 2; k++) {
            if (i + (size_t)k >= columns) break;
            float x = row_get(dtype, row, i + (size_t)k);
            if (residual) x = row_set(dtype, residual, i + (size_t)k, x + row_get(dtype, residual, i + (size_t)k));
            x = x - mean;
            sums.at[k] += squares ? x * x : x;
        }
    }
    return sums;
}
DEVICE float norm_sum_row(tutti_dtype dtype, const char *row, char *residual, size_t columns, bool squares, float mean,
    int lane)
{
    struct sums2 sums[LANES];
    for (int l = 0; l < LANES; l++) sums[l] = norm_sum_lane(dtype, row, residual, columns, squares, mean, lane + l);
    return warp_sum(sums);
}
/* Stores a lane's elements (from[i] - mean) * scale * weight + bias. */
DEVICE void norm_write_lane(tutti_dtype dtype, const struct cuda_norm *n, char *row, const char *from, float mean,
    float scale, int lane)
{
    UNROLL_TWO
    for (size_t i = 2 * (size_t)lane; i < n->columns; i += ROW_SUMS) {
        for (size_t k = i; k < i + 2 && k < n->columns; k++) {
            float y = (row_get(dtype, from, k) - mean) * scale;
            if (n->weight) y *= row_get(dtype, (const char *)n->weight, k);
            if (n->bias) y += row_get(dtype, (const char *)n->bias, k);
            row_set(dtype, row, k, y);
        }
    }
}
/* Normalizes a row, as `lane` and the lanes after it that this thread computes. */
DEVICE void norm_row(tutti_dtype dtype, const struct cuda_norm *n, char *row, char *residual, int lane)
{
    const char *from = residual ? residual : row;
    float columns = (float)n->columns, mean = 0;
    float squares = norm_sum_row(dtype, row, residual, n->columns, !n->centred, 0, lane);
    if (n->centred) {
        mean = squares / columns;
        squares = norm_sum_row(dtype, from, NULL, n->columns, true, mean, lane);
    }
    float scale = 1.0f / ROUNDED_SQRTF(squares / columns + n->epsilon);
    for (int l = 0; l < LANES; l++) norm_write_lane(dtype, n, row, from, mean, scale, lane + l);
}
/* Does a thread's part of the rows. The number of threads must be a multiple of a warp. */
DEVICE void norm_run(tutti_dtype dtype, const struct cuda_norm *n, struct cuda_thread thread)
{
    const size_t bytes = n->columns * (size_t)element_bytes(dtype);
    int lane = (int)(thread.index % WARP);
    if (lane % LANES) return;
    UNROLL_ONE
    for (size_t r = thread.index / WARP; r < n->count; r += thread.total / WARP) {
        char *residual = n->residual ? (char *)n->residual + r * bytes : NULL;
        norm_row(dtype, n, (char *)n->rows + r * bytes, residual, lane);
    }
}
