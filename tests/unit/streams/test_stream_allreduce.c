/* The first operation on streams: an allreduce of two ranks through slots. */
#include "backend/collectives/collectives.h"
#include "tests/unit/streams/ranks.h"

enum { COUNT = 1000 };
static void ranks_sum(struct stream_rank *rank)
{
    struct plan plan;
    float numbers[COUNT];
    CUdeviceptr input = memory_new(sizeof numbers), output = memory_new(sizeof numbers);
    for (int i = 0; i < COUNT; i++) numbers[i] = (float)(i + rank->rank);
    expect_success(cuMemcpyHtoD_v2(input, numbers, sizeof numbers));
    rank_plan(rank, collectives_find_algorithm(ALLREDUCE, "one_shot"), 0, 1, &plan);
    struct stream_operation operation = { &plan, input, output, sizeof numbers, 1 << 20, TUTTI_FLOAT32, TUTTI_SUM, 1, 0,
        0, NULL, 0 };
    uint64_t number = rank_enqueue(rank, &operation, stream_new());
    expect_true(rank_wait(rank, number) == TUTTI_OK);
    expect_success(cuMemcpyDtoH_v2(numbers, output, sizeof numbers));
    for (int i = 0; i < COUNT; i++) expect_true(numbers[i] == (float)(2 * i + 1));
    plan_finish(&plan);
    rank_close(rank);
}
static void test_two_ranks_sum(void **state)
{
    (void)state;
    struct ranks_setup setup = { 2, 1, 0, "FAKE_CUDA_DELAY=shuffled" };
    assert_ranks(&setup, ranks_sum);
}

unit_function test_stream_allreduce;
int test_stream_allreduce(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_ranks_sum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
