/* Sizes and offsets of the driver's structures. A file includes this after the project's declarations or after those of
   a toolkit, and compiles only if they agree. */
#pragma once
#include <assert.h>
#include <stddef.h>

static_assert(sizeof(CUresult) == 4, "CUresult");
static_assert(sizeof(CUdevice) == 4 && sizeof(CUdevice_attribute) == 4, "CUdevice");
static_assert(sizeof(CUdeviceptr) == 8 && sizeof(CUmemGenericAllocationHandle) == 8, "CUdeviceptr");
static_assert(sizeof(CUpointer_attribute) == 4 && sizeof(CUfunction_attribute) == 4, "attributes");
static_assert(sizeof(CUstreamCaptureStatus) == 4 && sizeof(CUdriverProcAddressQueryResult) == 4, "statuses");
static_assert(sizeof(CUmemAllocationHandleType) == 4 && sizeof(CUmemAllocationGranularity_flags) == 4, "memory");
static_assert(sizeof(CUuuid) == 16, "CUuuid");
static_assert(sizeof(CUipcMemHandle) == 64 && sizeof(CUipcEventHandle) == 64, "handles");
static_assert(sizeof(CUmemLocation) == 8 && offsetof(CUmemLocation, id) == 4, "CUmemLocation");
static_assert(sizeof(CUmemAllocationProp) == 32, "CUmemAllocationProp");
static_assert(offsetof(CUmemAllocationProp, requestedHandleTypes) == 4, "requestedHandleTypes");
static_assert(offsetof(CUmemAllocationProp, location) == 8, "location");
static_assert(offsetof(CUmemAllocationProp, win32HandleMetaData) == 16, "win32HandleMetaData");
static_assert(offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable) == 25, "gpuDirectRDMACapable");
static_assert(offsetof(CUmemAllocationProp, allocFlags.usage) == 26, "usage");
static_assert(sizeof(CUmemAccessDesc) == 12 && offsetof(CUmemAccessDesc, flags) == 8, "CUmemAccessDesc");
static_assert(sizeof(CUstreamBatchMemOpParams) == 48, "CUstreamBatchMemOpParams");
static_assert(offsetof(CUstreamBatchMemOpParams, waitValue.address) == 8, "waitValue.address");
static_assert(offsetof(CUstreamBatchMemOpParams, waitValue.value64) == 16, "waitValue.value64");
static_assert(offsetof(CUstreamBatchMemOpParams, waitValue.flags) == 24, "waitValue.flags");
static_assert(offsetof(CUstreamBatchMemOpParams, writeValue.value) == 16, "writeValue.value");
static_assert(offsetof(CUstreamBatchMemOpParams, writeValue.flags) == 24, "writeValue.flags");
