/* A group is folded to a power of two: exactly one id stands for each rank, and the ranges of ranks of successive ids
   are adjacent. */
#include "backend/collectives/common.h"
#include "tests/support/unit.h"

static void test_power_is_the_largest_that_fits(void **state)
{
    (void)state;
    for (int n = 1; n < 1000; n++) {
        int power = power_of_two_at_most(n);
        assert_true(power <= n && 2 * power > n && (power & (power - 1)) == 0);
    }
    assert_int_equal(power_of_two_at_most(INT32_MAX), 1 << 30);
}
static void test_id_has_the_rank_that_takes_part(void **state)
{
    (void)state;
    for (int size = 1; size < 100; size++)
        for (int me = 0; me < size; me++) {
            struct fold f = fold_for_rank(size, me);
            assert_int_equal(fold_member_of_id(&f, f.id), f.gives ? me + 1 : me);
            assert_int_equal(fold_first_member(&f, f.id), f.takes ? me - 1 : me);
            assert_true(!(f.gives && f.takes) && f.id < f.power);
        }
}
static void test_ranges_of_ids_cover_all_ranks(void **state)
{
    (void)state;
    for (int size = 1; size < 100; size++) {
        struct fold f = fold_for_rank(size, 0);
        assert_int_equal(fold_first_member(&f, 0), 0);
        assert_int_equal(fold_first_member(&f, f.power), size);
        for (int id = 0; id < f.power; id++) {
            int width = fold_first_member(&f, id + 1) - fold_first_member(&f, id);
            assert_int_equal(width, id < f.extra ? 2 : 1);
        }
    }
}
static void test_modulo_is_never_negative(void **state)
{
    (void)state;
    assert_int_equal(int_modulo(-1, 5), 4);
    assert_int_equal(int_modulo(-10, 5), 0);
    assert_int_equal(int_modulo(7, 5), 2);
}

unit_function test_fold;
int test_fold(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_power_is_the_largest_that_fits),
        cmocka_unit_test(test_id_has_the_rank_that_takes_part),
        cmocka_unit_test(test_ranges_of_ids_cover_all_ranks),
        cmocka_unit_test(test_modulo_is_never_negative),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
