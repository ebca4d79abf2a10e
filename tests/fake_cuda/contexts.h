/* Devices and their primary contexts. */
#pragma once
#include "tests/fake_cuda/fake_cuda.h"

enum { DEVICES_MOST = 16 };
struct CUctx_st {
    CUdevice device;
    unsigned retained, flags;
    uint64_t id;
    /* A bit for each device whose memory kernels of this context may access. */
    unsigned peers;
    /* The first error of a kernel, which all later calls return. */
    CUresult error;
    struct CUstream_st *legacy;
};
/* Returns the context of a device that exists. */
CUcontext context_of(CUdevice device);
bool device_exists(CUdevice device);
/* Sets *out to the thread's current context, or returns the error of a call without a usable one. */
CUresult context_current(CUcontext *out);
/* Returns the error of the context, or CUDA_SUCCESS. */
CUresult context_error(CUcontext context);
/* Makes the context fail, as after a kernel's wrong access. */
void context_fail(CUcontext context, CUresult error);
