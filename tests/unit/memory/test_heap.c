/* Parts of the heap lie inside their region, at their alignment, and do not overlap. Freed neighbours are merged. A
   call that lacks memory for the bookkeeping fails, and the heap loses nothing. */
#include "backend/base/memory.h"
#include "backend/memory/heap.h"
#include "tests/support/unit.h"

enum { REGION = 1 << 20, PARTS = 300 };
static unsigned char *memory;
static int setup(void **state)
{
    (void)state;
    return (memory = aligned_alloc(4096, 4 * REGION)) ? 0 : -1;
}
static int teardown(void **state)
{
    (void)state;
    free(memory);
    return 0;
}

static void test_parts_do_not_overlap(void **state)
{
    struct heap heap = { 0 };
    struct {
        unsigned char *at;
        size_t bytes;
    } part[PARTS] = { 0 };
    unsigned seed = 7;
    void *region;
    (void)state;
    assert_true(heap_add_region(&heap, memory, REGION) && heap_add_region(&heap, memory + 2 * REGION, REGION));
    for (int round = 0; round < 20000; round++) {
        int i = rand_r(&seed) % PARTS;
        if (part[i].at) {
            for (size_t k = 0; k < part[i].bytes; k++) assert_int_equal(part[i].at[k], i % 251);
            assert_true(heap_free(&heap, part[i].at, &region));
            part[i].at = NULL;
            continue;
        }
        size_t alignment = (size_t)64 << (rand_r(&seed) % 7);
        part[i].bytes = (size_t)rand_r(&seed) % ((size_t)1 << (rand_r(&seed) % 16)) + 1;
        part[i].at = heap_allocate(&heap, part[i].bytes, alignment);
        if (!part[i].at) continue;
        size_t offset = (size_t)(part[i].at - memory) % (2 * REGION);
        assert_int_equal((uintptr_t)part[i].at % alignment, 0);
        assert_true(offset + part[i].bytes <= REGION);
        memset(part[i].at, i % 251, part[i].bytes);
    }
    for (int i = 0; i < PARTS; i++)
        if (part[i].at) assert_true(heap_free(&heap, part[i].at, &region));
    unsigned char *one = heap_allocate(&heap, REGION, 64), *other = heap_allocate(&heap, REGION, 64);
    assert_true(one && other && one != other);
    heap_finish(&heap);
}
static void test_free_neighbours_are_merged(void **state)
{
    struct heap heap = { 0 };
    void *part[8], *region = NULL;
    (void)state;
    assert_true(heap_add_region(&heap, memory, REGION));
    for (int i = 0; i < 8; i++) part[i] = heap_allocate(&heap, REGION / 8, 64);
    assert_null(heap_allocate(&heap, 1, 64));
    static const int order[] = { 1, 3, 2, 7, 5, 0, 6 };
    for (int i = 0; i < 7; i++) {
        assert_true(heap_free(&heap, part[order[i]], &region));
        assert_null(region);
    }
    assert_true(heap_free(&heap, part[4], &region));
    assert_ptr_equal(region, memory);
    assert_ptr_equal(heap_allocate(&heap, REGION, 4096), memory);
    heap_finish(&heap);
}
static void test_freed_part_is_reused_for_the_same_size(void **state)
{
    struct heap heap = { 0 };
    void *region;
    (void)state;
    assert_true(heap_add_region(&heap, memory, REGION));
    void *odd = heap_allocate(&heap, 100003, 64), *fence = heap_allocate(&heap, 64, 64);
    assert_true(fence && heap_free(&heap, odd, &region));
    assert_ptr_equal(heap_allocate(&heap, 100003, 64), odd);
    heap_finish(&heap);
}
static void test_free_refuses_an_address_without_a_part(void **state)
{
    struct heap heap = { 0 };
    void *region;
    (void)state;
    assert_false(heap_free(&heap, memory, &region));
    assert_true(heap_add_region(&heap, memory, REGION));
    assert_false(heap_free(&heap, memory, &region));
    unsigned char *part = heap_allocate(&heap, 1000, 64);
    assert_false(heap_free(&heap, part + 64, &region));
    assert_true(heap_free(&heap, part, &region));
    assert_false(heap_free(&heap, part, &region));
    heap_remove_region(&heap, memory);
    assert_null(heap_allocate(&heap, 1, 64));
    assert_null(heap_allocate(&heap, SIZE_MAX, 64));
    heap_finish(&heap);
}
/* Each allocation for the bookkeeping fails in turn. Afterwards the whole region is free. */
static void test_failed_bookkeeping_loses_no_memory(void **state)
{
    (void)state;
    for (int nth = 1; nth <= 4; nth++) {
        struct heap heap = { 0 };
        void *region = NULL, *first;
        memory_fail_after(nth);
        bool added = heap_add_region(&heap, memory + 64, REGION);
        /* This part needs the table of rows, and extents for the free memory on both sides of it. */
        void *part = heap_allocate(&heap, 4096, 4096);
        memory_fail_after(0);
        assert_true(added == (nth > 1) && !part);
        if (added) {
            first = heap_allocate(&heap, REGION, 64);
            assert_ptr_equal(first, memory + 64);
            assert_true(heap_free(&heap, first, &region) && region == memory + 64);
        }
        heap_finish(&heap);
    }
}

unit_function test_heap;
int test_heap(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_do_not_overlap),
        cmocka_unit_test(test_free_neighbours_are_merged),
        cmocka_unit_test(test_freed_part_is_reused_for_the_same_size),
        cmocka_unit_test(test_free_refuses_an_address_without_a_part),
        cmocka_unit_test(test_failed_bookkeeping_loses_no_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
