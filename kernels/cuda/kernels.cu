/* Defines the kernels for nvcc. A parameter is a grid constant, so that arrays in it need no copy in local memory. */
#include "kernels/cuda/copy.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/reduce.h"

/* Two blocks fit a multiprocessor, so a thread may have 128 registers; most kernels use 40. With four, or without a
   number, ptxas gives some kernels fewer registers than they need. */
enum { BLOCKS_AT_ONCE = 2 };
#define KERNEL(name, type) \
    extern "C" __global__ void __launch_bounds__(CUDA_BLOCK, BLOCKS_AT_ONCE) name(const __grid_constant__ type p)

static __device__ __forceinline__ struct cuda_thread thread_find(void)
{
    struct cuda_thread thread = { (size_t)blockIdx.x * blockDim.x + threadIdx.x, (size_t)gridDim.x * blockDim.x };
    return thread;
}

#define X(op, dtype) \
    KERNEL(tutti_reduce_##op##_##dtype, struct cuda_reduce) \
    { \
        reduce_run(TUTTI_##dtype, TUTTI_##op, &p, thread_find()); \
    }
CUDA_REDUCE_MAP(X)
#undef X

#define X(dtype) \
    KERNEL(tutti_scale_##dtype, struct cuda_scale) \
    { \
        scale_run(TUTTI_##dtype, &p, thread_find()); \
    }
CUDA_SCALE_MAP(X)
#undef X

#define X(dtype) \
    KERNEL(tutti_norm_##dtype, struct cuda_norm) \
    { \
        norm_run(TUTTI_##dtype, &p, thread_find()); \
    }
CUDA_NORM_MAP(X)
#undef X

KERNEL(tutti_copy, struct cuda_copy)
{
    copy_run(&p.copy[blockIdx.y], thread_find());
}
