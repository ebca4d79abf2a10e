/* Streams and events. */
#include "tests/fake_cuda/runtime/runtime.h"
#include <stdlib.h>

cudaError_t cudaStreamCreate(CUstream *out) { RUNTIME_CALL(cuStreamCreate(out, CU_STREAM_DEFAULT)); }
cudaError_t cudaStreamCreateWithFlags(CUstream *out, unsigned flags) { RUNTIME_CALL(cuStreamCreate(out, flags)); }
cudaError_t cudaStreamCreateWithPriority(CUstream *out, unsigned flags, int priority)
{
    RUNTIME_CALL(cuStreamCreateWithPriority(out, flags, priority));
}
cudaError_t cudaStreamDestroy(CUstream stream) { RUNTIME_CALL(cuStreamDestroy_v2(stream)); }
cudaError_t cudaStreamQuery(CUstream stream) { RUNTIME_CALL(cuStreamQuery(stream)); }
cudaError_t cudaStreamSynchronize(CUstream stream) { RUNTIME_CALL(cuStreamSynchronize(stream)); }
cudaError_t cudaStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    RUNTIME_CALL(cuStreamWaitEvent(stream, event, flags));
}
cudaError_t cudaStreamGetPriority(CUstream stream, int *out) { RUNTIME_CALL(cuStreamGetPriority(stream, out)); }
cudaError_t cudaLaunchHostFunc(CUstream stream, CUhostFn function, void *argument)
{
    RUNTIME_CALL(cuLaunchHostFunc(stream, function, argument));
}
struct callback {
    cudaStreamCallback_t function;
    CUstream stream;
    void *argument;
};
static void callback_run(void *argument)
{
    struct callback callback = *(struct callback *)argument;
    free(argument);
    callback.function(callback.stream, cudaSuccess, callback.argument);
}
static CUresult callback_enqueue(struct callback callback)
{
    struct callback *copy = malloc(sizeof *copy);
    if (!copy) return CUDA_ERROR_OUT_OF_MEMORY;
    *copy = callback;
    CUresult result = cuLaunchHostFunc(callback.stream, callback_run, copy);
    if (result) free(copy);
    return result;
}
cudaError_t cudaStreamAddCallback(CUstream stream, cudaStreamCallback_t callback, void *argument, unsigned flags)
{
    if (!callback || flags) return runtime_leave(CUDA_ERROR_INVALID_VALUE);
    RUNTIME_CALL(callback_enqueue((struct callback){ callback, stream, argument }));
}

cudaError_t cudaEventCreate(CUevent *out) { RUNTIME_CALL(cuEventCreate(out, CU_EVENT_DEFAULT)); }
cudaError_t cudaEventCreateWithFlags(CUevent *out, unsigned flags) { RUNTIME_CALL(cuEventCreate(out, flags)); }
cudaError_t cudaEventRecord(CUevent event, CUstream stream) { RUNTIME_CALL(cuEventRecord(event, stream)); }
cudaError_t cudaEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
    RUNTIME_CALL(cuEventRecordWithFlags(event, stream, flags));
}
cudaError_t cudaEventQuery(CUevent event) { RUNTIME_CALL(cuEventQuery(event)); }
cudaError_t cudaEventSynchronize(CUevent event) { RUNTIME_CALL(cuEventSynchronize(event)); }
cudaError_t cudaEventElapsedTime(float *out, CUevent begin, CUevent end)
{
    RUNTIME_CALL(cuEventElapsedTime_v2(out, begin, end));
}
cudaError_t cudaEventDestroy(CUevent event) { RUNTIME_CALL(cuEventDestroy_v2(event)); }
cudaError_t cudaIpcGetEventHandle(CUipcEventHandle *out, CUevent event)
{
    RUNTIME_CALL(cuIpcGetEventHandle(out, event));
}
cudaError_t cudaIpcOpenEventHandle(CUevent *out, CUipcEventHandle handle)
{
    RUNTIME_CALL(cuIpcOpenEventHandle(out, handle));
}
