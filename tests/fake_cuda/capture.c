/* Captures. A call that a capture does not allow returns an error and makes the capture invalid, as drivers do. */
#include "tests/fake_cuda/capture.h"
#include <stdlib.h>
#include <string.h>

enum { MARKS = 1024 };
struct capture {
    struct capture *next;
    uint64_t id;
    CUstreamCaptureMode mode;
    pthread_t thread;
    CUstream origin;
    bool is_invalid;
    CUgraph graph;
    CUstream streams[BRANCHES];
    /* How many steps of each branch come before the end of each branch, and before each mark. */
    unsigned seen[BRANCHES][BRANCHES], marks[MARKS][BRANCHES];
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture *captures;
static unsigned count;
static uint64_t last_id;
static _Thread_local CUstreamCaptureMode thread_mode;

/* ---- what a capture does not allow ---- */
/* These wait for the device, or may do so. */
static bool call_is_unsafe(enum call call)
{
    switch (call) {
    case CALL_cuMemAlloc_v2:
    case CALL_cuMemFree_v2:
    case CALL_cuMemHostAlloc:
    case CALL_cuMemAllocHost_v2:
    case CALL_cuMemFreeHost:
    case CALL_cuMemHostRegister_v2:
    case CALL_cuMemHostUnregister:
    case CALL_cuCtxSynchronize:
    case CALL_cuCtxSynchronize_v2:
    case CALL_cuMemcpy:
    case CALL_cuMemcpyHtoD_v2:
    case CALL_cuMemcpyDtoH_v2:
    case CALL_cuMemcpyDtoD_v2:
    case CALL_cuMemcpyPeer:
    case CALL_cuMemsetD8_v2:
    case CALL_cuMemsetD32_v2:
    case CALL_cuEventQuery:
    case CALL_cuEventSynchronize: return true;
    default: return false;
    }
}
/* A capture forbids unsafe calls to its own thread, and a global one also to others, unless a side is relaxed. */
static bool capture_forbids(const struct capture *capture)
{
    bool is_own = pthread_equal(capture->thread, pthread_self());
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED || capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
    return is_own || (thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}
CUresult capture_error(enum call call)
{
    bool forbidden = false;
    if (!__atomic_load_n(&count, __ATOMIC_SEQ_CST) || !call_is_unsafe(call)) return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (struct capture *capture = captures; capture; capture = capture->next) {
        if (!capture_forbids(capture)) continue;
        capture->is_invalid = forbidden = true;
    }
    pthread_mutex_unlock(&lock);
    return forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}
bool stream_captures(CUstream stream) { return __atomic_load_n(&stream->capture, __ATOMIC_SEQ_CST); }
CUresult capture_refuse(CUstream stream)
{
    pthread_mutex_lock(&lock);
    struct capture *capture = stream->capture;
    if (capture) capture->is_invalid = true;
    pthread_mutex_unlock(&lock);
    return capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}
CUresult capture_refuse_legacy(CUstream stream)
{
    bool refused = false;
    if (!__atomic_load_n(&count, __ATOMIC_SEQ_CST) || stream != stream->context->legacy) return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (struct capture *capture = captures; capture; capture = capture->next)
        for (unsigned branch = 0; branch < capture->graph->branches; branch++) {
            const struct CUstream_st *other = capture->streams[branch];
            if (other->context != stream->context || other->flags & CU_STREAM_NON_BLOCKING) continue;
            capture->is_invalid = refused = true;
        }
    pthread_mutex_unlock(&lock);
    return refused ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

/* ---- recording; the callers of the static functions hold the lock ---- */
static struct step *step_add(struct capture *capture, enum step_kind kind, unsigned branch)
{
    struct step *step = calloc(1, sizeof *step);
    if (!step) abort();
    step->kind = kind;
    step->branch = branch;
    *capture->graph->last = step;
    capture->graph->last = &step->next;
    return step;
}
/* Returns the capture of a stream with the lock held, or NULL without it. */
static struct capture *capture_lock(CUstream stream)
{
    if (!stream_captures(stream)) return NULL;
    pthread_mutex_lock(&lock);
    if (stream->capture) return stream->capture;
    pthread_mutex_unlock(&lock);
    return NULL;
}
bool capture_add(CUstream stream, struct operation *operation)
{
    struct capture *capture = capture_lock(stream);
    if (!capture) return false;
    struct step *step = step_add(capture, STEP_RUN, stream->branch);
    step->operation = operation;
    step->accesses = operation_undeclare(operation, &step->access_count);
    capture->graph->operations++;
    capture->seen[stream->branch][stream->branch]++;
    pthread_mutex_unlock(&lock);
    return true;
}
bool capture_record(CUstream stream, struct mark *out)
{
    struct capture *capture = capture_lock(stream);
    if (!capture) return false;
    if (capture->graph->marks == MARKS) machine_full("events of a capture", MARKS);
    *out = (struct mark){ capture->id, capture->graph->marks++ };
    step_add(capture, STEP_RECORD, stream->branch)->mark = out->number;
    memcpy(capture->marks[out->number], capture->seen[stream->branch], sizeof *capture->seen);
    pthread_mutex_unlock(&lock);
    return true;
}
static struct capture *capture_find(uint64_t id)
{
    struct capture *capture = captures;
    while (capture && capture->id != id) capture = capture->next;
    return capture;
}
static void branch_add(struct capture *capture, CUstream stream)
{
    unsigned branch = capture->graph->branches++;
    if (branch == BRANCHES) machine_full("streams of a capture", BRANCHES);
    capture->streams[branch] = stream;
    capture->graph->contexts[branch] = stream->context;
    stream->branch = branch;
    __atomic_store_n(&stream->capture, capture, __ATOMIC_SEQ_CST);
}
/* A wait orders the work of one capture only: an event from outside, or one of another capture, is an error. */
CUresult capture_wait(CUstream stream, struct mark mark)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    struct capture *capture = mark.capture ? capture_find(mark.capture) : NULL;
    if (!capture || (stream->capture && stream->capture != capture)) {
        if (stream->capture) stream->capture->is_invalid = true;
        result = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    } else {
        if (!stream->capture) branch_add(capture, stream);
        step_add(capture, STEP_WAIT, stream->branch)->mark = mark.number;
        unsigned *seen = capture->seen[stream->branch];
        for (int i = 0; i < BRANCHES; i++)
            if (seen[i] < capture->marks[mark.number][i]) seen[i] = capture->marks[mark.number][i];
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- beginning and end ---- */
static CUresult capture_begin(CUstream stream, CUstreamCaptureMode mode)
{
    struct capture *capture = calloc(1, sizeof *capture);
    CUgraph graph = calloc(1, sizeof *graph);
    if (!capture || !graph) abort();
    graph->references = 1;
    graph->last = &graph->first;
    *capture = (struct capture){
        .next = captures,
        .id = ++last_id,
        .mode = mode,
        .thread = pthread_self(),
        .origin = stream,
        .graph = graph,
    };
    captures = capture;
    __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
    branch_add(capture, stream);
    return CUDA_SUCCESS;
}
CUresult fake_cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode)
{
    CUstream stream;
    CUresult result = stream_find(handle, &stream);
    if (result) return result;
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    if (stream == stream->context->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&lock);
    result = stream->capture ? CUDA_ERROR_ILLEGAL_STATE : capture_begin(stream, mode);
    pthread_mutex_unlock(&lock);
    return result;
}
/* A branch is joined if its last step comes before the end of branch 0. */
static bool branches_are_joined(const struct capture *capture)
{
    for (unsigned branch = 1; branch < capture->graph->branches; branch++)
        if (capture->seen[0][branch] != capture->seen[branch][branch]) return false;
    return true;
}
static CUresult capture_end(struct capture *capture, CUgraph *out)
{
    CUresult result = capture->is_invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        : branches_are_joined(capture)    ? CUDA_SUCCESS
                                          : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    struct capture **at = &captures;
    while (*at != capture) at = &(*at)->next;
    *at = capture->next;
    __atomic_sub_fetch(&count, 1, __ATOMIC_SEQ_CST);
    for (unsigned branch = 0; branch < capture->graph->branches; branch++)
        __atomic_store_n(&capture->streams[branch]->capture, NULL, __ATOMIC_SEQ_CST);
    *out = result ? NULL : capture->graph;
    if (result) graph_drop(capture->graph);
    free(capture);
    return result;
}
CUresult fake_cuStreamEndCapture(CUstream handle, CUgraph *out)
{
    CUstream stream;
    CUresult result = stream_find(handle, &stream);
    if (result) return result;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct capture *capture = stream->capture;
    if (!capture) result = CUDA_ERROR_ILLEGAL_STATE;
    else if (capture->origin != stream) result = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    else result = capture_end(capture, out);
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- queries ---- */
CUresult fake_cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
    const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *dependency_count)
{
    CUstream stream;
    CUresult result = stream_find(handle, &stream);
    if (result) return result;
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    const struct capture *capture = stream->capture;
    *status = !capture        ? CU_STREAM_CAPTURE_STATUS_NONE
        : capture->is_invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                              : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (id) *id = capture ? capture->id : 0;
    if (graph) *graph = capture ? capture->graph : NULL;
    pthread_mutex_unlock(&lock);
    if (dependencies) *dependencies = NULL;
    if (edges) *edges = NULL;
    if (dependency_count) *dependency_count = 0;
    return CUDA_SUCCESS;
}
CUresult fake_cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *out)
{
    return fake_cuStreamGetCaptureInfo_v3(stream, out, NULL, NULL, NULL, NULL, NULL);
}
CUresult fake_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
