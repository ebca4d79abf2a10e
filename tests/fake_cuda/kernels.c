/* Modules and kernels. A kernel is a host function with the kernel's name; it declares what it accesses. */
#include "tests/fake_cuda/calls.h"
#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/order.h"
#include "tests/fake_cuda/report.h"
#include "tests/fake_cuda/values.h"
#include <stdlib.h>
#include <string.h>

enum { KERNELS = 256, PARAMETERS = 16, THREADS_MOST = 1024, NAME_BYTES = 128 };
struct CUmod_st { int unused; };
struct CUfunc_st {
    char name[NAME_BYTES];
    struct fake_cuda_kernel kernel;
};
struct launch {
    struct operation base;
    struct fake_cuda_launch given;
    void (*run)(struct fake_cuda_launch *launch);
    void *parameters[PARAMETERS];
    char bytes[];
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUfunc_st functions[KERNELS];
static int function_count;

static CUfunction function_find(const char *name)
{
    for (int i = 0; i < function_count; i++)
        if (strcmp(functions[i].name, name) == 0) return &functions[i];
    return NULL;
}
VISIBLE void fake_cuda_register_kernel(const struct fake_cuda_kernel *kernel)
{
    pthread_mutex_lock(&lock);
    CUfunction function = function_find(kernel->name);
    if (!function && function_count == KERNELS) machine_full("kernels", KERNELS);
    if (!function) function = &functions[function_count++];
    strncpy(function->name, kernel->name, NAME_BYTES - 1);
    function->kernel = *kernel;
    pthread_mutex_unlock(&lock);
}
CUresult fake_cuModuleLoadData(CUmodule *out, const void *image)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result) return result;
    if (!out || !image) return CUDA_ERROR_INVALID_VALUE;
    *out = calloc(1, sizeof **out);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult fake_cuModuleUnload(CUmodule module)
{
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    free(module);
    return CUDA_SUCCESS;
}
CUresult fake_cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
    if (!out || !name) return CUDA_ERROR_INVALID_VALUE;
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    CUfunction found = function_find(name);
    pthread_mutex_unlock(&lock);
    if (found) *out = found;
    return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CUresult fake_cuFuncGetAttribute(int *out, CUfunction_attribute attribute, CUfunction function)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    *out = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? THREADS_MOST : 0;
    return CUDA_SUCCESS;
}

/* ---- launches ---- */
static void launch_run(struct operation *operation)
{
    struct launch *launch = (struct launch *)operation;
    launch->run(&launch->given);
}
static size_t parameters_bytes(const struct fake_cuda_kernel *kernel, int *count)
{
    size_t bytes = 0;
    for (*count = 0; *count < PARAMETERS && kernel->parameter_bytes[*count]; ++*count)
        bytes += (kernel->parameter_bytes[*count] + 15) / 16 * 16;
    return bytes;
}
/* Copies the parameters, because the caller may change its own after the call. */
static struct launch *launch_create(const struct fake_cuda_kernel *kernel, void **parameters)
{
    int count;
    size_t bytes = parameters_bytes(kernel, &count);
    struct launch *launch = operation_create(sizeof *launch + bytes + 16, launch_run, kernel->name);
    char *at = launch->bytes + (16 - (uintptr_t)launch->bytes % 16) % 16;
    for (int i = 0; i < count; i++) {
        launch->parameters[i] = at;
        memcpy(at, parameters[i], kernel->parameter_bytes[i]);
        at += (kernel->parameter_bytes[i] + 15) / 16 * 16;
    }
    launch->run = kernel->run;
    launch->given.parameters = launch->parameters;
    launch->given.operation = &launch->base;
    return launch;
}
CUresult fake_cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
    unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream handle, void **parameters, void **extra)
{
    CUstream stream;
    CUresult result = stream_find(handle, &stream);
    if (result) return result;
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    if (extra) return CUDA_ERROR_NOT_SUPPORTED;
    bool has_parameters = function->kernel.parameter_bytes[0];
    uint64_t blocks = (uint64_t)grid_x * grid_y * grid_z, threads = (uint64_t)block_x * block_y * block_z;
    if (!blocks || !threads || threads > THREADS_MOST || (has_parameters && !parameters))
        return CUDA_ERROR_INVALID_VALUE;
    struct launch *launch = launch_create(&function->kernel, parameters);
    const unsigned grid[] = { grid_x, grid_y, grid_z }, block[] = { block_x, block_y, block_z };
    memcpy(launch->given.grid, grid, sizeof grid);
    memcpy(launch->given.block, block, sizeof block);
    launch->given.shared_bytes = shared_bytes;
    stream_enqueue(stream, &launch->base);
    return CUDA_SUCCESS;
}

/* ---- what a kernel accesses ---- */
static void illegal_report(struct operation *operation, CUdeviceptr address, size_t bytes, bool writes)
{
    struct report report = report_begin("kernel %s %s %zu bytes at %#llx, which device %d cannot access",
        operation->call, writes ? "writes" : "reads", bytes, address, operation->stream->context->device);
    report_stack(&report, "launched", operation->call, &operation->stack);
    report_end(&report);
    context_fail(operation->stream->context, CUDA_ERROR_ILLEGAL_ADDRESS);
}
static void *kernel_access(struct fake_cuda_launch *launch, CUdeviceptr address, size_t bytes, bool writes)
{
    struct operation *operation = launch->operation;
    bool allows = memory_allows(operation->stream->context, address, bytes, writes);
    if (!allows || memory_declare(operation, address, bytes, writes)) {
        illegal_report(operation, address, bytes, writes);
        return NULL;
    }
    accesses_begin(operation);
    return memory_shadow(address);
}
VISIBLE const void *fake_cuda_read(struct fake_cuda_launch *launch, CUdeviceptr address, size_t bytes)
{
    return kernel_access(launch, address, bytes, false);
}
VISIBLE void *fake_cuda_write(struct fake_cuda_launch *launch, CUdeviceptr address, size_t bytes)
{
    return kernel_access(launch, address, bytes, true);
}
/* Finds the word that a kernel signals or awaits. Reports a kernel that may not access it, and returns false. */
static bool kernel_find_word(struct fake_cuda_launch *launch, CUdeviceptr address, uint32_t value, bool writes,
    struct word_access *out)
{
    bool found = !word_find(address, sizeof value, out);
    if (found) out->value = value;
    else illegal_report(launch->operation, address, sizeof value, writes);
    return found;
}
/* After a signal the kernel's further accesses are later than it, so they need an epoch of their own. */
VISIBLE void fake_cuda_signal(struct fake_cuda_launch *launch, CUdeviceptr address, uint32_t value)
{
    struct word_access word;
    if (!kernel_find_word(launch, address, value, true, &word)) return;
    word_write(launch->operation->stream, &word);
    operation_next_epoch(launch->operation);
}
VISIBLE void fake_cuda_await(struct fake_cuda_launch *launch, CUdeviceptr address, uint32_t value)
{
    struct word_access word;
    if (!kernel_find_word(launch, address, value, false, &word)) return;
    word.compare = CU_STREAM_WAIT_VALUE_GEQ;
    word_await(launch->operation->stream, &word);
}
