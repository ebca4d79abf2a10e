/* The part of the CUDA driver's interface for capture and graphs, which tutti does not call, in the form of
   backend/devices/cuda_driver.h. */
#pragma once
#include "backend/devices/cuda_driver.h"

// clang-format off
#define CUDA_GRAPH_RESULTS(X) \
    X(CUDA_ERROR_ILLEGAL_STATE, 401, "resource is not in a valid state") \
    X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, 903, "capture was begun in another stream") \
    X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, 904, "capture was forked and not joined") \
    X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, 905, "dependency between a capture and work outside of it") \
    X(CUDA_ERROR_CAPTURED_EVENT, 907, "operation not permitted on an event that a capture has recorded")
#define CUDA_GRAPH_CONSTANTS(X) \
    X(CU_STREAM_CAPTURE_MODE_GLOBAL, 0) \
    X(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, 1) \
    X(CU_STREAM_CAPTURE_STATUS_ACTIVE, 1) \
    X(CU_STREAM_CAPTURE_STATUS_INVALIDATED, 2)
#define CUDA_GRAPH_FUNCTIONS(X) \
    X(cuStreamBeginCapture, cuStreamBeginCapture_v2, 10010, (CUstream stream, CUstreamCaptureMode mode), \
        (stream, mode)) \
    X(cuStreamEndCapture, cuStreamEndCapture, 10000, (CUstream stream, CUgraph *out), (stream, out)) \
    X(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v3, 12030, (CUstream stream, CUstreamCaptureStatus *status, \
        uint64_t *id, CUgraph *graph, const CUgraphNode **dependencies, const CUgraphEdgeData **edges, \
        size_t *count), \
        (stream, status, id, graph, dependencies, edges, count)) \
    X(cuGraphGetNodes, cuGraphGetNodes, 10000, (CUgraph graph, CUgraphNode *out, size_t *count), (graph, out, count)) \
    X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040, (CUgraphExec *out, CUgraph graph, \
        unsigned long long flags), (out, graph, flags)) \
    X(cuGraphLaunch, cuGraphLaunch, 10000, (CUgraphExec exec, CUstream stream), (exec, stream)) \
    X(cuGraphDestroy, cuGraphDestroy, 10000, (CUgraph graph), (graph)) \
    X(cuGraphExecDestroy, cuGraphExecDestroy, 10000, (CUgraphExec exec), (exec))
// clang-format on

#ifndef CUDA_VERSION
#define CUDA_RESULT(name, number, text) name##_NUMBER = number,
enum { CUDA_GRAPH_RESULTS(CUDA_RESULT) };
#undef CUDA_RESULT
/* The results are no part of the enumeration, so they are casts. */
#define CUDA_ERROR_ILLEGAL_STATE ((CUresult)CUDA_ERROR_ILLEGAL_STATE_NUMBER)
#define CUDA_ERROR_STREAM_CAPTURE_UNMATCHED ((CUresult)CUDA_ERROR_STREAM_CAPTURE_UNMATCHED_NUMBER)
#define CUDA_ERROR_STREAM_CAPTURE_UNJOINED ((CUresult)CUDA_ERROR_STREAM_CAPTURE_UNJOINED_NUMBER)
#define CUDA_ERROR_STREAM_CAPTURE_ISOLATION ((CUresult)CUDA_ERROR_STREAM_CAPTURE_ISOLATION_NUMBER)
#define CUDA_ERROR_CAPTURED_EVENT ((CUresult)CUDA_ERROR_CAPTURED_EVENT_NUMBER)
#define CUDA_CONSTANT(name, number) name = number,
enum { CUDA_GRAPH_CONSTANTS(CUDA_CONSTANT) };
#undef CUDA_CONSTANT
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphEdgeData_st CUgraphEdgeData;
#define CUDA_FUNCTION(name, symbol, version, parameters, arguments) CUresult symbol parameters;
CUDA_GRAPH_FUNCTIONS(CUDA_FUNCTION)
#undef CUDA_FUNCTION
#endif
