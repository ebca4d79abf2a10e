/* Capture of graphs, and their launches. */
#include "tests/fake_cuda/runtime/runtime.h"

cudaError_t cudaStreamBeginCapture(CUstream stream, cuda_enumeration mode)
{
    RUNTIME_CALL(cuStreamBeginCapture_v2(stream, (CUstreamCaptureMode)mode));
}
cudaError_t cudaStreamEndCapture(CUstream stream, CUgraph *out) { RUNTIME_CALL(cuStreamEndCapture(stream, out)); }
cudaError_t cudaStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *out)
{
    RUNTIME_CALL(cuStreamIsCapturing(stream, out));
}
cudaError_t cudaStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, unsigned long long *id,
    CUgraph *graph, const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count)
{
    uint64_t number = 0;
    CUresult result = runtime_enter();
    if (!result) result = cuStreamGetCaptureInfo_v3(stream, status, &number, graph, dependencies, edges, count);
    if (id) *id = number;
    return runtime_leave(result);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    RUNTIME_CALL(cuThreadExchangeStreamCaptureMode(mode));
}
cudaError_t cudaGraphGetNodes(CUgraph graph, CUgraphNode *out, size_t *count)
{
    RUNTIME_CALL(cuGraphGetNodes(graph, out, count));
}
cudaError_t cudaGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    RUNTIME_CALL(cuGraphInstantiateWithFlags(out, graph, flags));
}
cudaError_t cudaGraphLaunch(CUgraphExec exec, CUstream stream) { RUNTIME_CALL(cuGraphLaunch(exec, stream)); }
cudaError_t cudaGraphDestroy(CUgraph graph) { RUNTIME_CALL(cuGraphDestroy(graph)); }
cudaError_t cudaGraphExecDestroy(CUgraphExec exec) { RUNTIME_CALL(cuGraphExecDestroy(exec)); }
