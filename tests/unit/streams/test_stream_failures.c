/* Failures: a rank that never comes, that dies, that calls something else, and a driver that refuses. Every stream
   ends, operations that were done stay done, and the device stays usable. */
#include "tests/fake_cuda/graph_calls.h"
#include "tests/unit/streams/cases.h"
#include <pthread.h>

/* Ranks that disagree, or of which one is released, access slots without order. */
#define UNORDERED "FAKE_CUDA_ORDER=0 FAKE_CUDA_DELAY=shuffled FAKE_CUDA_DELAY_US=300"
enum { PAUSE_US = 200, RUNS = 50 };

static struct stream_case allreduce_case(size_t count, uint64_t seed)
{
    return (struct stream_case){ .algorithm = collectives_find_algorithm(ALLREDUCE, "two_shot"),
        .dtype = TUTTI_FLOAT32,
        .count = count,
        .tile_bytes = 1024,
        .slots = 2,
        .seed = seed };
}
/* Enqueues an operation, unless the group has failed before with this status. */
static void case_enqueue_or_fail(struct stream_rank *rank, struct case_run *run, CUstream stream, tutti_status failure)
{
    tutti_status status = case_try_sum(rank, run, stream);
    expect_true(status == TUTTI_OK || status == failure);
}
/* The device copies as if there had been no failure. */
static void device_is_usable(void)
{
    CUdeviceptr memory = memory_new(64);
    expect_success(cuMemsetD32Async(memory, 7, 16, stream_new()));
    expect_success(cuCtxSynchronize());
    expect_true(word_at(memory) == 7);
}

/* ---- ranks that do not come ---- */
static void ranks_lose_one(struct stream_rank *rank)
{
    CUstream streams[] = { stream_new(), stream_new() };
    struct case_run done, lost[3];
    struct stream_case c = allreduce_case(500, 1);
    case_prepare(rank, &c, &done);
    case_enqueue(rank, &done, streams[0]);
    expect_true(rank_wait(rank, done.number) == TUTTI_OK);
    ranks_meet(rank);
    if (rank->rank) _exit(0);
    c = allreduce_case(3000, 2);
    for (int i = 0; i < 3; i++) {
        case_prepare(rank, &c, &lost[i]);
        case_enqueue(rank, &lost[i], streams[i % 2]);
    }
    for (int i = 0; i < 20; i++) expect_true(site_test_operation(rank->site, lost[0].number) == TUTTI_IN_PROGRESS);
    stream_site_fail_group(rank->site, TUTTI_PEER_LOST, 1);
    rank_drain(rank);
    expect_true(site_test_operation(rank->site, done.number) == TUTTI_OK);
    for (int i = 0; i < 3; i++) expect_true(site_test_operation(rank->site, lost[i].number) == TUTTI_PEER_LOST);
    expect_detail("rank 1 of this host");
    case_check(rank, &done);
    device_is_usable();
    uint64_t number;
    struct stream_operation operation = { &lost[0].plan, lost[0].input, lost[0].output, 12000, 1024, TUTTI_FLOAT32,
        TUTTI_SUM, 1, 0, 0, NULL, 0 };
    expect_true(stream_site_enqueue_operation(rank->site, &operation, streams[0], &number) == TUTTI_PEER_LOST);
    for (int i = 0; i < 3; i++) case_free(&lost[i]);
    rank_await_end(1);
    stream_site_disconnect_peers(rank->site);
    stream_site_destroy(rank->site);
    expect_true(fake_cuda_reports() == 0);
}
static void test_streams_end_if_a_rank_dies(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 2, 1, 0, "FAKE_CUDA_DELAY=shuffled" }, ranks_lose_one);
}
/* One rank has enqueued its operation behind work that never ends, and dies there. */
static void ranks_lose_one_that_works(struct stream_rank *rank)
{
    CUstream stream = stream_new();
    struct case_run run;
    struct stream_case c = allreduce_case(4000, 1);
    case_prepare(rank, &c, &run);
    uint32_t *word = host_new(4);
    if (rank->rank == 1) expect_success(cuStreamWaitValue32_v2(stream, (uintptr_t)word, 1, CU_STREAM_WAIT_VALUE_GEQ));
    case_enqueue(rank, &run, stream);
    ranks_meet(rank);
    if (rank->rank == 1) _exit(0);
    if (rank->rank == 0) stream_site_fail_group(rank->site, TUTTI_PEER_LOST, 1);
    expect_true(rank_wait(rank, run.number) == TUTTI_PEER_LOST);
    rank_drain(rank);
    device_is_usable();
    case_free(&run);
    stream_site_disconnect_peers(rank->site);
}
static void test_all_ranks_report_the_first_failure(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 3, 2, 0, UNORDERED }, ranks_lose_one_that_works);
}

/* ---- disagreements ---- */
static void ranks_disagree(struct stream_rank *rank)
{
    CUstream stream = stream_new();
    struct case_run same, other;
    struct stream_case c = allreduce_case(500, 1);
    case_prepare(rank, &c, &same);
    case_enqueue(rank, &same, stream);
    expect_true(rank_wait(rank, same.number) == TUTTI_OK);
    ranks_meet(rank);
    c = allreduce_case(rank->rank ? 9000 : 600, 2);
    case_prepare(rank, &c, &other);
    case_enqueue_or_fail(rank, &other, stream, TUTTI_MISMATCH);
    case_enqueue_or_fail(rank, &other, stream, TUTTI_MISMATCH);
    for (uint64_t number = 2; number <= 3; number++) expect_true(rank_wait(rank, number) == TUTTI_MISMATCH);
    rank_drain(rank);
    expect_true(site_test_operation(rank->site, same.number) == TUTTI_OK);
    case_check(rank, &same);
    case_free(&other);
    device_is_usable();
    ranks_meet(rank);
    stream_site_disconnect_peers(rank->site);
}
static void test_a_disagreement_fails_all_ranks(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 2, 1, 0, UNORDERED }, ranks_disagree);
    assert_ranks(&(struct ranks_setup){ 3, 2, 0, UNORDERED }, ranks_disagree);
}

/* The streams of both ranks come to the end of operations that differ only in their type. */
static void ranks_differ_in_type(struct stream_rank *rank)
{
    struct case_run run;
    struct stream_case c = allreduce_case(500, 1);
    uint64_t number;
    case_prepare(rank, &c, &run);
    struct stream_operation operation = { &run.plan, run.input, run.output, 2000, 1024,
        rank->rank ? TUTTI_INT32 : TUTTI_FLOAT32, TUTTI_SUM, 1, 0, 0, NULL, 0 };
    expect_true(stream_site_enqueue_operation(rank->site, &operation, stream_new(), &number) == TUTTI_OK);
    while (!stream_site_is_idle(rank->site)) usleep(PAUSE_US);
    expect_true(site_test_operation(rank->site, number) == TUTTI_MISMATCH);
    expect_success(cuCtxSynchronize());
    case_free(&run);
    ranks_meet(rank);
    stream_site_disconnect_peers(rank->site);
}
static void test_operations_that_differ_are_not_done(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 2, 1, 0, UNORDERED }, ranks_differ_in_type);
}

/* Rank 0 has a plan for tensors in place, the other one for separate ones, or for staged inputs. */
static void ranks_differ_in_plan(struct stream_rank *rank, bool in_place)
{
    struct case_run run;
    struct stream_case c = allreduce_case(500, 1);
    case_prepare(rank, &c, &run);
    plan_finish(&run.plan);
    run.plan = (struct plan){ .algorithm = c.algorithm, .layout = rank->layout, .slots = 2, .in_place = mask_all };
    if (rank->rank && in_place) run.plan.in_place = NULL;
    if (rank->rank && !in_place) run.plan.stage_inputs = true;
    expect_true(plan_build_staging(&run.plan) == TUTTI_OK);
    case_enqueue_or_fail(rank, &run, stream_new(), TUTTI_MISMATCH);
    expect_true(rank_wait(rank, 1) == TUTTI_MISMATCH);
    rank_drain(rank);
    case_free(&run);
    ranks_meet(rank);
    stream_site_disconnect_peers(rank->site);
}
static void ranks_differ_in_place(struct stream_rank *rank) { ranks_differ_in_plan(rank, true); }
static void ranks_differ_in_staging(struct stream_rank *rank) { ranks_differ_in_plan(rank, false); }
static void test_plans_that_differ_are_disagreements(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 2, 1, 0, UNORDERED }, ranks_differ_in_place);
    assert_ranks(&(struct ranks_setup){ 2, 1, 0, UNORDERED }, ranks_differ_in_staging);
}

/* ---- refusals ---- */
static tutti_status case_try(struct stream_rank *rank, const struct case_run *run, tutti_dtype dtype, tutti_op op)
{
    uint64_t number;
    struct stream_operation operation = { &run->plan, run->input, run->output, 4096, 1024, dtype, op, 1, 0, 0, NULL,
        0 };
    return stream_site_enqueue_operation(rank->site, &operation, NULL, &number);
}
static void ranks_refuse(struct stream_rank *rank)
{
    struct case_run run;
    struct stream_case c = allreduce_case(1024, 1);
    case_prepare(rank, &c, &run);
    expect_true(case_try(rank, &run, 99, TUTTI_SUM) == TUTTI_INVALID_ARGUMENT && status_is_refusal());
    expect_true(case_try(rank, &run, TUTTI_FLOAT32, 99) == TUTTI_INVALID_ARGUMENT && status_is_refusal());
    expect_true(case_try(rank, &run, TUTTI_FLOAT32, TUTTI_BAND) == TUTTI_INVALID_ARGUMENT && status_is_refusal());
    uint64_t number;
    struct stream_operation huge = { &run.plan, run.input, run.output, (size_t)1 << 50, 128, TUTTI_FLOAT32, TUTTI_SUM,
        1, 0, 0, NULL, 0 };
    expect_true(stream_site_enqueue_operation(rank->site, &huge, NULL, &number) == TUTTI_UNSUPPORTED
        && status_is_refusal());
    plan_finish(&run.plan);
    rank_plan(rank, collectives_find_algorithm(ALLREDUCE, "ring"), 0, 1, &run.plan);
    expect_true(case_try(rank, &run, TUTTI_FLOAT32, TUTTI_SUM) == TUTTI_UNSUPPORTED && status_is_refusal());
    expect_detail("ring");
    size_t half = rank->site->half_bytes;
    rank->site->half_bytes = 128;
    plan_finish(&run.plan);
    rank_plan(rank, c.algorithm, 0, 2, &run.plan);
    expect_true(case_try(rank, &run, TUTTI_FLOAT32, TUTTI_SUM) == TUTTI_UNSUPPORTED && status_is_refusal());
    rank->site->half_bytes = half;
    case_enqueue(rank, &run, stream_new());
    expect_true(rank_wait(rank, run.number) == TUTTI_OK);
    case_check(rank, &run);
    rank_close(rank);
}
static void test_refused_operations_leave_the_group_as_it_was(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 2, 1, 0, NULL }, ranks_refuse);
}
/* Peers would access tensors, or the factor would be lost. */
static void ranks_refuse_plans(struct stream_rank *rank)
{
    const struct algorithm *algorithm = collectives_find_algorithm(ALLREDUCE, "two_shot");
    struct plan plan = { .algorithm = algorithm, .layout = rank->layout, .slots = 1, .in_place = mask_all }, plans[2];
    plans[0] = plans[1] = plan;
    plans[0].shared = mask_all;
    plans[1].can_read_private = true;
    for (int i = 0; i < 2; i++) {
        struct case_run run = { .plan = plans[i] };
        expect_true(plan_build_staging(&run.plan) == TUTTI_OK);
        expect_true(case_try(rank, &run, TUTTI_FLOAT32, TUTTI_SUM) == TUTTI_UNSUPPORTED && status_is_refusal());
        expect_detail("they access tensors");
        plan_finish(&run.plan);
    }
    struct case_run run = { .plan = plan };
    expect_true(plan_build_staging(&run.plan) == TUTTI_OK);
    expect_true(case_try(rank, &run, TUTTI_FLOAT32, TUTTI_PREMUL_SUM) == TUTTI_INVALID_ARGUMENT && status_is_refusal());
    expect_detail("stage_inputs");
    plan_finish(&run.plan);
    rank_close(rank);
}
static void test_plans_that_streams_would_run_wrong_are_refused(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 2, 1, 0, NULL }, ranks_refuse_plans);
}
/* Only the root has as many sources as there are ranks, but all must refuse. Here a group has 17 ranks, of which one
   has a site. */
static void rank_has_too_many_peers(struct stream_rank *rank)
{
    enum { MANY = 17 };
    struct layout *layout;
    expect_true(layout_create(NULL, MANY, &layout) == TUTTI_OK);
    for (int root = 0; root < 2; root++) {
        for (int one_rank = 0; one_rank < 2; one_rank++) {
            struct case_run run = { .plan = { .algorithm = collectives_find_algorithm(REDUCE, "read"),
                                        .layout = layout,
                                        .root = root,
                                        .slots = 1,
                                        .one_rank = one_rank } };
            expect_true(plan_build_staging(&run.plan) == TUTTI_OK);
            expect_true(case_try(rank, &run, TUTTI_FLOAT32, TUTTI_SUM) == TUTTI_UNSUPPORTED && status_is_refusal());
            expect_detail("17 sources");
            plan_finish(&run.plan);
        }
    }
    layout_destroy(layout);
    rank_close(rank);
}
static void test_ranks_refuse_what_one_of_them_cannot_compute(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 1, 1, 0, NULL }, rank_has_too_many_peers);
}
/* Streams that cannot take an operation: none, one of another device, and one that is captured. */
static void ranks_refuse_streams(struct stream_rank *rank)
{
    struct case_run run;
    struct stream_case c = allreduce_case(1024, 1);
    CUstream captured = stream_new();
    CUgraph graph;
    case_prepare(rank, &c, &run);
    device_use(1);
    CUstream other = stream_new();
    device_use(0);
    expect_true(case_try_sum(rank, &run, (CUstream)(uintptr_t)4096) == TUTTI_SYSTEM && status_is_refusal());
    expect_detail("CUDA_ERROR_INVALID_HANDLE");
    expect_true(case_try_sum(rank, &run, other) == TUTTI_INVALID_ARGUMENT && status_is_refusal());
    expect_detail("the primary context of device 0");
    expect_success(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    expect_true(case_try_sum(rank, &run, captured) == TUTTI_UNSUPPORTED && status_is_refusal());
    expect_detail("captured");
    expect_success(cuStreamEndCapture(captured, &graph));
    expect_success(cuGraphDestroy(graph));
    /* No context can become current. */
    CUcontext own;
    expect_success(cuCtxPopCurrent_v2(&own));
    fake_cuda_fail("cuCtxPushCurrent", 1, false, CUDA_ERROR_INVALID_CONTEXT);
    expect_true(case_try_sum(rank, &run, captured) == TUTTI_SYSTEM && status_is_refusal());
    expect_success(cuCtxPushCurrent_v2(own));
    case_enqueue(rank, &run, captured);
    expect_true(rank_wait(rank, run.number) == TUTTI_OK);
    case_check(rank, &run);
    rank_close(rank);
}
static void test_streams_that_cannot_take_operations_are_refused(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 2, 1, 0, NULL }, ranks_refuse_streams);
}
/* The second thread's operation waits for the first one's, although both name their stream by the same handle. */
static void *thread_enqueue_barrier(void *argument)
{
    struct stream_rank *rank = argument;
    struct plan plan;
    rank_plan(rank, collectives_find_algorithm(BARRIER, "read"), 0, 1, &plan);
    struct stream_operation operation = { &plan, 0, 0, 0, 1, TUTTI_FLOAT32, TUTTI_SUM, 1, 0, 0, NULL, 0 };
    rank_enqueue(rank, &operation, CU_STREAM_PER_THREAD);
    plan_finish(&plan);
    return NULL;
}
static void ranks_use_streams_of_threads(struct stream_rank *rank)
{
    pthread_t thread;
    uint32_t *word = host_new(4);
    *word = 0;
    expect_success(cuStreamWaitValue32_v2(CU_STREAM_PER_THREAD, (uintptr_t)word, 1, CU_STREAM_WAIT_VALUE_GEQ));
    thread_enqueue_barrier(rank);
    expect_true(pthread_create(&thread, NULL, thread_enqueue_barrier, rank) == 0 && pthread_join(thread, NULL) == 0);
    for (int i = 0; i < RUNS; i++, usleep(PAUSE_US)) expect_true(!stream_site_is_idle(rank->site));
    __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
    expect_true(rank_wait(rank, 2) == TUTTI_OK);
    rank_close(rank);
}
static void test_streams_of_threads_are_different(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 1, 1, 0, NULL }, ranks_use_streams_of_threads);
}
static void ranks_fail_to_launch(struct stream_rank *rank)
{
    struct case_run run;
    struct stream_case c = allreduce_case(1024, 1);
    case_prepare(rank, &c, &run);
    if (rank->rank == 0) {
        fake_cuda_fail("cuLaunchKernel", 2, false, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
        expect_true(case_try(rank, &run, TUTTI_FLOAT32, TUTTI_SUM) == TUTTI_SYSTEM);
        expect_detail("cuLaunchKernel failed");
    } else {
        case_enqueue_or_fail(rank, &run, stream_new(), TUTTI_SYSTEM);
        expect_true(rank_wait(rank, 1) == TUTTI_SYSTEM);
    }
    rank_drain(rank);
    device_is_usable();
    case_free(&run);
    ranks_meet(rank);
    stream_site_disconnect_peers(rank->site);
}
static void test_an_error_of_the_driver_fails_the_group(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 2, 1, 0, UNORDERED }, ranks_fail_to_launch);
}
/* A rank may enqueue 256 operations before another comes; then it tries again later. */
static void ranks_run_ahead(struct stream_rank *rank)
{
    struct case_run run;
    struct stream_case c = { collectives_find_algorithm(BARRIER, "read"), TUTTI_FLOAT32, TUTTI_SUM, 0, 1, 0, 1, false,
        1 };
    CUstream stream = stream_new();
    case_prepare(rank, &c, &run);
    struct stream_operation operation = { &run.plan, 0, 0, 0, 1, TUTTI_FLOAT32, TUTTI_SUM, 1, 0, 0, NULL, 0 };
    uint64_t number = 0;
    for (int i = 0; rank->rank == 0 && i < STREAM_OPERATIONS; i++)
        expect_true(stream_site_enqueue_operation(rank->site, &operation, stream, &number) == TUTTI_OK);
    if (rank->rank == 0) {
        expect_true(stream_site_enqueue_operation(rank->site, &operation, stream, &number) == TUTTI_IN_PROGRESS);
        expect_true(number == STREAM_OPERATIONS && rank->site->enqueued == number);
    }
    ranks_meet(rank);
    for (int i = rank->rank ? 0 : STREAM_OPERATIONS; i < 3 * STREAM_OPERATIONS; i++)
        number = rank_enqueue(rank, &operation, stream);
    expect_true(number == 3 * STREAM_OPERATIONS && rank_wait(rank, number) == TUTTI_OK);
    case_free(&run);
    rank_close(rank);
}
static void test_a_rank_may_run_ahead_of_others(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 2, 1, 0, "FAKE_CUDA_ORDER=0" }, ranks_run_ahead);
}

/* ---- the checker ---- */
/* Rank 0 leaves out the waits of its last step, and so reads sums that may not be there. */
static void ranks_leave_out_waits(struct stream_rank *rank)
{
    struct case_run run;
    struct stream_case c = allreduce_case(2000, 1);
    c.tile_bytes = 1 << 20;
    case_prepare(rank, &c, &run);
    struct schedule *schedule = &run.plan.ranks[rank->rank];
    for (int i = 2; i < schedule->step_count && rank->rank == 0; i++) schedule->steps[i].wait_count = 0;
    case_enqueue(rank, &run, stream_new());
    rank_wait(rank, run.number);
    ranks_meet(rank);
    expect_success(cuCtxSynchronize());
    case_free(&run);
    stream_site_disconnect_peers(rank->site);
    ranks_meet(rank);
}
static void test_a_missing_wait_is_reported(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    /* The race that this test plants is one for the thread sanitizer too. */
    skip();
#endif
    /* An earlier wait may by chance find the position that the missing one awaits, and so order the two. */
    int status = 0;
    for (int i = 0; i < RUNS && !status; i++)
        status = ranks_run(&(struct ranks_setup){ 2, 1, 0, "FAKE_CUDA_DELAY=shuffled FAKE_CUDA_HOST_READS=0" },
            ranks_leave_out_waits);
    assert_int_equal(status, CHILD_REPORTED);
    assert_non_null(strstr(child_said, "nothing orders the two"));
}

unit_function test_stream_failures;
int test_stream_failures(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams_end_if_a_rank_dies),
        cmocka_unit_test(test_all_ranks_report_the_first_failure),
        cmocka_unit_test(test_a_disagreement_fails_all_ranks),
        cmocka_unit_test(test_operations_that_differ_are_not_done),
        cmocka_unit_test(test_plans_that_differ_are_disagreements),
        cmocka_unit_test(test_refused_operations_leave_the_group_as_it_was),
        cmocka_unit_test(test_plans_that_streams_would_run_wrong_are_refused),
        cmocka_unit_test(test_ranks_refuse_what_one_of_them_cannot_compute),
        cmocka_unit_test(test_streams_that_cannot_take_operations_are_refused),
        cmocka_unit_test(test_streams_of_threads_are_different),
        cmocka_unit_test(test_an_error_of_the_driver_fails_the_group),
        cmocka_unit_test(test_a_rank_may_run_ahead_of_others),
        cmocka_unit_test(test_a_missing_wait_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
