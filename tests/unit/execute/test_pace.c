/* A thread decides by measurements whether it writes slots by ordinary stores or by streaming (execute/pace.h). */
#include "backend/execute/pace.h"
#include "tests/support/unit.h"

static void pace_record_times(struct pace *p, int times, double line_ns)
{
    for (int i = 0; i < times; i++) pace_record_measurement(p, line_ns);
}
static void test_pace_ignores_single_long_times(void **state)
{
    (void)state;
    struct pace p = { .line_ns = 150 };
    pace_record_times(&p, 10, 35);
    assert_true(p.ordinary_stores);
    /* An interruption or busy memory delays every second fetch. */
    for (int i = 0; i < 30; i++) pace_record_times(&p, 1, i % 2 ? 35 : 1e6);
    assert_true(p.ordinary_stores);
    pace_record_times(&p, 20, 140);
    pace_record_times(&p, 1, 30);
    assert_false(p.ordinary_stores);
}
static void test_pace_follows_moves_between_near_and_far_cores(void **state)
{
    (void)state;
    struct pace p = { .line_ns = 150 };
    for (int turn = 0; turn < 3; turn++) {
        pace_record_times(&p, 10, 40);
        assert_true(p.ordinary_stores);
        pace_record_times(&p, 10, 130);
        assert_false(p.ordinary_stores);
    }
    /* A long series of long times is forgotten as quickly as a short one. */
    pace_record_times(&p, 100, 1e9);
    pace_record_times(&p, 10, 40);
    assert_true(p.ordinary_stores);
}
static void test_pace_keeps_its_choice_between_the_limits(void **state)
{
    (void)state;
    struct pace p = { .line_ns = 150 };
    pace_record_times(&p, 50, 88);
    assert_false(p.ordinary_stores);
    pace_record_times(&p, 20, 30);
    pace_record_times(&p, 50, 75);
    assert_true(p.ordinary_stores);
}
static void test_pace_measures_some_calls_with_either_choice(void **state)
{
    (void)state;
    for (int ordinary = 0; ordinary < 2; ordinary++) {
        struct pace p = { .ordinary_stores = ordinary };
        int measured = 0;
        for (int call = 0; call < 1000; call++) measured += pace_count_call(&p);
        assert_in_range(measured, 5, 50);
    }
}
unit_function test_pace;
int test_pace(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pace_ignores_single_long_times),
        cmocka_unit_test(test_pace_follows_moves_between_near_and_far_cores),
        cmocka_unit_test(test_pace_keeps_its_choice_between_the_limits),
        cmocka_unit_test(test_pace_measures_some_calls_with_either_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
