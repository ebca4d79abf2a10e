/* The checker rejects every mutant of every algorithm of the table, in groups of up to five ranks. */
#include "backend/collectives/collectives.h"
#include "tests/support/unit.h"
#include "tests/unit/check/mutants.h"

enum { IN_PLACE = 1, SHARED = 2, STAGE_INPUTS = 4, WAYS = 8 };

static void mutate_algorithm(const struct algorithm *a, const struct layout *l, int root, int way)
{
    struct plan p = plan_of(a, l, root);
    char why[200];
    p.slots = 2;
    p.in_place = way & IN_PLACE ? mask_all : NULL;
    p.shared = way & SHARED ? mask_all : NULL;
    p.stage_inputs = way & STAGE_INPUTS;
    p.hoists_receives = !a->host_memory && way & IN_PLACE;
    assert_int_equal(plan_build_staging(&p), TUTTI_OK);
    assert_true(plan_holds(&p, why, sizeof why));
    mutate(&p);
    plan_finish(&p);
}
static const struct layout *usual(const struct algorithm *a, int size)
{
    static struct hosts hosts;
    return a->host_memory ? together(&hosts, size) : apart(&hosts, size);
}
static void test_checker_rejects_every_mutant(void **state)
{
    (void)state;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        for (int size = 1; size <= 5; size++)
            for (int way = 0; way < WAYS; way++) {
                bool possible =
                    !(way & SHARED && !a->host_memory) && !(way & STAGE_INPUTS && !is_reducing(a->collective));
                int root = is_rooted(a->collective) ? (size + way) % size : 0;
                if (possible) mutate_algorithm(a, usual(a, size), root, way);
            }
    mutants_report();
}
/* The hosts have unequal sizes, or their ranks are not consecutive. */
static void test_checker_rejects_every_mutant_over_several_hosts(void **state)
{
    static const int placements[][5] = { { 0, 0, 1 }, { 0, 1, 1 }, { 0, 1, 0, 1 }, { 0, 1, 2, 1, 1 } };
    static const int ranks[] = { 3, 3, 4, 5 };
    static struct hosts hosts;
    (void)state;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        for (int l = 0; l < 4 && a->hierarchical; l++)
            for (int way = l % 2; way < WAYS; way += 1 + l / 2 * 2) {
                int root = is_rooted(a->collective) ? way % ranks[l] : 0;
                bool possible = !(way & STAGE_INPUTS && !is_reducing(a->collective));
                if (possible) mutate_algorithm(a, placed(&hosts, placements[l], ranks[l]), root, way);
            }
    mutants_report();
}
unit_function test_mutants;
int test_mutants(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checker_rejects_every_mutant),
        cmocka_unit_test(test_checker_rejects_every_mutant_over_several_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
