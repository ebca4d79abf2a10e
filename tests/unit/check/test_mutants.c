/* The checker rejects every mutant of every algorithm of the table, in groups of up to five. */
#include "backend/collectives/collectives.h"
#include "tests/unit/check/mutants.h"

enum { IN_PLACE = 1, SHARED = 2, STAGE_INPUTS = 4, WAYS = 8 };

static void mutate_algorithm(const struct algorithm *a, int size, int root, int way)
{
    static struct hosts hosts;
    struct plan p = plan_of(a, a->host_memory ? together(&hosts, size) : apart(&hosts, size), root);
    char why[200];
    p.slots = 2;
    p.in_place = way & IN_PLACE ? mask_all : NULL;
    p.shared = way & SHARED ? mask_all : NULL;
    p.stage_inputs = way & STAGE_INPUTS;
    p.hoist = !a->host_memory && way & IN_PLACE;
    assert_int_equal(plan_build_staging(&p), TUTTI_OK);
    assert_true(plan_holds(&p, why, sizeof why));
    mutate(&p);
    plan_finish(&p);
}
static void every_mutant_is_rejected(void **state)
{
    (void)state;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        for (int size = 1; size <= 5; size++)
            for (int way = 0; way < WAYS; way++) {
                bool possible = !(way & SHARED && !a->host_memory) && !(way & STAGE_INPUTS && !is_reducing(a->family));
                if (possible) mutate_algorithm(a, size, is_rooted(a->family) ? (size + way) % size : 0, way);
            }
    mutants_report();
}
int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_mutant_is_rejected) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
