/* Tests the memory of one process: allocations and their blocks, copies and fills, host memory, and what the driver
   tells about pointers. */
#include "tests/unit/fake_cuda/children.h"
#include <signal.h>
#include <sys/mman.h>

enum { MIB = 1 << 20, GRANULE_BYTES = 2 * MIB };

static void host_reads(int peer)
{
    (void)peer;
    device_use(0);
    signal(SIGSEGV, SIG_DFL);
    volatile uint32_t *memory = (uint32_t *)(uintptr_t)memory_new(64);
    (void)*memory;
}
static void host_writes(int peer)
{
    (void)peer;
    device_use(0);
    signal(SIGSEGV, SIG_DFL);
    *(volatile uint32_t *)(uintptr_t)memory_new(4 * MIB) = 1;
}
/* Sanitizers report the signal, and end the process with a status of theirs. */
static void assert_crash(child_body *body)
{
    int status = child_run(body, NULL);
    assert_true(status == CHILD_KILLED + SIGSEGV || strstr(child_said, "SEGV on unknown address"));
}
static void test_a_host_that_touches_device_memory_crashes(void **state)
{
    (void)state;
    assert_crash(host_reads);
    assert_crash(host_writes);
}
static void allocations_share(int peer)
{
    (void)peer;
    device_use(0);
    CUdeviceptr first = memory_new(1000), second = memory_new(1000), large = memory_new(3 * MIB), base;
    size_t bytes, free, total;
    expect_true(first / GRANULE_BYTES == second / GRANULE_BYTES && first != second && second % 512 == 0);
    expect_true(large % GRANULE_BYTES == 0);
    expect_success(cuMemGetAddressRange_v2(&base, &bytes, second + 10));
    expect_true(base == second && bytes == 1000);
    expect_result(cuMemGetAddressRange_v2(&base, &bytes, second + 1000), CUDA_ERROR_NOT_FOUND);
    expect_success(cuMemGetInfo_v2(&free, &total));
    expect_true(total - free == 6 * MIB);
    expect_result(cuMemFree_v2(second + 8), CUDA_ERROR_INVALID_VALUE);
    expect_success(cuMemFree_v2(second));
    expect_result(cuMemFree_v2(second), CUDA_ERROR_INVALID_VALUE);
    expect_true(memory_new(900) == second);
    expect_success(cuMemFree_v2(large));
    expect_success(cuMemFree_v2(0));
    expect_success(cuMemGetInfo_v2(&free, &total));
    expect_true(total - free == 2 * MIB);
    expect_true(word_at(second) != 0);
}
static void test_small_allocations_share_blocks(void **state)
{
    (void)state;
    assert_child(allocations_share, NULL);
}
static void memory_exhausts(int peer)
{
    (void)peer;
    CUdeviceptr address, kept;
    device_use(0);
    expect_success(cuMemAlloc_v2(&kept, 4 * MIB));
    expect_success(cuMemAlloc_v2(&address, 3 * MIB));
    expect_result(cuMemAlloc_v2(&address, 100), CUDA_ERROR_OUT_OF_MEMORY);
    expect_success(cuMemFree_v2(kept));
    expect_success(cuMemAlloc_v2(&address, 100));
    expect_result(cuMemAlloc_v2(&address, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
    expect_result(cuMemAlloc_v2(&address, 0), CUDA_ERROR_INVALID_VALUE);
    device_use(1);
    expect_success(cuMemAlloc_v2(&kept, 8 * MIB));
}
static void test_each_device_runs_out_of_memory(void **state)
{
    (void)state;
    assert_child(memory_exhausts, "FAKE_CUDA_MEMORY=8388608");
}
static void context_ends(int peer)
{
    (void)peer;
    CUdeviceptr address;
    device_use(0);
    CUdeviceptr old = memory_new(4 * MIB);
    expect_success(cuMemsetD8Async(old, 1, 4 * MIB, stream_new()));
    expect_success(cuDevicePrimaryCtxRelease_v2(0));
    device_use(0);
    expect_result(cuMemFree_v2(old), CUDA_ERROR_INVALID_VALUE);
    expect_success(cuMemAlloc_v2(&address, 8 * MIB));
}
static void test_the_last_release_of_a_context_frees_its_memory(void **state)
{
    (void)state;
    assert_child(context_ends, "FAKE_CUDA_MEMORY=8388608");
}

/* The attributes that tests look at. */
struct attributes {
    uint64_t buffer;
    CUdeviceptr base;
    unsigned type;
    int device;
    bool is_exportable;
};
static struct attributes attributes_of(CUdeviceptr address)
{
    struct attributes a = { 0 };
    CUpointer_attribute names[] = { CU_POINTER_ATTRIBUTE_BUFFER_ID, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE };
    void *outs[] = { &a.buffer, &a.base, &a.type, &a.device, &a.is_exportable };
    expect_success(cuPointerGetAttributes(5, names, outs, address));
    return a;
}
static void pointers_tell(int peer)
{
    (void)peer;
    int ordinal, local;
    uint64_t buffer;
    device_use(1);
    CUdeviceptr memory = memory_new(100), other = memory_new(100);
    struct attributes a = attributes_of(memory + 50), b = attributes_of(other);
    expect_true(a.base == memory && a.type == CU_MEMORYTYPE_DEVICE && a.device == 1 && a.is_exportable);
    expect_true(a.buffer != b.buffer);
    expect_success(cuMemFree_v2(memory));
    expect_true(memory_new(100) == memory && attributes_of(memory).buffer != a.buffer);
    expect_success(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory));
    expect_true(ordinal == 1);
    expect_result(cuPointerGetAttribute(&buffer, CU_POINTER_ATTRIBUTE_BUFFER_ID, (uintptr_t)&local),
        CUDA_ERROR_INVALID_VALUE);
    expect_true(attributes_of((uintptr_t)&local).type == 0 && attributes_of((uintptr_t)&local).device == -2);
    expect_true(attributes_of((uintptr_t)host_new(64)).type == CU_MEMORYTYPE_HOST);
}
static void test_pointers_have_attributes(void **state)
{
    (void)state;
    assert_child(pointers_tell, NULL);
}

static void host_memory_registers(int peer)
{
    (void)peer;
    device_use(0);
    CUdeviceptr address;
    unsigned flags;
    char *pages = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    expect_result(cuMemHostGetDevicePointer_v2(&address, pages, 0), CUDA_ERROR_INVALID_VALUE);
    expect_success(cuMemHostRegister_v2(pages, MIB, CU_MEMHOSTREGISTER_PORTABLE));
    expect_result(cuMemHostRegister_v2(pages + 4096, 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    expect_success(cuMemHostGetDevicePointer_v2(&address, pages + 64, 0));
    expect_true(address == (uintptr_t)pages + 64);
    expect_success(cuMemHostGetFlags(&flags, pages));
    expect_true(flags & CU_MEMHOSTALLOC_PORTABLE);
    expect_result(cuMemFreeHost(pages), CUDA_ERROR_INVALID_VALUE);
    expect_success(cuMemHostUnregister(pages));
    expect_result(cuMemHostUnregister(pages), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    void *allocated = host_new(4096);
    expect_result(cuMemHostUnregister(allocated), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    expect_success(cuMemFreeHost(allocated));
}
static void test_host_memory_is_registered_once(void **state)
{
    (void)state;
    assert_child(host_memory_registers, NULL);
}

static void copies_move(int peer)
{
    (void)peer;
    CUcontext contexts[] = { device_use(1), device_use(0) };
    expect_success(cuCtxSetCurrent(contexts[0]));
    CUdeviceptr far = memory_new(64);
    expect_success(cuCtxSetCurrent(contexts[1]));
    CUdeviceptr a = memory_new(64), b = memory_new(64);
    uint32_t words[16], *pinned = host_new(64);
    for (uint32_t i = 0; i < 16; i++) words[i] = pinned[i] = i;
    expect_success(cuMemcpyHtoD_v2(a, words, 64));
    expect_success(cuMemcpyDtoD_v2(b, a + 4, 60));
    expect_success(cuMemcpyPeer(far, contexts[0], b, contexts[1], 60));
    expect_success(cuMemsetD8_v2(b, 7, 5));
    expect_true(word_at(far + 8) == 3 && word_at(b) == 0x07070707 && word_at(b + 4) == 7);
    expect_success(cuMemcpy((uintptr_t)words, far, 4));
    expect_true(words[0] == 1);
    expect_success(cuMemcpyAsync(a, (uintptr_t)pinned, 64, NULL));
    expect_true(word_at(a + 60) == 15);
    expect_result(cuMemcpyHtoD_v2((uintptr_t)words, pinned, 4), CUDA_ERROR_INVALID_VALUE);
    expect_result(cuMemcpyDtoD_v2(a, (uintptr_t)pinned, 4), CUDA_ERROR_INVALID_VALUE);
    expect_result(cuMemcpyDtoD_v2(a, a + GRANULE_BYTES - 64, 128), CUDA_ERROR_INVALID_VALUE);
    expect_result(cuMemsetD32_v2(a + 2, 0, 1), CUDA_ERROR_INVALID_VALUE);
    expect_success(cuMemcpyDtoD_v2(a, b, 0));
}
static void test_copies_and_fills_move_bytes(void **state)
{
    (void)state;
    assert_child(copies_move, "FAKE_CUDA_DELAY=shuffled");
}
/* A copy from pageable memory has taken the bytes when the call returns, and one to it has written them. Pinned memory
   is read and written when the stream gets there. */
static void pageable_copies(int peer)
{
    (void)peer;
    device_use(0);
    CUstream stream = stream_new();
    CUdeviceptr a = memory_new(4), b = memory_new(4);
    uint32_t pageable = 1, *pinned = host_new(8), *gate = host_new(8);
    *pinned = 1;
    expect_success(cuStreamWaitValue32_v2(stream, (uintptr_t)gate, 1, CU_STREAM_WAIT_VALUE_EQ));
    expect_success(cuMemcpyHtoDAsync_v2(a, &pageable, 4, stream));
    expect_success(cuMemcpyHtoDAsync_v2(b, pinned, 4, stream));
    pageable = *pinned = 2;
    __atomic_store_n(gate, 1, __ATOMIC_SEQ_CST);
    expect_true(word_at(a) == 1 && word_at(b) == 2);
    expect_success(cuMemcpyDtoHAsync_v2(&pageable, a, 4, stream));
    expect_true(pageable == 1);
}
static void test_copies_of_pageable_memory_block_or_are_staged(void **state)
{
    (void)state;
    assert_child(pageable_copies, NULL);
}

unit_function test_cuda_memory;
int test_cuda_memory(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_host_that_touches_device_memory_crashes),
        cmocka_unit_test(test_small_allocations_share_blocks),
        cmocka_unit_test(test_each_device_runs_out_of_memory),
        cmocka_unit_test(test_the_last_release_of_a_context_frees_its_memory),
        cmocka_unit_test(test_pointers_have_attributes),
        cmocka_unit_test(test_host_memory_is_registered_once),
        cmocka_unit_test(test_copies_and_fills_move_bytes),
        cmocka_unit_test(test_copies_of_pageable_memory_block_or_are_staged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
