/* Tests kernels: host functions that streams run, with their parameters, accesses and flags. */
#include "tests/unit/fake_cuda/children.h"

enum { COUNT = 256, BYTES = 4 * COUNT };

/* Adds a number to each word: parameters to, from, count, number. */
static void kernel_add(struct fake_cuda_launch *launch)
{
    CUdeviceptr to = *(CUdeviceptr *)launch->parameters[0], from = *(CUdeviceptr *)launch->parameters[1];
    unsigned count = *(unsigned *)launch->parameters[2];
    uint32_t number = *(uint32_t *)launch->parameters[3];
    const uint32_t *source = fake_cuda_read(launch, from, 4 * count);
    uint32_t *target = fake_cuda_write(launch, to, 4 * count);
    for (unsigned i = 0; i < count && source && target; i++) target[i] = source[i] + number;
}
/* Writes memory, and then a flag; or waits for the flag, and then reads. Parameters: memory, flag. */
static void kernel_produce(struct fake_cuda_launch *launch)
{
    CUdeviceptr memory = *(CUdeviceptr *)launch->parameters[0], flag = *(CUdeviceptr *)launch->parameters[1];
    uint32_t *words = fake_cuda_write(launch, memory, BYTES);
    for (unsigned i = 0; i < COUNT && words; i++) words[i] = 5;
    fake_cuda_signal(launch, flag, 1);
}
static void kernel_consume(struct fake_cuda_launch *launch)
{
    CUdeviceptr memory = *(CUdeviceptr *)launch->parameters[0], flag = *(CUdeviceptr *)launch->parameters[1];
    fake_cuda_await(launch, flag, 1);
    const uint32_t *words = fake_cuda_read(launch, memory, BYTES);
    expect_true(words && words[0] == 5 && words[COUNT - 1] == 5);
}
static CUmodule module;
static CUfunction function_of(const char *name)
{
    CUfunction function;
    expect_success(cuModuleGetFunction(&function, module, name));
    return function;
}
static void kernels_register(void)
{
    device_use(0);
    expect_success(cuModuleLoadData(&module, "image"));
    fake_cuda_register_kernel(&(struct fake_cuda_kernel){ "add", kernel_add, { 8, 8, 4, 4 } });
    fake_cuda_register_kernel(&(struct fake_cuda_kernel){ "produce", kernel_produce, { 8, 8 } });
    fake_cuda_register_kernel(&(struct fake_cuda_kernel){ "consume", kernel_consume, { 8, 8 } });
}
static void kernel_launch(const char *name, CUstream stream, void **parameters)
{
    expect_success(cuLaunchKernel(function_of(name), 4, 1, 1, 64, 1, 1, 0, stream, parameters, NULL));
}
static void add_launch(CUstream stream, CUdeviceptr to, CUdeviceptr from, uint32_t number)
{
    unsigned count = COUNT;
    void *parameters[] = { &to, &from, &count, &number };
    kernel_launch("add", stream, parameters);
    /* The launch has copied the parameters. */
    to = from = 0;
    count = number = 9999;
}

static void kernels_run(int peer)
{
    (void)peer;
    kernels_register();
    CUstream stream = stream_new();
    CUdeviceptr a = memory_new(BYTES), b = memory_new(BYTES);
    expect_success(cuMemsetD32Async(a, 1, COUNT, stream));
    add_launch(stream, b, a, 10);
    add_launch(stream, a, b, 100);
    expect_true(word_at(a + BYTES - 4) == 111);
    int threads;
    expect_success(cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function_of("add")));
    expect_true(threads == 1024);
}
static void test_kernels_run_in_their_stream(void **state)
{
    (void)state;
    assert_child(kernels_run, "FAKE_CUDA_DELAY=shuffled");
}
static void launches_refuse(int peer)
{
    (void)peer;
    CUmodule none;
    CUfunction function;
    kernels_register();
    expect_result(cuModuleLoadData(&none, NULL), CUDA_ERROR_INVALID_VALUE);
    expect_result(cuModuleGetFunction(&function, module, "subtract"), CUDA_ERROR_NOT_FOUND);
    function = function_of("add");
    void *parameters[4] = { 0 };
    expect_result(cuLaunchKernel(function, 0, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL), CUDA_ERROR_INVALID_VALUE);
    expect_result(cuLaunchKernel(function, 1, 1, 1, 64, 32, 1, 0, NULL, parameters, NULL), CUDA_ERROR_INVALID_VALUE);
    expect_result(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    expect_success(cuModuleUnload(module));
}
static void test_wrong_launches_are_refused(void **state)
{
    (void)state;
    assert_child(launches_refuse, NULL);
}

/* The context of a kernel that accesses what it may not fails for good. */
static void foreign_access(int peer)
{
    (void)peer;
    kernels_register();
    CUcontext own;
    expect_success(cuCtxGetCurrent(&own));
    CUcontext other = device_use(1);
    CUdeviceptr far = memory_new(BYTES);
    expect_success(cuMemsetD32_v2(far, 1, COUNT));
    expect_success(cuCtxSynchronize());
    expect_success(cuCtxSetCurrent(own));
    CUdeviceptr near = memory_new(BYTES);
    expect_success(cuCtxEnablePeerAccess(other, 0));
    add_launch(NULL, near, far, 1);
    expect_true(word_at(near) == 2);
    expect_success(cuCtxDisablePeerAccess(other));
    add_launch(NULL, near, far, 1);
    expect_result(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    expect_result(cuMemFree_v2(near), CUDA_ERROR_ILLEGAL_ADDRESS);
}
static void test_a_wrong_access_fails_the_context(void **state)
{
    (void)state;
    assert_reported(foreign_access, NULL, "which device 0 cannot access");
}
static void freed_access(int peer)
{
    (void)peer;
    kernels_register();
    CUdeviceptr a = memory_new(4 << 20), b = memory_new(BYTES);
    expect_success(cuMemFree_v2(a));
    add_launch(NULL, b, a, 1);
    expect_result(cuStreamSynchronize(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
}
static void test_a_kernel_that_uses_freed_memory_is_reported(void **state)
{
    (void)state;
    assert_reported(freed_access, NULL, "kernel add reads 1024 bytes");
}

static void flags_order(int peer)
{
    (void)peer;
    kernels_register();
    CUdeviceptr memory = memory_new(BYTES), flag = memory_new(4);
    void *parameters[] = { &memory, &flag };
    expect_success(cuMemsetD32_v2(flag, 0, 1));
    expect_success(cuCtxSynchronize());
    kernel_launch("consume", stream_new(), parameters);
    kernel_launch("produce", stream_new(), parameters);
    expect_success(cuCtxSynchronize());
}
static void test_flags_order_kernels_that_run_together(void **state)
{
    (void)state;
    assert_child(flags_order, "FAKE_CUDA_DELAY=shuffled FAKE_CUDA_HOST_READS=0");
}

unit_function test_cuda_kernels;
int test_cuda_kernels(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels_run_in_their_stream),
        cmocka_unit_test(test_wrong_launches_are_refused),
        cmocka_unit_test(test_a_wrong_access_fails_the_context),
        cmocka_unit_test(test_a_kernel_that_uses_freed_memory_is_reported),
        cmocka_unit_test(test_flags_order_kernels_that_run_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
