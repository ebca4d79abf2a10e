/* Finds memory by its address, declares accesses to it, and checks that memory is free of them before it goes. */
#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/order.h"
#include "tests/fake_cuda/report.h"
#include <unistd.h>

/* The file of a process's private memory; files of memory have odd numbers. */
static struct location private_location(CUdeviceptr address)
{
    return (struct location){ (uint64_t)getpid() << 1, address };
}
struct location memory_location(CUdeviceptr address)
{
    struct location location = private_location(address);
    struct host_range host;
    if (memory_is_device(address)) {
        memory_lock();
        const struct mapping *mapping = mapping_find(address);
        if (mapping) location = (struct location){ mapping->physical->file, address - mapping->begin };
        memory_unlock();
    } else if (host_range_find(address, &host)) {
        location = host.location;
        location.offset += address - (uintptr_t)host.begin;
    }
    return location;
}
/* Returns how many of the bytes from the address on are in one mapping; 0 if it is not mapped. */
static size_t piece_bytes(CUdeviceptr address, size_t bytes)
{
    memory_lock();
    const struct mapping *mapping = mapping_find(address);
    size_t left = mapping ? mapping->begin + mapping->bytes - address : 0;
    memory_unlock();
    return left < bytes ? left : bytes;
}
/* Memory that its owner has freed stays mapped here, but its bytes mean nothing any more. */
static void freed_by_owner_check(const struct operation *operation, CUdeviceptr address)
{
    memory_lock();
    const struct mapping *mapping = mapping_find(address);
    const struct trailer *trailer = mapping && mapping->kind == MAPPING_IPC ? mapping->physical->trailer : NULL;
    int owner = trailer && __atomic_load_n(&trailer->is_freed, __ATOMIC_SEQ_CST) ? trailer->owner : 0;
    memory_unlock();
    if (!owner) return;
    struct report report = report_begin("%s uses memory that its owner, process %d, has freed", operation->call, owner);
    report_stack(&report, "that uses it", operation->call, &operation->stack);
    report_end(&report);
}
CUresult memory_declare(struct operation *operation, CUdeviceptr address, size_t bytes, bool writes)
{
    if (!memory_is_device(address)) {
        operation_declare(operation, memory_location(address), bytes, writes);
        return CUDA_SUCCESS;
    }
    for (size_t piece; bytes; address += piece, bytes -= piece) {
        piece = piece_bytes(address, bytes);
        if (!piece) return CUDA_ERROR_INVALID_VALUE;
        freed_by_owner_check(operation, address);
        operation_declare(operation, memory_location(address), piece, writes);
    }
    return CUDA_SUCCESS;
}

static bool mapping_allows(const struct mapping *mapping, CUcontext context, bool writes)
{
    unsigned bit = 1u << context->device, owner = 1u << mapping->physical->device;
    if (mapping->kind == MAPPING_VIRTUAL) return (writes ? mapping->writers : mapping->readers) & bit;
    return bit == owner || (__atomic_load_n(&context->peers, __ATOMIC_SEQ_CST) & owner);
}
bool memory_allows(CUcontext context, CUdeviceptr address, size_t bytes, bool writes)
{
    struct host_range host;
    if (!memory_is_device(address)) return host_range_find(address, &host);
    for (size_t piece; bytes; address += piece, bytes -= piece) {
        piece = piece_bytes(address, bytes);
        memory_lock();
        const struct mapping *mapping = mapping_find(address);
        bool allows = mapping && mapping_allows(mapping, context, writes);
        memory_unlock();
        if (!allows) return false;
    }
    return true;
}

static void accesses_check(CUdeviceptr address, size_t bytes, const char *call, bool of_all)
{
    for (size_t piece; bytes; address += piece, bytes -= piece) {
        piece = memory_is_device(address) ? piece_bytes(address, bytes) : bytes;
        if (!piece) break;
        accesses_check_free(memory_location(address), piece, call, of_all);
    }
    streams_wait_all();
}
void memory_check_free(CUdeviceptr address, size_t bytes, const char *call)
{
    accesses_check(address, bytes, call, true);
}
void memory_check_unmap(CUdeviceptr address, size_t bytes, const char *call)
{
    accesses_check(address, bytes, call, false);
}
void memory_forget(CUdeviceptr address, size_t bytes) { accesses_forget(memory_location(address), bytes); }
