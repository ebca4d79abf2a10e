/* The functions of NVML that torch calls. */
#pragma once
#include "tests/fake_cuda/fake_cuda.h"

enum nvml_result { NVML_SUCCESS = 0, NVML_INVALID_ARGUMENT = 2, NVML_NOT_SUPPORTED = 3, NVML_NOT_FOUND = 6 };
#define NVML VISIBLE enum nvml_result
NVML nvmlInit_v2(void);
NVML nvmlShutdown(void);
NVML nvmlSystemGetCudaDriverVersion_v2(int *out);
NVML nvmlDeviceGetCount_v2(unsigned *out);
NVML nvmlDeviceGetHandleByIndex_v2(unsigned index, uintptr_t *out);
NVML nvmlDeviceGetHandleByPciBusId_v2(const char *id, uintptr_t *out);
NVML nvmlDeviceGetUUID(uintptr_t device, char *out, unsigned bytes);
NVML nvmlDeviceGetComputeRunningProcesses(uintptr_t device, unsigned *count, void *out);
NVML nvmlDeviceGetComputeRunningProcesses_v3(uintptr_t device, unsigned *count, void *out);
NVML nvmlDeviceGetGpuFabricInfoV(uintptr_t device, void *out);
NVML nvmlDeviceGetNvLinkRemoteDeviceType(uintptr_t device, unsigned link, int *out);
NVML nvmlDeviceGetNvLinkRemotePciInfo_v2(uintptr_t device, unsigned link, void *out);
VISIBLE const char *nvmlErrorString(enum nvml_result result);
