/* Tests how the CUDA driver is opened, on the fake driver: which one, its version, its refusals, and whose context is
   current. Each body runs in a process of its own, because a process opens the driver once. */
#include "backend/devices/cuda.h"
#include "tests/unit/fake_cuda/children.h"

static void expect_detail(const char *text)
{
    if (strstr(status_detail(), text)) return;
    fprintf(stderr, "the error lacks \"%s\": %s\n", text, status_detail());
    expect_true(false);
}
static void second_path_opens(int peer)
{
    (void)peer;
    expect_true(cuda_driver_load("libno-such-driver.so:" FAKE_CUDA) == TUTTI_OK);
    expect_true(cuda.cuMemAlloc_v2 && cuda.cuCtxSynchronize_v2);
    expect_true(cuda_driver_load("") == TUTTI_OK);
    expect_true(fake_cuda_count("cuInit") == 1);
}
static void test_the_first_usable_driver_is_opened(void **state)
{
    (void)state;
    assert_child(second_path_opens, NULL);
}
static void older_driver_opens(int peer)
{
    (void)peer;
    expect_true(cuda_driver_load(FAKE_CUDA) == TUTTI_OK);
    expect_true(cuda.cuCtxSynchronize && !cuda.cuCtxSynchronize_v2 && !cuda.cuEventElapsedTime_v2);
}
static void test_a_driver_may_lack_functions_after_cuda_12(void **state)
{
    (void)state;
    assert_child(older_driver_opens, "FAKE_CUDA_VERSION=12020");
}

static void no_driver_opens(int peer)
{
    (void)peer;
    expect_true(cuda_driver_load("libno-such-driver.so") == TUTTI_UNSUPPORTED);
    expect_detail("libno-such-driver.so: ");
    expect_detail("install NVIDIA's driver");
}
static void old_driver_opens(int peer)
{
    (void)peer;
    expect_true(cuda_driver_load(FAKE_CUDA) == TUTTI_UNSUPPORTED);
    expect_detail("it is for CUDA 11.8");
}
static void no_device_opens(int peer)
{
    (void)peer;
    expect_true(cuda_driver_load(FAKE_CUDA) == TUTTI_UNSUPPORTED);
    expect_detail("CUDA_ERROR_NO_DEVICE (100)");
    expect_detail("CUDA_VISIBLE_DEVICES");
}
static void test_an_unusable_driver_is_an_error_with_the_cause(void **state)
{
    (void)state;
    assert_child(no_driver_opens, NULL);
    assert_child(old_driver_opens, "FAKE_CUDA_VERSION=11080");
    assert_child(no_device_opens, "FAKE_CUDA_DEVICES=0");
}

static void contexts_change(int peer)
{
    (void)peer;
    CUcontext own = device_use(0), current, other;
    unsigned flags;
    int active;
    CUdevice device;
    expect_true(cuda_driver_load(FAKE_CUDA) == TUTTI_OK);
    expect_success(cuDevicePrimaryCtxGetState(1, &flags, &active));
    expect_true(!active);
    expect_true(cuda_context_enter(1) == TUTTI_OK);
    expect_success(cuCtxGetDevice(&device));
    expect_true(device == 1);
    cuda_context_leave();
    expect_success(cuCtxGetCurrent(&current));
    expect_true(current == own);
    /* The context of device 0 is the one that the program uses. */
    expect_true(cuda_context_retain(0, &current) == TUTTI_OK && current == own);
    expect_true(cuda_context_retain(1, &other) == TUTTI_OK && other != own);
    expect_true(fake_cuda_count("cuDevicePrimaryCtxRetain") == 3);
    expect_true(cuda_context_enter(2) == TUTTI_SYSTEM);
    expect_detail("cuDevicePrimaryCtxRetain failed: CUDA_ERROR_INVALID_DEVICE (101)");
    expect_true(cuda_context_enter(-1) == TUTTI_UNSUPPORTED);
}
static void test_primary_contexts_are_shared_with_the_program(void **state)
{
    (void)state;
    assert_child(contexts_change, NULL);
}
static void results_become_errors(int peer)
{
    (void)peer;
    expect_true(cuda_driver_load(FAKE_CUDA) == TUTTI_OK);
    expect_true(cuda_check(CUDA_SUCCESS, "a call") == TUTTI_OK);
    expect_true(cuda_check(CUDA_ERROR_OUT_OF_MEMORY, "cuMemAlloc of 64 bytes") == TUTTI_NO_MEMORY);
    expect_detail("cuMemAlloc of 64 bytes failed: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory");
    expect_true(cuda_check((CUresult)54321, "a call") == TUTTI_SYSTEM);
    expect_detail("unknown error (54321)");
}
static void test_results_become_errors_with_name_and_text(void **state)
{
    (void)state;
    assert_child(results_become_errors, NULL);
}

unit_function test_cuda_driver;
int test_cuda_driver(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_first_usable_driver_is_opened),
        cmocka_unit_test(test_a_driver_may_lack_functions_after_cuda_12),
        cmocka_unit_test(test_an_unusable_driver_is_an_error_with_the_cause),
        cmocka_unit_test(test_primary_contexts_are_shared_with_the_program),
        cmocka_unit_test(test_results_become_errors_with_name_and_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
