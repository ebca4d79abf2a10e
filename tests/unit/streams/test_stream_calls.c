/* Counts the calls of the driver that an operation of one tile takes. docs/decisions/plans-on-streams.md has the
   numbers. */
#include "tests/unit/streams/cases.h"

/* The most calls of any rank: batches of waits and writes, and launches. Each operation also asks for the current
   context, and for the stream's capture, context and id. */
enum { QUERIES = 4 };
static const struct {
    enum collective collective;
    const char *algorithm;
    int batches, launches;
} expected[] = {
    { ALLREDUCE, "one_shot", 2, 2 },
    { ALLREDUCE, "two_shot", 3, 3 },
    { ALLREDUCE, "two_shot_read", 3, 3 },
    { REDUCE, "read", 2, 1 },
    { BROADCAST, "read", 2, 1 },
    { REDUCE_SCATTER, "read", 2, 2 },
    { ALLGATHER, "read", 2, 2 },
    { ALLGATHER, "write", 2, 2 },
    { ALL_TO_ALL, "read", 2, 2 },
    { ALL_TO_ALL, "write", 2, 2 },
    { GATHER, "read", 2, 1 },
    { SCATTER, "read", 2, 1 },
    { BARRIER, "read", 1, 0 },
};
enum { ROWS = sizeof expected / sizeof *expected };

static void calls_expect(struct stream_rank *rank, int row, CUstream stream)
{
    enum collective collective = expected[row].collective;
    struct case_run run;
    struct stream_case c = {
        .algorithm = collectives_find_algorithm(collective, expected[row].algorithm),
        .dtype = TUTTI_FLOAT32,
        .count = collective == BARRIER ? 0 : 256,
        .tile_bytes = 1 << 20,
        .slots = 1,
        .seed = 1,
    };
    case_prepare(rank, &c, &run);
    int batches = (int)fake_cuda_count("cuStreamBatchMemOp"), launches = (int)fake_cuda_count("cuLaunchKernel"),
        calls = (int)fake_cuda_count(NULL);
    case_enqueue(rank, &run, stream);
    calls = (int)fake_cuda_count(NULL) - calls;
    batches = (int)fake_cuda_count("cuStreamBatchMemOp") - batches;
    launches = (int)fake_cuda_count("cuLaunchKernel") - launches;
    if (batches > expected[row].batches || launches > expected[row].launches || calls != batches + launches + QUERIES)
        fprintf(stderr, "%s of %d ranks, rank %d: %d batches, %d launches, %d calls\n", expected[row].algorithm,
            rank->ranks, rank->rank, batches, launches, calls);
    expect_true(batches <= expected[row].batches && launches <= expected[row].launches);
    expect_true(calls == batches + launches + QUERIES);
    expect_true(rank_wait(rank, run.number) == TUTTI_OK);
    case_check(rank, &run);
}
/* The first operations find no functions of kernels and load none, because that may wait for peers. */
static void ranks_count_calls(struct stream_rank *rank)
{
    CUstream stream = stream_new();
    for (int row = 0; row < ROWS; row++) calls_expect(rank, row, stream);
    rank_close(rank);
}
static void test_small_operations_take_few_calls(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 2, 1, 0, NULL }, ranks_count_calls);
    assert_ranks(&(struct ranks_setup){ 4, 1, 0, NULL }, ranks_count_calls);
}

unit_function test_stream_calls;
int test_stream_calls(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_operations_take_few_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
