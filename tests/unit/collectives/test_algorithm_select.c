/* The default choice: an algorithm of the family, for ranks of one host, that takes uneven counts where they are. */
#include "backend/collectives/collectives.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static void is_always_an_algorithm_for_one_host(void **state)
{
    (void)state;
    for (int f = 0; f < FAMILY_COUNT; f++)
        for (int size = 1; size <= 1024; size = 2 * size + size / 2 + 1)
            for (size_t bytes = 0; bytes < SIZE_MAX / 4; bytes = 4 * bytes + 1)
                for (int way = 0; way < 4; way++) {
                    bool uneven = way & 1, shared = way & 2;
                    const struct algorithm *a = collectives_select((enum family)f, size, bytes, uneven, shared);
                    assert_non_null(a);
                    assert_int_equal(a->family, f);
                    assert_true(a->host_memory);
                    assert_false(uneven && a->equal_chunks);
                }
}
static void few_ranks_or_bytes_take_one_round(void **state)
{
    (void)state;
    const struct algorithm *one = collectives_find(ALLREDUCE, "one_shot");
    const struct algorithm *two = collectives_find(ALLREDUCE, "two_shot");
    assert_ptr_equal(collectives_select(ALLREDUCE, 3, (size_t)1 << 30, false, false), one);
    assert_ptr_equal(collectives_select(ALLREDUCE, 64, 16 * 1024, false, false), one);
    assert_ptr_equal(collectives_select(ALLREDUCE, 4, 16 * 1024 + 1, false, false), two);
    assert_ptr_equal(collectives_select(REDUCE, 4, 8, false, false), collectives_find(REDUCE, "read"));
    assert_ptr_equal(collectives_select(REDUCE, 4, 1 << 20, false, false), collectives_find(REDUCE, "two_shot_read"));
}
static void shared_tensors_take_two_rounds(void **state)
{
    (void)state;
    const struct algorithm *one = collectives_find(ALLREDUCE, "one_shot");
    const struct algorithm *two = collectives_find(ALLREDUCE, "two_shot");
    assert_ptr_equal(collectives_select(ALLREDUCE, 2, 1 << 20, false, true), two);
    assert_ptr_equal(collectives_select(ALLREDUCE, 2, 16 * 1024, false, true), one);
    assert_ptr_equal(collectives_select(REDUCE, 2, 1 << 20, false, true), collectives_find(REDUCE, "two_shot_read"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_always_an_algorithm_for_one_host),
        cmocka_unit_test(few_ranks_or_bytes_take_one_round),
        cmocka_unit_test(shared_tensors_take_two_rounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
