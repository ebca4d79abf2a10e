/* Legacy handles of memory: 64 bytes that another process opens. */
#include "tests/fake_cuda/calls.h"
#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/settings.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static const uint32_t memory_magic = 0x46434d48;
/* The bytes of a handle. `offset` is where the allocation begins in its block: the handle opens the whole block. The
   padding differs between two handles of one allocation, as drivers may do, so handles are no keys. */
struct memory_handle {
    uint32_t magic;
    int32_t owner, fd;
    uint32_t padding;
    uint64_t file, offset;
    uint64_t more_padding[4];
};
_Static_assert(sizeof(struct memory_handle) == CU_IPC_HANDLE_SIZE, "a handle has 64 bytes");

CUresult fake_cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address)
{
    if (!settings()->ipc) return CUDA_ERROR_NOT_SUPPORTED;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    struct memory_handle handle;
    CUdeviceptr base;
    size_t bytes;
    uint64_t buffer;
    if (getrandom(&handle, sizeof handle, 0) != sizeof handle) return CUDA_ERROR_OPERATING_SYSTEM;
    memory_lock();
    const struct mapping *mapping = mapping_find(address);
    bool valid = mapping && mapping->kind == MAPPING_BLOCK && allocation_find(address, &base, &bytes, &buffer);
    if (valid) {
        handle.magic = memory_magic;
        handle.owner = getpid();
        handle.fd = mapping->physical->fd;
        handle.file = mapping->physical->file;
        handle.offset = base - mapping->begin;
    }
    memory_unlock();
    if (valid) memcpy(out, &handle, sizeof handle);
    return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
/* Opens the owner's file; a descriptor that the owner has closed or used for something else is none. */
static struct physical *handle_import(const struct memory_handle *handle)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle->owner, handle->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct physical *physical = fd < 0 ? NULL : physical_import(fd);
    if (fd >= 0) close(fd);
    if (!physical || physical->file == handle->file) return physical;
    physical_drop(physical);
    return NULL;
}
/* Maps the block at addresses of its own; the caller holds the lock. */
static struct mapping *handle_map(const struct memory_handle *handle)
{
    struct physical *physical = handle_import(handle);
    if (!physical) return NULL;
    size_t bytes = physical->bytes;
    CUdeviceptr address = space_take(bytes, GRANULE, 0);
    bool mapped = address && mapping_add(address, physical, MAPPING_IPC);
    if (address && !mapped) space_give(address, bytes);
    physical_drop(physical);
    return mapped ? mapping_find(address) : NULL;
}
static CUresult peer_access_enable(CUcontext context, int device, unsigned flags)
{
    if (device == context->device) return CUDA_SUCCESS;
    if (!settings()->peer) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if (flags & CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) __atomic_fetch_or(&context->peers, 1u << device, __ATOMIC_SEQ_CST);
    return CUDA_SUCCESS;
}
/* A process cannot open its own handle. A block that is open already keeps its addresses. */
CUresult fake_cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle bytes, unsigned flags)
{
    struct memory_handle handle;
    CUcontext context;
    CUresult result = context_current(&context);
    if (result) return result;
    memcpy(&handle, &bytes, sizeof handle);
    if (!settings()->ipc) return CUDA_ERROR_NOT_SUPPORTED;
    if (!out || handle.magic != memory_magic) return CUDA_ERROR_INVALID_VALUE;
    if (handle.owner == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
    memory_lock();
    struct mapping *mapping = mapping_of_file(handle.file, MAPPING_IPC);
    if (mapping) mapping->opened++;
    else mapping = handle_map(&handle);
    result = mapping ? peer_access_enable(context, mapping->physical->device, flags) : CUDA_ERROR_INVALID_VALUE;
    if (!result) *out = mapping->begin + handle.offset;
    CUdeviceptr begin = mapping ? mapping->begin : 0;
    memory_unlock();
    if (result && begin) fake_cuIpcCloseMemHandle(begin);
    return result;
}
CUresult fake_cuIpcCloseMemHandle(CUdeviceptr address)
{
    memory_lock();
    struct mapping *mapping = mapping_find(address);
    bool valid = mapping && mapping->kind == MAPPING_IPC;
    CUdeviceptr begin = valid ? mapping->begin : 0;
    size_t bytes = valid ? mapping->bytes : 0;
    bool is_last = valid && --mapping->opened == 0;
    memory_unlock();
    if (!valid) return CUDA_ERROR_INVALID_VALUE;
    if (!is_last) return CUDA_SUCCESS;
    memory_check_unmap(begin, bytes, "cuIpcCloseMemHandle");
    memory_lock();
    mapping_remove(mapping_find(begin));
    space_give(begin, bytes);
    memory_unlock();
    return CUDA_SUCCESS;
}
