/* Arithmetic on arrays. One lookup, (dtype, op) -> functions; the instruction set is chosen once per process, at run
 * time.
 *
 * All instruction sets give the same bits, in the default floating-point environment (round to nearest, denormals
 * kept):
 *   - Sources are combined in the order of from[]: from[0] op from[1] op …
 *   - float16, bfloat16 and float8 are computed in float32 and rounded once, at the end, to nearest even. Overflow
 *     gives infinity; float8_e4m3fn has none and saturates at 448, as torch's conversion does.
 *   - A result that is NaN is the positive quiet NaN without payload (0x7fc00000 in float32; 0x7f in both float8).
 *   - min and max return NaN if any source is NaN, and hold -0 to be smaller than +0, whatever the order.
 *   - Integers wrap. bool reads any byte but 0 as true and writes 0 or 1.
 *   - One source and divisor 1 is a copy: every bit stays, of NaN and bool too. */
#pragma once
#include "include/tutti.h"

/* to[0][i] = to[1][i] = … = from[0][i] op from[1][i] op …, for i < count. from_count >= 1, to_count >= 1. A destination
   may be one of the sources; apart from that no two arrays overlap. Arrays are aligned to the element. divisor >= 1:
   what the result of a sum is divided by, once, before it is rounded (integers: towards zero); 1 for other ops. */
typedef void reduce_function(void *const *to, int to_count, const void *const *from, int from_count, size_t count,
    int divisor);
/* to[i] = from[i] * factor, computed in float32 (float64: in float64) and rounded once. to may be from. Floating-point
   types only. */
typedef void scale_function(void *to, const void *from, size_t count, double factor);

/* The same, but the results go around the caches, which then need not read what is overwritten, and are visible to
   whoever sees a later store of this thread. For destinations that no cache will hold; none may be a source. */
typedef reduce_function reduce_streamed_function;

/* NULL when the pair makes no sense (bitwise operations on floating point; AVG on bool; PREMUL_SUM on integers and
   bool). AVG and PREMUL_SUM give the sum's function. */
reduce_function *reduce_find(tutti_dtype dtype, tutti_op op);
reduce_streamed_function *reduce_streamed_find(tutti_dtype dtype, tutti_op op); /* NULL but for the sums (AVG and
                                                                 PREMUL_SUM too) of float32, bfloat16 and float16 */
scale_function *scale_find(tutti_dtype dtype); /* NULL for integers and bool */

/* Instruction sets, worst to best: 0 is "scalar"; NULL after the last. Only those this machine runs are listed. */
const char *kernels_isa_name(int index);
const char *kernels_isa(void);     /* the one in use */
bool kernels_use(const char *isa); /* use this one from now on (tests, TUTTI_ISA); false: cannot */
