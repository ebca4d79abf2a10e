/* Copies and fills. A copy from pageable host memory takes the bytes when it is called, or at each launch if a capture
   records it; one to pageable memory blocks the host; all others leave both sides to the stream. */
#include "tests/fake_cuda/capture.h"
#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/order.h"
#include "tests/fake_cuda/settings.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct copy {
    struct operation base;
    CUdeviceptr to, from;
    size_t bytes;
    /* The bytes of pageable host memory, or NULL. */
    void *staged;
};
struct fill {
    struct operation base;
    CUdeviceptr to;
    size_t count;
    uint32_t value, width;
};
static bool memory_is_pageable(CUdeviceptr address)
{
    struct host_range range;
    return !memory_is_device(address) && !host_range_find(address, &range);
}
/* Copies the second half first, so that a program which looks too early finds old bytes at both ends of a copy. */
static void copy_run(struct operation *operation)
{
    struct copy *copy = (struct copy *)operation;
    char *to = memory_shadow(copy->to);
    const char *from = copy->staged ? copy->staged : memory_shadow(copy->from);
    size_t half = copy->bytes / 2;
    memcpy(to + half, from + half, copy->bytes - half);
    if (settings()->delay == DELAY_SHUFFLED) usleep(10);
    memcpy(to, from, half);
}
/* Overlapping copies have no defined result on a device; memmove keeps this one readable. */
static void copy_run_overlapping(struct operation *operation)
{
    struct copy *copy = (struct copy *)operation;
    memmove(memory_shadow(copy->to), memory_shadow(copy->from), copy->bytes);
}
static void copy_finish(struct operation *operation) { free(((struct copy *)operation)->staged); }
static void operation_cancel(struct operation *operation)
{
    if (operation->finish) operation->finish(operation);
    operation_forget(operation);
}
static CUresult copy_enqueue(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle, bool is_blocking,
    const char *call)
{
    CUstream stream;
    CUresult result = stream_find(handle, &stream);
    if (result || !bytes) return result;
    if (!to || !from) return CUDA_ERROR_INVALID_VALUE;
    if (is_blocking || memory_is_pageable(to)) result = capture_refuse(stream);
    if (result) return result;
    bool overlaps = to < from + bytes && from < to + bytes;
    struct copy *copy = operation_create(sizeof *copy, overlaps ? copy_run_overlapping : copy_run, call);
    copy->base.finish = copy_finish;
    copy->to = to;
    copy->from = from;
    copy->bytes = bytes;
    copy->base.stream = stream;
    bool captures = stream_captures(stream);
    bool is_staged = memory_is_pageable(from) && !is_blocking && !overlaps && !captures;
    if (is_staged) {
        copy->staged = malloc(bytes);
        if (!copy->staged) abort();
        memcpy(copy->staged, memory_shadow(from), bytes);
    } else result = memory_declare(&copy->base, from, bytes, false);
    if (!result) result = memory_declare(&copy->base, to, bytes, true);
    if (result) operation_cancel(&copy->base);
    else if (is_blocking || memory_is_pageable(to)) stream_run(stream, &copy->base);
    else stream_enqueue(stream, &copy->base);
    return result;
}
static bool are_device(CUdeviceptr a, CUdeviceptr b) { return memory_is_device(a) && memory_is_device(b); }

CUresult fake_cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy_enqueue(to, from, bytes, stream, false, "cuMemcpyAsync");
}
CUresult fake_cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    if (!memory_is_device(to)) return CUDA_ERROR_INVALID_VALUE;
    return copy_enqueue(to, (uintptr_t)from, bytes, stream, false, "cuMemcpyHtoDAsync");
}
CUresult fake_cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    if (!memory_is_device(from)) return CUDA_ERROR_INVALID_VALUE;
    return copy_enqueue((uintptr_t)to, from, bytes, stream, false, "cuMemcpyDtoHAsync");
}
CUresult fake_cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    if (!are_device(to, from)) return CUDA_ERROR_INVALID_VALUE;
    return copy_enqueue(to, from, bytes, stream, false, "cuMemcpyDtoDAsync");
}
CUresult fake_cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
    size_t bytes, CUstream stream)
{
    if (!to_context || !from_context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!are_device(to, from)) return CUDA_ERROR_INVALID_VALUE;
    return copy_enqueue(to, from, bytes, stream, false, "cuMemcpyPeerAsync");
}
CUresult fake_cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return copy_enqueue(to, from, bytes, NULL, true, "cuMemcpy");
}
CUresult fake_cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    if (!memory_is_device(to)) return CUDA_ERROR_INVALID_VALUE;
    return copy_enqueue(to, (uintptr_t)from, bytes, NULL, true, "cuMemcpyHtoD");
}
CUresult fake_cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    if (!memory_is_device(from)) return CUDA_ERROR_INVALID_VALUE;
    return copy_enqueue((uintptr_t)to, from, bytes, NULL, true, "cuMemcpyDtoH");
}
/* Copies within a device do not block the host. */
CUresult fake_cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    if (!are_device(to, from)) return CUDA_ERROR_INVALID_VALUE;
    return copy_enqueue(to, from, bytes, NULL, false, "cuMemcpyDtoD");
}
CUresult fake_cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes)
{
    if (!to_context || !from_context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!are_device(to, from)) return CUDA_ERROR_INVALID_VALUE;
    return copy_enqueue(to, from, bytes, NULL, false, "cuMemcpyPeer");
}

static void fill_run(struct operation *operation)
{
    const struct fill *fill = (struct fill *)operation;
    char *to = memory_shadow(fill->to);
    if (fill->width == 1) memset(to, (int)fill->value, fill->count);
    else
        for (size_t i = 0; i < fill->count; i++) memcpy(to + i * sizeof fill->value, &fill->value, sizeof fill->value);
}
static CUresult fill_enqueue(CUdeviceptr to, uint32_t value, uint32_t width, size_t count, CUstream handle,
    const char *call)
{
    CUstream stream;
    CUresult result = stream_find(handle, &stream);
    if (result || !count) return result;
    if (to % width || count > SIZE_MAX / width || memory_is_pageable(to)) return CUDA_ERROR_INVALID_VALUE;
    struct fill *fill = operation_create(sizeof *fill, fill_run, call);
    fill->to = to;
    fill->count = count;
    fill->value = value;
    fill->width = width;
    result = memory_declare(&fill->base, to, count * width, true);
    if (result) operation_cancel(&fill->base);
    else stream_enqueue(stream, &fill->base);
    return result;
}
/* Fills of device memory do not block the host, in all four forms. */
CUresult fake_cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
{
    return fill_enqueue(to, value, 1, count, stream, "cuMemsetD8Async");
}
CUresult fake_cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream)
{
    return fill_enqueue(to, value, 4, count, stream, "cuMemsetD32Async");
}
CUresult fake_cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count)
{
    return fill_enqueue(to, value, 1, count, NULL, "cuMemsetD8");
}
CUresult fake_cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count)
{
    return fill_enqueue(to, value, 4, count, NULL, "cuMemsetD32");
}
