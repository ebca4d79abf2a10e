/* Rows that are put together from other rows, wherever those lie: what a token gets back from its experts, and what
 * goes to them. float32, bfloat16, float16.
 *
 * The same bits on all instruction sets: element by element in float32, each step rounded; products are added in the
 * order of the rows, and the sum is rounded to the type once. A NaN is as in reduce.h. */
#pragma once
#include "include/tutti.h"

/* to[i] = sum of from[k][i] * weight[k] over the rows that are not NULL, of `count` in all; 0 where there are none.
   weight NULL: 1. `to` overlaps none of them. */
typedef void blend_function(void *to, const void *const *from, const float *weight, int count, size_t columns);
blend_function *blend_find(tutti_dtype dtype); /* NULL but for these types */
/* The sum of a[i] * b[i]: element i is added to the (i modulo 64)-th of 64 sums, as in norm.h. */
typedef float dot_function(const void *a, const void *b, size_t columns);
dot_function *dot_find(tutti_dtype dtype);
