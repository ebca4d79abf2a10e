/* A row of bench_core is judged by its goal, or by a limit of the machine if the limit allows more time. */
#include "tests/bench/outcome.h"
#include "tests/support/unit.h"

static const struct bench_case allreduce = { ALLREDUCE, 1 << 26, 2, TUTTI_FLOAT32, .in_place = true, .beside = MEMCPY,
    .goal = 1.12 };
/* Returns an outcome with these times, in ns. */
static struct outcome outcome_of_times(double median, double memcpy_ns, double memory, double crossing)
{
    return (struct outcome){ .measured = true,
        .median = median,
        .beside = memcpy_ns,
        .ratio = median / memcpy_ns,
        .memory = memory,
        .crossing = crossing };
}

static void test_outcome_is_judged_by_a_goal_within_reach(void **state)
{
    struct outcome slow = outcome_of_times(1200, 1000, 800, 890), fast = outcome_of_times(1100, 1000, 800, 890);
    (void)state;
    assert_string_equal(outcome_judge(&allreduce, &slow), "goal");
    assert_false(outcome_is_met(&allreduce, &slow));
    assert_true(outcome_is_met(&allreduce, &fast));
}
/* memcpy takes 9200 ns in the cache of one core. The bytes take 16800 ns from core to core. */
static void test_outcome_is_judged_by_crossing_if_memcpy_stays_in_a_cache(void **state)
{
    struct outcome near = outcome_of_times(20000, 9200, 5000, 16800), far = outcome_of_times(21100, 9200, 5000, 16800);
    (void)state;
    assert_string_equal(outcome_judge(&allreduce, &near), "crossing");
    assert_true(outcome_is_met(&allreduce, &near));
    assert_false(outcome_is_met(&allreduce, &far));
}
static void test_outcome_is_judged_by_memory_if_memcpy_bypasses_the_caches(void **state)
{
    struct bench_case shared = allreduce;
    struct outcome row = outcome_of_times(21200, 30300, 20600, 0);
    (void)state;
    shared.shared = true;
    shared.goal = 0.52;
    assert_string_equal(outcome_judge(&shared, &row), "memory");
    assert_true(outcome_is_met(&shared, &row));
}
static void test_outcome_beside_flags_is_judged_by_its_goal(void **state)
{
    struct bench_case small = allreduce;
    struct outcome row = outcome_of_times(130, 100, 100, 0);
    (void)state;
    small.beside = FLAG_BARRIER;
    small.goal = 1.25;
    assert_string_equal(outcome_judge(&small, &row), "goal");
    assert_false(outcome_is_met(&small, &row));
}
static void test_outcome_without_a_goal_is_not_judged_by_a_limit(void **state)
{
    struct bench_case free = allreduce;
    struct outcome row = outcome_of_times(20000, 9200, 5000, 16800);
    (void)state;
    free.goal = 0;
    assert_string_equal(outcome_judge(&free, &row), "goal");
}
/* memcpy takes as long as the limit here. Judged by its goal, a row at 1.14 times the limit would fail, because the
   goal allows 1.12 times memcpy. */
static void test_outcome_is_judged_by_a_limit_close_to_the_goal(void **state)
{
    struct outcome row = outcome_of_times(1140, 1000, 800, 1000);
    (void)state;
    assert_string_equal(outcome_judge(&allreduce, &row), "crossing");
    assert_true(outcome_is_met(&allreduce, &row));
}
/* The reference T_coh counts the transfer of the bytes, but not the barrier of the ranks. */
static void test_outcome_of_a_small_tensor_is_judged_by_crossing_with_its_barrier(void **state)
{
    struct bench_case small = allreduce;
    struct outcome row = outcome_of_times(1260, 740, 150, 1320);
    (void)state;
    small.beside = COHERENCE;
    small.bytes = 4096;
    small.goal = 1.15;
    assert_string_equal(outcome_judge(&small, &row), "crossing");
    assert_true(outcome_is_met(&small, &row));
}
/* The float32 reference takes 2050 ns, a little less than the limit of memory (2180 ns), so the limit judges the row. A
   reference of 4900 ns is far from the limit, so the goal judges the row. */
static void test_outcome_of_16_bits_is_judged_by_memory_if_float32_is_at_that_limit(void **state)
{
    struct bench_case half = allreduce;
    struct outcome within = outcome_of_times(2380, 2050, 2180, 0), beyond = outcome_of_times(2750, 2050, 2180, 0),
                   slow = outcome_of_times(5430, 4900, 2180, 0);
    (void)state;
    half.dtype = TUTTI_BFLOAT16;
    half.beside = FLOAT32;
    half.goal = 1.1;
    assert_string_equal(outcome_judge(&half, &within), "memory");
    assert_true(outcome_is_met(&half, &within));
    assert_false(outcome_is_met(&half, &beyond));
    assert_string_equal(outcome_judge(&half, &slow), "goal");
    assert_false(outcome_is_met(&half, &slow));
}
static void test_crossing_of_a_shared_tensor_is_half_that_of_a_private_one(void **state)
{
    static const struct {
        enum verb verb;
        double part;
    } rows[] = { { ALLREDUCE, 1 }, { ALLGATHER, 0.5 }, { ALL_TO_ALL, 0.5 }, { BROADCAST, 0.5 }, { GATHER, 0.25 },
        { SEND_RECV, 0.5 } };
    struct bench_case c = allreduce;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        c.verb = rows[i].verb;
        c.shared = false;
        assert_true(case_crossing(&c) == rows[i].part);
        /* A shared tensor is not staged, so only one of two ranks moves each byte. */
        c.shared = true;
        assert_true(case_crossing(&c) == rows[i].part / 2);
    }
}

/* ---- cores that move ---- */
static struct outcome moved_row(double flag, double flag_after, int tries)
{
    struct outcome row = outcome_of_times(1100, 1000, 800, 890);
    row.flag = flag;
    row.flag_after = flag_after;
    row.tries = tries;
    return row;
}
static void test_a_row_whose_cores_moved_is_measured_three_times_at_most(void **state)
{
    struct outcome near = moved_row(74, 92, 1), away = moved_row(61, 340, 1), back = moved_row(340, 61, 2),
                   last = moved_row(61, 340, OUTCOME_TRIES), crowded = moved_row(0, 0, 1);
    (void)state;
    assert_false(outcome_wants_retry(&near, true));
    assert_true(outcome_wants_retry(&away, true));
    assert_true(outcome_wants_retry(&back, true));
    assert_false(outcome_wants_retry(&back, false));
    assert_false(outcome_wants_retry(&last, true));
    assert_false(outcome_wants_retry(&crowded, true));
}
static void test_a_row_whose_cores_moved_is_neither_met_nor_missed(void **state)
{
    struct bench_case aimless = allreduce;
    struct outcome rows[] = { moved_row(61, 64, 1), moved_row(61, 340, OUTCOME_TRIES), moved_row(340, 330, 2) };
    struct outcome_counts counts = { 0 };
    (void)state;
    rows[2].ratio = 2;
    aimless.goal = 0;
    for (int i = 0; i < 3; i++) outcome_count(&allreduce, &rows[i], &counts);
    for (int i = 0; i < 3; i++) outcome_count(&aimless, &rows[i], &counts);
    assert_int_equal(counts.met, 1);
    assert_int_equal(counts.missed, 1);
    assert_int_equal(counts.moved, 1);
    assert_string_equal(outcome_verdict(&allreduce, &rows[1]), "moved");
    assert_string_equal(outcome_verdict(&aimless, &rows[1]), "moved");
    assert_string_equal(outcome_verdict(&aimless, &rows[0]), "");
}
static void test_a_row_whose_cores_moved_is_written_as_moved(void **state)
{
    struct outcome moved = moved_row(61, 340, OUTCOME_TRIES), quiet = moved_row(61, 64, 1);
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    (void)state;
    outcome_write(file, &allreduce, &moved);
    outcome_write(file, &allreduce, &quiet);
    fclose(file);
    assert_non_null(strstr(text, "\"tries\": 3, \"moved\": true, \"met\": null}"));
    assert_non_null(strstr(text, "\"tries\": 1, \"moved\": false, \"met\": true}"));
    free(text);
}
/* ---- a run that was interrupted ---- */
static void test_rows_of_an_interrupted_run_are_found_and_counted(void **state)
{
    struct bench_case out = allreduce, free_row = allreduce, longer = allreduce, broken = allreduce;
    struct outcome quiet = moved_row(61, 64, 1), moved = moved_row(61, 340, OUTCOME_TRIES);
    struct outcome_counts counts = { 0 };
    char *text = NULL, *found[3];
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    (void)state;
    out.in_place = false;
    free_row.shared = true;
    free_row.goal = 0;
    longer.bytes *= 4;
    broken.ranks = 4;
    const struct bench_case *const written[] = { &allreduce, &out, &free_row };
    fprintf(file, "{\"cores\": 2, \"rows\": [");
    for (int i = 0; i < 3; i++) {
        fprintf(file, "%s\n ", i ? "," : "");
        outcome_write(file, written[i], i == 1 ? &moved : &quiet);
    }
    fprintf(file, ",\n {\"label\": \"allreduce 64M in private float32 4ranks\", \"case\"");
    fclose(file);
    for (int i = 0; i < 3; i++) {
        found[i] = outcome_find(text, written[i]);
        assert_non_null(found[i]);
        assert_int_equal(found[i][strlen(found[i]) - 1], '}');
        outcome_count_written(found[i], &counts);
        free(found[i]);
    }
    assert_int_equal(counts.met, 1);
    assert_int_equal(counts.missed, 0);
    assert_int_equal(counts.moved, 1);
    assert_null(outcome_find(text, &longer));
    assert_null(outcome_find(text, &broken));
    free(text);
}

unit_function test_outcome;
int test_outcome(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_outcome_is_judged_by_a_goal_within_reach),
        cmocka_unit_test(test_outcome_is_judged_by_crossing_if_memcpy_stays_in_a_cache),
        cmocka_unit_test(test_outcome_is_judged_by_memory_if_memcpy_bypasses_the_caches),
        cmocka_unit_test(test_outcome_beside_flags_is_judged_by_its_goal),
        cmocka_unit_test(test_outcome_without_a_goal_is_not_judged_by_a_limit),
        cmocka_unit_test(test_outcome_is_judged_by_a_limit_close_to_the_goal),
        cmocka_unit_test(test_outcome_of_a_small_tensor_is_judged_by_crossing_with_its_barrier),
        cmocka_unit_test(test_outcome_of_16_bits_is_judged_by_memory_if_float32_is_at_that_limit),
        cmocka_unit_test(test_crossing_of_a_shared_tensor_is_half_that_of_a_private_one),
        cmocka_unit_test(test_a_row_whose_cores_moved_is_measured_three_times_at_most),
        cmocka_unit_test(test_a_row_whose_cores_moved_is_neither_met_nor_missed),
        cmocka_unit_test(test_a_row_whose_cores_moved_is_written_as_moved),
        cmocka_unit_test(test_rows_of_an_interrupted_run_are_found_and_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
