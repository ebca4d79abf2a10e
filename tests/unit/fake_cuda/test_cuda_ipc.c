/* Tests memory and events that two processes share by handles. */
#include "tests/unit/fake_cuda/children.h"

enum { BYTES = 4096, ROUNDS = 30, SEEDS = 5, MIB = 1 << 20 };

static void handle_send(int peer, CUdeviceptr address)
{
    CUipcMemHandle handle;
    expect_success(cuIpcGetMemHandle(&handle, address));
    peer_send(peer, &handle, sizeof handle);
}
static CUipcMemHandle handle_receive(int peer)
{
    CUipcMemHandle handle;
    peer_receive(peer, &handle, sizeof handle);
    return handle;
}
static CUdeviceptr handle_open(CUipcMemHandle handle)
{
    CUdeviceptr address;
    expect_success(cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    return address;
}
/* Each of the two processes waits here for the other. */
static void peers_meet(int peer)
{
    char byte = 0;
    peer_send(peer, &byte, 1);
    peer_receive(peer, &byte, 1);
}

/* ---- what a handle exports ---- */
static CUdeviceptr small_allocations_fill(CUdeviceptr *second)
{
    CUdeviceptr first = memory_new(1000);
    *second = memory_new(1000);
    expect_success(cuMemsetD32_v2(first, 11, 250));
    expect_success(cuMemsetD32_v2(*second, 22, 250));
    expect_success(cuCtxSynchronize());
    return first;
}
static void owner_exports(int peer)
{
    CUdeviceptr first, second;
    CUipcMemHandle a, b;
    device_use(0);
    first = small_allocations_fill(&second);
    expect_success(cuIpcGetMemHandle(&a, second));
    expect_success(cuIpcGetMemHandle(&b, second));
    expect_true(memcmp(&a, &b, sizeof a) != 0);
    expect_result(cuIpcOpenMemHandle_v2(&first, a, 0), CUDA_ERROR_INVALID_CONTEXT);
    handle_send(peer, first);
    /* An address inside an allocation exports the allocation too. */
    handle_send(peer, second + 100);
    CUdeviceptr distance = second - first;
    peer_send(peer, &distance, sizeof distance);
    peers_meet(peer);
    expect_true(word_at(second + 8) == 33);
}
static void importer_opens(int peer)
{
    CUdeviceptr distance;
    device_use(0);
    CUdeviceptr first = handle_open(handle_receive(peer));
    CUdeviceptr second = handle_open(handle_receive(peer));
    peer_receive(peer, &distance, sizeof distance);
    expect_true(second - first == distance);
    expect_true(word_at(first) == 11 && word_at(second) == 22);
    expect_success(cuMemsetD32_v2(second + 8, 33, 1));
    expect_success(cuCtxSynchronize());
    expect_result(cuMemFree_v2(first), CUDA_ERROR_INVALID_VALUE);
    CUipcMemHandle handle;
    expect_result(cuIpcGetMemHandle(&handle, first), CUDA_ERROR_INVALID_VALUE);
    expect_success(cuIpcCloseMemHandle(first));
    expect_true(word_at(second) == 22);
    expect_success(cuIpcCloseMemHandle(second));
    expect_result(cuIpcCloseMemHandle(second), CUDA_ERROR_INVALID_VALUE);
    expect_result(cuMemsetD32_v2(second, 0, 1), CUDA_ERROR_INVALID_VALUE);
    peers_meet(peer);
}
static void test_a_handle_exports_the_whole_block_of_an_allocation(void **state)
{
    (void)state;
    assert_children(owner_exports, importer_opens, NULL);
}
static void owner_stays(int peer)
{
    device_use(1);
    handle_send(peer, memory_new(3 * MIB));
    peers_meet(peer);
}
static void importer_opens_again(int peer)
{
    device_use(0);
    CUipcMemHandle handle = handle_receive(peer);
    CUdeviceptr first = handle_open(handle);
    for (int i = 0; i < 1000; i++) {
        expect_success(cuIpcCloseMemHandle(first));
        expect_true(handle_open(handle) == first);
    }
    int device;
    expect_success(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, first));
    expect_true(device == 1);
    peers_meet(peer);
}
static void test_closing_a_handle_returns_its_addresses(void **state)
{
    (void)state;
    assert_children(owner_stays, importer_opens_again, NULL);
}
static void importer_is_refused_peer_access(int peer)
{
    CUdeviceptr address;
    device_use(0);
    expect_result(cuIpcOpenMemHandle_v2(&address, handle_receive(peer), 1), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    peers_meet(peer);
    peers_meet(peer);
}
/* The other process was refused, so it maps nothing. */
static void owner_frees_unopened(int peer)
{
    device_use(1);
    CUdeviceptr memory = memory_new(BYTES);
    handle_send(peer, memory);
    peers_meet(peer);
    expect_success(cuMemFree_v2(memory));
    peers_meet(peer);
}
static void ipc_is_refused(int peer)
{
    (void)peer;
    CUipcMemHandle handle;
    device_use(0);
    expect_result(cuIpcGetMemHandle(&handle, memory_new(4)), CUDA_ERROR_NOT_SUPPORTED);
}
static void test_sharing_may_be_refused(void **state)
{
    (void)state;
    assert_child(ipc_is_refused, "FAKE_CUDA_IPC=0");
    assert_children(owner_frees_unopened, importer_is_refused_peer_access, "FAKE_CUDA_PEER=0");
}

/* ---- the owner ends first ---- */
static void owner_exports_and_ends(int peer)
{
    device_use(0);
    handle_send(peer, memory_new(BYTES));
}
static void importer_is_late(int peer)
{
    CUdeviceptr address;
    char byte;
    device_use(0);
    CUipcMemHandle handle = handle_receive(peer);
    expect_true(read(peer, &byte, 1) == 0);
    /* The owner may be closing its files still. */
    CUresult result;
    while (!(result = cuIpcOpenMemHandle_v2(&address, handle, 0))) expect_success(cuIpcCloseMemHandle(address));
    expect_result(result, CUDA_ERROR_INVALID_VALUE);
}
static void test_a_handle_of_an_ended_process_cannot_be_opened(void **state)
{
    (void)state;
    assert_children(owner_exports_and_ends, importer_is_late, NULL);
}
static void owner_frees(int peer)
{
    device_use(0);
    CUdeviceptr memory = memory_new(BYTES);
    handle_send(peer, memory);
    peers_meet(peer);
    expect_success(cuMemFree_v2(memory));
    peers_meet(peer);
    peers_meet(peer);
}
static void importer_uses_freed(int peer)
{
    device_use(0);
    CUdeviceptr memory = handle_open(handle_receive(peer));
    peers_meet(peer);
    peers_meet(peer);
    expect_success(cuMemsetD8_v2(memory, 0, 8));
    expect_success(cuCtxSynchronize());
    expect_true(fake_cuda_reports() == 1);
    peers_meet(peer);
}
static void test_memory_that_its_owner_frees_while_mapped_is_reported(void **state)
{
    (void)state;
    assert_int_equal(children_run(owner_frees, importer_uses_freed, NULL), CHILD_REPORTED);
    assert_non_null(strstr(child_said, "it must close its handle first"));
    assert_non_null(strstr(child_said, "cuMemsetD8 uses memory that its owner"));
}

/* ---- order between processes ---- */
static CUevent event_new(void)
{
    CUevent event;
    expect_success(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    return event;
}
static void event_send(int peer, CUevent event)
{
    CUipcEventHandle handle;
    expect_success(cuIpcGetEventHandle(&handle, event));
    peer_send(peer, &handle, sizeof handle);
}
static CUevent event_receive(int peer)
{
    CUevent event;
    CUipcEventHandle handle;
    peer_receive(peer, &handle, sizeof handle);
    expect_success(cuIpcOpenEventHandle(&event, handle));
    return event;
}
/* The writer fills memory in each round, and the reader checks it. Only two events order the streams; the sockets order
   the hosts' calls. */
static void events_write(int peer)
{
    device_use(0);
    CUstream stream = stream_new();
    CUdeviceptr memory = memory_new(BYTES);
    CUevent written = event_new();
    handle_send(peer, memory);
    event_send(peer, written);
    CUevent read = event_receive(peer);
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        expect_success(cuStreamWaitEvent(stream, read, 0));
        expect_success(cuMemsetD32Async(memory, i, BYTES / 4, stream));
        expect_success(cuEventRecord(written, stream));
        peers_meet(peer);
        peers_meet(peer);
    }
    expect_success(cuStreamSynchronize(stream));
    expect_success(cuEventDestroy_v2(read));
    peers_meet(peer);
}
static void events_read(int peer)
{
    device_use(0);
    CUstream stream = stream_new();
    uint32_t *host = host_new(4 * (ROUNDS + 1));
    CUevent read = event_new();
    CUdeviceptr memory = handle_open(handle_receive(peer));
    CUevent written = event_receive(peer);
    event_send(peer, read);
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        peers_meet(peer);
        expect_success(cuStreamWaitEvent(stream, written, 0));
        expect_success(cuMemcpyDtoHAsync_v2(&host[i], memory + 4 * i, 4, stream));
        expect_success(cuEventRecord(read, stream));
        peers_meet(peer);
    }
    expect_success(cuStreamSynchronize(stream));
    for (uint32_t i = 1; i <= ROUNDS; i++) expect_true(host[i] == i);
    expect_success(cuIpcCloseMemHandle(memory));
    peers_meet(peer);
}
static void test_events_order_streams_of_two_processes(void **state)
{
    (void)state;
    char settings[128];
    for (int seed = 1; seed <= SEEDS; seed++) {
        snprintf(settings, sizeof settings, "FAKE_CUDA_DELAY=shuffled FAKE_CUDA_DELAY_US=400 FAKE_CUDA_SEED=%d", seed);
        assert_children(events_write, events_read, settings);
        assert_string_equal(child_said, "");
    }
}
/* Two processes use the same memory, and exchange nothing after the hosts have enqueued it. */
static void unordered_write(int peer)
{
    device_use(0);
    CUdeviceptr memory = memory_new(BYTES);
    handle_send(peer, memory);
    expect_success(cuMemsetD8Async(memory, 1, BYTES, stream_new()));
    peers_meet(peer);
    expect_success(cuCtxSynchronize());
    peers_meet(peer);
}
static void unordered_read(int peer)
{
    device_use(0);
    CUdeviceptr memory = handle_open(handle_receive(peer));
    expect_success(cuMemcpyDtoHAsync_v2(host_new(BYTES), memory, BYTES, stream_new()));
    peers_meet(peer);
    expect_success(cuCtxSynchronize());
    peers_meet(peer);
}
static void test_a_race_of_two_processes_is_reported(void **state)
{
    (void)state;
    assert_int_equal(children_run(unordered_write, unordered_read, "FAKE_CUDA_DELAY=shuffled"), CHILD_REPORTED);
    assert_non_null(strstr(child_said, "nothing orders the two"));
    assert_non_null(strstr(child_said, "cuMemsetD8Async, that began"));
    assert_non_null(strstr(child_said, "cuMemcpyDtoHAsync, that began"));
}
static void event_handles_refuse(int peer)
{
    (void)peer;
    CUevent event;
    CUipcEventHandle handle;
    device_use(0);
    expect_result(cuEventCreate(&event, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
    expect_success(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    expect_result(cuIpcGetEventHandle(&handle, event), CUDA_ERROR_INVALID_HANDLE);
    expect_success(cuIpcGetEventHandle(&handle, event_new()));
    expect_result(cuIpcOpenEventHandle(&event, handle), CUDA_ERROR_INVALID_CONTEXT);
    memset(&handle, 1, sizeof handle);
    expect_result(cuIpcOpenEventHandle(&event, handle), CUDA_ERROR_INVALID_VALUE);
}
static void test_only_events_of_other_processes_open(void **state)
{
    (void)state;
    assert_child(event_handles_refuse, NULL);
}

unit_function test_cuda_ipc;
int test_cuda_ipc(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_handle_exports_the_whole_block_of_an_allocation),
        cmocka_unit_test(test_closing_a_handle_returns_its_addresses),
        cmocka_unit_test(test_sharing_may_be_refused),
        cmocka_unit_test(test_a_handle_of_an_ended_process_cannot_be_opened),
        cmocka_unit_test(test_memory_that_its_owner_frees_while_mapped_is_reported),
        cmocka_unit_test(test_events_order_streams_of_two_processes),
        cmocka_unit_test(test_a_race_of_two_processes_is_reported),
        cmocka_unit_test(test_only_events_of_other_processes_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
