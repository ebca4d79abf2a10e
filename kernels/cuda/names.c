#include "kernels/cuda/launch.h"

#define X(op, dtype) [TUTTI_##dtype][TUTTI_##op] = "tutti_reduce_" #op "_" #dtype,
static const char *const reduce_names[TUTTI_DTYPE_COUNT][TUTTI_OP_COUNT] = { CUDA_REDUCE_MAP(X) };
#undef X
#define X(dtype) [TUTTI_##dtype] = "tutti_scale_" #dtype,
static const char *const scale_names[TUTTI_DTYPE_COUNT] = { CUDA_SCALE_MAP(X) };
#undef X
#define X(dtype) [TUTTI_##dtype] = "tutti_norm_" #dtype,
static const char *const norm_names[TUTTI_DTYPE_COUNT] = { CUDA_NORM_MAP(X) };
#undef X

static tutti_dtype dtype_get_unsigned(tutti_dtype dtype)
{
    switch (dtype) {
    case TUTTI_INT8: return TUTTI_UINT8;
    case TUTTI_INT16: return TUTTI_UINT16;
    case TUTTI_INT32: return TUTTI_UINT32;
    case TUTTI_INT64: return TUTTI_UINT64;
    default: return dtype;
    }
}
/* Returns the op whose kernel computes `op` on bool. */
static tutti_op bool_get_op(tutti_op op)
{
    switch (op) {
    case TUTTI_SUM:
    case TUTTI_MAX: return TUTTI_BOR;
    case TUTTI_PROD:
    case TUTTI_MIN: return TUTTI_BAND;
    default: return op;
    }
}
const char *cuda_reduce_name(tutti_dtype dtype, tutti_op op)
{
    if ((unsigned)dtype >= TUTTI_DTYPE_COUNT || (unsigned)op >= TUTTI_OP_COUNT) return NULL;
    if (dtype == TUTTI_BOOL) return reduce_names[dtype][bool_get_op(op)];
    if (op == TUTTI_BAND || op == TUTTI_BOR || op == TUTTI_BXOR) return reduce_names[dtype_get_unsigned(dtype)][op];
    if (op == TUTTI_PREMUL_SUM) return scale_names[dtype] ? reduce_names[dtype][TUTTI_SUM] : NULL;
    return reduce_names[dtype][op == TUTTI_AVG ? TUTTI_SUM : op];
}
const char *cuda_scale_name(tutti_dtype dtype)
{
    return (unsigned)dtype < TUTTI_DTYPE_COUNT ? scale_names[dtype] : NULL;
}
const char *cuda_norm_name(tutti_dtype dtype) { return (unsigned)dtype < TUTTI_DTYPE_COUNT ? norm_names[dtype] : NULL; }
