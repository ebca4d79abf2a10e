/* Tests virtual memory management, also between processes. */
#include "tests/unit/fake_cuda/children.h"
#include <sys/socket.h>

enum { GRANULE_BYTES = 2 << 20 };

static CUmemAllocationProp properties_of(int device, unsigned handle_types)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = handle_types,
        .location = { CU_MEM_LOCATION_TYPE_DEVICE, device },
    };
}
static CUmemGenericAllocationHandle handle_new(size_t granules, unsigned handle_types)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = properties_of(0, handle_types);
    expect_success(cuMemCreate(&handle, granules * GRANULE_BYTES, &properties, 0));
    return handle;
}
static CUdeviceptr range_new(size_t granules)
{
    CUdeviceptr address;
    expect_success(cuMemAddressReserve(&address, granules * GRANULE_BYTES, 0, 0, 0));
    return address;
}
static void access_allow(CUdeviceptr address, size_t granules, int device, unsigned flags)
{
    CUmemAccessDesc rule = { { CU_MEM_LOCATION_TYPE_DEVICE, device }, flags };
    expect_success(cuMemSetAccess(address, granules * GRANULE_BYTES, &rule, 1));
}
static void handle_map(CUdeviceptr address, size_t granules, CUmemGenericAllocationHandle handle)
{
    expect_success(cuMemMap(address, granules * GRANULE_BYTES, 0, handle, 0));
    access_allow(address, granules, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

/* A segment that grows: one range of addresses, and memory that is mapped piece by piece. */
static void segment_grows(int peer)
{
    (void)peer;
    device_use(0);
    CUdeviceptr range = range_new(4), edge = range + 2 * GRANULE_BYTES;
    CUmemGenericAllocationHandle first = handle_new(2, 0), second = handle_new(1, 0), found;
    handle_map(range, 2, first);
    expect_result(cuMemsetD32_v2(edge - 8, 5, 4), CUDA_ERROR_INVALID_VALUE);
    handle_map(edge, 1, second);
    expect_success(cuMemsetD32_v2(edge - 8, 5, 4));
    expect_true(word_at(edge - 8) == 5 && word_at(edge + 4) == 5);
    expect_success(cuMemRetainAllocationHandle(&found, (void *)(uintptr_t)(edge + 8)));
    expect_true(found == second);
    expect_success(cuMemRelease(found));
    expect_success(cuMemRelease(first));
    expect_success(cuMemRelease(second));
    expect_true(word_at(range) == 0 && word_at(edge) == 5);
    expect_result(cuMemUnmap(range, GRANULE_BYTES), CUDA_ERROR_INVALID_VALUE);
    expect_result(cuMemAddressFree(range, 4 * GRANULE_BYTES), CUDA_ERROR_INVALID_VALUE);
    expect_success(cuMemUnmap(range, 3 * GRANULE_BYTES));
    expect_result(cuMemAddressFree(range, 2 * GRANULE_BYTES), CUDA_ERROR_INVALID_VALUE);
    expect_success(cuMemAddressFree(range, 4 * GRANULE_BYTES));
    size_t free, total;
    expect_success(cuMemGetInfo_v2(&free, &total));
    expect_true(free == total);
    expect_true(range_new(4) == range);
}
static void test_a_range_is_mapped_piece_by_piece(void **state)
{
    (void)state;
    assert_child(segment_grows, NULL);
}
static void arguments_refuse(int peer)
{
    (void)peer;
    size_t granularity;
    device_use(0);
    CUdeviceptr range = range_new(2), other;
    CUmemGenericAllocationHandle handle = handle_new(2, 0);
    CUmemAllocationProp properties = properties_of(0, 0), none = properties_of(9, 0), odd = properties_of(0, 2);
    expect_success(cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    expect_true(granularity == GRANULE_BYTES);
    expect_result(cuMemCreate(&handle, GRANULE_BYTES + 4096, &properties, 0), CUDA_ERROR_INVALID_VALUE);
    expect_result(cuMemCreate(&handle, GRANULE_BYTES, &none, 0), CUDA_ERROR_INVALID_VALUE);
    expect_result(cuMemCreate(&handle, GRANULE_BYTES, &odd, 0), CUDA_ERROR_NOT_SUPPORTED);
    expect_result(cuMemCreate(&handle, 1ull << 40, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
    expect_result(cuMemAddressReserve(&other, 4096, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    expect_result(cuMemMap(range, GRANULE_BYTES, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    expect_result(cuMemMap(range, GRANULE_BYTES, GRANULE_BYTES, handle, 0), CUDA_ERROR_INVALID_VALUE);
    expect_result(cuMemMap(range + GRANULE_BYTES, 2 * GRANULE_BYTES, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    handle_map(range, 2, handle);
    expect_result(cuMemMap(range, 2 * GRANULE_BYTES, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    expect_result(cuMemRelease(range), CUDA_ERROR_INVALID_VALUE);
    CUipcMemHandle legacy;
    expect_result(cuIpcGetMemHandle(&legacy, range), CUDA_ERROR_INVALID_VALUE);
    expect_result(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)memory_new(64)), CUDA_ERROR_INVALID_VALUE);
}
static void test_wrong_arguments_are_refused(void **state)
{
    (void)state;
    assert_child(arguments_refuse, NULL);
}
static void access_has_flags(int peer)
{
    (void)peer;
    unsigned long long flags;
    device_use(0);
    CUdeviceptr range = range_new(1);
    CUmemLocation here = { CU_MEM_LOCATION_TYPE_DEVICE, 0 }, there = { CU_MEM_LOCATION_TYPE_DEVICE, 1 };
    expect_success(cuMemMap(range, GRANULE_BYTES, 0, handle_new(1, 0), 0));
    expect_success(cuMemGetAccess(&flags, &here, range));
    expect_true(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
    access_allow(range, 1, 1, CU_MEM_ACCESS_FLAGS_PROT_READ);
    expect_success(cuMemGetAccess(&flags, &there, range));
    expect_true(flags == CU_MEM_ACCESS_FLAGS_PROT_READ);
}
static void test_access_is_set_for_each_device(void **state)
{
    (void)state;
    assert_child(access_has_flags, NULL);
}
static void exports_refuse(int peer)
{
    (void)peer;
    int fd;
    char fabric[64];
    device_use(0);
    CUmemGenericAllocationHandle plain = handle_new(1, 0), far = handle_new(1, CU_MEM_HANDLE_TYPE_FABRIC);
    expect_result(cuMemExportToShareableHandle(&fd, plain, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        CUDA_ERROR_INVALID_VALUE);
    expect_result(cuMemExportToShareableHandle(fabric, far, CU_MEM_HANDLE_TYPE_FABRIC, 0), CUDA_ERROR_NOT_SUPPORTED);
    expect_result(cuMemImportFromShareableHandle(&plain, (void *)(intptr_t)0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        CUDA_ERROR_INVALID_VALUE);
}
static void test_memory_is_exported_only_as_it_was_created(void **state)
{
    (void)state;
    assert_child(exports_refuse, NULL);
}

/* ---- a descriptor over a socket ---- */
/* The control data of a message with one descriptor. */
union control {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
};
static struct msghdr message_of(union control *control, struct iovec *data)
{
    return (struct msghdr){
        .msg_iov = data, .msg_iovlen = 1, .msg_control = control->bytes, .msg_controllen = sizeof control->bytes
    };
}
static void descriptor_send(int peer, int fd)
{
    char byte = 0;
    struct iovec data = { &byte, 1 };
    union control control = { .header = { CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS } };
    memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    struct msghdr message = message_of(&control, &data);
    expect_true(sendmsg(peer, &message, 0) == 1);
}
static int descriptor_receive(int peer)
{
    char byte;
    int fd;
    struct iovec data = { &byte, 1 };
    union control control = { .header = { 0 } };
    struct msghdr message = message_of(&control, &data);
    expect_true(recvmsg(peer, &message, 0) == 1);
    memcpy(&fd, CMSG_DATA(&control.header), sizeof fd);
    return fd;
}
static void owner_exports(int peer)
{
    int fd;
    char byte;
    device_use(0);
    CUdeviceptr range = range_new(2);
    CUmemGenericAllocationHandle handle = handle_new(2, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    handle_map(range, 2, handle);
    expect_success(cuMemsetD32_v2(range + GRANULE_BYTES, 9, 16));
    expect_success(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    expect_success(cuCtxSynchronize());
    descriptor_send(peer, fd);
    close(fd);
    peer_receive(peer, &byte, 1);
    expect_true(word_at(range) == 4);
    expect_success(cuMemUnmap(range, 2 * GRANULE_BYTES));
    expect_success(cuMemRelease(handle));
    peer_send(peer, &byte, 1);
}
static void importer_maps(int peer)
{
    char byte = 0;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties;
    device_use(0);
    int fd = descriptor_receive(peer);
    expect_success(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    expect_success(cuMemGetAllocationPropertiesFromHandle(&properties, handle));
    expect_true(properties.location.id == 0
        && properties.requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUdeviceptr range = range_new(2);
    handle_map(range, 2, handle);
    expect_true(word_at(range + GRANULE_BYTES) == 9);
    expect_success(cuMemsetD32_v2(range, 4, 1));
    expect_success(cuCtxSynchronize());
    peer_send(peer, &byte, 1);
    peer_receive(peer, &byte, 1);
    /* The memory lives on here, because the owner's handle was only one of two. */
    expect_true(word_at(range + GRANULE_BYTES) == 9);
    expect_success(cuMemsetD32_v2(range, 4, 1));
    expect_success(cuCtxSynchronize());
}
static void test_memory_is_shared_by_a_descriptor_over_a_socket(void **state)
{
    (void)state;
    assert_children(owner_exports, importer_maps, NULL);
}

unit_function test_cuda_virtual;
int test_cuda_virtual(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_range_is_mapped_piece_by_piece),
        cmocka_unit_test(test_wrong_arguments_are_refused),
        cmocka_unit_test(test_access_is_set_for_each_device),
        cmocka_unit_test(test_memory_is_exported_only_as_it_was_created),
        cmocka_unit_test(test_memory_is_shared_by_a_descriptor_over_a_socket),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
