/* The CUDA driver of this process. It is opened when it is first needed and stays open. */
#pragma once
#include "backend/base/status.h"
#include "backend/devices/cuda_driver.h"
#include <stdbool.h>

/* The driver's functions by their symbols. Functions that are newer than CUDA_LEAST_VERSION may be NULL. */
enum { CUDA_LEAST_VERSION = 12000 };
struct cuda_calls {
#define X(name, symbol, version, parameters, arguments) CUresult(*symbol) parameters;
    CUDA_DRIVER_FUNCTIONS(X)
#undef X
};
/* The pointers are valid once cuda_driver_load has returned OK. */
extern struct cuda_calls cuda;

/* Opens the first usable driver of the paths, which are separated by colons, and initializes it; once per process, so
   later calls ignore the paths. UNSUPPORTED: no driver is usable or there is no device, and the error text has the
   cause and what to do. */
tutti_status cuda_driver_load(const char *paths);
/* Returns OK for CUDA_SUCCESS. Other results fail with the driver's name and text of the result. `call` is what failed,
   such as "cuMemAlloc of 64 bytes". The status is TUTTI_NO_MEMORY if memory is short, otherwise TUTTI_SYSTEM. */
tutti_status cuda_check(CUresult result, const char *call);

/* Uses the primary context of a device, which the program's libraries share, on this thread. The caller ends the use by
   cuda_context_leave, on the same thread, and then has the context that was current before. */
tutti_status cuda_context_enter(CUdevice device);
void cuda_context_leave(void);
/* Holds the primary context of a device for the life of the process, at the first use by tutti. *out is the context. */
tutti_status cuda_context_retain(CUdevice device, CUcontext *out);
/* Lets this thread free memory while other threads capture streams; otherwise such a call would end their captures. */
void cuda_thread_relax_captures(void);
