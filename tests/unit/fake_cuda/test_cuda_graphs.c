/* Tests capture: what it records, how graphs run, what it refuses, and that the checker sees launches. */
#include "tests/fake_cuda/graph_calls.h"
#include "tests/unit/fake_cuda/children.h"

enum { BYTES = 4096, COUNT = BYTES / 4 };

static CUstream capture_begin(void)
{
    CUstream stream = stream_new();
    expect_success(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    return stream;
}
static CUgraphExec capture_end(CUstream stream)
{
    CUgraph graph;
    CUgraphExec exec;
    expect_success(cuStreamEndCapture(stream, &graph));
    expect_success(cuGraphInstantiateWithFlags(&exec, graph, 0));
    expect_success(cuGraphDestroy(graph));
    return exec;
}
static CUevent event_new(void)
{
    CUevent event;
    expect_success(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    return event;
}
static void add_run(struct fake_cuda_launch *launch)
{
    CUdeviceptr address = *(CUdeviceptr *)launch->parameters[0];
    uint32_t *values = fake_cuda_write(launch, address, BYTES);
    for (int i = 0; values && i < COUNT; i++) values[i] += *(uint32_t *)launch->parameters[1];
}
static void add_launch(CUstream stream, CUdeviceptr memory, uint32_t value)
{
    const struct fake_cuda_kernel kernel = { "add", add_run, { sizeof(CUdeviceptr), sizeof(uint32_t) } };
    static CUmodule module;
    CUfunction function;
    void *parameters[] = { &memory, &value };
    fake_cuda_register_kernel(&kernel);
    if (!module) expect_success(cuModuleLoadData(&module, ""));
    expect_success(cuModuleGetFunction(&function, module, "add"));
    expect_success(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

/* ---- what a graph does ---- */
static void graph_repeats(int peer)
{
    (void)peer;
    device_use(0);
    CUdeviceptr memory = memory_new(BYTES);
    CUstreamCaptureStatus status;
    CUgraph graph;
    size_t count;
    expect_success(cuMemsetD32_v2(memory, 1, COUNT));
    CUstream stream = capture_begin();
    add_launch(stream, memory, 2);
    add_launch(stream, memory, 3);
    expect_success(cuStreamGetCaptureInfo_v3(stream, &status, NULL, &graph, NULL, NULL, NULL));
    expect_true(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    expect_success(cuGraphGetNodes(graph, NULL, &count));
    expect_true(count == 2);
    CUgraphExec exec = capture_end(stream);
    expect_success(cuStreamIsCapturing(stream, &status));
    expect_true(status == CU_STREAM_CAPTURE_STATUS_NONE && word_at(memory) == 1);
    expect_success(cuGraphLaunch(exec, stream));
    expect_success(cuGraphLaunch(exec, stream_new()));
    expect_true(word_at(memory) == 11);
    expect_success(cuGraphLaunch(exec, stream));
    expect_success(cuGraphExecDestroy(exec));
    expect_true(word_at(memory) == 16);
}
static void test_each_launch_runs_what_was_recorded(void **state)
{
    (void)state;
    assert_child(graph_repeats, "FAKE_CUDA_DELAY=shuffled");
}
static void graph_reads_host(int peer)
{
    (void)peer;
    device_use(0);
    CUdeviceptr memory = memory_new(BYTES);
    uint32_t *pinned = host_new(4), pageable = 1;
    CUstream stream = capture_begin();
    expect_success(cuMemcpyHtoDAsync_v2(memory, &pageable, 4, stream));
    expect_success(cuMemcpyDtoHAsync_v2(pinned, memory, 4, stream));
    CUgraphExec exec = capture_end(stream);
    for (pageable = 5; pageable < 8; pageable++) {
        expect_success(cuGraphLaunch(exec, stream));
        expect_success(cuStreamSynchronize(stream));
        expect_true(*pinned == pageable);
    }
    expect_success(cuGraphExecDestroy(exec));
}
static void test_copies_read_the_host_at_each_launch(void **state)
{
    (void)state;
    assert_child(graph_reads_host, "FAKE_CUDA_DELAY=shuffled");
}
/* Two branches, of which the second waits for the first or does not. */
static void branches_run(bool waits)
{
    device_use(0);
    CUdeviceptr memory = memory_new(BYTES);
    CUevent fork = event_new(), written = event_new(), join = event_new();
    CUstream other = stream_new(), stream = capture_begin();
    expect_success(cuEventRecord(fork, stream));
    expect_success(cuStreamWaitEvent(other, fork, 0));
    expect_success(cuMemsetD32Async(memory, 1, COUNT, stream));
    expect_success(cuEventRecord(written, stream));
    if (waits) expect_success(cuStreamWaitEvent(other, written, 0));
    add_launch(other, memory, 1);
    expect_success(cuEventRecord(join, other));
    expect_success(cuStreamWaitEvent(stream, join, 0));
    CUgraphExec exec = capture_end(stream);
    for (int i = 0; i < 5; i++) expect_success(cuGraphLaunch(exec, stream));
    expect_success(cuCtxSynchronize());
    expect_success(cuGraphExecDestroy(exec));
    if (waits) expect_true(word_at(memory) == 2);
}
static void branches_ordered(int peer)
{
    (void)peer;
    branches_run(true);
}
static void branches_unordered(int peer)
{
    (void)peer;
    branches_run(false);
}
static void test_events_order_the_branches_of_a_graph(void **state)
{
    (void)state;
    assert_child(branches_ordered, "FAKE_CUDA_DELAY=shuffled");
}
static void test_unordered_branches_are_reported(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    /* The planted race is one for the thread sanitizer too, which may end the child before the driver reports it. */
    skip();
#endif
    assert_reported(branches_unordered, NULL, "nothing orders the two");
}

/* ---- what a capture refuses ---- */
static void expect_invalid(CUstream stream)
{
    CUgraph graph;
    CUstreamCaptureStatus status;
    expect_success(cuStreamIsCapturing(stream, &status));
    expect_true(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    expect_result(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    expect_success(cuStreamSynchronize(stream));
}
static void waits_refused(int peer)
{
    (void)peer;
    device_use(0);
    CUdeviceptr memory = memory_new(BYTES), more;
    uint32_t pageable;
    CUstream stream = capture_begin();
    expect_result(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_invalid(stream);
    stream = capture_begin();
    expect_result(cuStreamQuery(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_invalid(stream);
    stream = capture_begin();
    expect_result(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_invalid(stream);
    stream = capture_begin();
    expect_result(cuMemAlloc_v2(&more, BYTES), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_invalid(stream);
    stream = capture_begin();
    expect_result(cuMemcpyDtoHAsync_v2(&pageable, memory, 4, stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_invalid(stream);
}
static void test_calls_that_wait_are_refused(void **state)
{
    (void)state;
    assert_child(waits_refused, NULL);
}
static void relaxed_allows(int peer)
{
    (void)peer;
    device_use(0);
    CUdeviceptr memory;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUstream stream = capture_begin();
    expect_success(cuThreadExchangeStreamCaptureMode(&mode));
    expect_success(cuMemAlloc_v2(&memory, BYTES));
    expect_success(cuThreadExchangeStreamCaptureMode(&mode));
    expect_true(mode == CU_STREAM_CAPTURE_MODE_RELAXED);
    expect_success(cuGraphExecDestroy(capture_end(stream)));
}
static void test_a_relaxed_thread_may_allocate(void **state)
{
    (void)state;
    assert_child(relaxed_allows, NULL);
}
static void edges_refused(int peer)
{
    (void)peer;
    device_use(0);
    CUgraph graph;
    CUevent outside = event_new(), fork = event_new();
    CUstream other = stream_new();
    CUdeviceptr memory = memory_new(BYTES);
    expect_success(cuEventRecord(outside, other));
    CUstream stream = capture_begin();
    expect_result(cuStreamWaitEvent(stream, outside, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    expect_invalid(stream);
    stream = capture_begin();
    expect_result(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_ILLEGAL_STATE);
    expect_success(cuEventRecord(fork, stream));
    expect_success(cuStreamWaitEvent(other, fork, 0));
    expect_result(cuStreamEndCapture(other, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    add_launch(other, memory, 1);
    expect_result(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    expect_result(cuEventSynchronize(fork), CUDA_ERROR_CAPTURED_EVENT);
    expect_result(cuStreamEndCapture(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
    expect_result(cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}
static void test_dependencies_across_a_capture_are_refused(void **state)
{
    (void)state;
    assert_child(edges_refused, NULL);
}
static void legacy_refused(int peer)
{
    (void)peer;
    device_use(0);
    CUdeviceptr memory = memory_new(BYTES);
    CUstream stream;
    expect_success(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    expect_success(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    expect_result(cuMemsetD32Async(memory, 1, COUNT, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    expect_invalid(stream);
}
static void test_the_legacy_stream_is_refused_beside_a_capture(void **state)
{
    (void)state;
    assert_child(legacy_refused, NULL);
}

unit_function test_cuda_graphs;
int test_cuda_graphs(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_launch_runs_what_was_recorded),
        cmocka_unit_test(test_copies_read_the_host_at_each_launch),
        cmocka_unit_test(test_events_order_the_branches_of_a_graph),
        cmocka_unit_test(test_unordered_branches_are_reported),
        cmocka_unit_test(test_calls_that_wait_are_refused),
        cmocka_unit_test(test_a_relaxed_thread_may_allocate),
        cmocka_unit_test(test_dependencies_across_a_capture_are_refused),
        cmocka_unit_test(test_the_legacy_stream_is_refused_beside_a_capture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
