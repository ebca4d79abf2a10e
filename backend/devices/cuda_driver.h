/* The part of the CUDA driver's interface that tutti uses, so that no build needs CUDA's headers. Names, numbers and
   layouts are those of NVIDIA's cuda.h and cudaTypedefs.h (CUDA 13.0); tests/unit/fake_cuda/test_toolkit.c compares
   them where a toolkit is installed. A file that has included cuda.h gets only the lists below. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* X(name, number, text): results of calls. The texts are those of the fake driver. */
// clang-format off
#define CUDA_DRIVER_RESULTS(X) \
    X(CUDA_SUCCESS, 0, "no error") \
    X(CUDA_ERROR_INVALID_VALUE, 1, "invalid argument") \
    X(CUDA_ERROR_OUT_OF_MEMORY, 2, "out of memory") \
    X(CUDA_ERROR_NOT_INITIALIZED, 3, "initialization error") \
    X(CUDA_ERROR_DEINITIALIZED, 4, "driver shutting down") \
    X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46, "device busy or unavailable") \
    X(CUDA_ERROR_NO_DEVICE, 100, "no device") \
    X(CUDA_ERROR_INVALID_DEVICE, 101, "invalid device ordinal") \
    X(CUDA_ERROR_INVALID_IMAGE, 200, "invalid kernel image") \
    X(CUDA_ERROR_INVALID_CONTEXT, 201, "invalid device context") \
    X(CUDA_ERROR_MAP_FAILED, 205, "mapping of buffer failed") \
    X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209, "no kernel image for this device") \
    X(CUDA_ERROR_ECC_UNCORRECTABLE, 214, "uncorrectable memory error") \
    X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217, "peer access not supported between these devices") \
    X(CUDA_ERROR_OPERATING_SYSTEM, 304, "call of the operating system failed") \
    X(CUDA_ERROR_INVALID_HANDLE, 400, "invalid resource handle") \
    X(CUDA_ERROR_NOT_FOUND, 500, "named symbol not found") \
    X(CUDA_ERROR_NOT_READY, 600, "device not ready") \
    X(CUDA_ERROR_ILLEGAL_ADDRESS, 700, "illegal memory access") \
    X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701, "too many resources requested for launch") \
    X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, 704, "peer access already enabled") \
    X(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, 705, "peer access not enabled") \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709, "context is destroyed") \
    X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712, "host memory already registered") \
    X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713, "host memory not registered") \
    X(CUDA_ERROR_LAUNCH_FAILED, 719, "launch failed") \
    X(CUDA_ERROR_NOT_PERMITTED, 800, "operation not permitted") \
    X(CUDA_ERROR_NOT_SUPPORTED, 801, "operation not supported") \
    X(CUDA_ERROR_SYSTEM_NOT_READY, 802, "system not ready") \
    X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900, "operation not permitted while a stream is capturing") \
    X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901, "capture is invalid") \
    X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906, "dependency on the legacy stream while capturing") \
    X(CUDA_ERROR_UNKNOWN, 999, "unknown error")

/* X(name, number): the constants of all other enumerations, and flags. */
#define CUDA_DRIVER_CONSTANTS(X) \
    X(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1) \
    X(CU_DEVICE_ATTRIBUTE_WARP_SIZE, 10) \
    X(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16) \
    X(CU_DEVICE_ATTRIBUTE_INTEGRATED, 18) \
    X(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 19) \
    X(CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 31) \
    X(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 33) \
    X(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 34) \
    X(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 40) \
    X(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 41) \
    X(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 50) \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75) \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76) \
    X(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 91) \
    X(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 99) \
    X(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 102) \
    X(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 103) \
    X(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 122) \
    X(CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 123) \
    X(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 124) \
    X(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 125) \
    X(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 128) \
    X(CU_POINTER_ATTRIBUTE_CONTEXT, 1) \
    X(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 2) \
    X(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, 3) \
    X(CU_POINTER_ATTRIBUTE_HOST_POINTER, 4) \
    X(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 6) \
    X(CU_POINTER_ATTRIBUTE_BUFFER_ID, 7) \
    X(CU_POINTER_ATTRIBUTE_IS_MANAGED, 8) \
    X(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 9) \
    X(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, 10) \
    X(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, 11) \
    X(CU_POINTER_ATTRIBUTE_RANGE_SIZE, 12) \
    X(CU_POINTER_ATTRIBUTE_MAPPED, 13) \
    X(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, 14) \
    X(CU_MEMORYTYPE_HOST, 1) \
    X(CU_MEMORYTYPE_DEVICE, 2) \
    X(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 0) \
    X(CU_STREAM_DEFAULT, 0) \
    X(CU_STREAM_NON_BLOCKING, 1) \
    X(CU_STREAM_CAPTURE_STATUS_NONE, 0) \
    X(CU_STREAM_CAPTURE_MODE_RELAXED, 2) \
    X(CU_EVENT_DEFAULT, 0) \
    X(CU_EVENT_BLOCKING_SYNC, 1) \
    X(CU_EVENT_DISABLE_TIMING, 2) \
    X(CU_EVENT_INTERPROCESS, 4) \
    X(CU_STREAM_WAIT_VALUE_GEQ, 0) \
    X(CU_STREAM_WAIT_VALUE_EQ, 1) \
    X(CU_STREAM_WAIT_VALUE_AND, 2) \
    X(CU_STREAM_WAIT_VALUE_NOR, 3) \
    X(CU_STREAM_WRITE_VALUE_DEFAULT, 0) \
    X(CU_STREAM_MEM_OP_WAIT_VALUE_32, 1) \
    X(CU_STREAM_MEM_OP_WRITE_VALUE_32, 2) \
    X(CU_STREAM_MEM_OP_WAIT_VALUE_64, 4) \
    X(CU_STREAM_MEM_OP_WRITE_VALUE_64, 5) \
    X(CU_STREAM_MEM_OP_BARRIER, 6) \
    X(CU_MEMHOSTALLOC_PORTABLE, 1) \
    X(CU_MEMHOSTALLOC_DEVICEMAP, 2) \
    X(CU_MEMHOSTALLOC_WRITECOMBINED, 4) \
    X(CU_MEMHOSTREGISTER_PORTABLE, 1) \
    X(CU_MEMHOSTREGISTER_DEVICEMAP, 2) \
    X(CU_MEMHOSTREGISTER_READ_ONLY, 8) \
    X(CU_IPC_HANDLE_SIZE, 64) \
    X(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, 1) \
    X(CU_MEM_ALLOCATION_TYPE_PINNED, 1) \
    X(CU_MEM_LOCATION_TYPE_DEVICE, 1) \
    X(CU_MEM_HANDLE_TYPE_NONE, 0) \
    X(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1) \
    X(CU_MEM_HANDLE_TYPE_FABRIC, 8) \
    X(CU_MEM_ACCESS_FLAGS_PROT_NONE, 0) \
    X(CU_MEM_ACCESS_FLAGS_PROT_READ, 1) \
    X(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 3) \
    X(CU_MEM_ALLOC_GRANULARITY_MINIMUM, 0) \
    X(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, 1) \
    X(CU_GET_PROC_ADDRESS_DEFAULT, 0) \
    X(CU_GET_PROC_ADDRESS_LEGACY_STREAM, 1) \
    X(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, 2) \
    X(CU_GET_PROC_ADDRESS_SUCCESS, 0) \
    X(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, 1) \
    X(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, 2)

/* X(name, symbol, version, parameters, arguments): functions. `name` is what cuGetProcAddress takes, with `version`,
   the CUDA version that has this signature, as 1000 * major + 10 * minor: a newer version of a name may have other
   parameters, so the caller must not request the driver's version for all. `symbol` is what dlsym takes. */
#define CUDA_DRIVER_FUNCTIONS(X) \
    X(cuInit, cuInit, 2000, (unsigned flags), (flags)) \
    X(cuDriverGetVersion, cuDriverGetVersion, 2020, (int *out), (out)) \
    X(cuGetErrorName, cuGetErrorName, 6000, (CUresult error, const char **out), (error, out)) \
    X(cuGetErrorString, cuGetErrorString, 6000, (CUresult error, const char **out), (error, out)) \
    X(cuGetProcAddress, cuGetProcAddress_v2, 12000, (const char *name, void **out, int version, uint64_t flags, \
        CUdriverProcAddressQueryResult *status), (name, out, version, flags, status)) \
    X(cuDeviceGet, cuDeviceGet, 2000, (CUdevice *out, int ordinal), (out, ordinal)) \
    X(cuDeviceGetCount, cuDeviceGetCount, 2000, (int *out), (out)) \
    X(cuDeviceGetName, cuDeviceGetName, 2000, (char *out, int bytes, CUdevice device), (out, bytes, device)) \
    X(cuDeviceGetUuid, cuDeviceGetUuid_v2, 11040, (CUuuid *out, CUdevice device), (out, device)) \
    X(cuDeviceTotalMem, cuDeviceTotalMem_v2, 3020, (size_t *out, CUdevice device), (out, device)) \
    X(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000, (int *out, CUdevice_attribute attribute, CUdevice device), \
        (out, attribute, device)) \
    X(cuDeviceGetPCIBusId, cuDeviceGetPCIBusId, 4010, (char *out, int bytes, CUdevice device), (out, bytes, device)) \
    X(cuDeviceGetByPCIBusId, cuDeviceGetByPCIBusId, 4010, (CUdevice *out, const char *id), (out, id)) \
    X(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, 4000, (int *out, CUdevice device, CUdevice peer), \
        (out, device, peer)) \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, (CUcontext *out, CUdevice device), (out, device)) \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000, (CUdevice device), (device)) \
    X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, 11000, (CUdevice device), (device)) \
    X(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2, 11000, (CUdevice device, unsigned flags), \
        (device, flags)) \
    X(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000, (CUdevice device, unsigned *flags, int *active), \
        (device, flags, active)) \
    X(cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000, (CUcontext context), (context)) \
    X(cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000, (CUcontext *out), (out)) \
    X(cuCtxSetCurrent, cuCtxSetCurrent, 4000, (CUcontext context), (context)) \
    X(cuCtxGetCurrent, cuCtxGetCurrent, 4000, (CUcontext *out), (out)) \
    X(cuCtxGetDevice, cuCtxGetDevice, 2000, (CUdevice *out), (out)) \
    X(cuCtxGetDevice, cuCtxGetDevice_v2, 13000, (CUdevice *out, CUcontext context), (out, context)) \
    X(cuCtxSynchronize, cuCtxSynchronize, 2000, (void), ()) \
    X(cuCtxSynchronize, cuCtxSynchronize_v2, 13000, (CUcontext context), (context)) \
    X(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, 5050, (int *least, int *greatest), (least, greatest)) \
    X(cuCtxGetApiVersion, cuCtxGetApiVersion, 3020, (CUcontext context, unsigned *out), (context, out)) \
    X(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, 4000, (CUcontext peer, unsigned flags), (peer, flags)) \
    X(cuCtxDisablePeerAccess, cuCtxDisablePeerAccess, 4000, (CUcontext peer), (peer)) \
    X(cuMemGetInfo, cuMemGetInfo_v2, 3020, (size_t *free, size_t *total), (free, total)) \
    X(cuMemAlloc, cuMemAlloc_v2, 3020, (CUdeviceptr *out, size_t bytes), (out, bytes)) \
    X(cuMemFree, cuMemFree_v2, 3020, (CUdeviceptr address), (address)) \
    X(cuMemGetAddressRange, cuMemGetAddressRange_v2, 3020, (CUdeviceptr *base, size_t *bytes, CUdeviceptr address), \
        (base, bytes, address)) \
    X(cuPointerGetAttribute, cuPointerGetAttribute, 4000, (void *out, CUpointer_attribute attribute, \
        CUdeviceptr address), (out, attribute, address)) \
    X(cuPointerGetAttributes, cuPointerGetAttributes, 7000, (unsigned count, CUpointer_attribute *attributes, \
        void **outs, CUdeviceptr address), (count, attributes, outs, address)) \
    X(cuPointerSetAttribute, cuPointerSetAttribute, 6000, (const void *value, CUpointer_attribute attribute, \
        CUdeviceptr address), (value, attribute, address)) \
    X(cuMemAllocHost, cuMemAllocHost_v2, 3020, (void **out, size_t bytes), (out, bytes)) \
    X(cuMemHostAlloc, cuMemHostAlloc, 2020, (void **out, size_t bytes, unsigned flags), (out, bytes, flags)) \
    X(cuMemFreeHost, cuMemFreeHost, 2000, (void *host), (host)) \
    X(cuMemHostRegister, cuMemHostRegister_v2, 6050, (void *host, size_t bytes, unsigned flags), \
        (host, bytes, flags)) \
    X(cuMemHostUnregister, cuMemHostUnregister, 4000, (void *host), (host)) \
    X(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2, 3020, (CUdeviceptr *out, void *host, unsigned flags), \
        (out, host, flags)) \
    X(cuMemHostGetFlags, cuMemHostGetFlags, 2030, (unsigned *out, void *host), (out, host)) \
    X(cuMemcpy, cuMemcpy, 4000, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes)) \
    X(cuMemcpyHtoD, cuMemcpyHtoD_v2, 3020, (CUdeviceptr to, const void *from, size_t bytes), (to, from, bytes)) \
    X(cuMemcpyDtoH, cuMemcpyDtoH_v2, 3020, (void *to, CUdeviceptr from, size_t bytes), (to, from, bytes)) \
    X(cuMemcpyDtoD, cuMemcpyDtoD_v2, 3020, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes)) \
    X(cuMemcpyPeer, cuMemcpyPeer, 4000, (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, \
        CUcontext from_context, size_t bytes), (to, to_context, from, from_context, bytes)) \
    X(cuMemcpyAsync, cuMemcpyAsync, 4000, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), \
        (to, from, bytes, stream)) \
    X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, 3020, (CUdeviceptr to, const void *from, size_t bytes, \
        CUstream stream), (to, from, bytes, stream)) \
    X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, 3020, (void *to, CUdeviceptr from, size_t bytes, CUstream stream), \
        (to, from, bytes, stream)) \
    X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, 3020, (CUdeviceptr to, CUdeviceptr from, size_t bytes, \
        CUstream stream), (to, from, bytes, stream)) \
    X(cuMemcpyPeerAsync, cuMemcpyPeerAsync, 4000, (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, \
        CUcontext from_context, size_t bytes, CUstream stream), (to, to_context, from, from_context, bytes, stream)) \
    X(cuMemsetD8, cuMemsetD8_v2, 3020, (CUdeviceptr to, unsigned char value, size_t count), (to, value, count)) \
    X(cuMemsetD32, cuMemsetD32_v2, 3020, (CUdeviceptr to, unsigned value, size_t count), (to, value, count)) \
    X(cuMemsetD8Async, cuMemsetD8Async, 3020, (CUdeviceptr to, unsigned char value, size_t count, CUstream stream), \
        (to, value, count, stream)) \
    X(cuMemsetD32Async, cuMemsetD32Async, 3020, (CUdeviceptr to, unsigned value, size_t count, CUstream stream), \
        (to, value, count, stream)) \
    X(cuStreamCreate, cuStreamCreate, 2000, (CUstream *out, unsigned flags), (out, flags)) \
    X(cuStreamCreateWithPriority, cuStreamCreateWithPriority, 5050, (CUstream *out, unsigned flags, int priority), \
        (out, flags, priority)) \
    X(cuStreamDestroy, cuStreamDestroy_v2, 4000, (CUstream stream), (stream)) \
    X(cuStreamQuery, cuStreamQuery, 2000, (CUstream stream), (stream)) \
    X(cuStreamSynchronize, cuStreamSynchronize, 2000, (CUstream stream), (stream)) \
    X(cuStreamWaitEvent, cuStreamWaitEvent, 3020, (CUstream stream, CUevent event, unsigned flags), \
        (stream, event, flags)) \
    X(cuStreamGetPriority, cuStreamGetPriority, 5050, (CUstream stream, int *out), (stream, out)) \
    X(cuStreamGetFlags, cuStreamGetFlags, 5050, (CUstream stream, unsigned *out), (stream, out)) \
    X(cuStreamGetCtx, cuStreamGetCtx, 9020, (CUstream stream, CUcontext *out), (stream, out)) \
    X(cuStreamGetId, cuStreamGetId, 12000, (CUstream stream, unsigned long long *out), (stream, out)) \
    X(cuStreamIsCapturing, cuStreamIsCapturing, 10000, (CUstream stream, CUstreamCaptureStatus *out), (stream, out)) \
    X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010, (CUstreamCaptureMode *mode), \
        (mode)) \
    X(cuLaunchHostFunc, cuLaunchHostFunc, 10000, (CUstream stream, CUhostFn function, void *argument), \
        (stream, function, argument)) \
    X(cuEventCreate, cuEventCreate, 2000, (CUevent *out, unsigned flags), (out, flags)) \
    X(cuEventRecord, cuEventRecord, 2000, (CUevent event, CUstream stream), (event, stream)) \
    X(cuEventRecordWithFlags, cuEventRecordWithFlags, 11010, (CUevent event, CUstream stream, unsigned flags), \
        (event, stream, flags)) \
    X(cuEventQuery, cuEventQuery, 2000, (CUevent event), (event)) \
    X(cuEventSynchronize, cuEventSynchronize, 2000, (CUevent event), (event)) \
    X(cuEventDestroy, cuEventDestroy_v2, 4000, (CUevent event), (event)) \
    X(cuEventElapsedTime, cuEventElapsedTime, 2000, (float *out, CUevent begin, CUevent end), (out, begin, end)) \
    X(cuEventElapsedTime, cuEventElapsedTime_v2, 12080, (float *out, CUevent begin, CUevent end), (out, begin, end)) \
    X(cuStreamWaitValue32, cuStreamWaitValue32_v2, 11070, (CUstream stream, CUdeviceptr address, uint32_t value, \
        unsigned flags), (stream, address, value, flags)) \
    X(cuStreamWaitValue64, cuStreamWaitValue64_v2, 11070, (CUstream stream, CUdeviceptr address, uint64_t value, \
        unsigned flags), (stream, address, value, flags)) \
    X(cuStreamWriteValue32, cuStreamWriteValue32_v2, 11070, (CUstream stream, CUdeviceptr address, uint32_t value, \
        unsigned flags), (stream, address, value, flags)) \
    X(cuStreamWriteValue64, cuStreamWriteValue64_v2, 11070, (CUstream stream, CUdeviceptr address, uint64_t value, \
        unsigned flags), (stream, address, value, flags)) \
    X(cuStreamBatchMemOp, cuStreamBatchMemOp_v2, 11070, (CUstream stream, unsigned count, \
        CUstreamBatchMemOpParams *ops, unsigned flags), (stream, count, ops, flags)) \
    X(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010, (CUipcMemHandle *out, CUdeviceptr address), (out, address)) \
    X(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, 11000, (CUdeviceptr *out, CUipcMemHandle handle, unsigned flags), \
        (out, handle, flags)) \
    X(cuIpcCloseMemHandle, cuIpcCloseMemHandle, 4010, (CUdeviceptr address), (address)) \
    X(cuIpcGetEventHandle, cuIpcGetEventHandle, 4010, (CUipcEventHandle *out, CUevent event), (out, event)) \
    X(cuIpcOpenEventHandle, cuIpcOpenEventHandle, 4010, (CUevent *out, CUipcEventHandle handle), (out, handle)) \
    X(cuMemAddressReserve, cuMemAddressReserve, 10020, (CUdeviceptr *out, size_t bytes, size_t alignment, \
        CUdeviceptr hint, unsigned long long flags), (out, bytes, alignment, hint, flags)) \
    X(cuMemAddressFree, cuMemAddressFree, 10020, (CUdeviceptr address, size_t bytes), (address, bytes)) \
    X(cuMemCreate, cuMemCreate, 10020, (CUmemGenericAllocationHandle *out, size_t bytes, \
        const CUmemAllocationProp *properties, unsigned long long flags), (out, bytes, properties, flags)) \
    X(cuMemRelease, cuMemRelease, 10020, (CUmemGenericAllocationHandle handle), (handle)) \
    X(cuMemMap, cuMemMap, 10020, (CUdeviceptr address, size_t bytes, size_t offset, \
        CUmemGenericAllocationHandle handle, unsigned long long flags), (address, bytes, offset, handle, flags)) \
    X(cuMemUnmap, cuMemUnmap, 10020, (CUdeviceptr address, size_t bytes), (address, bytes)) \
    X(cuMemSetAccess, cuMemSetAccess, 10020, (CUdeviceptr address, size_t bytes, const CUmemAccessDesc *rules, \
        size_t count), (address, bytes, rules, count)) \
    X(cuMemGetAccess, cuMemGetAccess, 10020, (unsigned long long *out, const CUmemLocation *location, \
        CUdeviceptr address), (out, location, address)) \
    X(cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020, (void *out, \
        CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags), \
        (out, handle, type, flags)) \
    X(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020, (CUmemGenericAllocationHandle *out, \
        void *shared, CUmemAllocationHandleType type), (out, shared, type)) \
    X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020, (size_t *out, \
        const CUmemAllocationProp *properties, CUmemAllocationGranularity_flags flags), (out, properties, flags)) \
    X(cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle, 10020, \
        (CUmemAllocationProp *out, CUmemGenericAllocationHandle handle), (out, handle)) \
    X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000, (CUmemGenericAllocationHandle *out, \
        void *address), (out, address)) \
    X(cuModuleLoadData, cuModuleLoadData, 2000, (CUmodule *out, const void *image), (out, image)) \
    X(cuModuleUnload, cuModuleUnload, 2000, (CUmodule module), (module)) \
    X(cuModuleGetFunction, cuModuleGetFunction, 2000, (CUfunction *out, CUmodule module, const char *name), \
        (out, module, name)) \
    X(cuFuncGetAttribute, cuFuncGetAttribute, 2020, (int *out, CUfunction_attribute attribute, CUfunction function), \
        (out, attribute, function)) \
    X(cuLaunchKernel, cuLaunchKernel, 4000, (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, \
        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, \
        void **parameters, void **extra), (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, \
        shared_bytes, stream, parameters, extra))
// clang-format on

#ifndef CUDA_VERSION
#define CUDA_RESULT(name, number, text) name = number,
typedef enum { CUDA_DRIVER_RESULTS(CUDA_RESULT) } CUresult;
#undef CUDA_RESULT
#define CUDA_CONSTANT(name, number) name = number,
enum { CUDA_DRIVER_CONSTANTS(CUDA_CONSTANT) };
#undef CUDA_CONSTANT

typedef int CUdevice;
typedef unsigned long long CUdeviceptr, CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef void (*CUhostFn)(void *argument);
/* Enumerations, which are 32 bits wide; their constants are above. */
typedef unsigned CUdevice_attribute, CUpointer_attribute, CUfunction_attribute, CUstreamCaptureStatus;
typedef unsigned CUstreamCaptureMode;
typedef unsigned CUstreamBatchMemOpType, CUdriverProcAddressQueryResult, CUmemAllocationGranularity_flags;
typedef unsigned CUmemAllocationType, CUmemAllocationHandleType, CUmemLocationType, CUmemAccess_flags;
/* Handles that stand for two special streams. NULL stands for the legacy stream too. */
#define CU_STREAM_LEGACY ((CUstream)1)
#define CU_STREAM_PER_THREAD ((CUstream)2)
#define CU_LAUNCH_PARAM_END ((void *)0)
#define CU_LAUNCH_PARAM_BUFFER_POINTER ((void *)1)
#define CU_LAUNCH_PARAM_BUFFER_SIZE ((void *)2)

typedef struct CUuuid_st { char bytes[16]; } CUuuid;
typedef struct CUipcMemHandle_st { char reserved[CU_IPC_HANDLE_SIZE]; } CUipcMemHandle;
typedef struct CUipcEventHandle_st { char reserved[CU_IPC_HANDLE_SIZE]; } CUipcEventHandle;
typedef struct CUmemLocation_st {
    CUmemLocationType type;
    int id;
} CUmemLocation;
typedef struct CUmemAllocationProp_st {
    CUmemAllocationType type;
    CUmemAllocationHandleType requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    struct {
        unsigned char compressionType, gpuDirectRDMACapable;
        unsigned short usage;
        unsigned char reserved[4];
    } allocFlags;
} CUmemAllocationProp;
typedef struct CUmemAccessDesc_st {
    CUmemLocation location;
    CUmemAccess_flags flags;
} CUmemAccessDesc;
typedef union CUstreamBatchMemOpParams_union {
    CUstreamBatchMemOpType operation;
    struct CUstreamMemOpWaitValueParams_st {
        CUstreamBatchMemOpType operation;
        CUdeviceptr address;
        union {
            uint32_t value;
            uint64_t value64;
        };
        unsigned flags;
        CUdeviceptr alias;
    } waitValue;
    struct CUstreamMemOpWriteValueParams_st {
        CUstreamBatchMemOpType operation;
        CUdeviceptr address;
        union {
            uint32_t value;
            uint64_t value64;
        };
        unsigned flags;
        CUdeviceptr alias;
    } writeValue;
    uint64_t pad[6];
} CUstreamBatchMemOpParams;
#define CUDA_FUNCTION(name, symbol, version, parameters, arguments) CUresult symbol parameters;
CUDA_DRIVER_FUNCTIONS(CUDA_FUNCTION)
#undef CUDA_FUNCTION
#endif
