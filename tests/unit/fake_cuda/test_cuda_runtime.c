/* Tests that the fake runtime translates to the fake driver, and that its kernels, errors and NVML are as torch needs
   them. */
#include "tests/fake_cuda/runtime/nvml.h"
#include "tests/fake_cuda/runtime/runtime.h"
#include "tests/unit/fake_cuda/children.h"
#include <pthread.h>

enum { BYTES = 4096, COUNT = BYTES / 4 };

static void expect_error(cudaError_t error, cudaError_t expected)
{
    expect_result((CUresult)error, (CUresult)expected);
}
static void expect_runtime(cudaError_t error) { expect_error(error, cudaSuccess); }

static void *device_of_thread(void *out)
{
    expect_runtime(cudaGetDevice(out));
    return NULL;
}
static void devices_select(int peer)
{
    (void)peer;
    int count, device, other = -1, can;
    char id[16];
    struct cudaDeviceProp properties;
    pthread_t thread;
    expect_runtime(cudaGetDeviceCount(&count));
    expect_true(count == 2);
    expect_runtime(cudaGetDevice(&device));
    expect_true(device == 0);
    expect_runtime(cudaSetDevice(1));
    expect_runtime(cudaGetDevice(&device));
    expect_true(device == 1);
    pthread_create(&thread, NULL, device_of_thread, &other);
    pthread_join(thread, NULL);
    expect_true(other == 0);
    expect_runtime(cudaGetDeviceProperties(&properties, 1));
    expect_true(strcmp(properties.bytes, "Fake GPU 1") == 0);
    expect_runtime(cudaDeviceGetPCIBusId(id, sizeof id, 1));
    expect_true(strcmp(id, "0000:02:00.0") == 0);
    expect_runtime(cudaDeviceCanAccessPeer(&can, 0, 1));
    expect_true(can == 1);
    expect_error(cudaSetDevice(2), cudaErrorInvalidDevice);
}
static void test_each_thread_selects_its_device(void **state)
{
    (void)state;
    assert_child(devices_select, NULL);
}

static void memory_moves(int peer)
{
    (void)peer;
    uint32_t *host, *far, *near, pageable[COUNT];
    struct cudaPointerAttributes attributes;
    CUstream stream;
    CUevent event;
    expect_runtime(cudaHostAlloc((void **)&host, BYTES, 0));
    expect_runtime(cudaSetDevice(1));
    expect_runtime(cudaMalloc((void **)&far, BYTES));
    expect_runtime(cudaSetDevice(0));
    expect_runtime(cudaMalloc((void **)&near, BYTES));
    expect_runtime(cudaStreamCreateWithFlags(&stream, CU_STREAM_NON_BLOCKING));
    expect_runtime(cudaEventCreateWithFlags(&event, CU_EVENT_DISABLE_TIMING));
    for (uint32_t i = 0; i < COUNT; i++) host[i] = i;
    expect_runtime(cudaMemcpyAsync(near, host, BYTES, 0, stream));
    expect_runtime(cudaMemcpy2DAsync(near, 8, near + COUNT / 2, 8, 4, COUNT / 4, 0, stream));
    expect_runtime(cudaMemcpyPeerAsync(far, 1, near, 0, BYTES, stream));
    expect_runtime(cudaEventRecord(event, stream));
    expect_runtime(cudaEventSynchronize(event));
    expect_runtime(cudaMemcpy(pageable, far, BYTES, 0));
    expect_true(pageable[0] == COUNT / 2 && pageable[1] == 1 && pageable[COUNT - 1] == COUNT - 1);
    expect_runtime(cudaPointerGetAttributes(&attributes, far + 1));
    expect_true(attributes.type == cudaMemoryTypeDevice && attributes.device == 1 && !attributes.hostPointer);
    expect_runtime(cudaPointerGetAttributes(&attributes, host));
    expect_true(attributes.type == cudaMemoryTypeHost && attributes.hostPointer == host);
    expect_runtime(cudaPointerGetAttributes(&attributes, pageable));
    expect_true(attributes.type == cudaMemoryTypeUnregistered);
    expect_true(fake_cuda_count("cuMemcpyAsync") == 1 + COUNT / 4 && fake_cuda_count("cuMemcpyPeerAsync") == 1);
    expect_runtime(cudaFree(far));
    expect_runtime(cudaFree(NULL));
    expect_runtime(cudaFreeHost(host));
}
static void test_memory_moves_between_devices_and_hosts(void **state)
{
    (void)state;
    assert_child(memory_moves, "FAKE_CUDA_DELAY=shuffled");
}

static void errors_stay(int peer)
{
    (void)peer;
    void *memory;
    fake_cuda_fail("cuMemAlloc", 1, false, CUDA_ERROR_OUT_OF_MEMORY);
    expect_error(cudaMalloc(&memory, BYTES), cudaErrorMemoryAllocation);
    expect_error(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
    expect_error(cudaGetLastError(), cudaErrorMemoryAllocation);
    expect_runtime(cudaGetLastError());
    expect_true(strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation") == 0);
    expect_true(strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0);
}
static void test_a_thread_keeps_its_last_error(void **state)
{
    (void)state;
    assert_child(errors_stay, NULL);
}
static void driver_missing(int peer)
{
    (void)peer;
    int count = 7;
    expect_error(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    expect_true(count == 0);
}
static void test_a_machine_without_devices_has_none(void **state)
{
    (void)state;
    assert_child(driver_missing, "FAKE_CUDA_DEVICES=0");
}

/* ---- kernels ---- */
static void store_run(struct fake_cuda_launch *launch)
{
    CUdeviceptr address = *(CUdeviceptr *)launch->parameters[0];
    uint32_t *out = fake_cuda_write(launch, address, launch->grid[0] * sizeof *out);
    for (unsigned i = 0; out && i < launch->grid[0]; i++) out[i] = *(uint32_t *)launch->parameters[1];
}
static const char store, mangled, unknown;
/* Registers kernels as a program that nvcc has compiled. */
static void kernels_register(void)
{
    const struct fake_cuda_kernel kernel = { "store", store_run, { sizeof(CUdeviceptr), sizeof(uint32_t) } };
    void **handle = __cudaRegisterFatBinary(NULL);
    __cudaRegisterFunction(handle, &store, NULL, "store", -1, NULL, NULL, NULL, NULL, NULL);
    __cudaRegisterFunction(handle, &mangled, NULL, "_ZN5tests4cuda5storeEPjj", -1, NULL, NULL, NULL, NULL, NULL);
    __cudaRegisterFunction(handle, &unknown, NULL, "_ZN5tests4addEv", -1, NULL, NULL, NULL, NULL, NULL);
    __cudaRegisterFatBinaryEnd(handle);
    fake_cuda_register_kernel(&kernel);
}
static void kernels_launch(int peer)
{
    (void)peer;
    void *memory;
    uint32_t value = 5, got[4];
    void *parameters[] = { &memory, &value };
    cudaKernel_t kernel;
    dim3 grid, block;
    size_t shared;
    CUstream stream;
    kernels_register();
    expect_runtime(cudaMalloc(&memory, BYTES));
    expect_runtime(cudaMemset(memory, 0, BYTES));
    expect_runtime(cudaLaunchKernel(&store, (dim3){ 4, 1, 1 }, (dim3){ 1, 1, 1 }, parameters, 0, NULL));
    value = 6;
    expect_runtime(__cudaGetKernel(&kernel, &mangled));
    expect_true(__cudaPushCallConfiguration((dim3){ 2, 1, 1 }, (dim3){ 32, 1, 1 }, 0, NULL) == 0);
    expect_runtime(__cudaPopCallConfiguration(&grid, &block, &shared, &stream));
    expect_runtime(__cudaLaunchKernel(kernel, grid, block, parameters, shared, stream));
    expect_runtime(cudaMemcpy(got, memory, sizeof got, 0));
    expect_true(got[0] == 6 && got[1] == 6 && got[2] == 5 && got[3] == 5);
    expect_error(cudaLaunchKernel(&unknown, grid, block, parameters, 0, NULL), cudaErrorNotSupported);
    expect_error(cudaLaunchKernel(&value, grid, block, parameters, 0, NULL), cudaErrorInvalidDeviceFunction);
}
static void test_kernels_are_found_by_their_names(void **state)
{
    (void)state;
    assert_child(kernels_launch, NULL);
    assert_non_null(strstr(child_said, "_ZN5tests4addEv"));
}

/* ---- kernels on the thread of the caller ---- */
static void turns_alternate(int peer)
{
    (void)peer;
    device_use(0);
    CUstream stream = stream_new();
    CUdeviceptr memory = memory_new(BYTES);
    struct fake_cuda_launch *launch;
    expect_success(cuMemsetD32Async(memory, 1, COUNT, stream));
    expect_success(fake_cuda_begin(stream, "double", &launch));
    uint32_t *values = fake_cuda_write(launch, memory, BYTES);
    expect_result(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    for (int i = 0; i < COUNT; i++) values[i] *= 2;
    fake_cuda_end(launch);
    expect_true(word_at(memory) == 2);
}
static void test_a_thread_takes_its_turn_in_a_stream(void **state)
{
    (void)state;
    assert_child(turns_alternate, "FAKE_CUDA_DELAY=shuffled");
}
/* The thread has waited for the first stream, but a launch on a GPU would not have. */
static void turns_unordered(int peer)
{
    (void)peer;
    device_use(0);
    CUdeviceptr memory = memory_new(BYTES);
    struct fake_cuda_launch *launch;
    for (int i = 0; i < 2; i++) {
        expect_success(fake_cuda_begin(stream_new(), "store", &launch));
        expect_true(fake_cuda_write(launch, memory, BYTES));
        fake_cuda_end(launch);
    }
    expect_success(cuCtxSynchronize());
}
static void test_a_turn_does_not_order_other_streams(void **state)
{
    (void)state;
    assert_reported(turns_unordered, NULL, "store writes bytes that store writes");
}

/* ---- NVML ---- */
static void nvml_answers(int peer)
{
    (void)peer;
    unsigned count;
    uintptr_t device;
    char id[64];
    expect_true(nvmlInit_v2() == NVML_SUCCESS);
    expect_true(nvmlDeviceGetCount_v2(&count) == NVML_SUCCESS && count == 3);
    expect_true(nvmlDeviceGetHandleByPciBusId_v2("0000:03:00.0", &device) == NVML_SUCCESS);
    expect_true(nvmlDeviceGetUUID(device, id, sizeof id) == NVML_SUCCESS);
    expect_true(strcmp(id, "GPU-66616b65-2047-5055-0000-000000000003") == 0);
    expect_true(nvmlDeviceGetHandleByPciBusId_v2("0000:04:00.0", &device) == NVML_NOT_FOUND);
    expect_true(nvmlDeviceGetHandleByIndex_v2(3, &device) == NVML_INVALID_ARGUMENT);
    expect_true(nvmlDeviceGetGpuFabricInfoV(1, id) == NVML_NOT_SUPPORTED);
}
static void test_nvml_knows_the_devices(void **state)
{
    (void)state;
    assert_child(nvml_answers, "FAKE_CUDA_DEVICES=3");
}

unit_function test_cuda_runtime;
int test_cuda_runtime(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_thread_selects_its_device),
        cmocka_unit_test(test_memory_moves_between_devices_and_hosts),
        cmocka_unit_test(test_a_thread_keeps_its_last_error),
        cmocka_unit_test(test_a_machine_without_devices_has_none),
        cmocka_unit_test(test_kernels_are_found_by_their_names),
        cmocka_unit_test(test_a_thread_takes_its_turn_in_a_stream),
        cmocka_unit_test(test_a_turn_does_not_order_other_streams),
        cmocka_unit_test(test_nvml_knows_the_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
