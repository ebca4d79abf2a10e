/* How slots are written is found out while they are. */

#include "backend/execute/pace.h"
#include "tests/support/unit.h"

static void pace_record_times(struct pace *p, int times, double line_ns)
{
    for (int i = 0; i < times; i++) pace_record_measurement(p, line_ns);
}
static void test_accidents_change_nothing(void **state)
{
    (void)state;
    struct pace p = { .line_ns = 150 };
    pace_record_times(&p, 10, 35);
    assert_true(p.ordinary_stores);
    for (int i = 0; i < 30; i++) pace_record_times(&p, 1, i % 2 ? 35 : 1e6); /* interrupted, or the memory was busy */
    assert_true(p.ordinary_stores);
    pace_record_times(&p, 20, 140);
    pace_record_times(&p, 1, 30);
    assert_false(p.ordinary_stores);
}
static void test_it_follows_the_cores(void **state)
{
    (void)state;
    struct pace p = { .line_ns = 150 };
    for (int turn = 0; turn < 3; turn++) {
        pace_record_times(&p, 10, 40);
        assert_true(p.ordinary_stores);
        pace_record_times(&p, 10, 130);
        assert_false(p.ordinary_stores);
    }
    pace_record_times(&p, 100, 1e9);                                /* however long, it is forgotten as quickly */
    pace_record_times(&p, 10, 40);
    assert_true(p.ordinary_stores);
}
static void test_between_both_it_stays_as_it_is(void **state)
{
    (void)state;
    struct pace p = { .line_ns = 150 };
    pace_record_times(&p, 50, 88);
    assert_false(p.ordinary_stores);
    pace_record_times(&p, 20, 30);
    pace_record_times(&p, 50, 75);
    assert_true(p.ordinary_stores);
}
static void test_it_goes_on_measuring(void **state)
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
        cmocka_unit_test(test_accidents_change_nothing),
        cmocka_unit_test(test_it_follows_the_cores),
        cmocka_unit_test(test_between_both_it_stays_as_it_is),
        cmocka_unit_test(test_it_goes_on_measuring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
