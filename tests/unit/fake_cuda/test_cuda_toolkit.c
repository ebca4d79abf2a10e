/* Compares the project's declarations of the CUDA driver with those of a toolkit, when this file is compiled. The test
   itself only reports whether a toolkit was there. */
#ifdef HAVE_CUDA
#include <cuda.h>
#include <cudaTypedefs.h>
/* This header leaves the types to the one before it. */
#include "backend/devices/cuda_driver.h"
#include "tests/fake_cuda/graph_calls.h"
#include "tests/unit/fake_cuda/layouts.h"

#define COMPARE(name, number, ...) static_assert((name) == (number), #name);
CUDA_DRIVER_RESULTS(COMPARE)
CUDA_DRIVER_CONSTANTS(COMPARE)
CUDA_GRAPH_RESULTS(COMPARE)
CUDA_GRAPH_CONSTANTS(COMPARE)
#undef COMPARE

#if CUDA_VERSION >= 13000
#include "tests/fake_cuda/runtime/layouts.h"
#include <cuda_runtime_api.h>
#define COMPARE(name, number) static_assert((name) == (number), #name);
CUDA_RUNTIME_ERRORS(COMPARE)
#undef COMPARE
#define COMPARE(name, at, bytes) \
    static_assert(offsetof(struct cudaDeviceProp, name) == (at), #name); \
    static_assert(sizeof(((struct cudaDeviceProp *)0)->name) == (bytes), #name);
CUDA_RUNTIME_PROPERTIES(COMPARE)
#undef COMPARE
static_assert(sizeof(struct cudaDeviceProp) == CUDA_PROPERTIES_BYTES, "cudaDeviceProp");
static_assert(sizeof(struct cudaPointerAttributes) == CUDA_POINTER_BYTES, "cudaPointerAttributes");
static_assert(sizeof(struct cudaFuncAttributes) == CUDA_FUNCTION_BYTES, "cudaFuncAttributes");
static_assert(offsetof(struct cudaFuncAttributes, maxThreadsPerBlock) == 24, "maxThreadsPerBlock");
#endif

/* Toolkits before 13 lack the newest forms of three functions. */
#if CUDA_VERSION >= 13000
#define COMPARE(name, symbol, version, parameters, arguments) \
    CUresult symbol parameters; \
    static_assert(__builtin_types_compatible_p(PFN_##name##_v##version, __typeof__(&symbol)), #symbol);
CUDA_DRIVER_FUNCTIONS(COMPARE)
CUDA_GRAPH_FUNCTIONS(COMPARE)
#undef COMPARE
#endif
#endif
#include "tests/support/unit.h"

static void test_declarations_are_those_of_the_toolkit(void **state)
{
    (void)state;
#ifndef HAVE_CUDA
    print_message("skipped: no header cuda.h was found; set CUDA_HOME to the folder of a CUDA toolkit\n");
    skip();
#endif
}

unit_function test_cuda_toolkit;
int test_cuda_toolkit(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_declarations_are_those_of_the_toolkit) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
