/* memory_trim frees the spare room of an array. If memory is short, the array stays as it is. */
#include "backend/base/memory.h"
#include "tests/support/unit.h"
#include <stdlib.h>
#include <sys/mman.h>

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
/* Returns the number of resident pages in a range. */
static size_t resident_pages(void *at, size_t bytes)
{
    static unsigned char pages[1024];
    size_t count = 0, all = bytes / 4096;
    assert_true(all <= sizeof pages);
    assert_int_equal(mincore(at, bytes, pages), 0);
    for (size_t i = 0; i < all; i++) count += pages[i] & 1;
    return count;
}
static void test_sparse_memory_has_only_the_pages_in_use(void **state)
{
    enum { BYTES = 4 << 20 };
    (void)state;
    unsigned char *block = memory_alloc_sparse(BYTES);
    assert_non_null(block);
    assert_int_equal(resident_pages(block, BYTES), 0);
    assert_int_equal(block[BYTES - 1], 0);
    block[5] = block[BYTES / 2] = 1;
    assert_true(resident_pages(block, BYTES) <= 3);
    memory_free_sparse(block, BYTES);
    memory_free_sparse(NULL, BYTES);
    memory_fail_after(1);
    assert_null(memory_alloc_sparse(BYTES));
}
unit_function test_memory;
int test_memory(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trim_frees_room_unless_memory_is_short),
        cmocka_unit_test(test_sparse_memory_has_only_the_pages_in_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
