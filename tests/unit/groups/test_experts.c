/* Rows of a mixture of experts, for simulated ranks: each row is written to the place that follows from the counts, the
   sums are those of a loop over tokens and choices, a capacity drops the last rows, and wrong calls are refused with a
   text. */
#include "backend/base/memory.h"
#include "include/tutti_groups.h"
#include "tests/support/random.h"
#include "tests/support/unit.h"

enum { RANKS = 3, EXPERTS = 6, TOKENS = 40, CHOICES = 3, COLUMNS = 130, MOST = RANKS * TOKENS * CHOICES };
/* The tokens of a rank: the expert and the place of each choice, and the address of its first row at each expert. */
struct routed { int64_t expert[TOKENS][CHOICES], place[TOKENS][CHOICES]; void *first[EXPERTS]; };
static struct routed routes[RANKS];
/* Rank r has counts[r][e] rows for expert e, the first of them at first[r][e] of the expert's rank. */
static uint64_t counts[RANKS][EXPERTS], first[RANKS][EXPERTS], rows[RANKS];
static float x[RANKS][TOKENS][COLUMNS], weight[TOKENS][CHOICES], buffer[RANKS][MOST][COLUMNS];

static float fraction(uint64_t *seed) { return (float)(random_next(seed) >> 40) / (1 << 24); }
static tutti_experts_rows rows_of(int rank)
{
    tutti_experts_rows r = TUTTI_EXPERTS_ROWS_INIT;
    r.tokens = TOKENS;
    r.columns = COLUMNS;
    r.choices = CHOICES;
    r.expert = &routes[rank].expert[0][0];
    r.place = &routes[rank].place[0][0];
    r.first = routes[rank].first;
    return r;
}
/* Routes the tokens. way 0: at random; 1: all to one expert; 2: one choice names no expert; 3: one expert gets no
   token. */
static void route(int way, uint64_t capacity, uint64_t padded)
{
    uint64_t seed = (uint64_t)way + 1;
    for (int r = 0; r < RANKS; r++)
        for (int t = 0; t < TOKENS; t++)
            for (int k = 0; k < CHOICES; k++) {
                int64_t e = (int64_t)(random_next(&seed) % EXPERTS);
                routes[r].expert[t][k] = way == 1 ? 4 : way == 2 && k == 1 ? -1 : way == 3 && e == 2 ? 0 : e;
            }
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(tutti_experts_place(&routes[r].expert[0][0], TOKENS, CHOICES, EXPERTS, capacity,
                             &routes[r].place[0][0], counts[r]),
            TUTTI_OK);
    assert_int_equal(tutti_experts_offsets(&counts[0][0], RANKS, EXPERTS, padded, &first[0][0], rows), TUTTI_OK);
    for (int r = 0; r < RANKS; r++)
        for (int e = 0; e < EXPERTS; e++) routes[r].first[e] = buffer[e / (EXPERTS / RANKS)][first[r][e]];
}
static void check_rows(const float *weights, uint64_t capacity)
{
    uint64_t taken = 0;
    for (int r = 0; r < RANKS; r++) {
        uint64_t met[EXPERTS] = { 0 };
        for (int t = 0; t < TOKENS; t++)
            for (int k = 0; k < CHOICES; k++) {
                int64_t e = routes[r].expert[t][k];
                if (e < 0 || met[e] == capacity) {
                    assert_int_equal(routes[r].place[t][k], -1);
                    continue;
                }
                assert_int_equal(routes[r].place[t][k], met[e]);
                const float *row = buffer[e / (EXPERTS / RANKS)][first[r][e] + met[e]++];
                float factor = weights ? weights[t * CHOICES + k] : 1;
                for (int c = 0; c < COLUMNS; c++) assert_true(row[c] == x[r][t][c] * factor);
                taken++;
            }
        for (int e = 0; e < EXPERTS; e++) assert_int_equal(met[e], counts[r][e]);
    }
    uint64_t all = 0;
    for (int r = 0; r < RANKS; r++) all += rows[r];
    assert_true(taken <= all);
}
static void check_sums(int rank, const float *weights)
{
    static float out[TOKENS][COLUMNS], dots[TOKENS][CHOICES];
    tutti_experts_rows r = rows_of(rank);
    assert_int_equal(tutti_experts_gather(&r, out, weights), TUTTI_OK);
    assert_int_equal(tutti_experts_dot(&r, x[rank], &dots[0][0]), TUTTI_OK);
    for (int t = 0; t < TOKENS; t++) {
        float sum[COLUMNS] = { 0 };
        for (int k = 0; k < CHOICES; k++) {
            int64_t e = routes[rank].expert[t][k], place = routes[rank].place[t][k];
            if (place < 0) {
                assert_true(dots[t][k] == 0);
                continue;
            }
            const float *row = buffer[e / (EXPERTS / RANKS)][first[rank][e] + (uint64_t)place];
            double dot = 0;
            for (int c = 0; c < COLUMNS; c++) {
                /* The product is rounded before it is added. */
                volatile float term = row[c] * (weights ? weights[t * CHOICES + k] : 1);
                sum[c] += term;
                dot += (double)row[c] * x[rank][t][c];
            }
            assert_true(dots[t][k] > dot * 0.99999 - 1e-4 && dots[t][k] < dot * 1.00001 + 1e-4);
        }
        assert_memory_equal(out[t], sum, sizeof sum);
    }
}
static void scatter_and_gather(int way, uint64_t capacity, uint64_t padded)
{
    route(way, capacity, padded);
    for (int weighted = 0; weighted < 2; weighted++) {
        const float *weights = weighted ? &weight[0][0] : NULL;
        for (int r = 0; r < RANKS; r++) {
            tutti_experts_rows of_rank = rows_of(r);
            assert_int_equal(tutti_experts_scatter(&of_rank, x[r], weights), TUTTI_OK);
        }
        check_rows(weights, capacity);
        for (int r = 0; r < RANKS; r++) check_sums(r, weights);
    }
}
static void test_rows_are_scattered_and_gathered(void **state)
{
    (void)state;
    uint64_t seed = 5;
    for (int r = 0; r < RANKS; r++)
        for (int t = 0; t < TOKENS; t++)
            for (int c = 0; c < COLUMNS; c++) x[r][t][c] = fraction(&seed);
    for (int t = 0; t < TOKENS; t++)
        for (int k = 0; k < CHOICES; k++) weight[t][k] = fraction(&seed);
    for (int way = 0; way < 4; way++) {
        scatter_and_gather(way, UINT64_MAX, 0);
        scatter_and_gather(way, 7, 0);
        scatter_and_gather(way, 7, 7);
        scatter_and_gather(way, 0, 0);
    }
}
/* The rows of an expert are in the order of ranks, and the experts of a rank follow each other. */
static void test_offsets_follow_from_the_counts(void **state)
{
    (void)state;
    const uint64_t given[2][4] = { { 1, 2, 3, 4 }, { 5, 6, 7, 8 } };
    uint64_t at[2][4], all[2];
    assert_int_equal(tutti_experts_offsets(&given[0][0], 2, 4, 0, &at[0][0], all), TUTTI_OK);
    const uint64_t expected[2][4] = { { 0, 6, 0, 10 }, { 1, 8, 3, 14 } };
    assert_memory_equal(at, expected, sizeof at);
    assert_int_equal(all[0], 14);
    assert_int_equal(all[1], 22);
    assert_int_equal(tutti_experts_offsets(&given[0][0], 2, 4, 9, &at[0][0], all), TUTTI_OK);
    const uint64_t padded[2][4] = { { 0, 18, 0, 18 }, { 9, 27, 9, 27 } };
    assert_memory_equal(at, padded, sizeof at);
    assert_int_equal(all[0], 36);
}

static void expect_text(tutti_status status, const char *text)
{
    assert_int_equal(status, TUTTI_INVALID_ARGUMENT);
    assert_non_null(strstr(tutti_get_last_error(), text));
}
static void test_wrong_calls_are_refused(void **state)
{
    (void)state;
    int64_t wrong[] = { 0, 1, 2, 9 }, place[4];
    uint64_t count[4] = { 0 }, at[4], all[4];
    expect_text(tutti_experts_place(wrong, 2, 2, 3, 1, place, count), "token 1 chooses expert 9; allowed are 0 to 2");
    wrong[3] = -2;
    expect_text(tutti_experts_place(wrong, 2, 2, 3, 1, place, count), "token 1 chooses expert -2");
    expect_text(tutti_experts_place(wrong, 2, 0, 3, 1, place, count), "3 experts, and 0 choices of a token");
    expect_text(tutti_experts_place(NULL, 2, 2, 3, 1, place, count), "is NULL");
    expect_text(tutti_experts_offsets(count, 3, 4, 0, at, all), "4 experts cannot be divided evenly among 3 ranks");
    count[1] = 5;
    expect_text(tutti_experts_offsets(count, 2, 2, 4, at, all), "rank 0 has 5 rows for expert 1, but there is room");
    expect_text(tutti_experts_offsets(count, 2, 2, 0, NULL, all), "is NULL");
    tutti_experts_rows r = rows_of(0);
    r.dtype = TUTTI_FLOAT64;
    expect_text(tutti_experts_scatter(&r, x[0], NULL), "rows of type float64 cannot be moved");
    r = rows_of(0);
    r.choices = 65;
    expect_text(tutti_experts_gather(&r, x[0], NULL), "65 choices for each token; allowed are 1 to 64");
    r = rows_of(0);
    expect_text(tutti_experts_dot(&r, x[0], NULL), "is NULL");
    expect_text(tutti_experts_dot(&r, NULL, &weight[0][0]), "is NULL");
    r.struct_size = 8;
    expect_text(tutti_experts_dot(&r, x[0], &weight[0][0]), "TUTTI_EXPERTS_ROWS_INIT");
    /* Without tokens the arrays may be NULL. */
    assert_int_equal(tutti_experts_place(NULL, 0, 2, 3, 1, NULL, count), TUTTI_OK);
}

unit_function test_experts;
int test_experts(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_rows_are_scattered_and_gathered),
        cmocka_unit_test(test_offsets_follow_from_the_counts), cmocka_unit_test(test_wrong_calls_are_refused) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
