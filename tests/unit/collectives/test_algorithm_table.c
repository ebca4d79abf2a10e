/* The table: names are unique within their collective, collectives stand together, every row is found by its name. */
#include "backend/collectives/collectives.h"
#include "tests/support/unit.h"

static void every_row_is_found_by_its_name(void **state)
{
    (void)state;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        if (collectives_find_algorithm(a->collective, a->name) != a)
            fail_msg("%s %s is there twice", collective_name(a->collective), a->name);
}
static void what_is_not_there_is_not_found(void **state)
{
    (void)state;
    assert_null(collectives_find_algorithm(ALLREDUCE, "ringg"));
    assert_null(collectives_find_algorithm(ALLREDUCE, ""));
    assert_null(collectives_find_algorithm(GATHER, "ring"));                     /* a name of another collective */
}
static void collectives_stand_together(void **state)
{
    (void)state;
    int begun[COLLECTIVE_COUNT] = { 0 };
    for (const struct algorithm *a = collectives_table; a->name; a++)
        if (a == collectives_table || a->collective != a[-1].collective) begun[a->collective]++;
    for (int f = 0; f < COLLECTIVE_COUNT; f++)
        if (begun[f] != 1) fail_msg("%s begins %d times", collective_name((enum collective)f), begun[f]);
}
static void every_collective_has_messages_host_memory_and_hierarchy(void **state)
{
    (void)state;
    int count[COLLECTIVE_COUNT][3] = { 0 };
    for (const struct algorithm *a = collectives_table; a->name; a++) {
        assert_false(a->host_memory && a->hierarchical);
        count[a->collective][a->host_memory ? 1 : a->hierarchical ? 2 : 0]++;
    }
    for (int f = 0; f < COLLECTIVE_COUNT; f++)
        for (int kind = 0; kind < 3; kind++)
            if (!count[f][kind]) fail_msg("%s has none of kind %d", collective_name((enum collective)f), kind);
}
static void collective_names_differ(void **state)
{
    (void)state;
    for (int f = 0; f < COLLECTIVE_COUNT; f++)
        for (int g = 0; g < f; g++)
            assert_string_not_equal(collective_name((enum collective)f), collective_name((enum collective)g));
}
static void names_are_lower_case_words(void **state)
{
    (void)state;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        assert_int_equal(strspn(a->name, "abcdefghijklmnopqrstuvwxyz_"), strlen(a->name));
}

unit_function test_algorithm_table;
int test_algorithm_table(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_found_by_its_name),
        cmocka_unit_test(what_is_not_there_is_not_found),
        cmocka_unit_test(collectives_stand_together),
        cmocka_unit_test(every_collective_has_messages_host_memory_and_hierarchy),
        cmocka_unit_test(collective_names_differ),
        cmocka_unit_test(names_are_lower_case_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
