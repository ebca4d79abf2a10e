/* The functions by which a test sets up and observes the fake CUDA driver, besides the driver's own interface. A test
   that opens the fake with dlopen finds these functions by dlsym. */
#pragma once
#include "backend/devices/cuda_driver.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The fake has hidden functions but for these and the driver's. */
#define VISIBLE __attribute__((visibility("default")))

/* One launch of a kernel, while its host function runs. */
struct fake_cuda_launch {
    unsigned grid[3], block[3], shared_bytes;
    /* Pointers to copies of the parameters, as the launch passed them. */
    void **parameters;
    /* The operation of the stream, for the functions below. */
    struct operation *operation;
};
/* A host function that replaces a kernel. It runs once for a launch, on the thread of the stream. */
struct fake_cuda_kernel {
    const char *name;
    void (*run)(struct fake_cuda_launch *launch);
    /* The sizes of the parameters, in bytes; a 0 ends them. */
    size_t parameter_bytes[16];
};
/* Registers a kernel, or replaces the one of that name. Modules have all registered kernels, whatever their image. */
void fake_cuda_register_kernel(const struct fake_cuda_kernel *kernel);
/* These return where a kernel can access device memory, and declare the access to the checker of order. After an access
   that the stream's device may not make they return NULL, and the context fails with CUDA_ERROR_ILLEGAL_ADDRESS. */
const void *fake_cuda_read(struct fake_cuda_launch *launch, CUdeviceptr address, size_t bytes);
void *fake_cuda_write(struct fake_cuda_launch *launch, CUdeviceptr address, size_t bytes);
/* A kernel's store of a flag after all its writes, and its wait until a flag is at least `value`. Flags are words of 32
   bits that order what other streams do, as those of cuStreamWriteValue32 and cuStreamWaitValue32. */
void fake_cuda_signal(struct fake_cuda_launch *launch, CUdeviceptr address, uint32_t value);
void fake_cuda_await(struct fake_cuda_launch *launch, CUdeviceptr address, uint32_t value);

/* Launches a kernel that runs on the calling thread. fake_cuda_begin waits until the stream has done what it got
   before, and the stream goes on after fake_cuda_end. Between the two the thread may call the functions above, and must
   not wait for the stream. The wait orders nothing for the checker, because a GPU's launch does not wait. */
CUresult fake_cuda_begin(CUstream stream, const char *name, struct fake_cuda_launch **out);
void fake_cuda_end(struct fake_cuda_launch *launch);

/* Returns how often this process has called a function of the driver. `call` is a name without version, or NULL for all
   functions together. */
uint64_t fake_cuda_count(const char *call);
/* Makes calls of a function fail with `result`: the n-th from now on, and all later ones too if `always`. */
void fake_cuda_fail(const char *call, unsigned n, bool always, CUresult result);
/* Returns how many faults of order or of memory this process has reported. */
unsigned fake_cuda_reports(void);
