/* Tests the checker of order: it reports every planted fault with both call stacks, and no right program, whatever the
   seed. */
#include "tests/unit/fake_cuda/children.h"
#include <pthread.h>
#include <signal.h>

enum { BYTES = 1 << 16, SEEDS = 10, ROUNDS = 20 };
static CUstream first, second;
static CUdeviceptr memory;
static char *pinned;

static void order_set_up(void)
{
    device_use(0);
    first = stream_new();
    second = stream_new();
    memory = memory_new(BYTES);
    pinned = host_new(BYTES);
}
/* These two are exported, so that reports have their names. */
VISIBLE void plant_first(void);
VISIBLE __attribute__((noinline)) void plant_first(void) { expect_success(cuMemsetD8Async(memory, 1, BYTES, first)); }
VISIBLE void plant_second(void);
VISIBLE __attribute__((noinline)) void plant_second(void)
{
    expect_success(cuMemcpyDtoHAsync_v2(pinned, memory + 100, 50, second));
}
static void device_wait(void) { expect_success(cuCtxSynchronize()); }

static void read_without_event(int peer)
{
    (void)peer;
    order_set_up();
    plant_first();
    plant_second();
    device_wait();
    expect_true(fake_cuda_reports() == 1);
}
static void test_a_report_has_both_call_stacks(void **state)
{
    (void)state;
    assert_reported(read_without_event, NULL, "nothing orders the two");
    assert_non_null(strstr(child_said, "(plant_first"));
    assert_non_null(strstr(child_said, "(plant_second"));
    assert_non_null(strstr(child_said, "cuMemsetD8Async"));
    assert_non_null(strstr(child_said, "cuMemcpyDtoHAsync"));
    assert_non_null(strstr(child_said, "reported 1 faults"));
}
static void test_a_report_ends_the_process_as_the_setting_says(void **state)
{
    (void)state;
    assert_int_equal(child_run(read_without_event, "FAKE_CUDA_REPORT=abort"), CHILD_KILLED + SIGABRT);
    assert_child(read_without_event, "FAKE_CUDA_REPORT=print");
    assert_non_null(strstr(child_said, "nothing orders the two"));
    assert_int_equal(child_run(read_without_event, "FAKE_CUDA_ORDER=0"), CHILD_FAILED);
}

static void read_before_write(int peer)
{
    (void)peer;
    order_set_up();
    plant_second();
    plant_first();
    device_wait();
}
static void event_of_wrong_stream(int peer)
{
    (void)peer;
    CUevent event;
    order_set_up();
    expect_success(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    plant_first();
    expect_success(cuEventRecord(event, second));
    expect_success(cuStreamWaitEvent(second, event, 0));
    plant_second();
    device_wait();
}
static void event_recorded_too_early(int peer)
{
    (void)peer;
    CUevent event;
    order_set_up();
    expect_success(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    expect_success(cuEventRecord(event, first));
    plant_first();
    expect_success(cuStreamWaitEvent(second, event, 0));
    plant_second();
    device_wait();
}
static void blocking_copy_beside_stream(int peer)
{
    (void)peer;
    uint32_t word;
    order_set_up();
    plant_first();
    expect_success(cuMemcpyDtoH_v2(&word, memory, 4));
    device_wait();
}
static void two_copies_in_host_memory(int peer)
{
    (void)peer;
    order_set_up();
    CUdeviceptr other = memory_new(BYTES);
    expect_success(cuMemcpyDtoHAsync_v2(pinned, memory, BYTES, first));
    expect_success(cuMemcpyHtoDAsync_v2(other, pinned + 8, 8, second));
    device_wait();
}
static void wait_for_word_of_another_round(int peer)
{
    (void)peer;
    order_set_up();
    uint64_t *word = host_new(8);
    expect_success(cuStreamWriteValue64_v2(first, (uintptr_t)word, 1, 0));
    plant_first();
    expect_success(cuStreamWaitValue64_v2(second, (uintptr_t)word, 1, CU_STREAM_WAIT_VALUE_GEQ));
    plant_second();
    device_wait();
}
static void kernel_fill(struct fake_cuda_launch *launch)
{
    void *bytes = fake_cuda_write(launch, memory, BYTES);
    if (bytes) memset(bytes, 3, BYTES);
}
static void copy_beside_kernel(int peer)
{
    (void)peer;
    CUmodule module;
    CUfunction function;
    order_set_up();
    fake_cuda_register_kernel(&(struct fake_cuda_kernel){ "fill", kernel_fill, { 0 } });
    expect_success(cuModuleLoadData(&module, "image"));
    expect_success(cuModuleGetFunction(&function, module, "fill"));
    expect_success(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, first, NULL, NULL));
    plant_second();
    device_wait();
    expect_success(cuModuleUnload(module));
}
static void test_accesses_out_of_order_are_reported(void **state)
{
    (void)state;
    assert_reported(read_before_write, NULL, "nothing orders the two");
    assert_reported(event_of_wrong_stream, NULL, "nothing orders the two");
    assert_reported(event_recorded_too_early, NULL, "nothing orders the two");
    assert_reported(blocking_copy_beside_stream, NULL, "nothing orders the two");
    assert_reported(two_copies_in_host_memory, NULL, "nothing orders the two");
    assert_reported(copy_beside_kernel, NULL, "nothing orders the two");
    assert_non_null(strstr(child_said, "fill writes"));
    assert_reported(wait_for_word_of_another_round, "FAKE_CUDA_HOST_READS=0", "nothing orders the two");
}

static void gate_hold(uint32_t *gate) { expect_success(cuStreamWaitValue32_v2(first, (uintptr_t)gate, 1, 0)); }
/* Opens the gate after a report, because a free waits for the stream once it has reported. */
static void *gate_open(void *gate)
{
    while (!fake_cuda_reports()) usleep(1000);
    __atomic_store_n((uint32_t *)gate, 1, __ATOMIC_SEQ_CST);
    return NULL;
}
/* Frees memory while the stream cannot end. */
static void free_in_use(CUresult (*release)(void))
{
    pthread_t thread;
    order_set_up();
    uint32_t *gate = host_new(8);
    gate_hold(gate);
    expect_success(cuMemcpyDtoHAsync_v2(pinned, memory, 64, first));
    expect_true(pthread_create(&thread, NULL, gate_open, gate) == 0);
    expect_success(release());
    pthread_join(thread, NULL);
}
static CUresult release_device(void) { return cuMemFree_v2(memory); }
static CUresult release_host(void) { return cuMemFreeHost(pinned); }
static void device_memory_freed(int peer)
{
    (void)peer;
    free_in_use(release_device);
}
static void host_memory_freed(int peer)
{
    (void)peer;
    free_in_use(release_host);
}
static void test_freeing_memory_in_use_is_reported(void **state)
{
    (void)state;
    assert_reported(device_memory_freed, NULL,
        "cuMemFree frees memory that cuMemcpyDtoHAsync has not finished to read");
    assert_reported(host_memory_freed, NULL,
        "cuMemFreeHost frees memory that cuMemcpyDtoHAsync has not finished to write");
}

/* ---- right programs ---- */
static void right_by_events(void)
{
    CUevent there, back;
    expect_success(cuEventCreate(&there, CU_EVENT_DISABLE_TIMING));
    expect_success(cuEventCreate(&back, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < ROUNDS; i++) {
        expect_success(cuStreamWaitEvent(first, back, 0));
        plant_first();
        expect_success(cuEventRecord(there, first));
        expect_success(cuStreamWaitEvent(second, there, 0));
        plant_second();
        expect_success(cuEventRecord(back, second));
    }
    expect_success(cuEventDestroy_v2(there));
    expect_success(cuEventSynchronize(back));
}
static void right_by_words(void)
{
    uint32_t *words = host_new(8);
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        expect_success(cuStreamWaitValue32_v2(first, (uintptr_t)&words[1], i - 1, CU_STREAM_WAIT_VALUE_GEQ));
        plant_first();
        expect_success(cuStreamWriteValue32_v2(first, (uintptr_t)&words[0], i, 0));
        expect_success(cuStreamWaitValue32_v2(second, (uintptr_t)&words[0], i, CU_STREAM_WAIT_VALUE_GEQ));
        plant_second();
        expect_success(cuStreamWriteValue32_v2(second, (uintptr_t)&words[1], i, 0));
    }
    device_wait();
}
static void right_by_host(void)
{
    plant_first();
    expect_success(cuStreamSynchronize(first));
    plant_second();
    while (cuStreamQuery(second) == CUDA_ERROR_NOT_READY) usleep(100);
    plant_first();
    expect_success(cuCtxSynchronize());
    plant_second();
    expect_success(cuStreamSynchronize(second));
    memset(pinned, 1, BYTES);
    expect_success(cuMemFree_v2(memory));
    memory = memory_new(BYTES);
}
static void flag_set(void *flag) { __atomic_store_n((int *)flag, 1, __ATOMIC_SEQ_CST); }
static void right_by_host_function(void)
{
    int flag = 0;
    plant_first();
    expect_success(cuLaunchHostFunc(first, flag_set, &flag));
    while (!__atomic_load_n(&flag, __ATOMIC_SEQ_CST)) usleep(100);
    plant_second();
    device_wait();
}
static void right_programs(int peer)
{
    (void)peer;
    order_set_up();
    right_by_events();
    right_by_words();
    right_by_host();
    right_by_host_function();
    /* Reads need no order, and neither do different bytes. */
    expect_success(cuMemcpyDtoHAsync_v2(pinned, memory, 64, first));
    expect_success(cuMemcpyDtoHAsync_v2(pinned + 64, memory, 64, second));
    expect_success(cuMemsetD8Async(memory + 64, 1, 64, first));
    device_wait();
}
static void test_right_programs_are_not_reported(void **state)
{
    (void)state;
    char settings[128];
    for (int seed = 1; seed <= SEEDS; seed++) {
        snprintf(settings, sizeof settings, "FAKE_CUDA_DELAY=shuffled FAKE_CUDA_DELAY_US=400 FAKE_CUDA_SEED=%d", seed);
        assert_child(right_programs, settings);
        assert_string_equal(child_said, "");
    }
    assert_child(right_programs, NULL);
}
/* A program that orders its streams by words alone needs no host, also not for the checker. */
static void right_without_host(int peer)
{
    (void)peer;
    order_set_up();
    right_by_words();
}
static void test_words_order_streams_without_a_host(void **state)
{
    (void)state;
    assert_child(right_without_host, "FAKE_CUDA_DELAY=shuffled FAKE_CUDA_HOST_READS=0");
}

unit_function test_cuda_order;
int test_cuda_order(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_report_has_both_call_stacks),
        cmocka_unit_test(test_a_report_ends_the_process_as_the_setting_says),
        cmocka_unit_test(test_accesses_out_of_order_are_reported),
        cmocka_unit_test(test_freeing_memory_in_use_is_reported),
        cmocka_unit_test(test_right_programs_are_not_reported),
        cmocka_unit_test(test_words_order_streams_without_a_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
