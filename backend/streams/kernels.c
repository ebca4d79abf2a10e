/* Launches have as many blocks as give each thread a few vectors of 16 bytes, but at most BLOCKS_EACH blocks for each
   multiprocessor, so that other kernels find room. The first launch of a kernel may load it, which may wait for all
   work of the device, also for streams that wait for peers. So each kernel is launched once, on no elements, before the
   first operation. */
#include "backend/streams/kernels.h"
#include "backend/base/dtype.h"
#include "backend/base/memory.h"
#include "kernels/cuda/launch.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 64, BLOCKS_EACH = 4, VECTOR = 16, VECTORS_EACH = 2 };
struct stream_kernels {
    CUmodule module;
    int processors;
    /* NULL: there is no kernel for this type and operation. */
    CUfunction reduce[TUTTI_DTYPE_COUNT][TUTTI_OP_COUNT], scale[TUTTI_DTYPE_COUNT], copy;
};
static struct stream_kernels *loaded[DEVICES];
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;

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

/* ---- loading ---- */
/* Finds a function, unless its name is NULL, and launches it on no elements. */
static tutti_status kernels_find_function(const struct stream_kernels *kernels, const char *name, CUstream stream,
    void *parameter, CUfunction *out)
{
    if (!name) return TUTTI_OK;
    TRY(cuda_check(cuda.cuModuleGetFunction(out, kernels->module, name), name));
    return kernels_launch_function(kernels, *out, stream, 0, 1, parameter);
}
static tutti_status kernels_find_all_functions(struct stream_kernels *kernels, CUstream stream)
{
    struct cuda_reduce reduce = { .to_count = 1, .from_count = 1, .divisor = 1 };
    struct cuda_scale scale = { 0 };
    struct cuda_copy copy;
    memset(&copy, 0, sizeof copy);
    for (int dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++) {
        for (int op = 0; op < TUTTI_OP_COUNT; op++)
            TRY(kernels_find_function(kernels, cuda_reduce_name(dtype, op), stream, &reduce,
                &kernels->reduce[dtype][op]));
        TRY(kernels_find_function(kernels, cuda_scale_name(dtype), stream, &scale, &kernels->scale[dtype]));
    }
    TRY(kernels_find_function(kernels, "tutti_copy", stream, &copy, &kernels->copy));
    return cuda_check(cuda.cuStreamSynchronize(stream), "cuStreamSynchronize after the first launch of all kernels");
}
static tutti_status kernels_load_module(CUdevice device, const void *image, CUstream stream,
    struct stream_kernels **out)
{
    struct stream_kernels *kernels = memory_alloc_zeroed(1, sizeof *kernels);
    if (!kernels) return status_fail(TUTTI_NO_MEMORY, "no memory for the kernels of device %d", device);
    tutti_status status =
        cuda_check(cuda.cuDeviceGetAttribute(&kernels->processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device),
            "cuDeviceGetAttribute");
    if (!status) status = cuda_check(cuda.cuModuleLoadData(&kernels->module, image), "cuModuleLoadData of the kernels");
    if (!status) {
        status = kernels_find_all_functions(kernels, stream);
        if (status) cuda.cuModuleUnload(kernels->module);
    }
    if (status) free(kernels);
    else *out = kernels;
    return status;
}
tutti_status stream_kernels_load_image(CUdevice device, const void *image, CUstream stream, struct stream_kernels **out)
{
    if (device < 0 || device >= DEVICES)
        return status_fail(TUTTI_UNSUPPORTED, "device %d: tutti uses the devices 0 to %d only", device, DEVICES - 1);
    pthread_mutex_lock(&load_lock);
    tutti_status status = loaded[device] ? TUTTI_OK : kernels_load_module(device, image, stream, &loaded[device]);
    *out = loaded[device];
    pthread_mutex_unlock(&load_lock);
    return status;
}

/* ---- launches ---- */
tutti_status stream_kernels_check_operation(const struct stream_kernels *kernels, tutti_dtype dtype, tutti_op op)
{
    bool known = (unsigned)dtype < TUTTI_DTYPE_COUNT && (unsigned)op < TUTTI_OP_COUNT;
    if (known && kernels->reduce[dtype][op] && (op != TUTTI_PREMUL_SUM || kernels->scale[dtype])) return TUTTI_OK;
    return status_fail(TUTTI_INVALID_ARGUMENT, "no kernel computes the operation %s (%d) on %s (%d)", op_name(op),
        (int)op, dtype_name(dtype), (int)dtype);
}
tutti_status stream_kernels_launch_reduce(const struct stream_kernels *kernels, CUstream stream,
    const struct stream_reduce *reduce)
{
    struct cuda_reduce parameter = { .count = reduce->count,
        .to_count = reduce->to_count,
        .from_count = reduce->from_count,
        .divisor = reduce->divisor };
    for (int i = 0; i < reduce->to_count; i++) parameter.to[i] = (void *)(uintptr_t)reduce->to[i];
    for (int i = 0; i < reduce->from_count; i++) parameter.from[i] = (const void *)(uintptr_t)reduce->from[i];
    return kernels_launch_function(kernels, kernels->reduce[reduce->dtype][reduce->op], stream,
        reduce->count * dtype_bytes(reduce->dtype), 1, &parameter);
}
tutti_status stream_kernels_launch_scale(const struct stream_kernels *kernels, CUstream stream,
    const struct stream_scale *scale)
{
    struct cuda_scale parameter = { (void *)(uintptr_t)scale->to, (const void *)(uintptr_t)scale->from, scale->count,
        scale->factor };
    return kernels_launch_function(kernels, kernels->scale[scale->dtype], stream,
        scale->count * dtype_bytes(scale->dtype), 1, &parameter);
}
tutti_status stream_kernels_launch_copy(const struct stream_kernels *kernels, CUstream stream,
    const struct stream_copy *copies, int count)
{
    struct cuda_copy parameter;
    size_t longest = 0;
    memset(&parameter, 0, sizeof parameter);
    for (int i = 0; i < count; i++) {
        parameter.copy[i] = (struct cuda_copied){ (void *)(uintptr_t)copies[i].to,
            (const void *)(uintptr_t)copies[i].from, copies[i].bytes };
        longest = size_larger(longest, copies[i].bytes);
    }
    return kernels_launch_function(kernels, kernels->copy, stream, longest, count, &parameter);
}
