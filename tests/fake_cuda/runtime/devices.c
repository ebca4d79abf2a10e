/* Devices, their contexts and properties. */
#include "tests/fake_cuda/runtime/runtime.h"
#include <pthread.h>
#include <string.h>

enum { DEVICES_MOST = 16 };

CUresult runtime_context(int device, CUcontext *out)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static CUcontext kept[DEVICES_MOST];
    CUresult result = cuInit(0);
    if (result) return result;
    if (device < 0 || device >= DEVICES_MOST) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    if (!kept[device]) result = cuDevicePrimaryCtxRetain(&kept[device], device);
    *out = kept[device];
    pthread_mutex_unlock(&lock);
    return result;
}
static CUresult device_make_current(int device)
{
    CUcontext context;
    CUresult result = runtime_context(device, &context);
    return result ? result : cuCtxSetCurrent(context);
}
CUresult runtime_enter(void)
{
    CUcontext context = NULL;
    CUresult result = cuCtxGetCurrent(&context);
    return result == CUDA_ERROR_NOT_INITIALIZED || (!result && !context) ? device_make_current(0) : result;
}

/* These calls need a driver, but no context. */
#define DRIVER_CALL(call) \
    do { \
        CUresult initialized = cuInit(0); \
        return runtime_leave(initialized ? initialized : (call)); \
    } while (0)

cudaError_t cudaGetDeviceCount(int *out)
{
    if (out) *out = 0;
    DRIVER_CALL(cuDeviceGetCount(out));
}
cudaError_t cudaGetDevice(int *out)
{
    CUcontext context = NULL;
    CUresult result = cuInit(0);
    if (!result && !out) result = CUDA_ERROR_INVALID_VALUE;
    if (!result) result = cuCtxGetCurrent(&context);
    if (!result && context) result = cuCtxGetDevice(out);
    else if (!result) *out = 0;
    return runtime_leave(result);
}
cudaError_t cudaSetDevice(int device) { return runtime_leave(device_make_current(device)); }
cudaError_t cudaDeviceSynchronize(void) { RUNTIME_CALL(cuCtxSynchronize()); }
cudaError_t cudaDeviceGetAttribute(int *out, cuda_enumeration attribute, int device)
{
    DRIVER_CALL(cuDeviceGetAttribute(out, (CUdevice_attribute)attribute, device));
}
cudaError_t cudaDeviceGetPCIBusId(char *out, int bytes, int device)
{
    DRIVER_CALL(cuDeviceGetPCIBusId(out, bytes, device));
}
cudaError_t cudaDeviceCanAccessPeer(int *out, int device, int peer)
{
    DRIVER_CALL(cuDeviceCanAccessPeer(out, device, peer));
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    CUcontext context;
    CUresult result = runtime_enter();
    if (!result) result = runtime_context(peer, &context);
    return runtime_leave(result ? result : cuCtxEnablePeerAccess(context, flags));
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    RUNTIME_CALL(cuCtxGetStreamPriorityRange(least, greatest));
}
cudaError_t cudaDriverGetVersion(int *out) { return runtime_leave(cuDriverGetVersion(out)); }
cudaError_t cudaRuntimeGetVersion(int *out)
{
    if (out) *out = CUDA_RUNTIME_VERSION;
    return runtime_leave(out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}
/* For a name that the driver does not know it sets `status` and returns success. */
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version, unsigned long long flags,
    CUdriverProcAddressQueryResult *status)
{
    CUdriverProcAddressQueryResult ignored;
    return runtime_leave(cuGetProcAddress_v2(name, out, (int)version, flags, status ? status : &ignored));
}
cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
cudaError_t cudaProfilerStop(void) { return cudaSuccess; }

/* ---- properties ---- */
struct properties {
    char name[256];
    CUuuid uuid;
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerMultiprocessor, sharedMemPerBlockOptin, textureAlignment;
    int regsPerBlock, regsPerMultiprocessor, warpSize, maxThreadsPerBlock, maxThreadsPerMultiProcessor;
    int maxThreadsDim[3], maxGridSize[3];
    int major, minor, multiProcessorCount, l2CacheSize, pciBusID, asyncEngineCount;
    int canMapHostMemory, concurrentKernels, unifiedAddressing, hostRegisterSupported;
};
/* The sizes of shared memory and registers are those of compute capability 9.0; no kernel of the fake has any. */
static CUresult properties_read(struct properties *out, CUdevice device)
{
    *out = (struct properties){
        .sharedMemPerBlock = 48 << 10,
        .sharedMemPerMultiprocessor = 228 << 10,
        .sharedMemPerBlockOptin = 227 << 10,
        .textureAlignment = 512,
        .regsPerBlock = 65536,
        .regsPerMultiprocessor = 65536,
        .maxThreadsPerMultiProcessor = 2048,
        .maxThreadsDim = { 1024, 1024, 64 },
        .maxGridSize = { 0x7fffffff, 65535, 65535 },
        .l2CacheSize = 50 << 20,
    };
    const struct {
        int *out;
        CUdevice_attribute attribute;
    } rows[] = {
        { &out->warpSize, CU_DEVICE_ATTRIBUTE_WARP_SIZE },
        { &out->maxThreadsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK },
        { &out->major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR },
        { &out->minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR },
        { &out->multiProcessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT },
        { &out->pciBusID, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID },
        { &out->asyncEngineCount, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT },
        { &out->canMapHostMemory, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY },
        { &out->concurrentKernels, CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS },
        { &out->unifiedAddressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING },
        { &out->hostRegisterSupported, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED },
    };
    CUresult result = cuDeviceGetName(out->name, sizeof out->name, device);
    if (!result) result = cuDeviceGetUuid_v2(&out->uuid, device);
    if (!result) result = cuDeviceTotalMem_v2(&out->totalGlobalMem, device);
    for (size_t i = 0; i < sizeof rows / sizeof *rows && !result; i++)
        result = cuDeviceGetAttribute(rows[i].out, rows[i].attribute, device);
    return result;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device)
{
    struct properties properties;
    CUresult result = cuInit(0);
    if (!result && !out) result = CUDA_ERROR_INVALID_VALUE;
    if (!result) result = properties_read(&properties, device);
    if (result) return runtime_leave(result);
    memset(out, 0, sizeof *out);
#define COPY(field, offset, size) \
    _Static_assert(sizeof properties.field == (size), #field); \
    memcpy(out->bytes + (offset), &properties.field, sizeof properties.field);
    CUDA_RUNTIME_PROPERTIES(COPY)
#undef COPY
    return cudaSuccess;
}
