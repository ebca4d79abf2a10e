/* In the table of algorithms the names of a collective are unique, its rows are adjacent, and every row is found by its
   name. */
#include "backend/collectives/collectives.h"
#include "tests/support/unit.h"

static void test_every_row_is_found_by_its_name(void **state)
{
    (void)state;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        if (collectives_find_algorithm(a->collective, a->name) != a)
            fail_msg("two rows are called %s %s", collective_name(a->collective), a->name);
}
static void test_unknown_names_are_not_found(void **state)
{
    (void)state;
    assert_null(collectives_find_algorithm(ALLREDUCE, "ringg"));
    assert_null(collectives_find_algorithm(ALLREDUCE, ""));
    /* Only other collectives have this algorithm. */
    assert_null(collectives_find_algorithm(GATHER, "ring"));
}
static void test_rows_of_a_collective_are_adjacent(void **state)
{
    (void)state;
    int begun[COLLECTIVE_COUNT] = { 0 };
    for (const struct algorithm *a = collectives_table; a->name; a++)
        if (a == collectives_table || a->collective != a[-1].collective) begun[a->collective]++;
    for (int f = 0; f < COLLECTIVE_COUNT; f++)
        if (begun[f] != 1) fail_msg("the rows of %s begin in %d places", collective_name((enum collective)f), begun[f]);
}
static void test_every_collective_has_algorithms_of_all_kinds(void **state)
{
    (void)state;
    int count[COLLECTIVE_COUNT][3] = { 0 };
    for (const struct algorithm *a = collectives_table; a->name; a++) {
        assert_false(a->host_memory && a->hierarchical);
        count[a->collective][a->host_memory ? 1 : a->hierarchical ? 2 : 0]++;
    }
    for (int f = 0; f < COLLECTIVE_COUNT; f++)
        for (int kind = 0; kind < 3; kind++)
            if (!count[f][kind])
                fail_msg("%s has no algorithm over messages (0), host memory (1) or a hierarchy (2): %d",
                    collective_name((enum collective)f), kind);
}
static void test_names_of_collectives_differ(void **state)
{
    (void)state;
    for (int f = 0; f < COLLECTIVE_COUNT; f++)
        for (int g = 0; g < f; g++)
            assert_string_not_equal(collective_name((enum collective)f), collective_name((enum collective)g));
}
static void test_names_are_lower_case_words(void **state)
{
    (void)state;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        assert_int_equal(strspn(a->name, "abcdefghijklmnopqrstuvwxyz_"), strlen(a->name));
}

unit_function test_algorithm_table;
int test_algorithm_table(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_row_is_found_by_its_name),
        cmocka_unit_test(test_unknown_names_are_not_found),
        cmocka_unit_test(test_rows_of_a_collective_are_adjacent),
        cmocka_unit_test(test_every_collective_has_algorithms_of_all_kinds),
        cmocka_unit_test(test_names_of_collectives_differ),
        cmocka_unit_test(test_names_are_lower_case_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
