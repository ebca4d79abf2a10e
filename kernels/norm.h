/* Normalisation of rows, as between the layers of a transformer: a residual is added, and each row is divided by its
 * root mean square (RMSNorm, Zhang and Sennrich 2019) or by its deviation from its mean (LayerNorm, Ba et al. 2016).
 *
 * The same bits on all instruction sets: a row and its residual are added in float32 and rounded once to their type; of
 * what was rounded, element i is added, or its square, to the (i modulo 64)-th of 64 sums in float32, which are then
 * added in pairs that are 32, 16, … 1 apart. (x - mean) * (1 ÷ sqrt(sum ÷ columns + epsilon)) * weight + bias is
 * computed in float32, each step rounded, and rounded to the type at the end. A NaN is as in reduce.h. */
#pragma once
#include "include/tutti.h"

struct norm {
    bool centred;                 /* LayerNorm: the mean is subtracted; else RMSNorm */
    float epsilon;
    size_t columns;               /* of a row, which has no gaps, and follows the one before it */
    const void *weight, *bias;    /* [columns], of the rows' type; NULL: 1, 0 */
};
/* Rows are replaced by what they are normalised to. residual: NULL, or as many rows, which are replaced by their sums
   with the others before these are normalised. Nothing overlaps. */
typedef void norm_function(const struct norm *norm, void *rows, void *residual, size_t count);
norm_function *norm_find(tutti_dtype dtype); /* NULL but for FLOAT32, BFLOAT16 and FLOAT16 */
