/* The twin runs as a kernel of the fake CUDA driver: loaded, found by name and launched on a stream, in the stream's
   order, on device memory whose accesses it declares. */
#include "tests/unit/cuda_kernels/twin.h"
#include "tests/unit/fake_cuda/children.h"

enum { COUNT = 3000, BYTES = 4 * COUNT, BLOCKS = 2 };
static CUmodule module;

static void kernel_launch(const char *name, CUstream stream, void *parameter, unsigned rows)
{
    CUfunction function;
    void *parameters[] = { parameter };
    expect_success(cuModuleGetFunction(&function, module, name));
    expect_success(cuLaunchKernel(function, BLOCKS, rows, 1, CUDA_BLOCK, 1, 1, 0, stream, parameters, NULL));
}
static void kernels_load(void)
{
    device_use(0);
    twin_register();
    expect_success(cuModuleLoadData(&module, "image"));
}
static CUdeviceptr numbers_new(float number, CUstream stream)
{
    uint32_t bits;
    CUdeviceptr memory = memory_new(BYTES);
    memcpy(&bits, &number, sizeof bits);
    expect_success(cuMemsetD32Async(memory, bits, COUNT, stream));
    return memory;
}
static float number_at(CUdeviceptr address)
{
    uint32_t bits = word_at(address);
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}
static void *pointer_of(CUdeviceptr address) { return (void *)address; }

/* Sums, averages, scales, normalizes and copies, each from the result of the one before. */
static void launches_run(int peer)
{
    (void)peer;
    kernels_load();
    CUstream stream = stream_new();
    CUdeviceptr a = numbers_new(1, stream), b = numbers_new(4, stream), c = numbers_new(0, stream);
    struct cuda_reduce r = { { pointer_of(a) }, { pointer_of(a), pointer_of(b) }, COUNT, 1, 2, 1 };
    kernel_launch(cuda_reduce_name(TUTTI_FLOAT32, TUTTI_SUM), stream, &r, 1);
    r.divisor = 3;
    kernel_launch(cuda_reduce_name(TUTTI_FLOAT32, TUTTI_AVG), stream, &r, 1);
    struct cuda_scale s = { pointer_of(b), pointer_of(a), COUNT, 2 };
    kernel_launch(cuda_scale_name(TUTTI_FLOAT32), stream, &s, 1);
    struct cuda_norm n = { pointer_of(b), pointer_of(a), NULL, NULL, 3, COUNT / 3, 0, 0 };
    kernel_launch(cuda_norm_name(TUTTI_FLOAT32), stream, &n, 1);
    struct cuda_copy copies = { { { pointer_of(c), pointer_of(b), 8 }, { pointer_of(c + 8), pointer_of(a), 4 } } };
    kernel_launch("tutti_copy", stream, &copies, 2);
    /* a = (1 + 4 + 4) / 3 = 3, b = 2 * 3 = 6, a += b, and b is a row of equal numbers divided by their size. */
    expect_true(number_at(a + BYTES - 4) == 9 && number_at(b) == 1);
    expect_true(number_at(c) == 1 && number_at(c + 4) == 1 && number_at(c + 8) == 9 && number_at(c + 12) == 0);
    expect_true(fake_cuda_reports() == 0);
}
static void test_launches_run_in_their_stream(void **state)
{
    (void)state;
    assert_child(launches_run, "FAKE_CUDA_DELAY=shuffled");
}
/* A copy on another stream, which does not wait for the sum. */
static void streams_race(int peer)
{
    (void)peer;
    kernels_load();
    CUstream stream = stream_new(), other = stream_new();
    CUdeviceptr a = numbers_new(1, stream), b = memory_new(BYTES);
    expect_success(cuStreamSynchronize(stream));
    struct cuda_reduce r = { { pointer_of(a) }, { pointer_of(a), pointer_of(a) }, COUNT, 1, 2, 1 };
    struct cuda_copy copies = { { { pointer_of(b), pointer_of(a + BYTES - 4), 4 } } };
    kernel_launch(cuda_reduce_name(TUTTI_FLOAT32, TUTTI_SUM), stream, &r, 1);
    kernel_launch("tutti_copy", other, &copies, 1);
    expect_success(cuCtxSynchronize());
}
static void test_kernels_declare_their_accesses(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    /* The planted race is one for the thread sanitizer too, which may end the child before the driver reports it. */
    skip();
#endif
    assert_reported(streams_race, NULL, "tutti_copy");
}
static void address_wrong(int peer)
{
    (void)peer;
    kernels_load();
    CUstream stream = stream_new();
    CUdeviceptr a = numbers_new(1, stream);
    struct cuda_reduce r = { { pointer_of(a) }, { pointer_of(a), pointer_of(16) }, COUNT, 1, 2, 1 };
    kernel_launch(cuda_reduce_name(TUTTI_FLOAT32, TUTTI_SUM), stream, &r, 1);
    expect_result(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}
static void test_wrong_addresses_fail_the_context(void **state)
{
    (void)state;
    assert_reported(address_wrong, NULL, "cannot access");
}

unit_function test_cuda_launches;
int test_cuda_launches(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_launches_run_in_their_stream),
        cmocka_unit_test(test_kernels_declare_their_accesses),
        cmocka_unit_test(test_wrong_addresses_fail_the_context) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
