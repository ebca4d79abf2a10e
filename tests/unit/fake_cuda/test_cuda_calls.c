/* Tests calls of the fake driver in general: how functions are found, initialization, errors, counters, ordered
   failures, devices and contexts. */
#include "tests/unit/fake_cuda/children.h"
#include <dlfcn.h>
#include <sys/wait.h>

static void *proc_find(const char *name, int version, CUdriverProcAddressQueryResult expected)
{
    CUdriverProcAddressQueryResult status;
    void *found = &status;
    expect_success(cuGetProcAddress_v2(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    expect_true(status == expected);
    return found;
}
static void functions_find(int peer)
{
    (void)peer;
    expect_true(proc_find("cuMemAlloc", 3020, CU_GET_PROC_ADDRESS_SUCCESS) == (void *)cuMemAlloc_v2);
    expect_true(!proc_find("cuMemAlloc", 2000, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT));
    expect_true(!proc_find("cuNoSuchCall", 13000, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND));
    /* A newer version of this name takes a parameter more. */
    expect_true(proc_find("cuCtxSynchronize", 12000, CU_GET_PROC_ADDRESS_SUCCESS) == (void *)cuCtxSynchronize);
    expect_true(proc_find("cuCtxSynchronize", 13000, CU_GET_PROC_ADDRESS_SUCCESS) == (void *)cuCtxSynchronize_v2);
    void *out;
    expect_result(cuGetProcAddress_v2("cuInit", &out, 13010, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    expect_true(dlsym(RTLD_DEFAULT, "cuIpcOpenMemHandle_v2") == (void *)cuIpcOpenMemHandle_v2);
}
static void test_functions_are_found_by_name_and_version(void **state)
{
    (void)state;
    assert_child(functions_find, NULL);
}
static void old_driver_find(int peer)
{
    (void)peer;
    int version;
    expect_success(cuDriverGetVersion(&version));
    expect_true(version == 11060);
    proc_find("cuStreamWaitValue32", 11060, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}
static void test_an_older_driver_lacks_newer_functions(void **state)
{
    (void)state;
    assert_child(old_driver_find, "FAKE_CUDA_VERSION=11060");
}

static void driver_use_before_init(int peer)
{
    (void)peer;
    CUdevice device;
    CUcontext context;
    CUdeviceptr address;
    expect_result(cuDeviceGet(&device, 0), CUDA_ERROR_NOT_INITIALIZED);
    expect_success(cuInit(0));
    expect_result(cuMemAlloc_v2(&address, 1), CUDA_ERROR_INVALID_CONTEXT);
    expect_success(cuDevicePrimaryCtxRetain(&context, 1));
    expect_success(cuCtxPushCurrent_v2(context));
    expect_success(cuCtxGetDevice(&device));
    expect_true(device == 1);
    expect_success(cuDevicePrimaryCtxRelease_v2(1));
    expect_result(cuMemAlloc_v2(&address, 1), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    expect_success(cuCtxPopCurrent_v2(&context));
    expect_result(cuCtxPopCurrent_v2(&context), CUDA_ERROR_INVALID_CONTEXT);
}
static void test_calls_need_cuinit_and_a_context(void **state)
{
    (void)state;
    assert_child(driver_use_before_init, NULL);
}
static void driver_use_after_fork(int peer)
{
    (void)peer;
    device_use(0);
    pid_t child = fork();
    if (!child) {
        size_t free, total;
        expect_result(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
        expect_result(cuMemGetInfo_v2(&free, &total), CUDA_ERROR_NOT_INITIALIZED);
        _exit(0);
    }
    int status;
    expect_true(waitpid(child, &status, 0) == child && status == 0);
}
static void test_a_fork_of_a_process_that_uses_the_driver_cannot(void **state)
{
    (void)state;
    assert_child(driver_use_after_fork, NULL);
}
static void no_device_find(int peer)
{
    (void)peer;
    expect_result(cuInit(0), CUDA_ERROR_NO_DEVICE);
}
static void test_there_may_be_no_device(void **state)
{
    (void)state;
    assert_child(no_device_find, "FAKE_CUDA_DEVICES=0");
}

static void devices_compare(int peer)
{
    (void)peer;
    int count, major, peers;
    CUuuid uuid[2];
    char id[16];
    CUdevice device;
    CUcontext context = device_use(0), other;
    expect_success(cuDeviceGetCount(&count));
    expect_true(count == 3);
    expect_success(cuDeviceGetUuid_v2(&uuid[0], 0));
    expect_success(cuDeviceGetUuid_v2(&uuid[1], 2));
    expect_true(memcmp(&uuid[0], &uuid[1], sizeof uuid[0]) != 0);
    expect_success(cuDeviceGetPCIBusId(id, sizeof id, 2));
    expect_success(cuDeviceGetByPCIBusId(&device, id));
    expect_true(device == 2);
    expect_success(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    expect_true(major == 9);
    expect_result(cuDeviceGet(&device, 3), CUDA_ERROR_INVALID_DEVICE);
    expect_success(cuDeviceCanAccessPeer(&peers, 0, 1));
    expect_true(peers);
    expect_success(cuDevicePrimaryCtxRetain(&other, 1));
    expect_success(cuCtxEnablePeerAccess(other, 0));
    expect_result(cuCtxEnablePeerAccess(other, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    expect_success(cuCtxDisablePeerAccess(other));
    expect_result(cuCtxDisablePeerAccess(other), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    expect_result(cuCtxEnablePeerAccess(context, 0), CUDA_ERROR_INVALID_CONTEXT);
}
static void test_devices_differ_and_reach_each_other(void **state)
{
    (void)state;
    assert_child(devices_compare, "FAKE_CUDA_DEVICES=3");
}
static void peers_refuse(int peer)
{
    (void)peer;
    int can;
    CUcontext other;
    device_use(0);
    expect_success(cuDeviceCanAccessPeer(&can, 0, 1));
    expect_true(!can);
    expect_success(cuDevicePrimaryCtxRetain(&other, 1));
    expect_result(cuCtxEnablePeerAccess(other, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
}
static void test_peer_access_may_be_refused(void **state)
{
    (void)state;
    assert_child(peers_refuse, "FAKE_CUDA_PEER=0");
}

static void errors_name(int peer)
{
    (void)peer;
    const char *text;
    expect_success(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
    expect_true(strcmp(text, "CUDA_ERROR_ILLEGAL_ADDRESS") == 0);
    expect_success(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    expect_true(strcmp(text, "out of memory") == 0);
    expect_result(cuGetErrorName((CUresult)12345, &text), CUDA_ERROR_INVALID_VALUE);
}
static void test_errors_have_names_and_texts(void **state)
{
    (void)state;
    assert_child(errors_name, NULL);
}

static void calls_fail(int peer)
{
    (void)peer;
    CUdeviceptr address;
    CUstream stream;
    device_use(0);
    for (int i = 1; i <= 4; i++)
        expect_result(cuMemAlloc_v2(&address, 64), i == 3 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS);
    for (int i = 1; i <= 4; i++) expect_result(cuStreamCreate(&stream, 0), i >= 2 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS);
    fake_cuda_fail("cuMemFree", 1, false, CUDA_ERROR_ILLEGAL_ADDRESS);
    expect_result(cuMemFree_v2(address), CUDA_ERROR_ILLEGAL_ADDRESS);
    expect_success(cuMemFree_v2(address));
    expect_true(fake_cuda_count("cuMemAlloc") == 4 && fake_cuda_count("cuMemFree") == 2);
    expect_true(fake_cuda_count("cuStreamSynchronize") == 0);
    expect_true(fake_cuda_count(NULL) == 13);
}
static void test_calls_are_counted_and_fail_on_demand(void **state)
{
    (void)state;
    assert_child(calls_fail,
        "FAKE_CUDA_FAIL=cuMemAlloc:3:CUDA_ERROR_OUT_OF_MEMORY,cuStreamCreate:2+:CUDA_ERROR_UNKNOWN");
}
static void driver_init(int peer)
{
    (void)peer;
    device_use(0);
}
static void test_settings_that_are_not_understood_end_the_process(void **state)
{
    (void)state;
    assert_int_equal(child_run(driver_init, "FAKE_CUDA_FAIL=cuMemAlloc:0:CUDA_ERROR_UNKNOWN"), 2);
    assert_int_equal(child_run(driver_init, "FAKE_CUDA_FAIL=cuMemAllok:1:CUDA_ERROR_UNKNOWN"), 2);
    assert_int_equal(child_run(driver_init, "FAKE_CUDA_DELAY=sometimes"), 2);
    assert_non_null(strstr(child_said, "one of immediate delayed shuffled"));
    assert_int_equal(child_run(driver_init, "FAKE_CUDA_SEED=x"), 2);
}

unit_function test_cuda_calls;
int test_cuda_calls(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_functions_are_found_by_name_and_version),
        cmocka_unit_test(test_an_older_driver_lacks_newer_functions),
        cmocka_unit_test(test_calls_need_cuinit_and_a_context),
        cmocka_unit_test(test_a_fork_of_a_process_that_uses_the_driver_cannot),
        cmocka_unit_test(test_there_may_be_no_device),
        cmocka_unit_test(test_devices_differ_and_reach_each_other),
        cmocka_unit_test(test_peer_access_may_be_refused),
        cmocka_unit_test(test_errors_have_names_and_texts),
        cmocka_unit_test(test_calls_are_counted_and_fail_on_demand),
        cmocka_unit_test(test_settings_that_are_not_understood_end_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
