/* Names, numbers and layouts of the CUDA runtime (CUDA 13.0), as lists. tests/unit/fake_cuda/test_cuda_toolkit.c
   compares them with a toolkit's, where one is installed. */
#pragma once

/* X(name, number): errors of the runtime. They have the numbers of the driver's results. */
// clang-format off
#define CUDA_RUNTIME_ERRORS(X) \
    X(cudaSuccess, 0) \
    X(cudaErrorInvalidValue, 1) \
    X(cudaErrorMemoryAllocation, 2) \
    X(cudaErrorInitializationError, 3) \
    X(cudaErrorCudartUnloading, 4) \
    X(cudaErrorInvalidDeviceFunction, 98) \
    X(cudaErrorNoDevice, 100) \
    X(cudaErrorInvalidDevice, 101) \
    X(cudaErrorDeviceUninitialized, 201) \
    X(cudaErrorMapBufferObjectFailed, 205) \
    X(cudaErrorPeerAccessUnsupported, 217) \
    X(cudaErrorOperatingSystem, 304) \
    X(cudaErrorInvalidResourceHandle, 400) \
    X(cudaErrorSymbolNotFound, 500) \
    X(cudaErrorNotReady, 600) \
    X(cudaErrorIllegalAddress, 700) \
    X(cudaErrorPeerAccessAlreadyEnabled, 704) \
    X(cudaErrorPeerAccessNotEnabled, 705) \
    X(cudaErrorContextIsDestroyed, 709) \
    X(cudaErrorHostMemoryAlreadyRegistered, 712) \
    X(cudaErrorHostMemoryNotRegistered, 713) \
    X(cudaErrorLaunchFailure, 719) \
    X(cudaErrorNotPermitted, 800) \
    X(cudaErrorNotSupported, 801) \
    X(cudaErrorStreamCaptureUnsupported, 900) \
    X(cudaErrorStreamCaptureInvalidated, 901) \
    X(cudaErrorStreamCaptureMerge, 902) \
    X(cudaErrorStreamCaptureUnmatched, 903) \
    X(cudaErrorStreamCaptureUnjoined, 904) \
    X(cudaErrorStreamCaptureImplicit, 906) \
    X(cudaErrorStreamCaptureWrongThread, 908) \
    X(cudaErrorUnknown, 999)

/* X(name, offset, bytes): fields of cudaDeviceProp, which has 1008 bytes. */
#define CUDA_RUNTIME_PROPERTIES(X) \
    X(name, 0, 256) \
    X(uuid, 256, 16) \
    X(totalGlobalMem, 288, 8) \
    X(sharedMemPerBlock, 296, 8) \
    X(regsPerBlock, 304, 4) \
    X(warpSize, 308, 4) \
    X(maxThreadsPerBlock, 320, 4) \
    X(maxThreadsDim, 324, 12) \
    X(maxGridSize, 336, 12) \
    X(major, 360, 4) \
    X(minor, 364, 4) \
    X(textureAlignment, 368, 8) \
    X(multiProcessorCount, 384, 4) \
    X(canMapHostMemory, 392, 4) \
    X(concurrentKernels, 560, 4) \
    X(pciBusID, 568, 4) \
    X(asyncEngineCount, 584, 4) \
    X(unifiedAddressing, 588, 4) \
    X(l2CacheSize, 596, 4) \
    X(maxThreadsPerMultiProcessor, 604, 4) \
    X(sharedMemPerMultiprocessor, 624, 8) \
    X(regsPerMultiprocessor, 632, 4) \
    X(sharedMemPerBlockOptin, 672, 8) \
    X(hostRegisterSupported, 704, 4)
// clang-format on

enum {
    CUDA_RUNTIME_VERSION = 13000,
    CUDA_PROPERTIES_BYTES = 1008,
    CUDA_POINTER_BYTES = 88,
    CUDA_FUNCTION_BYTES = 144,
};
