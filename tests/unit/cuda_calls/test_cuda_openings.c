/* Opening communicators for CUDA, and calls that are refused. A refusal leaves the group as it was. */
#include "tests/fake_cuda/graph_calls.h"
#include "tests/unit/cuda_calls/cuda_ranks.h"
#include <pthread.h>

static void expect_refusal(tutti_status status, tutti_status expected, const char *text)
{
    bool right = status == expected && tutti_last_error_is_refusal() && strstr(tutti_get_last_error(), text);
    if (!right) fprintf(stderr, "expected a refusal %d with \"%s\", found %d\n", expected, text, status);
    REQUIRE(right);
}
/* The group works on the host. */
static void rank_uses_host(struct cuda_rank *rank)
{
    int64_t one = 1;
    REQUIRE(tutti_all_reduce(&one, &one, 1, TUTTI_INT64, TUTTI_SUM, rank->me->comm, NULL) == TUTTI_OK);
    REQUIRE(one == rank->me->size);
}

/* ---- opening ---- */
static void rank_has_no_driver(struct cuda_rank *rank)
{
    if (rank->me->rank == 1) world_set("TUTTI_CUDA", "libno-such-driver.so");
    for (int i = 0; i < 2; i++) {
        expect_refusal(tutti_comm_open_cuda(rank->me->comm, 0), TUTTI_UNSUPPORTED,
            "rank 1 failed with device 0: no usable");
        REQUIRE_TEXT("libno-such-driver.so");
        rank_uses_host(rank);
    }
    struct cuda_run run;
    struct cuda_call call = cuda_call_sum(10, 0);
    cuda_run_prepare(rank, &call, &run);
    expect_refusal(cuda_run_start(rank, &run), TUTTI_INVALID_ARGUMENT,
        "all ranks must call tutti_comm_open_cuda first");
    REQUIRE(run.request.refused);
    cuda_run_free(&run);
}
/* Fails in each stage on one rank, and succeeds at last. */
static void rank_opens_at_last(struct cuda_rank *rank)
{
    static const char *const calls[] = { "cuMemHostRegister", "cuMemAlloc", "cuIpcGetMemHandle", "cuIpcOpenMemHandle" };
    expect_refusal(tutti_comm_open_cuda(rank->me->comm, rank->me->rank ? 1 : 77), TUTTI_UNSUPPORTED,
        "rank 0 failed with device 77");
    for (int i = 0; i < 4; i++) {
        if (rank->me->rank == 1) fake_cuda_fail(calls[i], 1, false, CUDA_ERROR_UNKNOWN);
        tutti_status status = tutti_comm_open_cuda(rank->me->comm, rank->me->rank);
        REQUIRE(status != TUTTI_OK && tutti_last_error_is_refusal());
        REQUIRE_TEXT("the group cannot be opened for CUDA streams, because rank");
        rank_uses_host(rank);
    }
    REQUIRE(tutti_comm_open_cuda(rank->me->comm, rank->me->rank) == TUTTI_OK);
    expect_refusal(tutti_comm_open_cuda(rank->me->comm, rank->me->rank), TUTTI_INVALID_ARGUMENT,
        "open for CUDA streams already");
    struct cuda_call call = cuda_call_sum(1000, 0);
    cuda_call_and_check(rank, &call);
}
static void rank_is_on_several_hosts(struct cuda_rank *rank)
{
    expect_refusal(tutti_comm_open_cuda(rank->me->comm, 0), TUTTI_UNSUPPORTED, "need all ranks on one host");
    rank_uses_host(rank);
}
/* Ranks 0 and 2 are threads with the same device, so the legacy default stream of one is that of the other. */
static void rank_shares_a_device(struct cuda_rank *rank)
{
    expect_refusal(tutti_comm_open_cuda(rank->me->comm, rank->me->rank % 2), TUTTI_UNSUPPORTED,
        "rank 0 and rank 2 are one process and use device 0");
    REQUIRE_TEXT("start one process per rank, or set TUTTI_CUDA=0");
    rank_uses_host(rank);
}
struct opener { struct cuda_rank *rank; tutti_status status; };
static void *opener_main(void *argument)
{
    struct opener *opener = argument;
    opener->status = tutti_comm_open_cuda(opener->rank->me->comm, opener->rank->me->rank);
    return NULL;
}
/* One of the threads opens the communicator, the same or another one than on the other rank. */
static void rank_opens_on_two_threads(struct cuda_rank *rank)
{
    struct opener openers[2] = { { rank, TUTTI_OK }, { rank, TUTTI_OK } };
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) REQUIRE(pthread_create(&threads[i], NULL, opener_main, &openers[i]) == 0);
    for (int i = 0; i < 2; i++) REQUIRE(pthread_join(threads[i], NULL) == 0);
    REQUIRE(openers[0].status + openers[1].status == TUTTI_INVALID_ARGUMENT);
    struct cuda_call call = cuda_call_sum(1000, 0);
    cuda_call_and_check(rank, &call);
}
/* Rank 1 destroys its communicator while another thread waits for rank 0 to open it. */
static void rank_destroys_what_it_opens(struct cuda_rank *rank)
{
    struct opener opener = { rank, TUTTI_OK };
    pthread_t thread;
    if (rank->me->rank == 0) return;
    REQUIRE(tutti_comm_retain(rank->me->comm) == TUTTI_OK);
    REQUIRE(pthread_create(&thread, NULL, opener_main, &opener) == 0);
    sleep_us(10000);
    REQUIRE(tutti_comm_destroy(rank->me->comm) == TUTTI_OK);
    REQUIRE(pthread_join(thread, NULL) == 0 && (opener.status == TUTTI_ABORTED || opener.status == TUTTI_PEER_LOST));
}
static void test_threads_may_open_and_destroy_at_once(void **state)
{
    (void)state;
    assert_cuda_ranks_unopened(2, NULL, rank_opens_on_two_threads);
    assert_cuda_ranks_unopened(2, NULL, rank_destroys_what_it_opens);
}
static void test_all_ranks_refuse_if_one_has_no_driver(void **state)
{
    (void)state;
    assert_cuda_ranks_unopened(2, NULL, rank_has_no_driver);
}
static void test_a_failed_opening_can_be_repeated(void **state)
{
    (void)state;
    assert_cuda_ranks_unopened(2, NULL, rank_opens_at_last);
}
static void test_several_hosts_are_refused(void **state)
{
    (void)state;
    assert_cuda_ranks_unopened(2, "TUTTI_HOSTS=2", rank_is_on_several_hosts);
}

static void test_threads_on_one_device_are_refused(void **state)
{
    (void)state;
    assert_cuda_threads_unopened(3, NULL, rank_shares_a_device);
}

/* ---- calls ---- */
/* Starts a call that is refused, and then the same call as it should be. */
static void run_expect_refusal(struct cuda_rank *rank, struct cuda_run *run, tutti_status status, const char *text)
{
    expect_refusal(cuda_run_start(rank, run), status, text);
    REQUIRE(tutti_test(&run->request) == TUTTI_INVALID_ARGUMENT);
}
static void rank_is_refused(struct cuda_rank *rank)
{
    struct cuda_run run;
    struct cuda_call call = cuda_call_sum(1000, 0);
    CUgraph graph;
    static const size_t huge[2] = { 1, SIZE_MAX }, offsets[2] = { 0, 1 };
    cuda_run_prepare(rank, &call, &run);
    tutti_request *request = &run.request;
    void *input = (void *)(uintptr_t)run.input, *output = (void *)(uintptr_t)run.output;
    request->blocking = true;
    run_expect_refusal(rank, &run, TUTTI_INVALID_ARGUMENT, "cannot also be blocking");
    request->blocking = false;
    request->on_stream = false;
    run_expect_refusal(rank, &run, TUTTI_INVALID_ARGUMENT, "a stream, but not on_stream");
    request->on_stream = true;
    request->algorithm = "rng";
    run_expect_refusal(rank, &run, TUTTI_INVALID_ARGUMENT, "rng");
    request->algorithm = NULL;
    run.call.op = TUTTI_PREMUL_SUM;
    run.call.dtype = TUTTI_INT32;
    REQUIRE(cuda_run_start(rank, &run) == TUTTI_INVALID_ARGUMENT);
    run.call = call;
    expect_refusal(tutti_send(input, 1, TUTTI_UINT8, 1 - rank->me->rank, 0, rank->me->comm, request), TUTTI_UNSUPPORTED,
        "no messages");
    expect_refusal(tutti_all_gather_v(input, output, huge, offsets, TUTTI_FLOAT32, rank->me->comm, request),
        TUTTI_INVALID_ARGUMENT, "exceed the address space");
    tutti_norm norm = TUTTI_NORM_INIT;
    expect_refusal(tutti_all_reduce_norm(input, output, 10, 10, TUTTI_FLOAT32, &norm, rank->me->comm, request),
        TUTTI_UNSUPPORTED, "no norms");
    /* One rank alone is refused, and calls again with another stream. */
    if (rank->me->rank == 0) {
        REQUIRE(cuStreamBeginCapture_v2(rank->streams[0], CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
        run_expect_refusal(rank, &run, TUTTI_UNSUPPORTED, "captured");
        REQUIRE(cuStreamEndCapture(rank->streams[0], &graph) == CUDA_SUCCESS);
        request->stream = rank->streams[1];
    }
    REQUIRE(cuda_run_start(rank, &run) == TUTTI_OK && cuda_run_wait(&run) == TUTTI_OK);
    cuda_run_check(rank, &run);
    cuda_run_free(&run);
}
static void test_a_refused_call_leaves_the_group_as_it_was(void **state)
{
    (void)state;
    assert_cuda_ranks(2, NULL, rank_is_refused);
}

unit_function test_cuda_openings;
int test_cuda_openings(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_ranks_refuse_if_one_has_no_driver),
        cmocka_unit_test(test_a_failed_opening_can_be_repeated),
        cmocka_unit_test(test_threads_may_open_and_destroy_at_once),
        cmocka_unit_test(test_several_hosts_are_refused),
        cmocka_unit_test(test_threads_on_one_device_are_refused),
        cmocka_unit_test(test_a_refused_call_leaves_the_group_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
