/* cuMemAlloc: large allocations have blocks of their own, rounded to granules; small ones share blocks. So an exported
   handle gives access to the whole block, and two allocations may have one file. */
#include "tests/fake_cuda/calls.h"
#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/report.h"
#include "tests/fake_cuda/settings.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Small allocations begin at multiples of SMALL_STEP, and at most SMALL_MOST bytes are small. Fresh small memory has
   the byte STALE everywhere, because a driver does not clear what the process has freed. */
enum { SMALL_STEP = 512, SMALL_MOST = GRANULE / 2, STALE = 0xa5 };
static struct allocation {
    struct allocation *next;
    CUdeviceptr begin;
    size_t bytes;
    uint64_t buffer;
    int device;
} *allocations;

static size_t bytes_round(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }
static struct allocation *allocation_at(CUdeviceptr address)
{
    struct allocation *at = allocations;
    while (at && !(at->begin <= address && address < at->begin + at->bytes)) at = at->next;
    return at;
}
bool allocation_find(CUdeviceptr address, CUdeviceptr *base, size_t *bytes, uint64_t *buffer)
{
    const struct allocation *found = allocation_at(address);
    if (!found) return false;
    *base = found->begin;
    *bytes = found->bytes;
    *buffer = found->buffer;
    return true;
}
static CUdeviceptr block_create(int device, size_t bytes)
{
    struct physical *physical = physical_create(device, bytes, CU_MEM_HANDLE_TYPE_NONE);
    if (!physical) return 0;
    CUdeviceptr address = space_take(bytes, GRANULE, 0);
    bool mapped = address && mapping_add(address, physical, MAPPING_BLOCK);
    if (address && !mapped) space_give(address, bytes);
    physical_drop(physical);
    return mapped ? address : 0;
}
/* Returns the end of the allocation that overlaps these bytes; 0 if they are free. */
static CUdeviceptr overlap_end(CUdeviceptr address, size_t bytes)
{
    for (const struct allocation *at = allocations; at; at = at->next)
        if (at->begin < address + bytes && address < at->begin + at->bytes) return at->begin + at->bytes;
    return 0;
}
/* Finds room in the blocks of small allocations; 0 if there is no room. */
static CUdeviceptr small_take(int device, size_t bytes)
{
    for (const struct mapping *block = mapping_from(0); block; block = mapping_from(block->begin + block->bytes)) {
        const struct allocation *first = NULL;
        if (block->kind != MAPPING_BLOCK || block->physical->device != device || block->bytes != GRANULE) continue;
        for (first = allocations; first && !(block->begin <= first->begin && first->begin < block->begin + GRANULE);)
            first = first->next;
        if (first && first->bytes > SMALL_MOST) continue;
        CUdeviceptr address = block->begin;
        for (CUdeviceptr end = 0; (end = overlap_end(address, bytes)); address = bytes_round(end, SMALL_STEP)) {}
        if (address + bytes <= block->begin + GRANULE) return address;
    }
    return block_create(device, GRANULE);
}
CUresult fake_cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result) return result;
    if (!out || !bytes) return CUDA_ERROR_INVALID_VALUE;
    struct allocation *allocation = calloc(1, sizeof *allocation);
    memory_lock();
    bool is_small = bytes <= SMALL_MOST;
    CUdeviceptr address = !allocation || bytes > settings()->memory_bytes ? 0
        : is_small ? small_take(context->device, bytes)
                   : block_create(context->device, bytes_round(bytes, GRANULE));
    if (address) {
        *allocation = (struct allocation){ allocations, address, bytes, buffer_number(), context->device };
        allocations = allocation;
        if (is_small) memset(memory_shadow(address), STALE, bytes);
    } else free(allocation);
    memory_unlock();
    if (address) *out = address;
    return address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Importers that still map memory would read what the next owner of the pages writes. */
static void importers_report(struct trailer *trailer, const char *call)
{
    for (int i = 0; i < IMPORTERS; i++) {
        int32_t pid = __atomic_load_n(&trailer->importers[i], __ATOMIC_SEQ_CST);
        if (!pid || (kill(pid, 0) && errno == ESRCH)) continue;
        struct call_stack here;
        call_stack_take(&here);
        struct report report =
            report_begin("%s frees memory that process %d maps; it must close its handle first", call, pid);
        report_stack(&report, "that frees", call, &here);
        report_end(&report);
    }
}
static bool block_is_empty(const struct mapping *block) { return !overlap_end(block->begin, block->bytes); }
/* Frees an allocation and, after its last allocation, its block; the caller holds the lock. */
static void allocation_free(struct allocation *allocation, const char *call)
{
    struct allocation **at = &allocations;
    while (*at != allocation) at = &(*at)->next;
    *at = allocation->next;
    struct mapping *block = mapping_find(allocation->begin);
    free(allocation);
    if (!block_is_empty(block)) return;
    CUdeviceptr begin = block->begin;
    size_t bytes = block->bytes;
    importers_report(block->physical->trailer, call);
    __atomic_store_n(&block->physical->trailer->is_freed, 1, __ATOMIC_SEQ_CST);
    mapping_remove(block);
    space_give(begin, bytes);
}
CUresult fake_cuMemFree_v2(CUdeviceptr address)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result) return result;
    CUdeviceptr base;
    size_t bytes = 0;
    uint64_t buffer;
    memory_lock();
    bool found = allocation_find(address, &base, &bytes, &buffer) && base == address;
    memory_unlock();
    if (!address) return CUDA_SUCCESS;
    if (!found) return CUDA_ERROR_INVALID_VALUE;
    memory_check_free(address, bytes, "cuMemFree");
    memory_forget(address, bytes);
    memory_lock();
    struct allocation *allocation = allocation_at(address);
    if (allocation) allocation_free(allocation, "cuMemFree");
    memory_unlock();
    return CUDA_SUCCESS;
}
void allocations_free(int device)
{
    memory_lock();
    for (struct allocation *at = allocations, *next; at; at = next) {
        next = at->next;
        if (at->device == device) allocation_free(at, "cuDevicePrimaryCtxRelease");
    }
    memory_unlock();
}
CUresult fake_cuMemGetInfo_v2(size_t *free, size_t *total)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result) return result;
    if (!free || !total) return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    *total = settings()->memory_bytes;
    *free = *total - device_bytes_used(context->device);
    memory_unlock();
    return CUDA_SUCCESS;
}
