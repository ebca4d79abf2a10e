/* Every algorithm that runs on one host without messages, on streams: results bit for bit, and no report of the checker
   of order. */
#include "tests/support/random.h"
#include "tests/unit/streams/cases.h"

/* FAKE_CUDA_HOST_READS=0: hosts order nothing by reading words. */
#define STRICT "FAKE_CUDA_HOST_READS=0 FAKE_CUDA_DELAY_US=300 FAKE_CUDA_DELAY="
enum { BATCH = 24 };

/* ---- every algorithm ---- */
/* Runs an algorithm in one tile and in several, with and without copies of the driver. */
static void algorithm_run(struct stream_rank *rank, const struct algorithm *algorithm, CUstream stream)
{
    static const size_t counts[] = { 5, 700, 4099 };
    struct stream_case cases[BATCH];
    int count = 0;
    for (int i = 0; i < 3; i++)
        for (int in_place = 0; in_place < (algorithm->collective == ALL_TO_ALL ? 1 : 2); in_place++)
            cases[count++] = (struct stream_case){
                .algorithm = algorithm,
                .dtype = in_place ? TUTTI_BFLOAT16 : TUTTI_FLOAT32,
                .op = in_place ? TUTTI_AVG : TUTTI_SUM,
                .count = algorithm->collective == BARRIER ? 0 : counts[i],
                .tile_bytes = i == 2 ? 4096 : 1 << 20,
                .root = collective_has_root(algorithm->collective) ? rank->ranks - 1 : 0,
                .slots = 1 + i,
                .in_place = in_place,
                .seed = (uint64_t)count + 100,
            };
    cases_run(rank, cases, count, &stream, 1);
}
static void ranks_run_all_algorithms(struct stream_rank *rank)
{
    int run = 0;
    CUstream stream = stream_new();
    for (const struct algorithm *a = collectives_table; a->name; a++) {
        if (!algorithm_is_for_streams(rank, a)) continue;
        algorithm_run(rank, a, stream);
        run++;
    }
    expect_true(run >= 20);
    rank_close(rank);
}
static void test_all_algorithms_give_the_bits_of_the_cpu(void **state)
{
    (void)state;
    static const struct ranks_setup setups[] = {
        { 2, 2, 0, STRICT "shuffled" },
        { 3, 2, 0, STRICT "delayed" },
#ifndef FEW
        { 1, 1, 0, STRICT "immediate" },
        { 2, 1, 0, STRICT "immediate" },
        { 4, 2, 0, STRICT "shuffled" },
        { 8, 2, 0, STRICT "immediate" },
#endif
    };
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) assert_ranks(&setups[i], ranks_run_all_algorithms);
}

/* ---- random sequences ---- */
static void ranks_run_random(struct stream_rank *rank, int streams)
{
    CUstream stream[2] = { stream_new(), stream_new() };
    struct stream_case cases[BATCH];
    uint64_t random = (uint64_t)rank->ranks;
    for (int batch = 0; batch < 4; batch++) {
        for (int i = 0; i < BATCH; i++) cases[i] = case_draw(rank, &random);
        cases_run(rank, cases, BATCH, stream, streams);
    }
    rank_close(rank);
}
static void ranks_run_random_on_one(struct stream_rank *rank) { ranks_run_random(rank, 1); }
/* Ranks use their streams in different turns. */
static void ranks_run_random_on_two(struct stream_rank *rank) { ranks_run_random(rank, 1 + rank->rank % 2); }
static void test_random_sequences_run_on_one_stream_and_on_two(void **state)
{
    (void)state;
    static const struct ranks_setup setups[] = {
        { 3, 1, 48 << 10, STRICT "shuffled FAKE_CUDA_SEED=3" },
#ifndef FEW
        { 2, 2, 0, STRICT "shuffled FAKE_CUDA_SEED=2" },
        { 4, 2, 96 << 10, STRICT "immediate" },
#endif
    };
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        assert_ranks(&setups[i], ranks_run_random_on_one);
        assert_ranks(&setups[i], ranks_run_random_on_two);
    }
}

unit_function test_stream_collectives;
int test_stream_collectives(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_algorithms_give_the_bits_of_the_cpu),
        cmocka_unit_test(test_random_sequences_run_on_one_stream_and_on_two),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
