/* Opens libcuda.so.1, which the installed driver brings along, and holds the primary contexts that tutti uses. A
   context that was retained stays so: to release and retain it around calls would destroy and create it where the
   program has not retained it itself. */
#include "backend/devices/cuda.h"
#include "backend/base/dynamic_library.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

enum { CONTEXTS = 64 };
struct cuda_calls cuda;
static struct dynamic_library library;
static CUcontext retained[CONTEXTS];
static pthread_mutex_t retain_lock = PTHREAD_MUTEX_INITIALIZER;

/* Returns the function of a name with the signature of this version of CUDA, or NULL if the driver lacks it. A newer
   function of the name may have other parameters. */
static void *function_find(const char *name, int version)
{
    void *found = NULL;
    CUdriverProcAddressQueryResult status;
    CUresult result = cuda.cuGetProcAddress_v2(name, &found, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status);
    return result == CUDA_SUCCESS ? found : NULL;
}
/* Finds all functions. Returns the name of one that is missing although every usable driver has it, or NULL. */
static const char *functions_find(void)
{
    const char *missing = NULL;
#define X(name, symbol, version, parameters, arguments) \
    cuda.symbol = (CUresult(*) parameters)function_find(#name, version); \
    if (!cuda.symbol && (version) <= CUDA_LEAST_VERSION) missing = #name;
    CUDA_DRIVER_FUNCTIONS(X)
#undef X
    return missing;
}
/* Returns the driver's version; 0 if it lacks the lookup of functions that CUDA 12 has brought. */
static int driver_version(void *opened)
{
    int version = 0;
    cuda.cuDriverGetVersion = (CUresult (*)(int *))dlsym(opened, "cuDriverGetVersion");
    if (!cuda.cuDriverGetVersion || cuda.cuDriverGetVersion(&version)) return 0;
    void *lookup = version < CUDA_LEAST_VERSION ? NULL : dlsym(opened, "cuGetProcAddress_v2");
    cuda.cuGetProcAddress_v2 =
        (CUresult (*)(const char *, void **, int, uint64_t, CUdriverProcAddressQueryResult *))lookup;
    return version;
}
static void result_print(CUresult result, char *out, size_t bytes)
{
    const char *name = NULL, *text = NULL;
    cuda.cuGetErrorName(result, &name);
    cuda.cuGetErrorString(result, &text);
    snprintf(out, bytes, "%s (%d): %s", name ? name : "unknown error", (int)result, text ? text : "no text");
}
/* Returns whether an opened library is a driver that works. */
static bool driver_accept(void *opened, const char *path)
{
    char problem[160] = "";
    int version = driver_version(opened);
    const char *missing = cuda.cuGetProcAddress_v2 ? functions_find() : NULL;
    if (!cuda.cuGetProcAddress_v2)
        snprintf(problem, sizeof problem, "it is for CUDA %d.%d", version / 1000, version % 1000 / 10);
    else if (missing) snprintf(problem, sizeof problem, "it has no %s", missing);
    else {
        CUresult result = cuda.cuInit(0);
        if (result) result_print(result, problem, sizeof problem);
    }
    if (problem[0]) dynamic_library_record_problem(&library, path, problem);
    else snprintf(library.name, sizeof library.name, "%.255s", path);
    return !problem[0];
}
static void driver_open(const char *paths) { dynamic_library_open_first(&library, paths, driver_accept); }
tutti_status cuda_driver_load(const char *paths)
{
    dynamic_library_open_once(&library, driver_open, paths);
    if (library.name[0]) return TUTTI_OK;
    return status_fail(TUTTI_UNSUPPORTED,
        "no usable CUDA driver of version %d.%d or later (%s): install NVIDIA's driver, or make the GPU visible to "
        "this process (CUDA_VISIBLE_DEVICES, the devices of the container)",
        CUDA_LEAST_VERSION / 1000, CUDA_LEAST_VERSION % 1000 / 10, library.problem[0] ? library.problem : "no path");
}
tutti_status cuda_check(CUresult result, const char *call)
{
    char text[160];
    if (result == CUDA_SUCCESS) return TUTTI_OK;
    result_print(result, text, sizeof text);
    tutti_status status = result == CUDA_ERROR_OUT_OF_MEMORY ? TUTTI_NO_MEMORY : TUTTI_SYSTEM;
    return status_fail(status, "%s failed: %s", call, text);
}

tutti_status cuda_context_retain(CUdevice device, CUcontext *out)
{
    if (device < 0 || device >= CONTEXTS)
        return status_fail(TUTTI_UNSUPPORTED, "device %d: tutti uses the devices 0 to %d only", device, CONTEXTS - 1);
    tutti_status status = TUTTI_OK;
    pthread_mutex_lock(&retain_lock);
    if (!retained[device])
        status = cuda_check(cuda.cuDevicePrimaryCtxRetain(&retained[device], device), "cuDevicePrimaryCtxRetain");
    if (!status) *out = retained[device];
    pthread_mutex_unlock(&retain_lock);
    return status;
}
tutti_status cuda_context_enter(CUdevice device)
{
    CUcontext context = NULL;
    TRY(cuda_context_retain(device, &context));
    return cuda_check(cuda.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent");
}
void cuda_context_leave(void)
{
    CUcontext left;
    cuda.cuCtxPopCurrent_v2(&left);
}
void cuda_thread_relax_captures(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    cuda.cuThreadExchangeStreamCaptureMode(&mode);
}
