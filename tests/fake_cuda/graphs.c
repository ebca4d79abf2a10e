/* Graphs: operations that a capture has recorded, and which run at each launch, ordered as they were recorded. */
#include "tests/fake_cuda/capture.h"
#include <stdlib.h>

struct CUgraphExec_st {
    CUgraph graph;
    /* A stream for each branch but the first, which runs in the stream of the launch. */
    CUstream streams[BRANCHES];
    /* The end of the last launch, or 0: launches of an executable graph run one after the other. */
    uint32_t last;
};
/* A recorded operation while it runs. */
struct replay {
    struct operation base;
    CUgraph graph;
    struct operation *recorded;
};

/* ---- graphs ---- */
static void graph_hold(CUgraph graph) { __atomic_add_fetch(&graph->references, 1, __ATOMIC_SEQ_CST); }
void graph_drop(CUgraph graph)
{
    if (__atomic_sub_fetch(&graph->references, 1, __ATOMIC_SEQ_CST)) return;
    for (struct step *step = graph->first, *next; step; step = next) {
        next = step->next;
        if (step->operation && step->operation->finish) step->operation->finish(step->operation);
        free(step->operation);
        free(step->accesses);
        free(step);
    }
    free(graph);
}
CUresult fake_cuGraphDestroy(CUgraph graph)
{
    if (!graph) return CUDA_ERROR_INVALID_VALUE;
    graph_drop(graph);
    return CUDA_SUCCESS;
}
/* Nodes have no interface of their own, so only their number is known. */
CUresult fake_cuGraphGetNodes(CUgraph graph, CUgraphNode *out, size_t *count)
{
    if (!graph || !count) return CUDA_ERROR_INVALID_VALUE;
    if (out) return CUDA_ERROR_NOT_SUPPORTED;
    *count = graph->operations;
    return CUDA_SUCCESS;
}

/* ---- executable graphs ---- */
static CUresult branch_create(CUgraphExec exec, unsigned branch)
{
    CUresult result = fake_cuCtxPushCurrent_v2(exec->graph->contexts[branch]);
    if (result) return result;
    result = fake_cuStreamCreate(&exec->streams[branch], CU_STREAM_NON_BLOCKING);
    fake_cuCtxPopCurrent_v2(NULL);
    return result;
}
CUresult fake_cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    if (!out || !graph) return CUDA_ERROR_INVALID_VALUE;
    CUgraphExec exec = calloc(1, sizeof *exec);
    if (!exec) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CUDA_SUCCESS;
    graph_hold(graph);
    exec->graph = graph;
    for (unsigned branch = 1; branch < graph->branches && !result; branch++) result = branch_create(exec, branch);
    if (result) fake_cuGraphExecDestroy(exec);
    else *out = exec;
    return result;
}
static void point_release(uint32_t point)
{
    machine_lock();
    point_drop(point);
    machine_unlock();
}
/* Launches that have not ended keep the graph. */
CUresult fake_cuGraphExecDestroy(CUgraphExec exec)
{
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned branch = 1; branch < exec->graph->branches; branch++)
        if (exec->streams[branch]) fake_cuStreamDestroy_v2(exec->streams[branch]);
    point_release(exec->last);
    graph_drop(exec->graph);
    free(exec);
    return CUDA_SUCCESS;
}

/* ---- launches ---- */
/* Runs the recorded operation in place of this one. Its accesses become those of this one, which the stream ends. */
static void replay_run(struct operation *operation)
{
    struct replay *replay = (struct replay *)operation;
    struct operation *recorded = replay->recorded;
    recorded->stream = operation->stream;
    recorded->epoch = operation->epoch;
    recorded->accesses = operation->accesses;
    recorded->run(recorded);
    operation->epoch = recorded->epoch;
    operation->accesses = recorded->accesses;
    recorded->accesses = 0;
}
static void replay_finish(struct operation *operation) { graph_drop(((struct replay *)operation)->graph); }
static void step_run(CUgraphExec exec, const struct step *step, CUstream stream)
{
    struct replay *replay = operation_create(sizeof *replay, replay_run, step->operation->call);
    replay->base.finish = replay_finish;
    replay->graph = exec->graph;
    replay->recorded = step->operation;
    graph_hold(exec->graph);
    for (size_t i = 0; i < step->access_count; i++) {
        const struct declared *access = &step->accesses[i];
        operation_declare(&replay->base, access->location, access->bytes, access->writes);
    }
    stream_enqueue(stream, &replay->base);
}
/* Makes a stream wait for a point, which stays the caller's. */
static void stream_await_kept(CUstream stream, uint32_t point)
{
    machine_lock();
    point_hold(point);
    machine_unlock();
    stream_await(stream, point);
}
static void graph_enqueue(CUgraphExec exec, CUstream stream, uint32_t *points)
{
    exec->streams[0] = stream;
    for (const struct step *step = exec->graph->first; step; step = step->next) {
        CUstream at = exec->streams[step->branch];
        if (step->kind == STEP_RUN) step_run(exec, step, at);
        else if (step->kind == STEP_RECORD) points[step->mark] = stream_record(at);
        else stream_await_kept(at, points[step->mark]);
    }
}
CUresult fake_cuGraphLaunch(CUgraphExec exec, CUstream handle)
{
    CUstream stream;
    CUresult result = stream_find(handle, &stream);
    if (result) return result;
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    if (stream_captures(stream)) return CUDA_ERROR_NOT_SUPPORTED;
    uint32_t *points = calloc(exec->graph->marks + 1, sizeof *points);
    if (!points) return CUDA_ERROR_OUT_OF_MEMORY;
    if (exec->last) stream_await(stream, exec->last);
    graph_enqueue(exec, stream, points);
    exec->last = stream_record(stream);
    for (unsigned mark = 0; mark < exec->graph->marks; mark++) point_release(points[mark]);
    free(points);
    return CUDA_SUCCESS;
}
