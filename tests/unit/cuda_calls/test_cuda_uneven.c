/* Collectives with uneven counts on CUDA streams: results, sizes, disagreements, and ranks that are gone. */
#include "tests/unit/cuda_calls/cuda_ranks.h"
#include <signal.h>

#define SHUFFLED "FAKE_CUDA_HOST_READS=0 FAKE_CUDA_DELAY=shuffled FAKE_CUDA_DELAY_US=100"
static const char *const collectives[] = { "all_to_all", "allgather", "reduce_scatter" };
enum { COLLECTIVES = 3 };
static struct cuda_call call_make(const char *collective, size_t count, int stream)
{
    return (struct cuda_call){
        .collective = collective, .dtype = TUTTI_FLOAT32, .count = count, .uneven = true, .stream = stream
    };
}

/* ---- results ---- */
static void rank_calls_uneven_collectives(struct cuda_rank *rank)
{
    static const size_t counts[] = { 0, 2, 1000, 40000 };
    for (int f = 0; f < COLLECTIVES; f++) {
        for (int k = 0; k < 4; k++) {
            struct cuda_call call = call_make(collectives[f], counts[k], k % CUDA_STREAMS);
            cuda_call_and_check(rank, &call);
            call.in_place = f > 0;
            call.op = f == 2 ? TUTTI_PREMUL_SUM : TUTTI_SUM;
            cuda_call_and_check(rank, &call);
        }
    }
}
static void test_uneven_collectives_have_the_results_of_the_host(void **state)
{
    (void)state;
    assert_cuda_ranks(2, SHUFFLED, rank_calls_uneven_collectives);
    assert_cuda_ranks(3, "TUTTI_CUDA_SLOT_BYTES=16384 TUTTI_SLOTS=3 " SHUFFLED, rank_calls_uneven_collectives);
    assert_cuda_ranks(4, "TUTTI_CUDA_SLOT_BYTES=131072 TUTTI_SLOTS=1", rank_calls_uneven_collectives);
    assert_cuda_ranks(1, NULL, rank_calls_uneven_collectives);
}
/* Even and uneven calls follow each other on two streams, without a wait between them. */
static void rank_mixes_calls(struct cuda_rank *rank)
{
    enum { CALLS = 24 };
    static const size_t counts[] = { 900, 64, 7000, 0, 20000 };
    struct cuda_run runs[CALLS];
    for (int i = 0; i < CALLS; i++) {
        struct cuda_call call = call_make(collectives[i % COLLECTIVES], counts[i % 5], i / 3 % CUDA_STREAMS);
        call.uneven = i % 4 != 3;
        cuda_run_prepare(rank, &call, &runs[i]);
    }
    for (int i = 0; i < CALLS; i++) REQUIRE(cuda_run_start(rank, &runs[i]) == TUTTI_OK);
    for (int i = 0; i < CALLS; i++) {
        REQUIRE(cuda_run_wait(&runs[i]) == TUTTI_OK);
        cuda_run_check(rank, &runs[i]);
        cuda_run_free(&runs[i]);
    }
}
static void test_even_and_uneven_calls_follow_each_other(void **state)
{
    (void)state;
    assert_cuda_ranks(2, SHUFFLED " FAKE_CUDA_SEED=2", rank_mixes_calls);
    assert_cuda_ranks(3, "TUTTI_CUDA_SLOT_BYTES=65536 FAKE_CUDA_SEED=3 " SHUFFLED, rank_mixes_calls);
}
/* The tiles of a rank take several times the room of the driver's queue. */
static void rank_sends_large_messages(struct cuda_rank *rank)
{
    for (int f = 0; f < COLLECTIVES; f++) {
        struct cuda_call call = call_make(collectives[f], 600001, 0);
        call.dtype = TUTTI_UINT8;
        cuda_call_and_check(rank, &call);
    }
}
static void test_a_call_waits_for_room_for_its_tiles(void **state)
{
    (void)state;
    assert_cuda_ranks(2, "TUTTI_CUDA_SLOT_BYTES=8192 FAKE_CUDA_ORDER=0", rank_sends_large_messages);
}
/* A rank makes more calls than have room for their counts, while the other has made none. */
static void rank_makes_many_calls(struct cuda_rank *rank)
{
    enum { MANY = 100 };
    struct cuda_run runs[MANY];
    struct cuda_call call = call_make("all_to_all", 30, 0);
    for (int i = 0; i < MANY; i++) cuda_run_prepare(rank, &call, &runs[i]);
    REQUIRE(tutti_barrier(rank->me->comm, NULL) == TUTTI_OK);
    for (int i = 0; i < MANY; i++) {
        if (rank->me->rank == 1 && i == 0) sleep_us(20000);
        REQUIRE(cuda_run_start(rank, &runs[i]) == TUTTI_OK);
    }
    for (int i = 0; i < MANY; i++) REQUIRE(cuda_run_wait(&runs[i]) == TUTTI_OK);
    for (int i = 0; i < MANY; i++) {
        cuda_run_check(rank, &runs[i]);
        cuda_run_free(&runs[i]);
    }
}
static void test_many_calls_reuse_the_room_of_counts(void **state)
{
    (void)state;
    assert_cuda_ranks(2, NULL, rank_makes_many_calls);
}

/* ---- failures ---- */
/* In the first call rank 0 sends two elements more than rank 1 expects. Rank 0 makes all its calls ahead of rank 1, as
   far as it can. */
static void rank_sends_another_count(struct cuda_rank *rank)
{
    enum { MANY = 100 };
    size_t sent[] = { 10, 10 }, received[] = { 10, 10 }, offsets[] = { 0, 100 };
    CUdeviceptr memory;
    tutti_request *requests = world_requests(MANY);
    tutti_status status = TUTTI_OK;
    REQUIRE(cuMemAlloc_v2(&memory, 4096) == CUDA_SUCCESS);
    char *send = (void *)(uintptr_t)memory, *recv = send + 2048;
    if (rank->me->rank == 1) sleep_us(20000);
    int calls = 0;
    for (; calls < MANY && status == TUTTI_OK; calls += status == TUTTI_OK) {
        sent[1] = rank->me->rank == 0 && calls == 0 ? 12 : 10;
        requests[calls].on_stream = true;
        requests[calls].stream = rank->streams[0];
        status = tutti_all_to_all_v(send, sent, offsets, recv, received, offsets, TUTTI_FLOAT32, rank->me->comm,
            &requests[calls]);
    }
    for (int i = 0; i < calls; i++) {
        REQUIRE(tutti_wait(&requests[i], 0) == TUTTI_MISMATCH);
        REQUIRE_TEXT("all_to_all with uneven counts, operation 1 on streams of");
        REQUIRE_TEXT("rank 0 sends 48 bytes to rank 1, which expects 40");
    }
    cuda_rank_check_device(rank);
    REQUIRE(cuMemFree_v2(memory) == CUDA_SUCCESS);
    free(requests);
}
/* Ranks that gather must know the counts of all. */
static void rank_gathers_another_count(struct cuda_rank *rank)
{
    struct cuda_run run;
    struct cuda_call call = call_make("allgather", rank->me->rank ? 40 : 44, 0);
    cuda_run_prepare(rank, &call, &run);
    tutti_status status = cuda_run_start(rank, &run);
    if (status == TUTTI_OK) status = cuda_run_wait(&run);
    REQUIRE(status == TUTTI_MISMATCH);
    REQUIRE_TEXT("ranks disagree about operation 1 on streams of");
    cuda_rank_check_device(rank);
    cuda_run_free(&run);
}
static void rank_calls_even_and_uneven(struct cuda_rank *rank)
{
    struct cuda_run run;
    struct cuda_call call = call_make("all_to_all", 40, 0);
    call.uneven = rank->me->rank;
    cuda_run_prepare(rank, &call, &run);
    tutti_status status = cuda_run_start(rank, &run);
    if (status == TUTTI_OK) status = cuda_run_wait(&run);
    REQUIRE(status == TUTTI_MISMATCH);
    cuda_rank_check_device(rank);
    cuda_run_free(&run);
}
/* Rank 0 sends other bytes to itself than it expects, in a call that waits for room for its tiles. */
static void rank_disagrees_with_itself(struct cuda_rank *rank)
{
    enum { LONG = 600000 };
    size_t sent[] = { LONG, LONG }, received[] = { LONG, LONG }, offsets[] = { 0, 2 * LONG };
    CUdeviceptr memory;
    tutti_request request = TUTTI_REQUEST_INIT;
    REQUIRE(cuMemAlloc_v2(&memory, 8 * LONG) == CUDA_SUCCESS);
    char *send = (void *)(uintptr_t)memory, *recv = send + 4 * LONG;
    if (rank->me->rank == 0) sent[0] = LONG + 3;
    request.on_stream = true;
    request.stream = rank->streams[0];
    tutti_status status =
        tutti_all_to_all_v(send, sent, offsets, recv, received, offsets, TUTTI_UINT8, rank->me->comm, &request);
    REQUIRE(status == TUTTI_MISMATCH);
    REQUIRE_TEXT("rank 0 sends 600003 bytes to rank 0, which expects 600000");
    cuda_rank_check_device(rank);
    REQUIRE(cuMemFree_v2(memory) == CUDA_SUCCESS);
}
/* Other types have other bytes, but the error is about the call. */
static void rank_calls_another_type(struct cuda_rank *rank)
{
    struct cuda_run run;
    struct cuda_call call = call_make("all_to_all", 40, 0);
    call.dtype = rank->me->rank ? TUTTI_FLOAT64 : TUTTI_FLOAT32;
    cuda_run_prepare(rank, &call, &run);
    tutti_status status = cuda_run_start(rank, &run);
    if (status == TUTTI_OK) status = cuda_run_wait(&run);
    REQUIRE(status == TUTTI_MISMATCH);
    REQUIRE_TEXT("ranks disagree about operation 1 on streams of");
    cuda_rank_check_device(rank);
    cuda_run_free(&run);
}
static void test_counts_that_disagree_fail(void **state)
{
    (void)state;
    assert_cuda_ranks(2, UNORDERED, rank_sends_another_count);
    assert_cuda_ranks(2, UNORDERED, rank_gathers_another_count);
    assert_cuda_ranks(2, UNORDERED, rank_calls_even_and_uneven);
    assert_cuda_ranks(2, UNORDERED, rank_calls_another_type);
    assert_cuda_ranks(2, "TUTTI_CUDA_SLOT_BYTES=8192 " UNORDERED, rank_disagrees_with_itself);
}
/* A call that waits for room for its tiles ends when the other rank dies, or at its timeout. */
static void rank_is_alone_in_a_call(struct cuda_rank *rank, bool dies)
{
    struct cuda_run run;
    struct cuda_call call = call_make("all_to_all", 600000, 0);
    cuda_run_prepare(rank, &call, &run);
    REQUIRE(tutti_barrier(rank->me->comm, NULL) == TUTTI_OK);
    if (rank->me->rank == 1 && dies) raise(SIGKILL);
    if (rank->me->rank == 0) {
        run.request.timeout_ms = dies ? 0 : 100;
        REQUIRE(cuda_run_start(rank, &run) == (dies ? TUTTI_PEER_LOST : TUTTI_TIMEOUT));
        REQUIRE_TEXT(dies ? "rank 1 of the group" : "calls have not been made by rank 1");
        cuda_rank_check_device(rank);
    } else {
        while (tutti_comm_get_async_error(rank->me->comm) == TUTTI_OK) sleep_us(1000);
    }
    cuda_run_free(&run);
}
static void rank_is_alone_because_of_a_death(struct cuda_rank *rank) { rank_is_alone_in_a_call(rank, true); }
static void rank_is_alone_until_its_timeout(struct cuda_rank *rank) { rank_is_alone_in_a_call(rank, false); }
/* The stream thread asks whether the device works, while the call waits. */
static void rank_loses_its_device(struct cuda_rank *rank)
{
    struct cuda_run run;
    struct cuda_call call = call_make("all_to_all", 600000, 0);
    cuda_run_prepare(rank, &call, &run);
    if (rank->me->rank == 0) {
        fake_cuda_fail("cuStreamQuery", 1, true, CUDA_ERROR_LAUNCH_FAILED);
        REQUIRE(cuda_run_start(rank, &run) == TUTTI_SYSTEM);
        REQUIRE_TEXT("rank 0 of the group: its CUDA device has failed");
    } else {
        while (tutti_comm_get_async_error(rank->me->comm) == TUTTI_OK) sleep_us(1000);
    }
    free(run.sent);
}
static void test_a_call_that_waits_for_room_ends(void **state)
{
    (void)state;
    assert_cuda_ranks(2, "TUTTI_CUDA_SLOT_BYTES=8192 " UNORDERED, rank_loses_its_device);
    assert_int_equal(cuda_ranks_run(2, "TUTTI_CUDA_SLOT_BYTES=8192 " UNORDERED, rank_is_alone_because_of_a_death), 1);
    assert_cuda_ranks(2, "TUTTI_CUDA_SLOT_BYTES=8192 " UNORDERED, rank_is_alone_until_its_timeout);
}

unit_function test_cuda_uneven;
int test_cuda_uneven(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_uneven_collectives_have_the_results_of_the_host),
        cmocka_unit_test(test_even_and_uneven_calls_follow_each_other),
        cmocka_unit_test(test_a_call_waits_for_room_for_its_tiles),
        cmocka_unit_test(test_many_calls_reuse_the_room_of_counts),
        cmocka_unit_test(test_counts_that_disagree_fail),
        cmocka_unit_test(test_a_call_that_waits_for_room_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
