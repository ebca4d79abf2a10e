/* Memory: allocations, pinned memory, copies, fills, and handles for other processes. */
#include "tests/fake_cuda/runtime/runtime.h"

static CUdeviceptr address_of(const void *pointer) { return (uintptr_t)pointer; }
static CUresult memory_allocate(void **out, size_t bytes)
{
    CUdeviceptr address = 0;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = bytes ? cuMemAlloc_v2(&address, bytes) : CUDA_SUCCESS;
    if (!result) *out = (void *)(uintptr_t)address;
    return result;
}
cudaError_t cudaMalloc(void **out, size_t bytes) { RUNTIME_CALL(memory_allocate(out, bytes)); }
cudaError_t cudaFree(void *memory) { RUNTIME_CALL(cuMemFree_v2(address_of(memory))); }
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) { RUNTIME_CALL(cuMemGetInfo_v2(free, total)); }
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    if (out && !bytes) *out = NULL;
    if (out && !bytes) return cudaSuccess;
    RUNTIME_CALL(cuMemHostAlloc(out, bytes, flags));
}
cudaError_t cudaFreeHost(void *memory)
{
    if (!memory) return cudaSuccess;
    RUNTIME_CALL(cuMemFreeHost(memory));
}
cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
    RUNTIME_CALL(cuMemHostRegister_v2(memory, bytes, flags));
}
cudaError_t cudaHostUnregister(void *memory) { RUNTIME_CALL(cuMemHostUnregister(memory)); }
/* Memory that the driver does not know is unregistered, without an error. */
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *pointer)
{
    CUpointer_attribute attributes[] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL };
    unsigned type = 0;
    int device = -1;
    void *outs[] = { &type, &device };
    CUresult result = runtime_enter();
    if (!result && !out) result = CUDA_ERROR_INVALID_VALUE;
    if (!result) result = cuPointerGetAttributes(2, attributes, outs, address_of(pointer));
    if (result) return runtime_leave(result);
    *out = (struct cudaPointerAttributes){ .device = device, .devicePointer = (void *)(uintptr_t)pointer };
    if (type == CU_MEMORYTYPE_HOST) {
        out->type = cudaMemoryTypeHost;
        out->hostPointer = out->devicePointer;
    } else if (type) out->type = cudaMemoryTypeDevice;
    else out->devicePointer = NULL;
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cuda_enumeration kind)
{
    (void)kind;
    RUNTIME_CALL(cuMemcpy(address_of(to), address_of(from), bytes));
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cuda_enumeration kind, CUstream stream)
{
    (void)kind;
    RUNTIME_CALL(cuMemcpyAsync(address_of(to), address_of(from), bytes, stream));
}
static CUresult peer_copy(void *to, int to_device, const void *from, int from_device, size_t bytes, CUstream stream)
{
    CUcontext to_context, from_context;
    CUresult result = runtime_context(to_device, &to_context);
    if (!result) result = runtime_context(from_device, &from_context);
    if (result) return result;
    return cuMemcpyPeerAsync(address_of(to), to_context, address_of(from), from_context, bytes, stream);
}
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
    CUstream stream)
{
    RUNTIME_CALL(peer_copy(to, to_device, from, from_device, bytes, stream));
}
/* One copy for each row, in the order of the stream. */
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t bytes, size_t rows,
    cuda_enumeration kind, CUstream stream)
{
    (void)kind;
    CUresult result = runtime_enter();
    if (!result && (bytes > to_pitch || bytes > from_pitch)) result = CUDA_ERROR_INVALID_VALUE;
    for (size_t row = 0; row < rows && !result; row++)
        result = cuMemcpyAsync(address_of(to) + row * to_pitch, address_of(from) + row * from_pitch, bytes, stream);
    return runtime_leave(result);
}
cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    RUNTIME_CALL(cuMemsetD8_v2(address_of(to), (unsigned char)value, bytes));
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, CUstream stream)
{
    RUNTIME_CALL(cuMemsetD8Async(address_of(to), (unsigned char)value, bytes, stream));
}

cudaError_t cudaIpcGetMemHandle(CUipcMemHandle *out, void *memory)
{
    RUNTIME_CALL(cuIpcGetMemHandle(out, address_of(memory)));
}
static CUresult handle_open(void **out, CUipcMemHandle handle, unsigned flags)
{
    CUdeviceptr address;
    CUresult result = out ? cuIpcOpenMemHandle_v2(&address, handle, flags) : CUDA_ERROR_INVALID_VALUE;
    if (!result) *out = (void *)(uintptr_t)address;
    return result;
}
cudaError_t cudaIpcOpenMemHandle(void **out, CUipcMemHandle handle, unsigned flags)
{
    RUNTIME_CALL(handle_open(out, handle, flags));
}
cudaError_t cudaIpcCloseMemHandle(void *memory) { RUNTIME_CALL(cuIpcCloseMemHandle(address_of(memory))); }
