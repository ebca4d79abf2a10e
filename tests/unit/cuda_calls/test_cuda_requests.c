/* Requests of calls on streams: callbacks, queues, order of streams, types and operations, large messages, and a device
   with too much work. */
#include "tests/unit/cuda_calls/cuda_ranks.h"
#include <pthread.h>

static void rank_wait_and_check(struct cuda_rank *rank, struct cuda_run *run)
{
    REQUIRE(cuda_run_wait(run) == TUTTI_OK);
    cuda_run_check(rank, run);
    cuda_run_free(run);
}

/* ---- ends ---- */
struct ended { pthread_t caller; _Atomic int count; };
static void request_count_end(tutti_request *request, void *context)
{
    struct ended *ended = context;
    REQUIRE(tutti_test(request) == TUTTI_OK);
    REQUIRE(!pthread_equal(pthread_self(), ended->caller));
    atomic_fetch_add(&ended->count, 1);
}
static void rank_has_callbacks(struct cuda_rank *rank)
{
    struct ended ended = { .caller = pthread_self() };
    struct cuda_run run;
    struct cuda_call call = cuda_call_sum(1000, 0);
    cuda_run_prepare(rank, &call, &run);
    run.request.done = request_count_end;
    run.request.context = &ended;
    _Atomic uint32_t *word = cuda_stream_block(rank->streams[0]);
    REQUIRE(cuda_run_start(rank, &run) == TUTTI_OK);
    REQUIRE(tutti_detach(&run.request) == TUTTI_OK);
    REQUIRE(tutti_test(&run.request) == TUTTI_IN_PROGRESS && !ended.count);
    *word = 1;
    while (!ended.count) sleep_us(100);
    rank_wait_and_check(rank, &run);
    REQUIRE(ended.count == 1 && run.request.sequence == 1);
}
static void rank_has_a_queue(struct cuda_rank *rank)
{
    enum { RUNS = 8 };
    tutti_queue *queue;
    tutti_request *ended;
    struct cuda_run runs[RUNS];
    REQUIRE(tutti_queue_create(&queue) == TUTTI_OK);
    for (int i = 0; i < RUNS; i++) {
        struct cuda_call call = cuda_call_sum(500, i % CUDA_STREAMS);
        cuda_run_prepare(rank, &call, &runs[i]);
        runs[i].request.queue = queue;
        REQUIRE(cuda_run_start(rank, &runs[i]) == TUTTI_OK);
    }
    for (int i = 0; i < RUNS; i++) {
        REQUIRE(tutti_queue_wait(queue, -1, &ended) == TUTTI_OK && ended == &runs[i].request);
        REQUIRE(tutti_test(ended) == TUTTI_OK);
    }
    for (int i = 0; i < RUNS; i++) rank_wait_and_check(rank, &runs[i]);
    REQUIRE(tutti_queue_destroy(queue) == TUTTI_OK);
}
/* NULL is the legacy stream. */
static void rank_uses_legacy_stream(struct cuda_rank *rank)
{
    struct cuda_run runs[4];
    for (int i = 0; i < 4; i++) {
        struct cuda_call call = cuda_call_sum(500, i % CUDA_STREAMS);
        cuda_run_prepare(rank, &call, &runs[i]);
        if (i % 2) runs[i].request.stream = NULL;
        REQUIRE(cuda_run_start(rank, &runs[i]) == TUTTI_OK);
    }
    for (int i = 0; i < 4; i++) rank_wait_and_check(rank, &runs[i]);
}
static void test_the_legacy_stream_is_a_stream(void **state)
{
    (void)state;
    assert_cuda_ranks(2, "FAKE_CUDA_DELAY=shuffled FAKE_CUDA_DELAY_US=300", rank_uses_legacy_stream);
}
static void test_callbacks_and_queues_report_the_end(void **state)
{
    (void)state;
    assert_cuda_ranks(2, NULL, rank_has_callbacks);
    assert_cuda_ranks(2, NULL, rank_has_a_queue);
}

/* ---- arithmetic and sizes ---- */
static void rank_sums_all_types(struct cuda_rank *rank)
{
    static const struct {
        tutti_dtype dtype;
        tutti_op op;
    } sums[] = { { TUTTI_BFLOAT16, TUTTI_SUM }, { TUTTI_FLOAT32, TUTTI_AVG }, { TUTTI_FLOAT32, TUTTI_PREMUL_SUM },
        { TUTTI_INT64, TUTTI_MAX }, { TUTTI_UINT8, TUTTI_BXOR }, { TUTTI_BOOL, TUTTI_SUM },
        { TUTTI_INT32, TUTTI_PROD } };
    static const char *const collectives[] = { "allreduce", "reduce", "reduce_scatter" };
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
        for (int k = 0; k < 3; k++) {
            struct cuda_call call = { .collective = collectives[k],
                .dtype = sums[i].dtype,
                .op = sums[i].op,
                .count = 1001,
                .stream = k % CUDA_STREAMS };
            cuda_call_and_check(rank, &call);
        }
    }
}
static void test_types_have_the_results_of_the_host(void **state)
{
    (void)state;
    assert_cuda_ranks(2, NULL, rank_sums_all_types);
}
/* Each message needs several operations, and each operation most of the queue of the driver. */
static void rank_sends_large_messages(struct cuda_rank *rank)
{
    static const char *const collectives[] = { "allreduce", "broadcast", "reduce_scatter", "allgather", "all_to_all",
        "gather", "scatter" };
    for (int i = 0; i < 7; i++) {
        struct cuda_call call = { .collective = collectives[i], .dtype = TUTTI_UINT8, .count = 300001 };
        cuda_call_and_check(rank, &call);
        call.in_place = strcmp(call.collective, "all_to_all") != 0;
        cuda_call_and_check(rank, &call);
    }
}
static void test_large_messages_become_several_operations(void **state)
{
    (void)state;
    assert_cuda_ranks(2, "TUTTI_CUDA_SLOT_BYTES=8192 FAKE_CUDA_ORDER=0", rank_sends_large_messages);
}

/* ---- much work ---- */
enum { MANY = 400 };
static void *word_set_later(void *word)
{
    sleep_us(20000);
    atomic_store((_Atomic uint32_t *)word, 1);
    return NULL;
}
/* The device accepts fewer operations than the rank calls, so calls wait until the stream goes on. */
static void rank_calls_more_than_fit(struct cuda_rank *rank)
{
    pthread_t thread;
    struct cuda_run run;
    struct cuda_call call = cuda_call_sum(64, 0);
    tutti_request *requests = world_requests(MANY);
    cuda_run_prepare(rank, &call, &run);
    _Atomic uint32_t *word = cuda_stream_block(rank->streams[0]);
    REQUIRE(pthread_create(&thread, NULL, word_set_later, word) == 0);
    for (int i = 0; i < MANY; i++) {
        requests[i].on_stream = true;
        requests[i].stream = rank->streams[0];
        REQUIRE(tutti_all_reduce((void *)(uintptr_t)run.input, (void *)(uintptr_t)run.output, 64, TUTTI_FLOAT32,
                    TUTTI_SUM, rank->me->comm, &requests[i])
            == TUTTI_OK);
    }
    for (int i = 0; i < MANY; i++) REQUIRE(tutti_wait(&requests[i], 0) == TUTTI_OK);
    REQUIRE(pthread_join(thread, NULL) == 0);
    cuda_run_check(rank, &run);
    cuda_run_free(&run);
    free(requests);
}
/* The stream does not go on before the timeout of a call that waits for room. */
static void rank_finds_no_room(struct cuda_rank *rank)
{
    struct cuda_run run;
    struct cuda_call call = cuda_call_sum(64, 0);
    tutti_request *requests = world_requests(MANY);
    tutti_status status = TUTTI_OK;
    int started = 0;
    cuda_run_prepare(rank, &call, &run);
    _Atomic uint32_t *word = cuda_stream_block(rank->streams[0]);
    for (; status == TUTTI_OK; started += status == TUTTI_OK) {
        requests[started].on_stream = true;
        requests[started].stream = rank->streams[0];
        requests[started].timeout_ms = started < 100 ? 0 : 100;
        status = tutti_all_reduce((void *)(uintptr_t)run.input, (void *)(uintptr_t)run.output, 64, TUTTI_FLOAT32,
            TUTTI_SUM, rank->me->comm, &requests[started]);
    }
    REQUIRE(status == TUTTI_TIMEOUT && started < MANY);
    *word = 1;
    for (int i = 0; i < started; i++) REQUIRE(tutti_wait(&requests[i], 0) == TUTTI_TIMEOUT);
    cuda_rank_check_device(rank);
    cuda_run_free(&run);
    free(requests);
}
static void test_calls_wait_for_room(void **state)
{
    (void)state;
    assert_cuda_ranks(2, "FAKE_CUDA_ORDER=0", rank_calls_more_than_fit);
    assert_cuda_ranks(2, UNORDERED, rank_finds_no_room);
}

/* ---- threads ---- */
struct caller { struct cuda_rank *rank; struct cuda_run run; };
static void *caller_main(void *argument)
{
    struct caller *caller = argument;
    REQUIRE(cuda_run_start(caller->rank, &caller->run) == TUTTI_OK && cuda_run_wait(&caller->run) == TUTTI_OK);
    return NULL;
}
/* The calls are equal, so their order does not matter. Another thread uses the group on the host. */
static void rank_has_several_callers(struct cuda_rank *rank)
{
    enum { CALLERS = 4 };
    struct caller callers[CALLERS];
    pthread_t threads[CALLERS];
    struct cuda_call call = cuda_call_sum(2000, 0);
    for (int i = 0; i < CALLERS; i++) {
        callers[i].rank = rank;
        call.stream = i % CUDA_STREAMS;
        cuda_run_prepare(rank, &call, &callers[i].run);
    }
    for (int i = 0; i < CALLERS; i++) REQUIRE(pthread_create(&threads[i], NULL, caller_main, &callers[i]) == 0);
    for (int i = 0; i < 50; i++) REQUIRE(tutti_barrier(rank->me->comm, NULL) == TUTTI_OK);
    for (int i = 0; i < CALLERS; i++) REQUIRE(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < CALLERS; i++) rank_wait_and_check(rank, &callers[i].run);
}
static void test_several_threads_may_call(void **state)
{
    (void)state;
    assert_cuda_ranks(2, NULL, rank_has_several_callers);
}

unit_function test_cuda_requests;
int test_cuda_requests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_legacy_stream_is_a_stream),
        cmocka_unit_test(test_callbacks_and_queues_report_the_end),
        cmocka_unit_test(test_types_have_the_results_of_the_host),
        cmocka_unit_test(test_large_messages_become_several_operations),
        cmocka_unit_test(test_calls_wait_for_room),
        cmocka_unit_test(test_several_threads_may_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
