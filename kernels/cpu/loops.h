/* The loops over arrays and their table of functions, compiled once per instruction set. The including file defines
 * WIDTH, the conversion of float16, KERNELS (the name of the table), and ISA and BELOW (its first two members). A block
 * is one vector from each source. Each block is read whole before it is written, so a destination may be a source. A
 * block's bytes pass through memory once, for any number of sources and destinations. The loops access only elements in
 * [0, count).
 *
 * A *lane* is one number of a vector in the type in which it is computed (dtype_get_lane_type), such as float32 for
 * bfloat16. A *part* is a vector of lanes. A vector of elements is unpacked to 1, 2 or 4 parts. */
#pragma once
#include "kernels/cpu/float8.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/lanes.h"

/* The loops compute GROUP parts at once, which hides the latency of an addition. LINE is the bytes of a
   cache line. */
enum { GROUP = 4 };
enum { LINE = 64 };

/* The arguments of a reduce_function (kernels/reduce.h), with arrays as bytes. */
struct task {
    char *const *to;
    const char *const *from;
    int to_count, from_count, divisor;
    /* True: whole vectors are stored around the caches. */
    bool streams;
};

/* Returns the type of the lanes in which elements of a dtype are computed. */
INLINE tutti_dtype dtype_get_lane_type(tutti_dtype dtype)
{
    switch (dtype) {
    case TUTTI_BOOL: return TUTTI_UINT8;
    case TUTTI_FLOAT16:
    case TUTTI_BFLOAT16:
    case TUTTI_FLOAT8_E4M3:
    case TUTTI_FLOAT8_E5M2: return TUTTI_FLOAT32;
    default: return dtype;
    }
}

/* Returns the op on lanes that computes `op` on elements of a dtype. It differs for bool, whose sum is or. */
INLINE tutti_op dtype_get_lane_op(tutti_dtype dtype, tutti_op op)
{
    if (dtype != TUTTI_BOOL || op == TUTTI_BXOR) return op;
    return op == TUTTI_SUM || op == TUTTI_MAX || op == TUTTI_BOR ? TUTTI_BOR : TUTTI_BAND;
}

/* Returns how many parts one vector of elements becomes when it is unpacked. */
INLINE int dtype_count_parts(tutti_dtype dtype)
{
    switch (dtype) {
    case TUTTI_FLOAT16:
    case TUTTI_BFLOAT16: return 2;
    case TUTTI_FLOAT8_E4M3:
    case TUTTI_FLOAT8_E5M2: return 4;
    default: return 1;
    }
}

/* Loads a vector of elements and unpacks it into dtype_count_parts(dtype) vectors of lanes. Any order of lanes is valid
   if vector_pack_parts restores it. The parts of bfloat16 are the lower and the upper halves of 32-bit lanes, which
   saves a shuffle. */
INLINE void vector_unpack_parts(tutti_dtype dtype, const char *from, vector *part)
{
    vector v = vector_load(from);
    switch (dtype) {
    case TUTTI_BOOL: part[0] = (vector)((lanes_u8)v != 0) & 0x01010101u; break;
    case TUTTI_FLOAT16: float16_unpack(from, part); break;
    case TUTTI_BFLOAT16:
        part[0] = v << 16;
        part[1] = v & 0xffff0000u;
        break;
    case TUTTI_FLOAT8_E4M3: float8_e4m3_unpack(v, part); break;
    case TUTTI_FLOAT8_E5M2: float8_e5m2_unpack(v, part); break;
    default: part[0] = v;
    }
}

/* Returns true for the 16-bit types, which are computed in float32. */
INLINE bool dtype_is_widened(tutti_dtype dtype) { return dtype == TUTTI_FLOAT16 || dtype == TUTTI_BFLOAT16; }

/* Replaces each NaN in `parts` vectors of lanes by the canonical NaN. The parts of 16-bit types are checked together;
   without a NaN, the usual case, this costs one branch. */
INLINE void parts_canonicalize_nans(tutti_dtype dtype, vector *part, int parts)
{
    /* float8_round replaces the NaNs of float8. */
    if (!lanes_are_floating(dtype_get_lane_type(dtype)) || dtype_count_parts(dtype) > 2) return;
    if (dtype_is_widened(dtype) && __builtin_expect(!widened_any_nan(part, parts), 1)) return;
    for (int i = 0; i < parts; i++) part[i] = lanes_canonicalize_nans(dtype_get_lane_type(dtype), part[i]);
}

/* Packs lanes into one vector of elements, the reverse of vector_unpack_parts. NaNs must be canonical, except those of
   float8, which its rounding replaces; it also overwrites the parts. */
INLINE vector vector_pack_parts(tutti_dtype dtype, vector *part)
{
    switch (dtype) {
    case TUTTI_FLOAT16: return float16_pack(part);
    case TUTTI_BFLOAT16: return bfloat16_pack(part);
    case TUTTI_FLOAT8_E4M3: return float8_e4m3_pack(part);
    case TUTTI_FLOAT8_E5M2: return float8_e5m2_pack(part);
    default: return part[0];
    }
}

/* Returns a op b for lanes that were unpacked from elements of a dtype. */
INLINE vector parts_combine(tutti_dtype dtype, tutti_op op, vector a, vector b)
{
    if (dtype_is_widened(dtype) && op == TUTTI_SUM) return widened_add(a, b);
    return lanes_combine(dtype_get_lane_type(dtype), dtype_get_lane_op(dtype, op), a, b);
}

/* Loads `vectors` whole vectors of elements and unpacks them to `out`. If bytes < WIDTH, an array ends here: loads one
   vector that has only `bytes` bytes, and `vectors` is 1. Larger values of `bytes` have no effect. */
INLINE void group_load(tutti_dtype dtype, const char *from, size_t bytes, int vectors, vector *out)
{
    if (bytes < WIDTH) {
        vector some = vector_load_some(from, bytes);
        vector_unpack_parts(dtype, (const char *)&some, out);
        return;
    }
    for (int i = 0; i < vectors; i++) vector_unpack_parts(dtype, from + i * WIDTH, out + i * dtype_count_parts(dtype));
}

/* Stores `vectors` whole vectors, around the caches if `streams`. If bytes < WIDTH, stores `bytes` bytes of the first
   vector alone. */
INLINE void group_store(char *to, size_t bytes, int vectors, const vector *block, bool streams)
{
    if (bytes < WIDTH) {
        vector_store_some(to, block[0], bytes);
        return;
    }
    for (int i = 0; i < vectors; i++) {
        if (streams) vector_stream(to + i * WIDTH, block[i]);
        else vector_store(to + i * WIDTH, block[i]);
    }
}

/* Reduces `vectors` whole vectors of elements that begin at byte `at` of each source, and stores the result at byte
   `at` of each destination. vectors * dtype_count_parts(dtype) is at most GROUP. If bytes < WIDTH, `vectors` is 1, and
   only `bytes` bytes are read and written: the end of an array. Divides a sum by task.divisor, except for bool. */
INLINE void group_reduce(tutti_dtype dtype, tutti_op op, struct task task, size_t at, size_t bytes, int vectors)
{
    const tutti_dtype lane = dtype_get_lane_type(dtype);
    const int parts = vectors * dtype_count_parts(dtype);
    vector total[GROUP], next[GROUP];
    group_load(dtype, task.from[0] + at, bytes, vectors, total);
    for (int k = 1; k < task.from_count; k++) {
        group_load(dtype, task.from[k] + at, bytes, vectors, next);
        for (int i = 0; i < parts; i++) total[i] = parts_combine(dtype, op, total[i], next[i]);
    }
    if (op == TUTTI_SUM && dtype != TUTTI_BOOL && task.divisor != 1) {
        for (int i = 0; i < parts; i++) total[i] = lanes_divide(lane, total[i], task.divisor);
    }
    parts_canonicalize_nans(dtype, total, parts);
    for (int i = 0; i < vectors; i++) next[i] = vector_pack_parts(dtype, total + i * dtype_count_parts(dtype));
    for (int j = 0; j < task.to_count; j++) group_store(task.to[j] + at, bytes, vectors, next, task.streams);
}

/* Reduces the whole groups of vectors between the bytes `at` and `bytes`, and returns where they end. */
INLINE size_t groups_reduce(tutti_dtype dtype, tutti_op op, struct task task, size_t at, size_t bytes)
{
    const int vectors = GROUP / dtype_count_parts(dtype);
    for (; at + vectors * WIDTH <= bytes; at += vectors * WIDTH) group_reduce(dtype, op, task, at, WIDTH, vectors);
    return at;
}

/* Sums as groups_reduce does, with constant counts and pointers in registers for common numbers of sources and
   destinations. The divisor must be 1. */
INLINE size_t groups_reduce_common(tutti_dtype dtype, struct task task, size_t at, size_t bytes)
{
    char *to[2] = { task.to[0], task.to[task.to_count - 1] };
    const char *from[2] = { task.from[0], task.from[task.from_count - 1] };
    const struct task one = { to, from, 1, 2, 1, task.streams }, both = { to, from, 2, 2, 1, task.streams },
                      many = { to, task.from, 1, task.from_count, 1, task.streams };
    if (task.from_count == 2 && task.to_count == 1) return groups_reduce(dtype, TUTTI_SUM, one, at, bytes);
    if (task.from_count == 2 && task.to_count == 2) return groups_reduce(dtype, TUTTI_SUM, both, at, bytes);
    if (task.to_count == 1) return groups_reduce(dtype, TUTTI_SUM, many, at, bytes);
    return groups_reduce(dtype, TUTTI_SUM, task, at, bytes);
}

/* Returns true for sums of the dtypes that carry the traffic of training. */
INLINE bool pair_is_common(tutti_dtype dtype, tutti_op op)
{
    return op == TUTTI_SUM && (dtype == TUTTI_FLOAT32 || dtype == TUTTI_BFLOAT16 || dtype == TUTTI_FLOAT16);
}

/* Copies a task's one source to its destinations. With several destinations this is a reduction of one source, in which
   any op copies. */
static void task_copy_source(struct task task, size_t bytes)
{
    if (task.to_count == 1) {
        if (task.to[0] != task.from[0]) memcpy(task.to[0], task.from[0], bytes);
        return;
    }
    size_t at = groups_reduce(TUTTI_UINT8, TUTTI_BOR, task, 0, bytes);
    for (; at < bytes; at += WIDTH) group_reduce(TUTTI_UINT8, TUTTI_BOR, task, at, bytes - at, 1);
}

/* Reduces arrays of `bytes` bytes: whole groups of vectors first, then single vectors. */
INLINE void task_reduce(tutti_dtype dtype, tutti_op op, struct task task, size_t bytes)
{
    if (task.from_count == 1 && task.divisor == 1) {
        task_copy_source(task, bytes);
        return;
    }
    size_t at = 0;
    if (bytes >= GROUP * WIDTH && dtype_count_parts(dtype) < GROUP) {
        if (pair_is_common(dtype, op) && task.divisor == 1) at = groups_reduce_common(dtype, task, 0, bytes);
        else at = groups_reduce(dtype, op, task, 0, bytes);
    }
    for (; at < bytes; at += WIDTH) group_reduce(dtype, op, task, at, bytes - at, 1);
}

/* Sums arrays of `bytes` bytes, with elements of `element` bytes, and stores whole lines around the caches. If the
   destinations lie differently in their lines, or it is a copy, it stores ordinarily. Only whole lines are streamed,
   because the processor reads a line that is stored in part. The first vectors overlap the first whole line, so some
   elements are computed twice; a destination is never a source here. A line must start at the start of an element. */
INLINE void task_reduce_streamed(tutti_dtype dtype, struct task task, size_t bytes, size_t element)
{
    size_t skew = (uintptr_t)task.to[0] % LINE, begin = skew ? LINE - skew : 0, at = 0;
    bool fits = bytes >= 2 * LINE && skew % element == 0 && (task.from_count > 1 || task.divisor > 1);
    for (int j = 1; j < task.to_count; j++) fits &= (uintptr_t)task.to[j] % LINE == skew;
    if (!fits) {
        task_reduce(dtype, TUTTI_SUM, task, bytes);
        return;
    }
    for (; at < begin; at += WIDTH) group_reduce(dtype, TUTTI_SUM, task, at, WIDTH, 1);
    task.streams = true;
    if (task.divisor == 1) at = groups_reduce_common(dtype, task, begin, bytes);
    else at = groups_reduce(dtype, TUTTI_SUM, task, begin, bytes);
    task.streams = false;
    for (; at < bytes; at += WIDTH) group_reduce(dtype, TUTTI_SUM, task, at, bytes - at, 1);
    vector_stream_end();
}

/* Multiplies `vectors` whole vectors of elements by a factor. If bytes < WIDTH, `vectors` is 1, and only `bytes` bytes
   are read and written. */
INLINE void group_scale(tutti_dtype dtype, char *to, const char *from, size_t bytes, int vectors, double factor)
{
    vector part[GROUP];
    group_load(dtype, from, bytes, vectors, part);
    for (int i = 0; i < vectors * dtype_count_parts(dtype); i++)
        part[i] = lanes_scale(dtype_get_lane_type(dtype), part[i], factor);
    parts_canonicalize_nans(dtype, part, vectors * dtype_count_parts(dtype));
    for (int i = 0; i < vectors; i++) part[i] = vector_pack_parts(dtype, part + i * dtype_count_parts(dtype));
    group_store(to, bytes, vectors, part, false);
}

/* Multiplies the elements of an array of `bytes` bytes by a factor. */
INLINE void array_scale(tutti_dtype dtype, char *to, const char *from, size_t bytes, double factor)
{
    const int vectors = GROUP / dtype_count_parts(dtype);
    size_t at = 0;
    for (; vectors > 1 && at + vectors * WIDTH <= bytes; at += vectors * WIDTH)
        group_scale(dtype, to + at, from + at, WIDTH, vectors, factor);
    for (; at < bytes; at += WIDTH) group_scale(dtype, to + at, from + at, bytes - at, 1, factor);
}

/* These maps list the operations of each dtype. */
#define INTEGER_MAP(X)                                                                                                 \
    X(INT8, 1) X(UINT8, 1) X(INT16, 2) X(UINT16, 2) X(INT32, 4) X(UINT32, 4) X(INT64, 8) X(UINT64, 8) X(BOOL, 1)
#ifndef FLOAT16_MAP
#define FLOAT16_MAP(X) X(FLOAT16, 2)
#endif
#define FLOATING_MAP(X) FLOAT16_MAP(X) X(BFLOAT16, 2) X(FLOAT32, 4) X(FLOAT64, 8) X(FLOAT8_E4M3, 1) X(FLOAT8_E5M2, 1)
#define ARITHMETIC_MAP(Y, dtype, bytes)                                                                                \
    Y(dtype, bytes, SUM) Y(dtype, bytes, PROD) Y(dtype, bytes, MIN) Y(dtype, bytes, MAX)
#define BITWISE_MAP(Y, dtype, bytes) Y(dtype, bytes, BAND) Y(dtype, bytes, BOR) Y(dtype, bytes, BXOR)

#define Y(dtype, bytes, op)                                                                                            \
    static void op##_##dtype(                                                                                          \
        void *const *to, int to_count, const void *const *from, int from_count, size_t count, int divisor)             \
    {                                                                                                                  \
        struct task task = { (char *const *)to, (const char *const *)from, to_count, from_count, divisor, false };     \
        task_reduce(TUTTI_##dtype, TUTTI_##op, task, count *bytes);                                                    \
    }
#define X(dtype, bytes) ARITHMETIC_MAP(Y, dtype, bytes) BITWISE_MAP(Y, dtype, bytes)
INTEGER_MAP(X)
#undef X
#define X(dtype, bytes) ARITHMETIC_MAP(Y, dtype, bytes)
FLOATING_MAP(X)
#undef X
#undef Y

#define X(dtype, bytes)                                                                                                \
    static void scale_##dtype(void *to, const void *from, size_t count, double factor)                                 \
    {                                                                                                                  \
        array_scale(TUTTI_##dtype, to, from, count *bytes, factor);                                                    \
    }
FLOATING_MAP(X)
#undef X

#define STREAMED_MAP(X) FLOAT16_MAP(X) X(BFLOAT16, 2) X(FLOAT32, 4)
#define X(dtype, bytes)                                                                                                \
    static void streamed_##dtype(                                                                                      \
        void *const *to, int to_count, const void *const *from, int from_count, size_t count, int divisor)             \
    {                                                                                                                  \
        struct task task = { (char *const *)to, (const char *const *)from, to_count, from_count, divisor, false };     \
        task_reduce_streamed(TUTTI_##dtype, task, count *bytes, bytes);                                                \
    }
STREAMED_MAP(X)
#undef X

#include "kernels/cpu/update.h"

#include "kernels/cpu/compress.h"

#include "kernels/cpu/rows.h"

#include "kernels/cpu/norm.h"

#include "kernels/cpu/blend.h"

const struct kernels KERNELS = {
    .isa = ISA,
    .below = BELOW,
    .reduce = {
#define Y(dtype, bytes, op) [TUTTI_##op] = op##_##dtype,
#define X(dtype, bytes)     [TUTTI_##dtype] = { ARITHMETIC_MAP(Y, dtype, bytes) BITWISE_MAP(Y, dtype, bytes) },
        INTEGER_MAP(X)
#undef X
#define X(dtype, bytes) [TUTTI_##dtype] = { ARITHMETIC_MAP(Y, dtype, bytes) },
        FLOATING_MAP(X)
#undef X
#undef Y
    },
    .streamed_sum = {
#define X(dtype, bytes) [TUTTI_##dtype] = streamed_##dtype,
        STREAMED_MAP(X)
#undef X
    },
    .scale = {
#define X(dtype, bytes) [TUTTI_##dtype] = scale_##dtype,
        FLOATING_MAP(X)
#undef X
    },
    .update = {
#define X(dtype) \
    [TUTTI_##dtype] = { [UPDATE_SGD] = sgd_##dtype, [UPDATE_ADAM] = adam_##dtype, [UPDATE_ADAMW] = adamw_##dtype },
        UPDATE_MAP(X)
#undef X
    },
    .squares = {
#define X(dtype) [TUTTI_##dtype] = squares_##dtype,
        SQUARES_MAP(X)
#undef X
    },
    .norm = {
#define X(dtype, bytes) [TUTTI_##dtype] = norm_##dtype,
        ROW_MAP(X)
#undef X
    },
    .blend = {
#define X(dtype, bytes) [TUTTI_##dtype] = blend_##dtype,
        ROW_MAP(X)
#undef X
    },
    .dot = {
#define X(dtype, bytes) [TUTTI_##dtype] = dot_##dtype,
        ROW_MAP(X)
#undef X
    },
    .pack = {
#define X(dtype, is_float32) [TUTTI_##dtype] = pack_##dtype,
        PACKING_MAP(X)
#undef X
    },
    .unpack = {
#define X(dtype, is_float32) [TUTTI_##dtype] = unpack_##dtype,
        PACKING_MAP(X)
#undef X
    },
};
