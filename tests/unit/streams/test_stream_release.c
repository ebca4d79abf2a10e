/* The end of streams when calls of the driver fail or block, when the device fails, and when ranks run ahead. */
#include "tests/unit/streams/cases.h"
#include <pthread.h>

#define UNORDERED "FAKE_CUDA_ORDER=0"
enum { PAUSE_US = 200, POLLS = 50, BATCH = 40 };

static void case_prepare_sum(struct stream_rank *rank, struct case_run *out, size_t count)
{
    struct stream_case c = { collectives_find_algorithm(ALLREDUCE, "two_shot"), TUTTI_FLOAT32, TUTTI_SUM, count, 1024,
        0, 2, false, 1 };
    case_prepare(rank, &c, out);
}
static uint64_t work_count(void) { return fake_cuda_count("cuStreamBatchMemOp") + fake_cuda_count("cuLaunchKernel"); }
/* The failure of an operation must not end the one before it, which is on another stream and has not begun. */
static void rank_fails_on_another_stream(struct stream_rank *rank, bool always)
{
    struct case_run first, second;
    CUstream stream = stream_new();
    uint32_t *word = host_new(4);
    *word = 0;
    case_prepare_sum(rank, &first, 100);
    case_prepare_sum(rank, &second, 100);
    expect_success(cuStreamWaitValue32_v2(stream, (uintptr_t)word, 1, CU_STREAM_WAIT_VALUE_GEQ));
    case_enqueue(rank, &first, stream);
    fake_cuda_fail("cuStreamBatchMemOp", 1, always, CUDA_ERROR_INVALID_VALUE);
    expect_true(case_try_sum(rank, &second, stream_new()) == TUTTI_SYSTEM);
    for (int i = 0; i < POLLS; i++, usleep(PAUSE_US)) {
        expect_true(site_poll_once(rank->site) == TUTTI_SYSTEM);
        expect_true(!stream_site_is_idle(rank->site));
    }
    __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
    rank_drain(rank);
    expect_true(stream_site_read_done_number(rank->site) == 2 && stream_site_is_idle(rank->site));
    case_free(&first);
    case_free(&second);
}
static void rank_fails_once(struct stream_rank *rank) { rank_fails_on_another_stream(rank, false); }
static void rank_fails_always(struct stream_rank *rank) { rank_fails_on_another_stream(rank, true); }
static void test_a_failed_call_does_not_end_earlier_operations(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 1, 1, 0, UNORDERED }, rank_fails_once);
    assert_ranks(&(struct ranks_setup){ 1, 1, 0, UNORDERED }, rank_fails_always);
}
/* The thread of rank 0 is busy, so rank 1, which has enqueued nothing, must end the streams of rank 0. */
static void ranks_release_others(struct stream_rank *rank)
{
    struct case_run run;
    case_prepare_sum(rank, &run, 5000);
    if (rank->rank == 0) case_enqueue(rank, &run, stream_new());
    ranks_meet(rank);
    if (rank->rank == 0) expect_success(cuCtxSynchronize());
    else stream_site_fail_group(rank->site, TUTTI_PEER_LOST, 1);
    while (rank->rank == 1 && atomic_load(&stream_site_line_of_rank(rank->site, 0)->done) != 1) {
        expect_true(site_poll_once(rank->site) == TUTTI_PEER_LOST);
        usleep(PAUSE_US);
    }
    expect_true(stream_site_is_idle(rank->site));
    case_free(&run);
}
static void test_an_idle_rank_ends_the_streams_of_others(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 2, 1, 0, UNORDERED }, ranks_release_others);
}
/* A rank polls on another thread than it enqueues on. */
static atomic_bool thread_ends;
static void *thread_poll(void *site)
{
    while (!thread_ends) expect_true(site_poll_once(site) == TUTTI_OK);
    return NULL;
}
static void ranks_poll_on_threads(struct stream_rank *rank)
{
    pthread_t thread;
    CUstream streams[] = { stream_new(), stream_new() };
    struct stream_case cases[BATCH];
    uint64_t random = 5;
    expect_true(pthread_create(&thread, NULL, thread_poll, rank->site) == 0);
    for (int i = 0; i < BATCH; i++) cases[i] = case_draw(rank, &random);
    cases_run(rank, cases, BATCH, streams, 2);
    thread_ends = true;
    expect_true(pthread_join(thread, NULL) == 0);
    rank_close(rank);
}
static void test_a_rank_may_poll_while_it_enqueues(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 2, 1, 0, "FAKE_CUDA_HOST_READS=0" }, ranks_poll_on_threads);
}
/* The peer has not come yet, so no operation ends. The driver would block the thread after about 1,024 calls. */
static void ranks_fill_the_queue(struct stream_rank *rank)
{
    struct case_run run;
    CUstream stream = stream_new();
    case_prepare_sum(rank, &run, 100);
    uint64_t calls = work_count(), operations = 0;
    if (rank->rank == 0) {
        while (case_try_sum(rank, &run, stream) == TUTTI_OK) operations++;
        expect_true(operations > 100 && work_count() - calls <= STREAM_CALLS);
    }
    ranks_meet(rank);
    for (uint64_t i = operations; i < 300; i++) case_enqueue(rank, &run, stream);
    expect_true(run.number == 300 && rank_wait(rank, run.number) == TUTTI_OK);
    case_check(rank, &run);
    rank_close(rank);
}
static void test_a_rank_that_runs_ahead_leaves_room_in_the_queue(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 2, 1, 0, UNORDERED }, ranks_fill_the_queue);
}
/* 4 MiB in tiles of 1 KiB would be 4,096 tiles. */
static void ranks_cut_large_messages(struct stream_rank *rank)
{
    struct case_run run;
    case_prepare_sum(rank, &run, 1 << 20);
    uint64_t calls = work_count();
    case_enqueue(rank, &run, stream_new());
    expect_true(work_count() - calls <= STREAM_CALLS);
    expect_true(rank_wait(rank, run.number) == TUTTI_OK);
    size_t half = rank->site->half_bytes;
    rank->site->half_bytes = 8192;
    expect_true(case_try_sum(rank, &run, stream_new()) == TUTTI_UNSUPPORTED && status_is_refusal());
    expect_detail("use larger slots or several operations");
    rank->site->half_bytes = half;
    case_check(rank, &run);
    rank_close(rank);
}
static void test_large_messages_take_few_enough_calls(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 2, 1, 0, NULL }, ranks_cut_large_messages);
}
/* After a fault of the device its streams write no words. Rank 1 never comes, so no stream ends. */
static void ranks_lose_a_device(struct stream_rank *rank)
{
    struct case_run run;
    case_prepare_sum(rank, &run, 100);
    if (rank->rank == 0) {
        case_enqueue(rank, &run, stream_new());
        fake_cuda_fail("cuStreamQuery", 1, true, CUDA_ERROR_LAUNCH_FAILED);
        expect_true(rank_wait(rank, run.number) == TUTTI_SYSTEM);
        expect_detail("CUDA_ERROR_LAUNCH_FAILED");
        expect_true(stream_site_is_idle(rank->site));
        expect_true(case_try_sum(rank, &run, stream_new()) == TUTTI_SYSTEM);
    }
    ranks_meet(rank);
    expect_true(site_poll_once(rank->site) == TUTTI_SYSTEM);
    expect_detail("rank 0 of this host");
    /* The memory of a lost device cannot be freed. */
    plan_finish(&run.plan);
    free(run.sent);
}
static void test_a_fault_of_a_device_fails_the_group(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 2, 1, 0, UNORDERED }, ranks_lose_a_device);
}

unit_function test_stream_release;
int test_stream_release(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_failed_call_does_not_end_earlier_operations),
        cmocka_unit_test(test_an_idle_rank_ends_the_streams_of_others),
        cmocka_unit_test(test_a_rank_may_poll_while_it_enqueues),
        cmocka_unit_test(test_a_rank_that_runs_ahead_leaves_room_in_the_queue),
        cmocka_unit_test(test_large_messages_take_few_enough_calls),
        cmocka_unit_test(test_a_fault_of_a_device_fails_the_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
