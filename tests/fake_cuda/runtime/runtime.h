/* The CUDA runtime's functions that torch calls. Each translates to functions of the driver, so that the fake driver
   counts, checks and orders everything. Streams, events and errors are those of the driver. */
#pragma once
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/graph_calls.h"
#include "tests/fake_cuda/runtime/layouts.h"

#define RUNTIME_ERROR(name, number) name = number,
typedef enum { CUDA_RUNTIME_ERRORS(RUNTIME_ERROR) } cudaError_t;
#undef RUNTIME_ERROR
typedef struct dim3 { unsigned x, y, z; } dim3;
struct cudaDeviceProp { char bytes[CUDA_PROPERTIES_BYTES]; };
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice };
struct cudaPointerAttributes {
    enum cudaMemoryType type;
    int device;
    void *devicePointer, *hostPointer;
    long reserved[8];
};
_Static_assert(sizeof(struct cudaPointerAttributes) == CUDA_POINTER_BYTES, "cudaPointerAttributes");
struct cudaFuncAttributes {
    size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
    int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion;
    char reserved[CUDA_FUNCTION_BYTES - 3 * sizeof(size_t) - 4 * sizeof(int)];
};
typedef struct cudaLaunchConfig_st {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    CUstream stream;
    void *attrs;
    unsigned numAttrs;
} cudaLaunchConfig_t;
typedef struct kernel *cudaKernel_t;
typedef void (*cudaStreamCallback_t)(CUstream stream, cudaError_t status, void *argument);
/* cudaMemcpyKind and other enumerations. Unified addresses make the kind of a copy needless. */
typedef int cuda_enumeration;

/* Makes sure that the thread has a current context, that of device 0 at first. */
CUresult runtime_enter(void);
/* Returns the context of a device, which the runtime keeps from its first use on. */
CUresult runtime_context(int device, CUcontext *out);
/* Remembers a result as the thread's last error, and returns it. */
cudaError_t runtime_leave(CUresult result);
/* Calls a function of the driver with a current context. */
#define RUNTIME_CALL(call) \
    do { \
        CUresult entered = runtime_enter(); \
        return runtime_leave(entered ? entered : (call)); \
    } while (0)

/* devices.c */
#define API VISIBLE cudaError_t
API cudaGetDeviceCount(int *out);
API cudaGetDevice(int *out);
API cudaSetDevice(int device);
API cudaDeviceSynchronize(void);
API cudaGetDeviceProperties(struct cudaDeviceProp *out, int device);
API cudaDeviceGetAttribute(int *out, cuda_enumeration attribute, int device);
API cudaDeviceGetPCIBusId(char *out, int bytes, int device);
API cudaDeviceCanAccessPeer(int *out, int device, int peer);
API cudaDeviceEnablePeerAccess(int peer, unsigned flags);
API cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
API cudaDriverGetVersion(int *out);
API cudaRuntimeGetVersion(int *out);
API cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version, unsigned long long flags,
    CUdriverProcAddressQueryResult *status);
API cudaProfilerStart(void);
API cudaProfilerStop(void);
/* errors.c */
API cudaGetLastError(void);
API cudaPeekAtLastError(void);
VISIBLE const char *cudaGetErrorName(cudaError_t error);
VISIBLE const char *cudaGetErrorString(cudaError_t error);
/* memory.c */
API cudaMalloc(void **out, size_t bytes);
API cudaFree(void *memory);
API cudaMemGetInfo(size_t *free, size_t *total);
API cudaHostAlloc(void **out, size_t bytes, unsigned flags);
API cudaFreeHost(void *memory);
API cudaHostRegister(void *memory, size_t bytes, unsigned flags);
API cudaHostUnregister(void *memory);
API cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *address);
API cudaMemcpy(void *to, const void *from, size_t bytes, cuda_enumeration kind);
API cudaMemcpyAsync(void *to, const void *from, size_t bytes, cuda_enumeration kind, CUstream stream);
API cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, CUstream stream);
API cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t bytes, size_t rows,
    cuda_enumeration kind, CUstream stream);
API cudaMemset(void *to, int value, size_t bytes);
API cudaMemsetAsync(void *to, int value, size_t bytes, CUstream stream);
API cudaIpcGetMemHandle(CUipcMemHandle *out, void *memory);
API cudaIpcOpenMemHandle(void **out, CUipcMemHandle handle, unsigned flags);
API cudaIpcCloseMemHandle(void *memory);
/* streams.c */
API cudaStreamCreate(CUstream *out);
API cudaStreamCreateWithFlags(CUstream *out, unsigned flags);
API cudaStreamCreateWithPriority(CUstream *out, unsigned flags, int priority);
API cudaStreamDestroy(CUstream stream);
API cudaStreamQuery(CUstream stream);
API cudaStreamSynchronize(CUstream stream);
API cudaStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
API cudaStreamGetPriority(CUstream stream, int *out);
API cudaLaunchHostFunc(CUstream stream, CUhostFn function, void *argument);
API cudaStreamAddCallback(CUstream stream, cudaStreamCallback_t callback, void *argument, unsigned flags);
API cudaEventCreate(CUevent *out);
API cudaEventCreateWithFlags(CUevent *out, unsigned flags);
API cudaEventRecord(CUevent event, CUstream stream);
API cudaEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags);
API cudaEventQuery(CUevent event);
API cudaEventSynchronize(CUevent event);
API cudaEventElapsedTime(float *out, CUevent begin, CUevent end);
API cudaEventDestroy(CUevent event);
API cudaIpcGetEventHandle(CUipcEventHandle *out, CUevent event);
API cudaIpcOpenEventHandle(CUevent *out, CUipcEventHandle handle);
/* graphs.c */
API cudaStreamBeginCapture(CUstream stream, cuda_enumeration mode);
API cudaStreamEndCapture(CUstream stream, CUgraph *out);
API cudaStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *out);
API cudaStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, unsigned long long *id, CUgraph *graph,
    const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count);
API cudaThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode);
API cudaGraphGetNodes(CUgraph graph, CUgraphNode *out, size_t *count);
API cudaGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags);
API cudaGraphLaunch(CUgraphExec exec, CUstream stream);
API cudaGraphDestroy(CUgraph graph);
API cudaGraphExecDestroy(CUgraphExec exec);
/* kernels.c. nvcc makes programs call the functions that begin with __cuda. */
VISIBLE void **__cudaRegisterFatBinary(void *binary);
VISIBLE void __cudaRegisterFatBinaryEnd(void **handle);
VISIBLE void __cudaUnregisterFatBinary(void **handle);
VISIBLE char __cudaInitModule(void **handle);
VISIBLE void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int is_external, size_t bytes,
    int is_constant, int is_global);
VISIBLE void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads,
    void *thread, void *block, void *block_size, void *grid_size, int *warp_size);
VISIBLE unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, CUstream stream);
API __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, CUstream *stream);
API __cudaGetKernel(cudaKernel_t *out, const void *function);
API __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **parameters, size_t shared_bytes,
    CUstream stream);
API cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **parameters, size_t shared_bytes,
    CUstream stream);
API cudaLaunchKernelExC(const cudaLaunchConfig_t *launch, const void *function, void **parameters);
API cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **parameters, size_t shared_bytes,
    CUstream stream);
API cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *function);
API cudaFuncSetAttribute(const void *function, cuda_enumeration attribute, int value);
API cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *out, const void *function, int threads, size_t shared_bytes);
API cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, const void *function, int threads,
    size_t shared_bytes, unsigned flags);
