/* Launches have as many blocks as give each thread a few vectors of 16 bytes, but at most BLOCKS_EACH blocks for each
   multiprocessor, so that other kernels find room. */
#include "backend/streams/kernels.h"
#include "backend/base/dtype.h"
#include "backend/base/memory.h"
#include "kernels/cuda/launch.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 64, BLOCKS_EACH = 4, VECTOR = 16, VECTORS_EACH = 2 };
struct stream_kernels {
    CUmodule module;
    int processors;
    _Atomic CUfunction reduce[TUTTI_DTYPE_COUNT][TUTTI_OP_COUNT], scale[TUTTI_DTYPE_COUNT], copy;
};
static struct stream_kernels *loaded[DEVICES];
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;

static tutti_status kernels_load_module(CUdevice device, const void *image, struct stream_kernels **out)
{
    struct stream_kernels *kernels = memory_alloc_zeroed(1, sizeof *kernels);
    if (!kernels) return status_fail(TUTTI_NO_MEMORY, "no memory for the kernels of device %d", device);
    tutti_status status =
        cuda_check(cuda.cuDeviceGetAttribute(&kernels->processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device),
            "cuDeviceGetAttribute");
    if (!status) status = cuda_check(cuda.cuModuleLoadData(&kernels->module, image), "cuModuleLoadData of the kernels");
    if (status) free(kernels);
    else *out = kernels;
    return status;
}
tutti_status stream_kernels_load_image(CUdevice device, const void *image, struct stream_kernels **out)
{
    if (device < 0 || device >= DEVICES)
        return status_fail(TUTTI_UNSUPPORTED, "device %d: tutti uses the devices 0 to %d only", device, DEVICES - 1);
    pthread_mutex_lock(&load_lock);
    tutti_status status = loaded[device] ? TUTTI_OK : kernels_load_module(device, image, &loaded[device]);
    *out = loaded[device];
    pthread_mutex_unlock(&load_lock);
    return status;
}
/* Finds a function when it is first used. Two threads may both find it. */
static tutti_status kernels_find_function(const struct stream_kernels *kernels, _Atomic CUfunction *known,
    const char *name, CUfunction *out)
{
    *out = atomic_load_explicit(known, memory_order_acquire);
    if (*out) return TUTTI_OK;
    if (!name) return status_fail(TUTTI_INVALID_ARGUMENT, "no kernel computes this operation on this type");
    TRY(cuda_check(cuda.cuModuleGetFunction(out, kernels->module, name), name));
    atomic_store_explicit(known, *out, memory_order_release);
    return TUTTI_OK;
}
static tutti_status kernels_launch_function(const struct stream_kernels *kernels, CUfunction function, CUstream stream,
    size_t bytes, int rows, void *parameter)
{
    size_t blocks = bytes / ((size_t)CUDA_BLOCK * VECTOR * VECTORS_EACH) + 1,
           most = (size_t)kernels->processors * BLOCKS_EACH;
    void *parameters[] = { parameter };
    return cuda_check(cuda.cuLaunchKernel(function, (unsigned)size_smaller(blocks, most), (unsigned)rows, 1, CUDA_BLOCK,
                          1, 1, 0, stream, parameters, NULL),
        "cuLaunchKernel");
}
static tutti_status kernels_find_reduce_function(struct stream_kernels *kernels, tutti_dtype dtype, tutti_op op,
    CUfunction *out)
{
    return kernels_find_function(kernels, &kernels->reduce[dtype][op], cuda_reduce_name(dtype, op), out);
}
static tutti_status kernels_find_scale_function(struct stream_kernels *kernels, tutti_dtype dtype, CUfunction *out)
{
    return kernels_find_function(kernels, &kernels->scale[dtype], cuda_scale_name(dtype), out);
}
tutti_status stream_kernels_check_operation(struct stream_kernels *kernels, tutti_dtype dtype, tutti_op op)
{
    CUfunction function;
    if ((unsigned)dtype >= TUTTI_DTYPE_COUNT || (unsigned)op >= TUTTI_OP_COUNT)
        return status_fail(TUTTI_INVALID_ARGUMENT, "no kernel has type %d and operation %d", (int)dtype, (int)op);
    TRY(kernels_find_reduce_function(kernels, dtype, op, &function));
    return op == TUTTI_PREMUL_SUM ? kernels_find_scale_function(kernels, dtype, &function) : TUTTI_OK;
}
tutti_status stream_kernels_launch_reduce(struct stream_kernels *kernels, CUstream stream,
    const struct stream_reduce *reduce)
{
    CUfunction function;
    struct cuda_reduce parameter = { .count = reduce->count,
        .to_count = reduce->to_count,
        .from_count = reduce->from_count,
        .divisor = reduce->divisor };
    for (int i = 0; i < reduce->to_count; i++) parameter.to[i] = (void *)(uintptr_t)reduce->to[i];
    for (int i = 0; i < reduce->from_count; i++) parameter.from[i] = (const void *)(uintptr_t)reduce->from[i];
    TRY(kernels_find_reduce_function(kernels, reduce->dtype, reduce->op, &function));
    return kernels_launch_function(kernels, function, stream, reduce->count * dtype_bytes(reduce->dtype), 1,
        &parameter);
}
tutti_status stream_kernels_launch_scale(struct stream_kernels *kernels, CUstream stream,
    const struct stream_scale *scale)
{
    CUfunction function;
    struct cuda_scale parameter = { (void *)(uintptr_t)scale->to, (const void *)(uintptr_t)scale->from, scale->count,
        scale->factor };
    TRY(kernels_find_scale_function(kernels, scale->dtype, &function));
    return kernels_launch_function(kernels, function, stream, scale->count * dtype_bytes(scale->dtype), 1, &parameter);
}
tutti_status stream_kernels_launch_copy(struct stream_kernels *kernels, CUstream stream,
    const struct stream_copy *copies, int count)
{
    CUfunction function;
    struct cuda_copy parameter;
    size_t longest = 0;
    memset(&parameter, 0, sizeof parameter);
    for (int i = 0; i < count; i++) {
        parameter.copy[i] = (struct cuda_copied){ (void *)(uintptr_t)copies[i].to,
            (const void *)(uintptr_t)copies[i].from, copies[i].bytes };
        longest = size_larger(longest, copies[i].bytes);
    }
    TRY(kernels_find_function(kernels, &kernels->copy, "tutti_copy", &function));
    return kernels_launch_function(kernels, function, stream, longest, count, &parameter);
}
