/* Arithmetic on arrays. The functions are found by (dtype, op). The instruction set is chosen once per process, at run
 * time.
 *
 * Results are bit-identical on all instruction sets, in the default floating-point environment (round to nearest,
 * denormals kept):
 *   - Sources are combined in the order of from[]: from[0] op from[1] op …
 *   - float16, bfloat16 and float8 are computed in float32 and rounded once, at the end, to nearest even. Overflow
 *     gives infinity; float8_e4m3fn has none and saturates at 448, as torch's conversion does.
 *   - A result that is NaN is the positive quiet NaN without payload (0x7fc00000 in float32; 0x7f in both float8).
 *   - min and max return NaN if any source is NaN, and order -0 below +0, for any order of sources.
 *   - Integers wrap. bool reads every byte except 0 as true and writes 0 or 1.
 *   - One source with divisor 1 is copied bit by bit, including NaN and bool. */
#pragma once
#include "include/tutti.h"

/* Computes to[0][i] = to[1][i] = … = from[0][i] op from[1][i] op …, for i < count. from_count >= 1, to_count >= 1. A
   destination may be one of the sources. Otherwise arrays must not overlap. Arrays are aligned to the element. The
   result of a sum is divided by divisor >= 1, once, before it is rounded (integers: towards zero). Other ops need
   divisor 1. */
typedef void reduce_function(void *const *to, int to_count, const void *const *from, int from_count, size_t count,
    int divisor);
/* Computes to[i] = from[i] * factor in float32 (float64: in float64), rounded once, for floating-point types. `to` may
   be `from`. */
typedef void scale_function(void *to, const void *from, size_t count, double factor);

/* Reduces with stores around the caches, which then need not read overwritten lines. A thread that sees a later store
   of this thread sees the results. It suits destinations that no cache will hold. A destination must not be a
   source. */
typedef reduce_function reduce_streamed_function;

/* Returns the function that reduces this dtype by this op, or NULL for an undefined pair (bitwise operations on
   floating point; AVG on bool; PREMUL_SUM on integers and bool). For AVG and PREMUL_SUM it is the function of SUM. */
reduce_function *reduce_find(tutti_dtype dtype, tutti_op op);
/* Returns the function that reduces around the caches, or NULL except for SUM, AVG and PREMUL_SUM of float32, bfloat16
   and float16. */
reduce_streamed_function *reduce_streamed_find(tutti_dtype dtype, tutti_op op);
/* Returns the function that scales this dtype, or NULL for integers and bool. */
scale_function *scale_find(tutti_dtype dtype);

/* Returns the name of the index-th instruction set that this machine runs, from worst to best: 0 is "scalar". Returns
   NULL after the last. */
const char *kernels_isa_name(int index);
/* Returns the name of the instruction set in use. */
const char *kernels_isa(void);
/* Makes later calls of the find functions use the named instruction set (tests, TUTTI_ISA). Returns false if this
   machine does not run it. */
bool kernels_select_isa(const char *isa);
