/* Functions that torch is linked with, and which the fake does not have. Each names itself, so that a test which needs
   it ends with a reason. */
#include "tests/fake_cuda/runtime/runtime.h"
#include <stdio.h>

static cudaError_t absent_call(const char *name)
{
    fprintf(stderr, "fake CUDA: %s is missing; tests/fake_cuda/runtime is the place for it\n", name);
    return runtime_leave(CUDA_ERROR_NOT_SUPPORTED);
}
#define ABSENT(name) \
    API name(void); \
    cudaError_t name(void) { return absent_call(#name); }
ABSENT(cudaDeviceGetDefaultMemPool)
ABSENT(cudaDeviceGetGraphMemAttribute)
ABSENT(cudaDeviceSetGraphMemAttribute)
ABSENT(cudaFreeAsync)
ABSENT(cudaGetSymbolAddress)
ABSENT(cudaGraphAddNode)
ABSENT(cudaGraphConditionalHandleCreate)
ABSENT(cudaGraphNodeGetDependencies)
ABSENT(cudaGraphRetainUserObject)
ABSENT(cudaKernelSetAttributeForDevice)
ABSENT(cudaLibraryGetKernel)
ABSENT(cudaLibraryLoadData)
ABSENT(cudaLibraryUnload)
ABSENT(cudaMallocAsync)
ABSENT(cudaMemPoolGetAttribute)
ABSENT(cudaMemPoolSetAccess)
ABSENT(cudaMemPoolSetAttribute)
ABSENT(cudaMemPoolTrimTo)
ABSENT(cudaMemcpyToSymbol)
ABSENT(cudaStreamBeginCaptureToGraph)
ABSENT(cudaStreamUpdateCaptureDependencies)
ABSENT(cudaUserObjectCreate)
ABSENT(cudaUserObjectRelease)
