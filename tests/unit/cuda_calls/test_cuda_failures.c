/* Failures: a rank that dies, aborts, never calls or calls something else. The operations on streams fail with the
   communicator, and all streams go on. */
#include "tests/unit/cuda_calls/cuda_ranks.h"
#include <pthread.h>
#include <signal.h>

/* Waits until the communicator has failed, and returns its status. */
static tutti_status rank_await_failure(const struct cuda_rank *rank)
{
    tutti_status status;
    while ((status = tutti_comm_get_async_error(rank->me->comm)) == TUTTI_OK) sleep_us(1000);
    return status;
}
/* Starts sums on all streams. */
static void rank_start_sums(struct cuda_rank *rank, struct cuda_run *runs)
{
    for (int i = 0; i < CUDA_STREAMS; i++) {
        struct cuda_call call = cuda_call_sum(3000, i);
        cuda_run_prepare(rank, &call, &runs[i]);
        REQUIRE(cuda_run_start(rank, &runs[i]) == TUTTI_OK);
    }
}
/* Requires that all operations fail, that the streams go on, and that later calls fail. */
static void rank_expect_failure(struct cuda_rank *rank, struct cuda_run *runs, tutti_status status, const char *text)
{
    for (int i = 0; i < CUDA_STREAMS; i++) {
        REQUIRE(cuda_run_wait(&runs[i]) == status);
        REQUIRE_TEXT(text);
    }
    cuda_rank_check_device(rank);
    REQUIRE(cuda_run_start(rank, &runs[0]) == status);
    REQUIRE(tutti_barrier(rank->me->comm, NULL) == status);
    for (int i = 0; i < CUDA_STREAMS; i++) cuda_run_free(&runs[i]);
}

/* ---- deaths, aborts, timeouts ---- */
static void rank_dies(struct cuda_rank *rank)
{
    struct cuda_run done, runs[CUDA_STREAMS];
    struct cuda_call call = cuda_call_sum(500, 0);
    cuda_run_prepare(rank, &call, &done);
    REQUIRE(cuda_run_start(rank, &done) == TUTTI_OK && cuda_run_wait(&done) == TUTTI_OK);
    cuda_run_check(rank, &done);
    if (rank->me->rank < 2) rank_start_sums(rank, runs);
    REQUIRE(tutti_barrier(rank->me->comm, NULL) == TUTTI_OK);
    if (rank->me->rank == 2) raise(SIGKILL);
    rank_expect_failure(rank, runs, TUTTI_PEER_LOST, "rank 2");
    REQUIRE(tutti_test(&done.request) == TUTTI_OK);
    cuda_run_free(&done);
}
static void test_a_killed_rank_fails_the_operations_of_the_others(void **state)
{
    (void)state;
    assert_int_equal(cuda_ranks_run(3, UNORDERED, rank_dies), 1);
}
/* The rank dies while no operation is open. */
static void rank_dies_idle(struct cuda_rank *rank)
{
    struct cuda_run runs[CUDA_STREAMS];
    REQUIRE(tutti_barrier(rank->me->comm, NULL) == TUTTI_OK);
    if (rank->me->rank == 1) raise(SIGKILL);
    struct cuda_call call = cuda_call_sum(500, 0);
    cuda_run_prepare(rank, &call, &runs[0]);
    tutti_status status = TUTTI_OK;
    while (status == TUTTI_OK) {
        status = cuda_run_start(rank, &runs[0]);
        if (status == TUTTI_OK) status = cuda_run_wait(&runs[0]);
    }
    REQUIRE(status == TUTTI_PEER_LOST);
    REQUIRE_TEXT("rank 1 of the group");
    cuda_rank_check_device(rank);
    cuda_run_free(&runs[0]);
}
static void test_a_rank_that_died_is_noticed_by_the_next_call(void **state)
{
    (void)state;
    assert_int_equal(cuda_ranks_run(2, UNORDERED, rank_dies_idle), 1);
}
/* A call that needs several operations waits for room when the other rank dies or leaves. */
static void rank_is_gone_during_a_call(struct cuda_rank *rank, bool dies)
{
    struct cuda_run run;
    struct cuda_call call = cuda_call_sum(300000, 0);
    cuda_run_prepare(rank, &call, &run);
    REQUIRE(tutti_barrier(rank->me->comm, NULL) == TUTTI_OK);
    if (rank->me->rank == 1 && dies) raise(SIGKILL);
    if (rank->me->rank == 0) {
        REQUIRE(cuda_run_start(rank, &run) == TUTTI_PEER_LOST);
        REQUIRE_TEXT(dies ? "rank 1 of the group (process" : "rank 1 of the group has ended or destroyed its group");
        cuda_rank_check_device(rank);
    }
    cuda_run_free(&run);
}
static void rank_dies_during_a_call(struct cuda_rank *rank) { rank_is_gone_during_a_call(rank, true); }
static void rank_leaves_during_a_call(struct cuda_rank *rank) { rank_is_gone_during_a_call(rank, false); }
static void test_a_call_that_waits_for_room_notices_that_a_rank_is_gone(void **state)
{
    (void)state;
    assert_int_equal(cuda_ranks_run(2, "TUTTI_CUDA_SLOT_BYTES=8192 " UNORDERED, rank_dies_during_a_call), 1);
    assert_cuda_ranks(2, "TUTTI_CUDA_SLOT_BYTES=8192 " UNORDERED, rank_leaves_during_a_call);
}
/* Ranks 0 and 1 wait for rank 2, and rank 0 aborts. */
static void rank_aborts(struct cuda_rank *rank)
{
    struct cuda_run runs[CUDA_STREAMS];
    if (rank->me->rank < 2) rank_start_sums(rank, runs);
    REQUIRE(tutti_barrier(rank->me->comm, NULL) == TUTTI_OK);
    if (rank->me->rank == 2) {
        REQUIRE(rank_await_failure(rank) == TUTTI_ABORTED);
        return;
    }
    if (rank->me->rank == 0) REQUIRE(tutti_comm_abort(rank->me->comm) == TUTTI_OK);
    rank_expect_failure(rank, runs, TUTTI_ABORTED, "rank 0");
}
static void test_an_abort_ends_the_operations_of_all(void **state)
{
    (void)state;
    assert_cuda_ranks(3, UNORDERED, rank_aborts);
}
static void rank_is_late(struct cuda_rank *rank)
{
    struct cuda_run run;
    struct cuda_call call = cuda_call_sum(500, 0);
    if (rank->me->rank == 1) {
        REQUIRE(rank_await_failure(rank) == TUTTI_TIMEOUT);
        return;
    }
    cuda_run_prepare(rank, &call, &run);
    run.request.timeout_ms = 100;
    REQUIRE(cuda_run_start(rank, &run) == TUTTI_OK && cuda_run_wait(&run) == TUTTI_TIMEOUT);
    REQUIRE_TEXT("timeout of 100 ms in allreduce(500 x float32, sum, algorithm one_shot), operation 1 on streams of");
    REQUIRE_TEXT("this call has not been made by rank 1");
    cuda_rank_check_device(rank);
    cuda_run_free(&run);
}
/* The limit is that of the wait. */
static void rank_is_late_in_wait(struct cuda_rank *rank)
{
    struct cuda_run run;
    struct cuda_call call = cuda_call_sum(500, 0);
    if (rank->me->rank == 1) {
        REQUIRE(rank_await_failure(rank) == TUTTI_TIMEOUT);
        return;
    }
    cuda_run_prepare(rank, &call, &run);
    REQUIRE(cuda_run_start(rank, &run) == TUTTI_OK && tutti_test(&run.request) == TUTTI_IN_PROGRESS);
    REQUIRE(tutti_wait(&run.request, 50) == TUTTI_TIMEOUT);
    REQUIRE_TEXT("timeout of 50 ms");
    cuda_rank_check_device(rank);
    cuda_run_free(&run);
}
static void test_a_timeout_names_the_ranks_that_are_missing(void **state)
{
    (void)state;
    assert_cuda_ranks(2, UNORDERED, rank_is_late);
    assert_cuda_ranks(2, UNORDERED, rank_is_late_in_wait);
}
/* Every stream of a rank waits, and an operation on the host reaches its timeout. */
static void rank_fails_on_host(struct cuda_rank *rank)
{
    struct cuda_run runs[CUDA_STREAMS];
    if (rank->me->rank == 1) {
        REQUIRE(rank_await_failure(rank) == TUTTI_TIMEOUT);
        return;
    }
    rank_start_sums(rank, runs);
    REQUIRE(tutti_comm_set_timeout(rank->me->comm, 100) == TUTTI_OK);
    REQUIRE(tutti_barrier(rank->me->comm, NULL) == TUTTI_TIMEOUT);
    rank_expect_failure(rank, runs, TUTTI_TIMEOUT, "100 ms in barrier");
}
/* A thread of rank 0 drives the group in a barrier while the operation on a stream reaches its timeout. */
static void *barrier_main(void *comm)
{
    REQUIRE(tutti_barrier(comm, NULL) == TUTTI_TIMEOUT);
    REQUIRE_TEXT("timeout of 100 ms in allreduce(500 x float32");
    return NULL;
}
static void rank_fails_beside_the_host(struct cuda_rank *rank)
{
    pthread_t thread;
    struct cuda_run run;
    if (rank->me->rank == 1) {
        REQUIRE(rank_await_failure(rank) == TUTTI_TIMEOUT);
        return;
    }
    REQUIRE(pthread_create(&thread, NULL, barrier_main, rank->me->comm) == 0);
    struct cuda_call call = cuda_call_sum(500, 0);
    cuda_run_prepare(rank, &call, &run);
    run.request.timeout_ms = 100;
    REQUIRE(cuda_run_start(rank, &run) == TUTTI_OK && cuda_run_wait(&run) == TUTTI_TIMEOUT);
    REQUIRE(pthread_join(thread, NULL) == 0);
    cuda_rank_check_device(rank);
    cuda_run_free(&run);
}
/* Rank 0 has CUDA tensors, and rank 1 has tensors of the host. */
static void rank_mixes_devices(struct cuda_rank *rank)
{
    struct cuda_run run;
    struct cuda_call call = cuda_call_sum(500, 0);
    cuda_run_prepare(rank, &call, &run);
    if (rank->me->rank == 0) REQUIRE(cuda_run_start(rank, &run) == TUTTI_OK);
    REQUIRE(tutti_barrier(rank->me->comm, NULL) == TUTTI_OK);
    if (rank->me->rank == 0) {
        REQUIRE(cuda_run_wait(&run) == TUTTI_TIMEOUT);
    } else {
        REQUIRE(tutti_comm_set_timeout(rank->me->comm, 100) == TUTTI_OK);
        REQUIRE(tutti_all_reduce(run.sent, run.sent, 500, TUTTI_FLOAT32, TUTTI_SUM, rank->me->comm, NULL)
            == TUTTI_TIMEOUT);
    }
    REQUIRE_TEXT("this call has not been made by rank 0; rank 0 has called operation 1 on CUDA streams, which rank 1");
    cuda_rank_check_device(rank);
    cuda_run_free(&run);
}
static void test_a_timeout_names_a_call_on_streams_instead(void **state)
{
    (void)state;
    assert_cuda_ranks(2, UNORDERED, rank_mixes_devices);
}
static void test_a_failure_on_streams_ends_calls_on_the_host(void **state)
{
    (void)state;
    assert_cuda_ranks(2, UNORDERED, rank_fails_beside_the_host);
}
static void test_a_failure_on_the_host_ends_the_streams(void **state)
{
    (void)state;
    assert_cuda_ranks(2, UNORDERED, rank_fails_on_host);
}

/* ---- disagreements ---- */
static void rank_disagrees(struct cuda_rank *rank, size_t count, uint64_t label)
{
    struct cuda_run run;
    struct cuda_call call = cuda_call_sum(count, 0);
    cuda_run_prepare(rank, &call, &run);
    run.request.label = label;
    tutti_status status = cuda_run_start(rank, &run);
    if (status == TUTTI_OK) status = cuda_run_wait(&run);
    REQUIRE(status == TUTTI_MISMATCH);
    REQUIRE_TEXT("disagree about operation 1 on streams of");
    cuda_rank_check_device(rank);
    REQUIRE(rank_await_failure(rank) == TUTTI_MISMATCH);
    cuda_run_free(&run);
}
static void rank_calls_another_count(struct cuda_rank *rank) { rank_disagrees(rank, rank->me->rank ? 9000 : 600, 0); }
static void rank_gives_another_label(struct cuda_rank *rank)
{
    rank_disagrees(rank, 600, 3 + (uint64_t)rank->me->rank);
}
static void test_ranks_that_disagree_fail(void **state)
{
    (void)state;
    assert_cuda_ranks(2, UNORDERED, rank_calls_another_count);
    assert_cuda_ranks(2, UNORDERED, rank_gives_another_label);
}

unit_function test_cuda_failures;
int test_cuda_failures(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_killed_rank_fails_the_operations_of_the_others),
        cmocka_unit_test(test_a_rank_that_died_is_noticed_by_the_next_call),
        cmocka_unit_test(test_a_call_that_waits_for_room_notices_that_a_rank_is_gone),
        cmocka_unit_test(test_a_failure_on_streams_ends_calls_on_the_host),
        cmocka_unit_test(test_an_abort_ends_the_operations_of_all),
        cmocka_unit_test(test_a_timeout_names_the_ranks_that_are_missing),
        cmocka_unit_test(test_a_timeout_names_a_call_on_streams_instead),
        cmocka_unit_test(test_a_failure_on_the_host_ends_the_streams),
        cmocka_unit_test(test_ranks_that_disagree_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
