/* The results of collectives on CUDA streams: all collectives and algorithms, sizes, in place, several streams. */
#include "tests/unit/cuda_calls/cuda_ranks.h"

static const char *const collectives[] = { "allreduce", "reduce", "broadcast", "reduce_scatter", "allgather",
    "all_to_all", "gather", "scatter", "barrier" };
enum { COLLECTIVES = sizeof collectives / sizeof *collectives };

static void rank_calls_all_collectives(struct cuda_rank *rank)
{
    static const size_t counts[] = { 0, 1, 1000, 40000 };
    for (int f = 0; f < COLLECTIVES; f++) {
        for (int k = 0; k < 4; k++) {
            struct cuda_call call = { .collective = collectives[f], .dtype = TUTTI_FLOAT32, .count = counts[k] };
            call.root = rank->me->size - 1;
            call.stream = k % CUDA_STREAMS;
            cuda_call_and_check(rank, &call);
            call.in_place = strcmp(call.collective, "all_to_all") != 0;
            cuda_call_and_check(rank, &call);
        }
    }
}
static void test_all_collectives_have_the_results_of_the_host(void **state)
{
    (void)state;
    assert_cuda_ranks(2, "FAKE_CUDA_DELAY=shuffled FAKE_CUDA_DELAY_US=100", rank_calls_all_collectives);
    assert_cuda_ranks(3, "TUTTI_CUDA_SLOT_BYTES=131072", rank_calls_all_collectives);
    assert_cuda_ranks(1, NULL, rank_calls_all_collectives);
}
/* If an algorithm does not run on streams, another one runs. */
static void rank_names_all_algorithms(struct cuda_rank *rank)
{
    const char *algorithm;
    for (int f = 0; f < COLLECTIVES; f++) {
        for (int i = 0; (algorithm = tutti_algorithm_name(collectives[f], i)) != NULL; i++) {
            struct cuda_call call = { .collective = collectives[f], .dtype = TUTTI_FLOAT32, .count = 7000 };
            call.algorithm = algorithm;
            cuda_call_and_check(rank, &call);
            call.algorithm = NULL;
            REQUIRE(tutti_comm_set_algorithm(rank->me->comm, collectives[f], algorithm) == TUTTI_OK);
            cuda_call_and_check(rank, &call);
        }
    }
}
static void test_any_algorithm_may_be_named(void **state)
{
    (void)state;
    assert_cuda_ranks(2, NULL, rank_names_all_algorithms);
    assert_cuda_ranks(3, "TUTTI_SLOTS=3 TUTTI_TILE_BYTES=8192", rank_names_all_algorithms);
}
/* A kernel reads at most 16 sources, which limits reductions only. */
static void rank_is_one_of_many(struct cuda_rank *rank)
{
    struct cuda_run run;
    struct cuda_call sum = cuda_call_sum(100, 0);
    cuda_run_prepare(rank, &sum, &run);
    REQUIRE(cuda_run_start(rank, &run) == TUTTI_UNSUPPORTED && tutti_last_error_is_refusal());
    cuda_run_free(&run);
    for (int f = 0; f < COLLECTIVES; f++) {
        struct cuda_call call = { .collective = collectives[f], .dtype = TUTTI_FLOAT32, .count = 100 };
        if (strstr(call.collective, "reduce")) call.count = 0;
        cuda_call_and_check(rank, &call);
        call.uneven = !strcmp(call.collective, "all_to_all") || !strcmp(call.collective, "allgather");
        if (call.uneven) cuda_call_and_check(rank, &call);
    }
}
static void test_many_ranks_move_data(void **state)
{
    (void)state;
    assert_cuda_ranks(17, "TUTTI_CUDA_SLOT_BYTES=65536", rank_is_one_of_many);
}

unit_function test_cuda_collectives;
int test_cuda_collectives(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_collectives_have_the_results_of_the_host),
        cmocka_unit_test(test_any_algorithm_may_be_named),
        cmocka_unit_test(test_many_ranks_move_data),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
