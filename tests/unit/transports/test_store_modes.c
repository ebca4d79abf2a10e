/* Writer and reader of a pair choose the store mode that costs both together less. Each goes on, whatever word the
   other one writes. */
#include "backend/transports/shm/store_modes.h"
#include "tests/support/unit.h"

enum { BYTES = 16384 };
static struct ends {
    struct store_modes ways;
    struct store_judge judge;
    /* The reader's word as the writer sees it. */
    uint64_t chosen;
    /* The fillings of the last ends_fill that went around the cache, and those that were timed. */
    unsigned around, timed;
} ends;
/* The time of a filling in ns, at both ends together: with ordinary stores, and around the cache. `noise` is the range
   of a random addition. */
struct costs { int64_t stored, around; int noise; };
static int ends_setup(void **state)
{
    (void)state;
    srand(1);
    ends = (struct ends){ .chosen = 0 };
    return 0;
}
/* Writes and reads `count` fillings. */
static void ends_fill(int count, enum filling filling, struct costs costs)
{
    ends.around = ends.timed = 0;
    for (int i = 0; i < count; i++) {
        struct store_mode way = store_modes_next(&ends.ways, filling, ends.chosen);
        int64_t ns = (way.is_around ? costs.around : costs.stored) + (costs.noise ? rand() % costs.noise : 0);
        ends.around += way.is_around;
        ends.timed += way.number != 0;
        uint64_t word = way.number ? store_mode_timing_word(way.number, ns / 3) : 0;
        if (word && store_judge_add_sample(&ends.judge, filling, word, ns - ns / 3, BYTES))
            ends.chosen = ends.judge.chosen;
    }
}
static bool goes_around(enum filling filling)
{
    ends_fill(1, filling, (struct costs){ 1000, 1000, 0 });
    return ends.around;
}
static void test_the_cheaper_mode_is_chosen(void **state)
{
    (void)state;
    for (enum filling f = 0; f < FILLINGS; f++) {
        ends_fill(2000, f, (struct costs){ 900, 1000, 20 });
        assert_false(goes_around(f));
    }
    /* The system has moved the ranks to other cores. */
    ends_fill(20000, FILLS_32K, (struct costs){ 1000, 900, 20 });
    for (enum filling f = 0; f < FILLINGS; f++) assert_int_equal(goes_around(f), f == FILLS_32K);
    ends_fill(20000, FILLS_32K, (struct costs){ 900, 1000, 20 });
    assert_false(goes_around(FILLS_32K));
}
static void test_an_equally_good_mode_changes_nothing(void **state)
{
    (void)state;
    ends_fill(100000, FILLS_16K, (struct costs){ 985, 1000, 0 });
    assert_true(goes_around(FILLS_16K));
    ends_fill(100000, FILLS_16K, (struct costs){ 700, 1000, 0 });
    assert_false(goes_around(FILLS_16K));
    ends_fill(100000, FILLS_16K, (struct costs){ 1000, 985, 0 });
    assert_false(goes_around(FILLS_16K));
}
static void test_interruptions_change_nothing(void **state)
{
    (void)state;
    /* Every fifth filling is interrupted. */
    for (int i = 0; i < 200000; i++) {
        int64_t often = i % 5 ? 1000 : 1000000;
        ends_fill(1, FILLS_4K, (struct costs){ often + 20, often, 100 });
    }
    assert_true(goes_around(FILLS_4K));
}
static void test_trying_a_bad_mode_costs_little(void **state)
{
    (void)state;
    ends_fill(2000, FILLS_16K, (struct costs){ 500, 1400, 50 });
    ends_fill(100 * 8192, FILLS_16K, (struct costs){ 500, 1400, 50 });
    /* Each of a hundred A/B tests ends as soon as the other mode is clearly slower. */
    assert_in_range(ends.around, 100, 100 * 8);
    assert_in_range(ends.timed, 100, 100 * 100);
}
static void test_a_reader_that_never_answers_is_not_awaited(void **state)
{
    (void)state;
    unsigned ordinary = 0;
    for (int i = 0; i < 5 * 8192; i++) ordinary += !store_modes_next(&ends.ways, FILLS_64K, 0).is_around;
    /* Half of the fillings of seven A/B tests. */
    assert_in_range(ordinary, 6 * 2 * 16, 7 * 2 * 32);
    assert_true(store_modes_next(&ends.ways, FILLS_64K, 0).is_around);
}
/* The times of some fillings are missing, because the filling was dropped, or read where no time is taken. The A/B test
   is decided if some times of each block arrive. */
static void test_an_ab_test_is_decided_although_times_are_missing(void **state)
{
    (void)state;
    for (int missing = 2; missing < 5; missing++) {
        ends_setup(NULL);
        for (int i = 0; i < 2000; i++) {
            struct store_mode way = store_modes_next(&ends.ways, FILLS_4K, ends.chosen);
            if (i % missing == 0 || !way.number) continue;
            if (store_judge_add_sample(&ends.judge, FILLS_4K,
                    store_mode_timing_word(way.number, way.is_around ? 500 : 300), 100, BYTES))
                ends.chosen = ends.judge.chosen;
        }
        assert_false(goes_around(FILLS_4K));
    }
}
static void test_an_ab_test_with_a_missing_block_changes_nothing(void **state)
{
    (void)state;
    for (unsigned from = 0; from < 128; from += 32) {
        ends_setup(NULL);
        bool judged = false;
        for (unsigned number = 1; number <= 128; number++) {
            unsigned block = (number - 1) / 32;
            bool absent = number - 1 >= from && number - 1 < from + 32, that = block == 1 || block == 2;
            if (absent) continue;
            judged |= store_judge_add_sample(&ends.judge, FILLS_4K, store_mode_timing_word(number, that ? 300 : 500),
                100, BYTES);
        }
        assert_int_equal(judged, from < 96);
        assert_int_equal(ends.judge.chosen & 1, 0);
    }
}
/* Fillings of the second half of each message cost more. This must not count for or against a mode. */
static void test_the_position_in_a_message_does_not_count(void **state)
{
    (void)state;
    for (int length = 8; length <= 128; length *= 2) {
        ends_setup(NULL);
        for (int i = 0; i < 100000; i++) {
            int64_t ns = i % length < length / 2 ? 1000 : 1200;
            ends_fill(1, FILLS_64K, (struct costs){ ns, ns, 0 });
            assert_true(ends.around || ends.timed);
        }
        assert_true(goes_around(FILLS_64K));
    }
}
static void test_any_word_is_survived(void **state)
{
    (void)state;
    uint64_t word = 1;
    for (int i = 0; i < 2000000; i++) {
        word = word * 6364136223846793005u + 1442695040888963407u;
        enum filling f = (enum filling)((word >> 40) % FILLINGS);
        store_judge_add_sample(&ends.judge, f, i % 2 ? word : word >> 48, i % 3 ? 100 : -1, word >> 50);
        store_modes_next(&ends.ways, f, word);
    }
    ends_fill(20000, FILLS_16K, (struct costs){ 500, 1000, 0 });
    ends_fill(20000, FILLS_16K, (struct costs){ 500, 1000, 0 });
    assert_false(goes_around(FILLS_16K));
}
unit_function test_store_modes;
int test_store_modes(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_the_cheaper_mode_is_chosen, ends_setup),
        cmocka_unit_test_setup(test_an_equally_good_mode_changes_nothing, ends_setup),
        cmocka_unit_test_setup(test_interruptions_change_nothing, ends_setup),
        cmocka_unit_test_setup(test_trying_a_bad_mode_costs_little, ends_setup),
        cmocka_unit_test_setup(test_a_reader_that_never_answers_is_not_awaited, ends_setup),
        cmocka_unit_test_setup(test_an_ab_test_is_decided_although_times_are_missing, ends_setup),
        cmocka_unit_test_setup(test_an_ab_test_with_a_missing_block_changes_nothing, ends_setup),
        cmocka_unit_test_setup(test_the_position_in_a_message_does_not_count, ends_setup),
        cmocka_unit_test_setup(test_any_word_is_survived, ends_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
