/* Host memory that the device can access: allocated by the driver, or registered with it. */
#include "tests/fake_cuda/calls.h"
#include "tests/fake_cuda/memory.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HOST_RANGES = 4096 };
static struct host_range ranges[HOST_RANGES];
static size_t range_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Returns the range that overlaps these bytes; the caller holds the lock. */
static struct host_range *range_overlapping(const char *begin, size_t bytes)
{
    for (size_t i = 0; i < range_count; i++)
        if (ranges[i].begin < begin + bytes && begin < ranges[i].begin + ranges[i].bytes) return &ranges[i];
    return NULL;
}
bool host_range_find(CUdeviceptr address, struct host_range *out)
{
    pthread_mutex_lock(&lock);
    const struct host_range *found = range_overlapping((const char *)(uintptr_t)address, 1);
    if (found) *out = *found;
    pthread_mutex_unlock(&lock);
    return found;
}
/* Finds the file that shared memory is a part of, so that its bytes have one name in all processes that map it. */
static struct location file_location(const char *address)
{
    struct location location = { (uint64_t)getpid() << 1, (uintptr_t)address };
    unsigned long begin, end, offset, major, minor, node;
    char line[512], rights[8];
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %7s %lx %lx:%lx %lu", &begin, &end, rights, &offset, &major, &minor, &node) != 7)
            continue;
        if ((uintptr_t)address < begin || (uintptr_t)address >= end || rights[3] != 's') continue;
        location.file = (major << 8 | minor) << 40 ^ node << 1 ^ 1;
        location.offset = offset + ((uintptr_t)address - begin);
        break;
    }
    if (maps) fclose(maps);
    return location;
}
static CUresult range_add(char *begin, size_t bytes, unsigned flags, bool is_allocated)
{
    struct location location = file_location(begin);
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    if (range_overlapping(begin, bytes)) result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    else if (range_count == HOST_RANGES) result = CUDA_ERROR_OUT_OF_MEMORY;
    else ranges[range_count++] = (struct host_range){ begin, bytes, flags, is_allocated, location };
    pthread_mutex_unlock(&lock);
    return result;
}
/* Removes the range that begins there, after the operations that use it. */
static CUresult range_remove(char *begin, bool is_allocated, CUresult otherwise, const char *call)
{
    struct host_range range;
    if (!host_range_find((uintptr_t)begin, &range) || range.begin != begin || range.is_allocated != is_allocated)
        return otherwise;
    memory_check_unmap((uintptr_t)begin, range.bytes, call);
    if (is_allocated) memory_forget((uintptr_t)begin, range.bytes);
    pthread_mutex_lock(&lock);
    struct host_range *found = range_overlapping(begin, 1);
    if (found) *found = ranges[--range_count];
    pthread_mutex_unlock(&lock);
    if (is_allocated) munmap(begin, range.bytes);
    return CUDA_SUCCESS;
}

CUresult fake_cuMemHostAlloc(void **out, size_t bytes, unsigned flags)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result) return result;
    if (!out || !bytes) return CUDA_ERROR_INVALID_VALUE;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    result = range_add(memory, bytes, flags, true);
    if (result) munmap(memory, bytes);
    else *out = memory;
    return result;
}
CUresult fake_cuMemAllocHost_v2(void **out, size_t bytes) { return fake_cuMemHostAlloc(out, bytes, 0); }
CUresult fake_cuMemFreeHost(void *host) { return range_remove(host, true, CUDA_ERROR_INVALID_VALUE, "cuMemFreeHost"); }
CUresult fake_cuMemHostRegister_v2(void *host, size_t bytes, unsigned flags)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result) return result;
    if (!host || !bytes || memory_is_device((uintptr_t)host)) return CUDA_ERROR_INVALID_VALUE;
    return range_add(host, bytes, flags, false);
}
CUresult fake_cuMemHostUnregister(void *host)
{
    return range_remove(host, false, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "cuMemHostUnregister");
}
CUresult fake_cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *host, unsigned flags)
{
    struct host_range range;
    if (!out || flags || !host_range_find((uintptr_t)host, &range)) return CUDA_ERROR_INVALID_VALUE;
    *out = (uintptr_t)host;
    return CUDA_SUCCESS;
}
CUresult fake_cuMemHostGetFlags(unsigned *out, void *host)
{
    struct host_range range;
    if (!out || !host_range_find((uintptr_t)host, &range)) return CUDA_ERROR_INVALID_VALUE;
    *out = range.flags | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
}
