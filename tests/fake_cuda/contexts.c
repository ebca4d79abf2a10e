/* Primary contexts, and each thread's stack of current ones. */
#include "tests/fake_cuda/contexts.h"
#include "tests/fake_cuda/calls.h"
#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/streams.h"

enum { STACK_MOST = 32, API_VERSION = 3020 };
static struct CUctx_st contexts[DEVICES_MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local struct {
    int depth;
    CUcontext contexts[STACK_MOST];
} current;

CUcontext context_of(CUdevice device) { return &contexts[device]; }
CUresult context_error(CUcontext context) { return __atomic_load_n(&context->error, __ATOMIC_SEQ_CST); }
void context_fail(CUcontext context, CUresult error)
{
    CUresult none = CUDA_SUCCESS;
    __atomic_compare_exchange_n(&context->error, &none, error, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
static CUcontext context_top(void) { return current.depth ? current.contexts[current.depth - 1] : NULL; }
static CUresult context_check(CUcontext context)
{
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!__atomic_load_n(&context->retained, __ATOMIC_SEQ_CST)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return context_error(context);
}
CUresult context_current(CUcontext *out)
{
    *out = context_top();
    return context_check(*out);
}

CUresult fake_cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    struct CUctx_st *context = &contexts[device];
    context->device = device;
    context->id = (uint64_t)device + 1;
    __atomic_fetch_add(&context->retained, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&lock);
    *out = context;
    return CUDA_SUCCESS;
}
/* Waits for the context's work, and frees its memory and streams. */
static void context_destroy(CUcontext context)
{
    streams_destroy(context);
    allocations_free(context->device);
    context->peers = 0;
    __atomic_store_n(&context->error, CUDA_SUCCESS, __ATOMIC_SEQ_CST);
}
CUresult fake_cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    if (!device_exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    if (!contexts[device].retained) result = CUDA_ERROR_INVALID_CONTEXT;
    else if (contexts[device].retained == 1) context_destroy(&contexts[device]);
    if (!result) __atomic_fetch_sub(&contexts[device].retained, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&lock);
    return result;
}
CUresult fake_cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    if (!device_exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    context_destroy(&contexts[device]);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
CUresult fake_cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
    if (!device_exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    contexts[device].flags = flags;
    return CUDA_SUCCESS;
}
CUresult fake_cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
    if (!device_exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    *flags = contexts[device].flags;
    *active = __atomic_load_n(&contexts[device].retained, __ATOMIC_SEQ_CST) > 0;
    return CUDA_SUCCESS;
}

CUresult fake_cuCtxPushCurrent_v2(CUcontext context)
{
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (current.depth == STACK_MOST) return CUDA_ERROR_INVALID_VALUE;
    current.contexts[current.depth++] = context;
    return CUDA_SUCCESS;
}
CUresult fake_cuCtxPopCurrent_v2(CUcontext *out)
{
    if (!current.depth) return CUDA_ERROR_INVALID_CONTEXT;
    current.depth--;
    if (out) *out = current.contexts[current.depth];
    return CUDA_SUCCESS;
}
/* Replaces the top of the stack; NULL pops it. */
CUresult fake_cuCtxSetCurrent(CUcontext context)
{
    if (current.depth) current.depth--;
    if (context) current.contexts[current.depth++] = context;
    return CUDA_SUCCESS;
}
CUresult fake_cuCtxGetCurrent(CUcontext *out)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = context_top();
    return CUDA_SUCCESS;
}
CUresult fake_cuCtxGetDevice_v2(CUdevice *out, CUcontext context)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!context) context = context_top();
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    *out = context->device;
    return CUDA_SUCCESS;
}
CUresult fake_cuCtxGetDevice(CUdevice *out) { return fake_cuCtxGetDevice_v2(out, NULL); }
CUresult fake_cuCtxSynchronize_v2(CUcontext context)
{
    if (!context) context = context_top();
    CUresult result = context_check(context);
    if (result) return result;
    streams_wait(context);
    return context_check(context);
}
CUresult fake_cuCtxSynchronize(void) { return fake_cuCtxSynchronize_v2(NULL); }
CUresult fake_cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result) return result;
    if (least) *least = PRIORITY_LEAST;
    if (greatest) *greatest = PRIORITY_GREATEST;
    return CUDA_SUCCESS;
}
CUresult fake_cuCtxGetApiVersion(CUcontext context, unsigned *out)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!context) context = context_top();
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    *out = API_VERSION;
    return CUDA_SUCCESS;
}
