/* Ranks of one process share a table: one makes it, the others wait, and the last one frees it. */
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/memory/memfd.h"
#include "backend/memory/shared_table.h"
#include "tests/support/unit.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { THREADS = 8, GENEROUS_MS = 60000 };
static const unsigned char token[16] = "table", other_token[16] = "another table";

static struct shared_table *table_enter(const unsigned char of[16])
{
    struct shared_table *table;
    assert_int_equal(shared_table_enter(of, &table), TUTTI_OK);
    return table;
}
static void test_table_is_found_by_its_token(void **state)
{
    struct shared_table *first = table_enter(token), *second = table_enter(token), *other = table_enter(other_token);
    assert_ptr_equal(first, second);
    assert_ptr_not_equal(first, other);
    assert_int_equal(shared_table_await(first, 0), SHARED_TABLE_YOURS);
    assert_int_equal(shared_table_await(second, 0), SHARED_TABLE_BUSY);
    assert_int_equal(shared_table_await(other, 0), SHARED_TABLE_YOURS);
    shared_table_give_up(other);
    char *data = memory_alloc_zeroed(1, 5);
    shared_table_set(first, data);
    assert_int_equal(shared_table_await(second, 0), SHARED_TABLE_READY);
    shared_table_leave(first);
    assert_ptr_equal(shared_table_data(second), data);
    shared_table_leave(second);
    /* The last user has freed it. */
    second = table_enter(token);
    assert_int_equal(shared_table_await(second, 0), SHARED_TABLE_YOURS);
    shared_table_give_up(second);
    shared_table_leave(second);
    shared_table_leave(other);
    shared_table_leave(NULL);
    (void)state;
}
static void test_mapped_table_is_unmapped_with_its_last_user(void **state)
{
    const void *mapped;
    unsigned char resident;
    int descriptor;
    assert_int_equal(memfd_create_constant(token, sizeof token, "a table", &descriptor), TUTTI_OK);
    assert_int_equal(memfd_map_constant(descriptor, sizeof token, "the group's", &mapped), TUTTI_OK);
    close(descriptor);
    struct shared_table *table = table_enter(token);
    assert_int_equal(shared_table_await(table, 0), SHARED_TABLE_YOURS);
    shared_table_set_mapped(table, mapped, sizeof token);
    assert_memory_equal(shared_table_data(table), token, sizeof token);
    assert_int_equal(mincore((void *)(uintptr_t)mapped, 1, &resident), 0);
    shared_table_leave(table);
    assert_int_equal(mincore((void *)(uintptr_t)mapped, 1, &resident), -1);
    (void)state;
}
/* The threads that have made the table, and those that have failed to. */
static _Atomic int makers, failures;
static void *make_or_wait(void *context)
{
    struct shared_table *table;
    enum shared_table_turn turn;
    (void)context;
    if (shared_table_enter(token, &table) != TUTTI_OK) return NULL;
    while ((turn = shared_table_await(table, clock_ms() + GENEROUS_MS)) == SHARED_TABLE_YOURS) {
        /* The first two give up. */
        if (atomic_fetch_add(&failures, 1) < 2) { shared_table_give_up(table); continue; }
        atomic_fetch_add(&makers, 1);
        int *data = memory_alloc_zeroed(1, sizeof *data);
        *data = 42;
        shared_table_set(table, data);
        turn = SHARED_TABLE_READY;
        break;
    }
    return turn == SHARED_TABLE_READY && *(const int *)shared_table_data(table) == 42 ? table : NULL;
}
static void test_next_thread_makes_the_table_if_one_gives_up(void **state)
{
    pthread_t threads[THREADS];
    void *tables[THREADS];
    atomic_store(&makers, 0);
    atomic_store(&failures, 0);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, make_or_wait, NULL), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], &tables[i]);
    assert_int_equal(atomic_load(&makers), 1);
    for (int i = 0; i < THREADS; i++) {
        assert_non_null(tables[i]);
        assert_ptr_equal(tables[i], tables[0]);
    }
    for (int i = 0; i < THREADS; i++) shared_table_leave(tables[i]);
    (void)state;
}
static void test_forked_child_reads_the_table_but_does_not_find_it(void **state)
{
    struct shared_table *table = table_enter(token);
    int *data = memory_alloc_zeroed(1, sizeof *data), status = -1;
    *data = 42;
    assert_int_equal(shared_table_await(table, 0), SHARED_TABLE_YOURS);
    shared_table_set(table, data);
    pid_t child = fork();
    if (child == 0) {
        struct shared_table *own;
        bool reads = *(const int *)shared_table_data(table) == 42;
        bool finds = shared_table_enter(token, &own) != TUTTI_OK || own == table;
        _exit(reads && !finds && shared_table_await(own, 0) == SHARED_TABLE_YOURS ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    shared_table_leave(table);
    (void)state;
}
static void test_no_memory_is_an_error(void **state)
{
    struct shared_table *table;
    memory_fail_after(1);
    assert_int_equal(shared_table_enter(token, &table), TUTTI_NO_MEMORY);
    memory_fail_after(0);
    assert_null(table);
    (void)state;
}

unit_function test_shared_table;
int test_shared_table(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_is_found_by_its_token),
        cmocka_unit_test(test_mapped_table_is_unmapped_with_its_last_user),
        cmocka_unit_test(test_next_thread_makes_the_table_if_one_gives_up),
        cmocka_unit_test(test_forked_child_reads_the_table_but_does_not_find_it),
        cmocka_unit_test(test_no_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
