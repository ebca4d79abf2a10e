/* The attributes of an address. */
#include "tests/fake_cuda/calls.h"
#include "tests/fake_cuda/memory.h"
#include <string.h>

/* An address of device memory or of host memory that the device can access. */
struct pointer {
    CUdeviceptr address, base;
    size_t bytes;
    uint64_t buffer;
    unsigned memory_type, handle_types;
    CUdevice device;
    bool is_exportable;
};
/* Memory that was imported or mapped counts as one allocation for each mapping. */
static bool pointer_find_device(CUdeviceptr address, struct pointer *out)
{
    memory_lock();
    const struct mapping *mapping = mapping_find(address);
    bool found = mapping;
    if (mapping) {
        *out = (struct pointer){ address, mapping->begin, mapping->bytes, mapping->buffer, CU_MEMORYTYPE_DEVICE,
            mapping->physical->handle_types, mapping->physical->device, mapping->kind == MAPPING_BLOCK };
        if (mapping->kind == MAPPING_BLOCK) found = allocation_find(address, &out->base, &out->bytes, &out->buffer);
    }
    memory_unlock();
    return found;
}
static bool pointer_find(CUdeviceptr address, struct pointer *out)
{
    struct host_range range;
    CUcontext context;
    if (memory_is_device(address)) return pointer_find_device(address, out);
    if (!host_range_find(address, &range)) return false;
    CUdevice device = context_current(&context) ? 0 : context->device;
    CUdeviceptr base = (uintptr_t)range.begin;
    *out = (struct pointer){ address, base, range.bytes, base, CU_MEMORYTYPE_HOST, 0, device, false };
    return true;
}
CUresult fake_cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
    struct pointer pointer;
    if (!memory_is_device(address) || !pointer_find(address, &pointer)) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = pointer.base;
    if (bytes) *bytes = pointer.bytes;
    return CUDA_SUCCESS;
}

/* Writes an attribute, whose type depends on it, and returns its size; 0 if the fake does not know the attribute. The
   attributes of an unknown pointer are zero. */
static size_t attribute_write(void *out, CUpointer_attribute attribute, const struct pointer *pointer)
{
    bool known = pointer->memory_type;
    bool is_host = pointer->memory_type == CU_MEMORYTYPE_HOST;
    CUcontext context = known ? context_of(pointer->device) : NULL;
    int ordinal = known ? pointer->device : -2;
    void *host = is_host ? (void *)(uintptr_t)pointer->address : NULL;
    unsigned number = 0;
    const void *value = &number;
    size_t bytes = sizeof number;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: value = &context, bytes = sizeof context; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: value = &pointer->memory_type; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: value = &pointer->address, bytes = sizeof pointer->address; break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: value = &host, bytes = sizeof host; break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: value = &pointer->buffer, bytes = sizeof pointer->buffer; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: value = &ordinal; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: value = &pointer->base, bytes = sizeof pointer->base; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: value = &pointer->bytes, bytes = sizeof pointer->bytes; break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        number = pointer->handle_types, bytes = sizeof(uint64_t);
        memset(out, 0, bytes);
        memcpy(out, value, sizeof number);
        return bytes;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: number = pointer->is_exportable, bytes = sizeof(bool); break;
    case CU_POINTER_ATTRIBUTE_MAPPED: number = known, bytes = sizeof(bool); break;
    default: return 0;
    }
    memcpy(out, value, bytes);
    return bytes;
}
CUresult fake_cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr address)
{
    struct pointer pointer;
    uint64_t value;
    if (!out || !pointer_find(address, &pointer)) return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER && pointer.memory_type != CU_MEMORYTYPE_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    size_t bytes = attribute_write(&value, attribute, &pointer);
    if (bytes) memcpy(out, &value, bytes);
    return bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult fake_cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **outs, CUdeviceptr address)
{
    struct pointer pointer = { 0 };
    if (!count || !attributes || !outs) return CUDA_ERROR_INVALID_VALUE;
    if (!pointer_find(address, &pointer)) pointer = (struct pointer){ 0 };
    for (unsigned i = 0; i < count; i++)
        if (!attribute_write(outs[i], attributes[i], &pointer)) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}
CUresult fake_cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    struct pointer pointer;
    bool valid = value && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && pointer_find_device(address, &pointer);
    return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
