/* What one instruction set brings: its functions by dtype and op. kernels/reduce.c chooses among them. */
#pragma once
#include "kernels/blend.h"
#include "kernels/compress.h"
#include "kernels/norm.h"
#include "kernels/reduce.h"
#include "kernels/update.h"

struct kernels {
    const char *isa;
    const struct kernels *below; /* does what this one leaves out; or NULL */
    reduce_function *reduce[TUTTI_DTYPE_COUNT][TUTTI_OP_COUNT];
    reduce_function *streamed_sum[TUTTI_DTYPE_COUNT]; /* NULL for most */
    scale_function *scale[TUTTI_DTYPE_COUNT];
    update_function *update[TUTTI_DTYPE_COUNT][UPDATE_RULES]; /* all have those that there are */
    squares_function *squares[TUTTI_DTYPE_COUNT];
    norm_function *norm[TUTTI_DTYPE_COUNT];
    blend_function *blend[TUTTI_DTYPE_COUNT];
    dot_function *dot[TUTTI_DTYPE_COUNT];
    pack_function *pack[TUTTI_DTYPE_COUNT];
    unpack_function *unpack[TUTTI_DTYPE_COUNT];
};
extern const struct kernels kernels_scalar, kernels_avx2, kernels_avx512, kernels_neon;
