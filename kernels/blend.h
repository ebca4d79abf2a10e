/* Sums of weighted rows, which may lie anywhere. They make the rows that go to experts, and the rows that tokens get
 * back. Types: float32, bfloat16, float16.
 *
 * Results are bit-identical on all instruction sets. Each element is computed in float32, with each step rounded.
 * Products are added in the order of the rows, and the sum is rounded once to the type. NaNs are as in reduce.h. */
#pragma once
#include "include/tutti.h"

/* Computes to[i] = sum of from[k][i] * weight[k] over those of `count` rows that are not NULL, or 0 if all are NULL.
   weight NULL means weights of 1. `to` must not overlap the rows. */
typedef void blend_function(void *to, const void *const *from, const float *weight, int count, size_t columns);
/* Returns the function for rows of this type, or NULL for types other than FLOAT32, BFLOAT16 and FLOAT16. */
blend_function *blend_find(tutti_dtype dtype);
/* Returns the sum of a[i] * b[i] over `columns` elements. Element i is added to the (i modulo 64)-th of 64 sums, as in
   norm.h. */
typedef float dot_function(const void *a, const void *b, size_t columns);
/* Returns the function for rows of this type, or NULL for types other than FLOAT32, BFLOAT16 and FLOAT16. */
dot_function *dot_find(tutti_dtype dtype);
