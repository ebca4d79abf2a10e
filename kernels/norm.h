/* Normalises rows, as between the layers of a transformer. A residual is added, and each row is divided by its root
 * mean square (RMSNorm, Zhang and Sennrich 2019) or by its deviation from its mean (LayerNorm, Ba et al. 2016).
 *
 * Results are bit-identical on all instruction sets. A row and its residual are added in float32 and rounded once to
 * their type. The mean needs the sum of the rounded elements x, and the scale the sum of the squares of x - mean
 * (RMSNorm: of x). For each, element i is added to the (i modulo 64)-th of 64 sums in float32, and these are added in
 * pairs that are 32, 16, … 1 apart. (x - mean) * (1 ÷ sqrt(sum of squares ÷ columns + epsilon)) * weight + bias is
 * computed in float32, with each step rounded, and rounded to the type at the end. NaNs are as in reduce.h. */
#pragma once
#include "include/tutti.h"

struct norm {
    /* True subtracts the mean (LayerNorm); false does not (RMSNorm). */
    bool centred;
    float epsilon;
    /* Rows have this many columns and are contiguous. */
    size_t columns;
    /* Each has [columns] elements of the rows' type. NULL means 1 for weight and 0 for bias. */
    const void *weight, *bias;
};
/* Replaces `count` rows by their normalised values. residual has `count` rows, or is NULL. The sums of rows and
   residual replace the residual before they are normalised. The arrays must not overlap. */
typedef void norm_function(const struct norm *norm, void *rows, void *residual, size_t count);
/* Returns the function for rows of this type, or NULL for types other than FLOAT32, BFLOAT16 and FLOAT16. */
norm_function *norm_find(tutti_dtype dtype);
