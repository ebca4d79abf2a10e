/* The entry of every call of the driver, which counts it and may make it fail, and the functions behind. */
#pragma once
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/graph_calls.h"
#include <pthread.h>

/* All functions of the fake driver. */
#define FAKE_CUDA_FUNCTIONS(X) CUDA_DRIVER_FUNCTIONS(X) CUDA_GRAPH_FUNCTIONS(X)
enum call {
#define CALL(name, symbol, version, parameters, arguments) CALL_##symbol,
    FAKE_CUDA_FUNCTIONS(CALL)
#undef CALL
        CALLS
};
#define DECLARE(name, symbol, version, parameters, arguments) CUresult fake_##symbol parameters;
FAKE_CUDA_FUNCTIONS(DECLARE)
#undef DECLARE

/* Returns the index of the newest function with this name that a program for this version of CUDA gets; -1 if the name
   is unknown, -2 if all its functions are newer. */
int call_find(const char *name, int version);
const char *call_name(enum call call);
/* Counts a call. Returns an error that it must return at once, or CUDA_SUCCESS. */
CUresult call_enter(enum call call);
/* Returns the error that a test has ordered for this call, or CUDA_SUCCESS. */
CUresult failure_due(enum call call);
/* Makes the thread one that may not call the driver, as in cuLaunchHostFunc, or ends that. */
void thread_forbid_calls(bool forbid);
