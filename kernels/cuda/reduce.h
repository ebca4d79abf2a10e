/* The kernels of kernels/reduce.h: a thread combines a vector of each source in the order of the sources, and stores
 * the result to each destination. It has read what it overwrites, so a destination may be a source. */
#pragma once
#include "kernels/cuda/arrays.h"
#include "kernels/cuda/launch.h"

/* ---- reductions ---- */
/* Returns the code of a total, divided. The code of a single source with divisor 1 stays `first`, a copy. */
DEVICE uint64_t reduce_finish(tutti_dtype dtype, tutti_op op, const struct cuda_reduce *r, uint64_t first,
    uint64_t total)
{
    if (r->from_count == 1 && r->divisor == 1) return first;
    if (op == TUTTI_SUM && r->divisor != 1) total = lane_divide(dtype, total, r->divisor);
    return lane_pack(dtype, total);
}
/* Reduces the 16 bytes at byte `at` of the arrays. */
DEVICE void reduce_vector(tutti_dtype dtype, tutti_op op, const struct cuda_reduce *r, size_t at)
{
    enum { LANES_MOST = 16 };
    const int lanes = vector_count_elements(dtype);
    uint64_t total[LANES_MOST];
    struct vector16 first = LOAD(struct vector16, (const char *)r->from[0] + at), result = { { 0 } };
    UNROLL
    for (int i = 0; i < lanes; i++) total[i] = lane_unpack(dtype, vector_get(dtype, &first, i));
    UNROLL_TWO
    for (int k = 1; k < r->from_count; k++) {
        struct vector16 next = LOAD(struct vector16, (const char *)r->from[k] + at);
        UNROLL
        for (int i = 0; i < lanes; i++)
            total[i] = lane_combine(dtype, op, total[i], lane_unpack(dtype, vector_get(dtype, &next, i)));
    }
    UNROLL
    for (int i = 0; i < lanes; i++)
        vector_set(dtype, &result, i, reduce_finish(dtype, op, r, vector_get(dtype, &first, i), total[i]));
    UNROLL_ONE
    for (int j = 0; j < r->to_count; j++) STORE(struct vector16, (char *)r->to[j] + at, result);
}
/* Reduces the element at byte `at` of the arrays. */
DEVICE void reduce_single(tutti_dtype dtype, tutti_op op, const struct cuda_reduce *r, size_t at)
{
    uint64_t first = code_load(dtype, (const char *)r->from[0] + at), total = lane_unpack(dtype, first);
    UNROLL_TWO
    for (int k = 1; k < r->from_count; k++)
        total = lane_combine(dtype, op, total, lane_unpack(dtype, code_load(dtype, (const char *)r->from[k] + at)));
    uint64_t result = reduce_finish(dtype, op, r, first, total);
    UNROLL_ONE
    for (int j = 0; j < r->to_count; j++) code_store(dtype, (char *)r->to[j] + at, result);
}
/* Does a thread's part of a reduction. */
DEVICE void reduce_run(tutti_dtype dtype, tutti_op op, const struct cuda_reduce *r, struct cuda_thread thread)
{
    const size_t bytes = (size_t)element_bytes(dtype);
    uintptr_t first = (uintptr_t)r->to[0], skew = 0;
    UNROLL_ONE
    for (int j = 1; j < r->to_count; j++) skew |= (uintptr_t)r->to[j] ^ first;
    UNROLL_ONE
    for (int k = 0; k < r->from_count; k++) skew |= (uintptr_t)r->from[k] ^ first;
    struct division d = array_divide(dtype, r->to[0], skew, r->count);
    UNROLL_ONE
    for (size_t i = thread.index; i < d.vectors; i += thread.total)
        reduce_vector(dtype, op, r, d.head * bytes + i * VECTOR_BYTES);
    UNROLL_ONE
    for (size_t i = thread.index; i < d.singles; i += thread.total)
        reduce_single(dtype, op, r, division_find_single(dtype, d, i) * bytes);
}

/* ---- products with a factor ---- */
DEVICE uint64_t scale_code(tutti_dtype dtype, uint64_t code, double factor)
{
    return lane_pack(dtype, lane_scale(dtype, lane_unpack(dtype, code), factor));
}
/* Does a thread's part of a product. */
DEVICE void scale_run(tutti_dtype dtype, const struct cuda_scale *s, struct cuda_thread thread)
{
    const size_t bytes = (size_t)element_bytes(dtype);
    const char *from = (const char *)s->from;
    char *to = (char *)s->to;
    struct division d = array_divide(dtype, to, (uintptr_t)to ^ (uintptr_t)from, s->count);
    UNROLL_ONE
    for (size_t i = thread.index; i < d.vectors; i += thread.total) {
        size_t at = d.head * bytes + i * VECTOR_BYTES;
        struct vector16 v = LOAD(struct vector16, from + at), result = { { 0 } };
        UNROLL
        for (int k = 0; k < vector_count_elements(dtype); k++)
            vector_set(dtype, &result, k, scale_code(dtype, vector_get(dtype, &v, k), s->factor));
        STORE(struct vector16, to + at, result);
    }
    UNROLL_ONE
    for (size_t i = thread.index; i < d.singles; i += thread.total) {
        size_t at = division_find_single(dtype, d, i) * bytes;
        code_store(dtype, to + at, scale_code(dtype, code_load(dtype, from + at), s->factor));
    }
}
