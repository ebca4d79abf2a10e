/* Kernels that nvcc has compiled into a program. The program registers their names when it is loaded, and launches them
   by the address of a host function. The driver runs the host function that a test has registered for the kernel. */
#include "tests/fake_cuda/runtime/runtime.h"
#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIGURATIONS = 16, THREADS_MOST = 1024, BLOCKS_OF_PROCESSOR = 2 };
static struct kernel {
    const void *host;
    const char *name;
} *kernels;
static size_t count, room;
static bool is_sorted;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local struct {
    int depth;
    cudaLaunchConfig_t launches[CONFIGURATIONS];
} pushed;

/* ---- what the program registers ---- */
void **__cudaRegisterFatBinary(void *binary)
{
    static void *handle;
    (void)binary;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
char __cudaInitModule(void **handle)
{
    (void)handle;
    return 1;
}
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int is_external, size_t bytes,
    int is_constant, int is_global)
{
    (void)handle, (void)host, (void)device, (void)name, (void)is_external, (void)bytes;
    (void)is_constant, (void)is_global;
}
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads, void *thread,
    void *block, void *block_size, void *grid_size, int *warp_size)
{
    (void)handle, (void)device, (void)threads, (void)thread, (void)block, (void)block_size;
    (void)grid_size, (void)warp_size;
    pthread_mutex_lock(&lock);
    if (count == room) {
        room = room ? 2 * room : 1024;
        kernels = realloc(kernels, room * sizeof *kernels);
        if (!kernels) abort();
    }
    kernels[count++] = (struct kernel){ host, name };
    is_sorted = false;
    pthread_mutex_unlock(&lock);
}
static int kernel_compare(const void *first, const void *second)
{
    const struct kernel *a = first, *b = second;
    return (a->host > b->host) - (a->host < b->host);
}
/* Returns the name of the kernel of a host function, or NULL. */
static const char *kernel_name(const void *function)
{
    const struct kernel wanted = { .host = function };
    pthread_mutex_lock(&lock);
    if (!is_sorted) qsort(kernels, count, sizeof *kernels, kernel_compare);
    is_sorted = true;
    const struct kernel *found = count ? bsearch(&wanted, kernels, count, sizeof *kernels, kernel_compare) : NULL;
    const char *name = found ? found->name : NULL;
    pthread_mutex_unlock(&lock);
    return name;
}

/* ---- launches ---- */
/* Copies the last identifier of a mangled C++ name, in which the length stands before each. Other names have none. */
static bool name_shorten(const char *name, char *out, size_t room_bytes)
{
    const char *last = NULL;
    size_t bytes = 0;
    if (strncmp(name, "_Z", 2)) return false;
    name += 2 + (name[2] == 'N');
    for (char *end; isdigit((unsigned char)*name); name = end + bytes) {
        bytes = strtoul(name, &end, 10);
        if (bytes > strlen(end)) return false;
        last = end;
    }
    if (!last || bytes >= room_bytes) return false;
    memcpy(out, last, bytes);
    out[bytes] = '\0';
    return true;
}
static CUresult function_find(const char *name, CUfunction *out)
{
    static CUmodule module;
    char shortened[128];
    pthread_mutex_lock(&lock);
    CUresult result = module ? CUDA_SUCCESS : cuModuleLoadData(&module, "");
    pthread_mutex_unlock(&lock);
    if (!result) result = cuModuleGetFunction(out, module, name);
    if (result == CUDA_ERROR_NOT_FOUND && name_shorten(name, shortened, sizeof shortened))
        result = cuModuleGetFunction(out, module, shortened);
    return result;
}
static CUresult kernel_launch(const void *host, const cudaLaunchConfig_t *launch, void **parameters)
{
    CUfunction function;
    const char *name = kernel_name(host);
    if (!name) return (CUresult)cudaErrorInvalidDeviceFunction;
    CUresult result = function_find(name, &function);
    if (result == CUDA_ERROR_NOT_FOUND) {
        fprintf(stderr, "fake CUDA: no host function is registered for the kernel %s\n", name);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    dim3 grid = launch->gridDim, block = launch->blockDim;
    return result ? result
                  : cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                        (unsigned)launch->dynamicSmemBytes, launch->stream, parameters, NULL);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *launch, const void *function, void **parameters)
{
    RUNTIME_CALL(launch ? kernel_launch(function, launch, parameters) : CUDA_ERROR_INVALID_VALUE);
}
cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **parameters, size_t shared_bytes,
    CUstream stream)
{
    cudaLaunchConfig_t launch = { grid, block, shared_bytes, stream, NULL, 0 };
    return cudaLaunchKernelExC(&launch, function, parameters);
}
cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **parameters,
    size_t shared_bytes, CUstream stream)
{
    return cudaLaunchKernel(function, grid, block, parameters, shared_bytes, stream);
}
/* A handle of a kernel is the address of its host function. */
cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *function)
{
    *out = (cudaKernel_t)(uintptr_t)function;
    return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **parameters, size_t shared_bytes,
    CUstream stream)
{
    return cudaLaunchKernel(kernel, grid, block, parameters, shared_bytes, stream);
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, CUstream stream)
{
    if (pushed.depth == CONFIGURATIONS) return 1;
    pushed.launches[pushed.depth++] = (cudaLaunchConfig_t){ grid, block, shared_bytes, stream, NULL, 0 };
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, CUstream *stream)
{
    if (!pushed.depth) return runtime_leave(CUDA_ERROR_UNKNOWN);
    const cudaLaunchConfig_t *launch = &pushed.launches[--pushed.depth];
    *grid = launch->gridDim;
    *block = launch->blockDim;
    *shared_bytes = launch->dynamicSmemBytes;
    *stream = launch->stream;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *function)
{
    if (!out || !kernel_name(function)) return runtime_leave((CUresult)cudaErrorInvalidDeviceFunction);
    *out = (struct cudaFuncAttributes){ .maxThreadsPerBlock = THREADS_MOST, .ptxVersion = 90, .binaryVersion = 90 };
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *function, cuda_enumeration attribute, int value)
{
    (void)attribute, (void)value;
    return runtime_leave(kernel_name(function) ? CUDA_SUCCESS : (CUresult)cudaErrorInvalidDeviceFunction);
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, const void *function, int threads,
    size_t shared_bytes, unsigned flags)
{
    (void)function, (void)threads, (void)shared_bytes, (void)flags;
    if (out) *out = BLOCKS_OF_PROCESSOR;
    return runtime_leave(out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *out, const void *function, int threads,
    size_t shared_bytes)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out, function, threads, shared_bytes, 0);
}
