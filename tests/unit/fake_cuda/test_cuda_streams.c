/* Tests the order of operations in and between streams, with delays that let streams overtake each other. */
#include "tests/unit/fake_cuda/children.h"
#include <pthread.h>

enum { ROUNDS = 50, SEEDS = 8, BYTES = 4096 };
static const char *const shuffled = "FAKE_CUDA_DELAY=shuffled FAKE_CUDA_DELAY_US=500";

/* Runs a body with many seeds. */
static void seeds_run(child_body *body)
{
    char settings[128];
    for (int seed = 1; seed <= SEEDS; seed++) {
        snprintf(settings, sizeof settings, "%s FAKE_CUDA_SEED=%d", shuffled, seed);
        assert_child(body, settings);
    }
}
static void one_stream_order(int peer)
{
    (void)peer;
    device_use(0);
    CUstream stream = stream_new();
    CUdeviceptr memory = memory_new(BYTES);
    uint32_t *host = host_new(BYTES);
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        expect_success(cuMemsetD32Async(memory, i, BYTES / 4, stream));
        expect_success(cuMemcpyDtoHAsync_v2(&host[i], memory + 4 * i, 4, stream));
    }
    expect_success(cuStreamSynchronize(stream));
    for (uint32_t i = 1; i <= ROUNDS; i++) expect_true(host[i] == i);
    expect_success(cuStreamQuery(stream));
}
static void test_a_stream_runs_operations_in_order(void **state)
{
    (void)state;
    seeds_run(one_stream_order);
}
static void events_order(int peer)
{
    (void)peer;
    device_use(0);
    CUstream first = stream_new(), second = stream_new();
    CUdeviceptr memory = memory_new(BYTES);
    uint32_t *host = host_new(BYTES);
    CUevent there, back;
    expect_success(cuEventCreate(&there, CU_EVENT_DISABLE_TIMING));
    expect_success(cuEventCreate(&back, CU_EVENT_DISABLE_TIMING));
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        expect_success(cuStreamWaitEvent(first, back, 0));
        expect_success(cuMemsetD32Async(memory, i, BYTES / 4, first));
        expect_success(cuEventRecord(there, first));
        expect_success(cuStreamWaitEvent(second, there, 0));
        expect_success(cuMemcpyDtoHAsync_v2(&host[i], memory + 8 * i, 4, second));
        expect_success(cuEventRecord(back, second));
    }
    expect_success(cuEventSynchronize(back));
    for (uint32_t i = 1; i <= ROUNDS; i++) expect_true(host[i] == i);
    expect_success(cuEventDestroy_v2(there));
}
static void test_events_order_streams(void **state)
{
    (void)state;
    seeds_run(events_order);
}
/* A wait is for the record before it, also if the event is recorded again while a stream is held up. */
static void event_recorded_again(int peer)
{
    (void)peer;
    device_use(0);
    CUstream held = stream_new(), waiting = stream_new(), other = stream_new();
    uint32_t *gate = host_new(8);
    CUevent event;
    expect_success(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    expect_success(cuEventQuery(event));
    expect_success(cuStreamWaitValue32_v2(held, (uintptr_t)gate, 1, CU_STREAM_WAIT_VALUE_EQ));
    expect_success(cuEventRecord(event, held));
    expect_success(cuStreamWaitEvent(waiting, event, 0));
    expect_success(cuEventRecord(event, other));
    expect_success(cuEventSynchronize(event));
    usleep(20000);
    expect_result(cuStreamQuery(waiting), CUDA_ERROR_NOT_READY);
    __atomic_store_n(gate, 1, __ATOMIC_SEQ_CST);
    expect_success(cuStreamSynchronize(waiting));
}
static void test_a_wait_is_for_the_record_before_it(void **state)
{
    (void)state;
    assert_child(event_recorded_again, NULL);
}
static void legacy_order(int peer)
{
    (void)peer;
    device_use(0);
    CUstream a, b;
    expect_success(cuStreamCreate(&a, CU_STREAM_DEFAULT));
    expect_success(cuStreamCreate(&b, CU_STREAM_DEFAULT));
    CUdeviceptr memory = memory_new(BYTES);
    uint32_t *host = host_new(4 * (ROUNDS + 1));
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        expect_success(cuMemsetD32Async(memory, 2 * i, BYTES / 4, a));
        expect_success(cuMemsetD32Async(memory, i, BYTES / 4, i % 2 ? NULL : CU_STREAM_LEGACY));
        expect_success(cuMemcpyDtoHAsync_v2(&host[i], memory + 4 * i, 4, b));
        expect_success(cuMemsetD32Async(memory, 3, 1, NULL));
    }
    expect_success(cuStreamSynchronize(NULL));
    for (uint32_t i = 1; i <= ROUNDS; i++) expect_true(host[i] == i);
}
static void test_the_legacy_stream_is_ordered_with_blocking_streams(void **state)
{
    (void)state;
    seeds_run(legacy_order);
}
static void non_blocking_overtakes(int peer)
{
    (void)peer;
    device_use(0);
    uint32_t *gate = host_new(8);
    CUstream held = stream_new(), blocking;
    expect_success(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    expect_success(cuStreamWaitValue32_v2(held, (uintptr_t)gate, 1, CU_STREAM_WAIT_VALUE_EQ));
    CUdeviceptr memory = memory_new(8);
    expect_success(cuMemsetD32Async(memory, 1, 1, NULL));
    expect_success(cuStreamSynchronize(NULL));
    expect_success(cuMemsetD32Async(memory, 2, 1, blocking));
    expect_success(cuStreamSynchronize(blocking));
    expect_result(cuStreamQuery(held), CUDA_ERROR_NOT_READY);
    __atomic_store_n(gate, 1, __ATOMIC_SEQ_CST);
    expect_true(word_at(memory) == 2);
}
static void test_a_non_blocking_stream_is_not_ordered_with_the_legacy_one(void **state)
{
    (void)state;
    assert_child(non_blocking_overtakes, NULL);
}
static void *thread_stream(void *id)
{
    device_use(0);
    expect_success(cuStreamGetId(CU_STREAM_PER_THREAD, id));
    return NULL;
}
static void per_thread_streams(int peer)
{
    (void)peer;
    unsigned long long mine, again, other, legacy;
    pthread_t thread;
    thread_stream(&mine);
    thread_stream(&again);
    expect_true(pthread_create(&thread, NULL, thread_stream, &other) == 0 && pthread_join(thread, NULL) == 0);
    expect_success(cuStreamGetId(NULL, &legacy));
    expect_true(mine == again && mine != other && mine != legacy);
}
static void test_each_thread_has_a_default_stream(void **state)
{
    (void)state;
    assert_child(per_thread_streams, NULL);
}

static CUresult result_in_function;
static void function_of_host(void *argument)
{
    size_t free, total;
    result_in_function = cuMemGetInfo_v2(&free, &total);
    __atomic_store_n((int *)argument, 1, __ATOMIC_SEQ_CST);
}
static void host_functions_run(int peer)
{
    (void)peer;
    device_use(0);
    int called = 0;
    CUstream stream = stream_new();
    expect_success(cuLaunchHostFunc(stream, function_of_host, &called));
    expect_success(cuStreamSynchronize(stream));
    expect_true(called && result_in_function == CUDA_ERROR_NOT_PERMITTED);
    size_t free, total;
    expect_success(cuMemGetInfo_v2(&free, &total));
}
static void test_host_functions_run_in_order_and_may_not_call_the_driver(void **state)
{
    (void)state;
    assert_child(host_functions_run, shuffled);
}
static void stream_attributes(int peer)
{
    (void)peer;
    CUcontext context = device_use(0), found;
    CUstream stream;
    CUevent event;
    int priority, least, greatest;
    unsigned flags, status;
    expect_success(cuCtxGetStreamPriorityRange(&least, &greatest));
    expect_success(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, greatest - 7));
    expect_success(cuStreamGetPriority(stream, &priority));
    expect_success(cuStreamGetFlags(stream, &flags));
    expect_success(cuStreamGetCtx(stream, &found));
    expect_success(cuStreamIsCapturing(stream, &status));
    expect_true(priority == greatest && flags == CU_STREAM_NON_BLOCKING && found == context && !status);
    expect_success(cuMemsetD32Async(memory_new(BYTES), 1, BYTES / 4, stream));
    expect_success(cuStreamDestroy_v2(stream));
    expect_result(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
    expect_success(cuEventCreate(&event, CU_EVENT_DEFAULT));
    CUcontext other = device_use(1);
    expect_true(other != context);
    expect_result(cuEventRecord(event, stream_new()), CUDA_ERROR_INVALID_HANDLE);
}
static void test_streams_have_attributes_and_an_end(void **state)
{
    (void)state;
    assert_child(stream_attributes, NULL);
}
static void events_measure(int peer)
{
    (void)peer;
    float ms = -1;
    device_use(0);
    CUstream stream = stream_new();
    CUevent begin, end, untimed;
    expect_success(cuEventCreate(&begin, CU_EVENT_DEFAULT));
    expect_success(cuEventCreate(&end, CU_EVENT_DEFAULT));
    expect_success(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
    expect_success(cuEventRecord(begin, stream));
    expect_success(cuEventRecord(end, stream));
    expect_success(cuEventRecord(untimed, stream));
    expect_success(cuStreamSynchronize(stream));
    expect_success(cuEventElapsedTime_v2(&ms, begin, end));
    expect_true(ms >= 0);
    expect_result(cuEventElapsedTime_v2(&ms, begin, untimed), CUDA_ERROR_INVALID_HANDLE);
}
static void test_events_measure_time(void **state)
{
    (void)state;
    assert_child(events_measure, NULL);
}

unit_function test_cuda_streams;
int test_cuda_streams(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_stream_runs_operations_in_order),
        cmocka_unit_test(test_events_order_streams),
        cmocka_unit_test(test_a_wait_is_for_the_record_before_it),
        cmocka_unit_test(test_the_legacy_stream_is_ordered_with_blocking_streams),
        cmocka_unit_test(test_a_non_blocking_stream_is_not_ordered_with_the_legacy_one),
        cmocka_unit_test(test_each_thread_has_a_default_stream),
        cmocka_unit_test(test_host_functions_run_in_order_and_may_not_call_the_driver),
        cmocka_unit_test(test_streams_have_attributes_and_an_end),
        cmocka_unit_test(test_events_measure_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
