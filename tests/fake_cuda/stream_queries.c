/* Queries of a stream, and functions of the host that it runs. */
#include "tests/fake_cuda/calls.h"
#include "tests/fake_cuda/streams.h"

/* Finds the stream of a query whose answer goes to `out`. */
static CUresult query_find_stream(CUstream handle, const void *out, CUstream *stream)
{
    CUresult result = stream_find(handle, stream);
    return result || out ? result : CUDA_ERROR_INVALID_VALUE;
}
CUresult fake_cuStreamGetPriority(CUstream handle, int *out)
{
    CUstream stream;
    CUresult result = query_find_stream(handle, out, &stream);
    if (!result) *out = stream->priority;
    return result;
}
CUresult fake_cuStreamGetFlags(CUstream handle, unsigned *out)
{
    CUstream stream;
    CUresult result = query_find_stream(handle, out, &stream);
    if (!result) *out = stream->flags;
    return result;
}
CUresult fake_cuStreamGetCtx(CUstream handle, CUcontext *out)
{
    CUstream stream;
    CUresult result = query_find_stream(handle, out, &stream);
    if (!result) *out = stream->context;
    return result;
}
CUresult fake_cuStreamGetId(CUstream handle, unsigned long long *out)
{
    CUstream stream;
    CUresult result = query_find_stream(handle, out, &stream);
    if (!result) *out = stream->id;
    return result;
}
struct host_function {
    struct operation base;
    CUhostFn function;
    void *argument;
};
/* The function runs on the host, so the hosts have seen what comes before it. */
static void host_function_run(struct operation *operation)
{
    const struct host_function *host = (struct host_function *)operation;
    hosts_see(&operation->stream->clock);
    thread_forbid_calls(true);
    host->function(host->argument);
    thread_forbid_calls(false);
}
CUresult fake_cuLaunchHostFunc(CUstream handle, CUhostFn function, void *argument)
{
    CUstream stream;
    CUresult result = stream_find(handle, &stream);
    if (result) return result;
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    struct host_function *host = operation_create(sizeof *host, host_function_run, "cuLaunchHostFunc");
    host->function = function;
    host->argument = argument;
    stream_enqueue(stream, &host->base);
    return CUDA_SUCCESS;
}
