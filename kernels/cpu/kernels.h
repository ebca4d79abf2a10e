/* The functions of one instruction set, by dtype and op. kernels/reduce.c chooses among the sets. */
#pragma once
#include "kernels/blend.h"
#include "kernels/compress.h"
#include "kernels/norm.h"
#include "kernels/reduce.h"
#include "kernels/update.h"

/* A function is NULL if the set, or the arithmetic, has none for the type. */
struct kernels {
    /* The name of the instruction set. */
    const char *isa;
    /* `below` is a set that has the functions which this set lacks, or NULL if it lacks none. */
    const struct kernels *below;
    reduce_function *reduce[TUTTI_DTYPE_COUNT][TUTTI_OP_COUNT];
    /* Most types have no streamed sum. */
    reduce_function *streamed_sum[TUTTI_DTYPE_COUNT];
    scale_function *scale[TUTTI_DTYPE_COUNT];
    /* All sets have the same updates. */
    update_function *update[TUTTI_DTYPE_COUNT][UPDATE_RULES];
    squares_function *squares[TUTTI_DTYPE_COUNT];
    norm_function *norm[TUTTI_DTYPE_COUNT];
    blend_function *blend[TUTTI_DTYPE_COUNT];
    dot_function *dot[TUTTI_DTYPE_COUNT];
    pack_function *pack[TUTTI_DTYPE_COUNT];
    unpack_function *unpack[TUTTI_DTYPE_COUNT];
};
extern const struct kernels kernels_scalar, kernels_avx2, kernels_avx512, kernels_neon;
