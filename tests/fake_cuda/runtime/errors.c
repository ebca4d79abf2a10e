/* Errors: each thread has its last one. */
#include "tests/fake_cuda/runtime/runtime.h"

static _Thread_local cudaError_t last;

cudaError_t runtime_leave(CUresult result)
{
    if (result) last = (cudaError_t)result;
    return (cudaError_t)result;
}
cudaError_t cudaPeekAtLastError(void) { return last; }
cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last;
    last = cudaSuccess;
    return error;
}
const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
#define NAME(name, number) \
    case name: return #name;
        CUDA_RUNTIME_ERRORS(NAME)
#undef NAME
    default: return "an error that the fake does not know";
    }
}
const char *cudaGetErrorString(cudaError_t error)
{
    const char *text;
    if (error == cudaErrorNotSupported) return "operation not supported by the fake CUDA (tests/fake_cuda)";
    return cuGetErrorString((CUresult)error, &text) ? cudaGetErrorName(error) : text;
}
