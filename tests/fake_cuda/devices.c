/* Devices: their number is a setting, and all are alike. */
#include "tests/fake_cuda/calls.h"
#include "tests/fake_cuda/contexts.h"
#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/settings.h"
#include <stdio.h>
#include <string.h>

bool device_exists(CUdevice device) { return device >= 0 && device < settings()->devices; }
CUresult fake_cuDeviceGet(CUdevice *out, int ordinal)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *out = ordinal;
    return CUDA_SUCCESS;
}
CUresult fake_cuDeviceGetCount(int *out)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = settings()->devices;
    return CUDA_SUCCESS;
}
CUresult fake_cuDeviceGetName(char *out, int bytes, CUdevice device)
{
    if (!out || bytes <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(out, (size_t)bytes, "Fake GPU %d", device);
    return CUDA_SUCCESS;
}
CUresult fake_cuDeviceGetUuid_v2(CUuuid *out, CUdevice device)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    memset(out, 0, sizeof *out);
    memcpy(out->bytes, "fake GPU", 8);
    out->bytes[15] = (char)(device + 1);
    return CUDA_SUCCESS;
}
CUresult fake_cuDeviceTotalMem_v2(size_t *out, CUdevice device)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    *out = settings()->memory_bytes;
    return CUDA_SUCCESS;
}
/* Returns the value of an attribute; 0 for those that are not listed. */
static int attribute_value(CUdevice_attribute attribute, CUdevice device)
{
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return 1024;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return 4;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return 2;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return device + 1;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return 9;
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED: return 1;
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED: return settings()->ipc;
    default: return 0;
    }
}
CUresult fake_cuDeviceGetAttribute(int *out, CUdevice_attribute attribute, CUdevice device)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    *out = attribute_value(attribute, device);
    return CUDA_SUCCESS;
}
CUresult fake_cuDeviceGetPCIBusId(char *out, int bytes, CUdevice device)
{
    if (!out || bytes < 13) return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(out, (size_t)bytes, "0000:%02X:00.0", device + 1);
    return CUDA_SUCCESS;
}
CUresult fake_cuDeviceGetByPCIBusId(CUdevice *out, const char *id)
{
    unsigned domain, bus, slot;
    if (!out || !id || sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3) return CUDA_ERROR_INVALID_VALUE;
    if (domain || slot || !device_exists((CUdevice)bus - 1)) return CUDA_ERROR_INVALID_DEVICE;
    *out = (CUdevice)bus - 1;
    return CUDA_SUCCESS;
}

CUresult fake_cuDeviceCanAccessPeer(int *out, CUdevice device, CUdevice peer)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(device) || !device_exists(peer)) return CUDA_ERROR_INVALID_DEVICE;
    *out = settings()->peer && device != peer;
    return CUDA_SUCCESS;
}
CUresult fake_cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result) return result;
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (!peer || peer == context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!settings()->peer) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    unsigned bit = 1u << peer->device;
    if (__atomic_fetch_or(&context->peers, bit, __ATOMIC_SEQ_CST) & bit) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    return CUDA_SUCCESS;
}
CUresult fake_cuCtxDisablePeerAccess(CUcontext peer)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result) return result;
    if (!peer) return CUDA_ERROR_INVALID_CONTEXT;
    unsigned bit = 1u << peer->device;
    if (!(__atomic_fetch_and(&context->peers, ~bit, __ATOMIC_SEQ_CST) & bit)) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    return CUDA_SUCCESS;
}
