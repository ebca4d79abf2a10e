/* memory_trim frees the spare room of an array. If memory is short, the array stays as it is. */
#include "backend/base/memory.h"
#include "tests/support/unit.h"
#include <stdlib.h>

static void test_trim_frees_room_unless_memory_is_short(void **state)
{
    int capacity = 0;
    long *array = memory_grow(NULL, 0, &capacity, sizeof *array);
    (void)state;
    assert_non_null(array);
    assert_true(capacity > 2);
    array[0] = 7;
    array[1] = 8;
    const int room = capacity;
    memory_fail_after(1);
    assert_ptr_equal(memory_trim(array, 2, &capacity, sizeof *array), array);
    assert_true(memory_fail_after(0) <= 0);
    assert_int_equal(capacity, room);
    memory_fail_after(2);
    array = memory_trim(array, 2, &capacity, sizeof *array);
    assert_int_equal(memory_fail_after(0), 1);
    assert_int_equal(capacity, 2);
    assert_true(array[0] == 7 && array[1] == 8);
    array = memory_trim(array, 0, &capacity, sizeof *array);
    assert_int_equal(capacity, 2);
    free(array);
}
unit_function test_memory;
int test_memory(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trim_frees_room_unless_memory_is_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
