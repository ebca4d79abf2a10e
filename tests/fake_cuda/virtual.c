/* Virtual memory management: addresses are reserved, memory is created, mapped and made accessible in four steps, and
   memory is shared between processes as file descriptors. */
#include "tests/fake_cuda/calls.h"
#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/settings.h"
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static struct physical *physical_of(CUmemGenericAllocationHandle handle)
{
    return (struct physical *)(uintptr_t)handle;
}
static CUmemGenericAllocationHandle handle_of(const struct physical *physical) { return (uintptr_t)physical; }
static bool location_is_valid(CUmemLocation location)
{
    return location.type == CU_MEM_LOCATION_TYPE_DEVICE && device_exists(location.id);
}
static bool properties_are_valid(const CUmemAllocationProp *properties)
{
    return properties && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED && location_is_valid(properties->location);
}

CUresult fake_cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *properties,
    CUmemAllocationGranularity_flags flags)
{
    if (!out || !properties_are_valid(properties) || (unsigned)flags > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    *out = GRANULE;
    return CUDA_SUCCESS;
}
CUresult fake_cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr hint,
    unsigned long long flags)
{
    if (!out || !bytes || bytes % GRANULE || (alignment & (alignment - 1)) || flags) return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    CUdeviceptr address = space_take(bytes, alignment, hint);
    memory_unlock();
    if (address) *out = address;
    return address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
/* Returns true if mapped memory begins below the end of these bytes. */
static bool range_has_mapping(CUdeviceptr address, size_t bytes)
{
    const struct mapping *mapping = mapping_from(address);
    return mapping && mapping->begin < address + bytes;
}
CUresult fake_cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    memory_lock();
    bool freed = !range_has_mapping(address, bytes) && space_give(address, bytes);
    memory_unlock();
    return freed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Memory for other nodes (FABRIC) can be created without a fabric; only its export fails. */
CUresult fake_cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *properties,
    unsigned long long flags)
{
    const unsigned types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC;
    if (!out || !bytes || bytes % GRANULE || flags || !properties_are_valid(properties))
        return CUDA_ERROR_INVALID_VALUE;
    if (properties->requestedHandleTypes & ~types) return CUDA_ERROR_NOT_SUPPORTED;
    memory_lock();
    struct physical *physical = physical_create(properties->location.id, bytes, properties->requestedHandleTypes);
    memory_unlock();
    if (physical) *out = handle_of(physical);
    return physical ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult fake_cuMemRelease(CUmemGenericAllocationHandle handle)
{
    memory_lock();
    bool exists = physical_exists(physical_of(handle));
    if (exists) physical_drop(physical_of(handle));
    memory_unlock();
    return exists ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult fake_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    const struct mapping *mapping = mapping_find((uintptr_t)address);
    bool found = mapping && mapping->kind == MAPPING_VIRTUAL;
    if (found) {
        mapping->physical->references++;
        *out = handle_of(mapping->physical);
    }
    memory_unlock();
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult fake_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out, CUmemGenericAllocationHandle handle)
{
    memory_lock();
    const struct physical *physical = physical_of(handle);
    bool exists = out && physical_exists(physical);
    if (exists) {
        memset(out, 0, sizeof *out);
        out->type = CU_MEM_ALLOCATION_TYPE_PINNED;
        out->requestedHandleTypes = physical->handle_types;
        out->location = (CUmemLocation){ CU_MEM_LOCATION_TYPE_DEVICE, physical->device };
    }
    memory_unlock();
    return exists ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Maps all of a handle's memory: drivers accept neither an offset nor a part. */
CUresult fake_cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
    unsigned long long flags)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct physical *physical = physical_of(handle);
    memory_lock();
    bool valid = physical_exists(physical) && !offset && !flags && bytes == physical->bytes && address % GRANULE == 0
        && space_contains(address, bytes) && !range_has_mapping(address, bytes);
    if (valid) result = mapping_add(address, physical, MAPPING_VIRTUAL) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    memory_unlock();
    return result;
}
/* Returns true if mappings of handles fill these bytes exactly. */
static bool range_is_mapped(CUdeviceptr address, size_t bytes)
{
    CUdeviceptr at = address;
    while (at < address + bytes) {
        const struct mapping *mapping = mapping_find(at);
        if (!mapping || mapping->kind != MAPPING_VIRTUAL || mapping->begin != at) return false;
        at += mapping->bytes;
    }
    return bytes && at == address + bytes;
}
CUresult fake_cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    memory_lock();
    bool valid = range_is_mapped(address, bytes);
    memory_unlock();
    if (!valid) return CUDA_ERROR_INVALID_VALUE;
    memory_check_unmap(address, bytes, "cuMemUnmap");
    memory_lock();
    for (struct mapping *mapping; (mapping = mapping_from(address)) && mapping->begin < address + bytes;)
        mapping_remove(mapping);
    memory_unlock();
    return CUDA_SUCCESS;
}
static void access_set(struct mapping *mapping, const CUmemAccessDesc *rule)
{
    unsigned bit = 1u << rule->location.id;
    bool reads = rule->flags & CU_MEM_ACCESS_FLAGS_PROT_READ;
    bool writes = rule->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    mapping->readers = reads ? mapping->readers | bit : mapping->readers & ~bit;
    mapping->writers = writes ? mapping->writers | bit : mapping->writers & ~bit;
}
CUresult fake_cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *rules, size_t count)
{
    if (!rules || !count) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!location_is_valid(rules[i].location)) return CUDA_ERROR_INVALID_DEVICE;
    memory_lock();
    bool valid = range_is_mapped(address, bytes);
    for (size_t i = 0; i < count && valid; i++) {
        struct mapping *mapping = mapping_find(address);
        valid = mapping && (settings()->peer || mapping->physical->device == rules[i].location.id);
        for (; valid && mapping && mapping->begin < address + bytes;
            mapping = mapping_from(mapping->begin + mapping->bytes))
            access_set(mapping, &rules[i]);
    }
    memory_unlock();
    return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult fake_cuMemGetAccess(unsigned long long *out, const CUmemLocation *location, CUdeviceptr address)
{
    if (!out || !location || !location_is_valid(*location)) return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    const struct mapping *mapping = mapping_find(address);
    unsigned bit = 1u << location->id;
    if (mapping)
        *out = mapping->writers & bit ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            : mapping->readers & bit  ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                      : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    memory_unlock();
    return mapping ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* A descriptor keeps the memory alive, and the caller closes it. */
CUresult fake_cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
    CUmemAllocationHandleType type, unsigned long long flags)
{
    memory_lock();
    const struct physical *physical = physical_of(handle);
    bool valid = out && !flags && physical_exists(physical) && type && (physical->handle_types & type) == type;
    bool is_file = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    int fd = valid && is_file ? fcntl(physical->fd, F_DUPFD_CLOEXEC, 3) : -1;
    memory_unlock();
    if (!valid) return CUDA_ERROR_INVALID_VALUE;
    if (!is_file) return CUDA_ERROR_NOT_SUPPORTED;
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    memcpy(out, &fd, sizeof fd);
    return CUDA_SUCCESS;
}
/* Takes the descriptor itself in place of a pointer to it, and leaves it to the caller. */
CUresult fake_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *shared,
    CUmemAllocationHandleType type)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    memory_lock();
    const struct physical *physical = physical_import((int)(intptr_t)shared);
    memory_unlock();
    if (physical) *out = handle_of(physical);
    return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
