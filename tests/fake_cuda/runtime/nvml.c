/* libnvidia-ml.so.1 with the functions that torch calls. torch crashes in some places where this library is missing. It
   needs no driver, and works in forked processes. */
#include "tests/fake_cuda/runtime/nvml.h"
#include "tests/fake_cuda/settings.h"
#include <stdio.h>

enum nvml_result nvmlInit_v2(void) { return NVML_SUCCESS; }
enum nvml_result nvmlShutdown(void) { return NVML_SUCCESS; }
enum nvml_result nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    *out = settings()->driver_version;
    return NVML_SUCCESS;
}
enum nvml_result nvmlDeviceGetCount_v2(unsigned *out)
{
    *out = (unsigned)settings()->devices;
    return NVML_SUCCESS;
}
/* A handle is the number of the device's bus, which is that of the device plus 1. */
static enum nvml_result handle_make(unsigned bus, uintptr_t *out)
{
    if (!bus || bus > (unsigned)settings()->devices) return NVML_NOT_FOUND;
    *out = bus;
    return NVML_SUCCESS;
}
enum nvml_result nvmlDeviceGetHandleByIndex_v2(unsigned index, uintptr_t *out)
{
    return handle_make(index + 1, out) ? NVML_INVALID_ARGUMENT : NVML_SUCCESS;
}
enum nvml_result nvmlDeviceGetHandleByPciBusId_v2(const char *id, uintptr_t *out)
{
    unsigned domain, bus, slot;
    if (sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3) return NVML_INVALID_ARGUMENT;
    return domain || slot ? NVML_NOT_FOUND : handle_make(bus, out);
}
/* The driver's UUID in hexadecimal: "fake GPU", zeros, and the number of the bus. */
enum nvml_result nvmlDeviceGetUUID(uintptr_t device, char *out, unsigned bytes)
{
    snprintf(out, bytes, "GPU-66616b65-2047-5055-0000-%012zx", (size_t)device);
    return NVML_SUCCESS;
}
enum nvml_result nvmlDeviceGetComputeRunningProcesses_v3(uintptr_t device, unsigned *count, void *out)
{
    (void)device, (void)out;
    *count = 0;
    return NVML_SUCCESS;
}
enum nvml_result nvmlDeviceGetComputeRunningProcesses(uintptr_t device, unsigned *count, void *out)
{
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, out);
}
/* The fake has neither a fabric nor NVLink. */
enum nvml_result nvmlDeviceGetGpuFabricInfoV(uintptr_t device, void *out)
{
    (void)device, (void)out;
    return NVML_NOT_SUPPORTED;
}
enum nvml_result nvmlDeviceGetNvLinkRemoteDeviceType(uintptr_t device, unsigned link, int *out)
{
    (void)device, (void)link, (void)out;
    return NVML_NOT_SUPPORTED;
}
enum nvml_result nvmlDeviceGetNvLinkRemotePciInfo_v2(uintptr_t device, unsigned link, void *out)
{
    (void)device, (void)link, (void)out;
    return NVML_NOT_SUPPORTED;
}
const char *nvmlErrorString(enum nvml_result result)
{
    switch (result) {
    case NVML_SUCCESS: return "no error";
    case NVML_INVALID_ARGUMENT: return "invalid argument";
    case NVML_NOT_SUPPORTED: return "not supported";
    default: return "not found";
    }
}
