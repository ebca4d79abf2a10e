/* Sleeps end by a deadline. */
#include "backend/base/clock.h"
#include "tests/support/unit.h"

static void test_a_sleep_is_limited_by_its_deadline(void **state)
{
    (void)state;
    assert_int_equal(clock_limit_sleep(50, INT64_MAX), 50);
    assert_int_equal(clock_limit_sleep(50, clock_ms() - 1000), 1);
    assert_in_range(clock_limit_sleep(1000000, clock_ms() + 900000), 1, 900000);
}
unit_function test_clock;
int test_clock(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_a_sleep_is_limited_by_its_deadline) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
