/* The small hierarchical algorithms of hierarchies.h are proved for hosts of unequal sizes and all placements of
   tensors, their mutants are rejected, and a host's own plan equals its part of the plan of all ranks. */
#include "tests/support/unit.h"
#include "tests/unit/check/hierarchies.h"
#include "tests/unit/check/local.h"
#include "tests/unit/check/mutants.h"

enum { IN_PLACE = 1, SHARED = 2, HOIST = 4, STAGE_INPUTS = 8, WAYS = 16, MIXED = 8 };
/* Every WAY_STEP-th way to build a plan is tested. */
#ifdef FEW
enum { WAY_STEP = 5 };
#else
enum { WAY_STEP = 1 };
#endif

static struct plan plan_by(const struct algorithm *a, const struct layout *l, int way, uint64_t *random)
{
    struct plan p = plan_of(a, l, (int)(xorshift_next(random) % (uint64_t)l->ranks));
    p.slots = 1 + way / 2 % 3;
    p.in_place = way & IN_PLACE ? mask_all : NULL;
    p.shared = way & SHARED ? mask_all : NULL;
    p.hoists_receives = way & HOIST;
    p.stage_inputs = way & STAGE_INPUTS && is_reducing(a->collective);
    if (way < WAYS) return p;
    p.in_place = mask_of(xorshift_next(random));
    p.shared = mask_of(xorshift_next(random));
    p.stage_inputs = way % 4 == 3 && is_reducing(a->collective);
    return p;
}
static void prove(struct plan *p)
{
    static const int most_tiles = 9;
    char why[200], text[200];
    describe(p, text, sizeof text);
    if (plan_build_staging(p) != TUTTI_OK) fail_msg("%s: %s", text, p->error);
    for (int tiles = 1; tiles <= most_tiles && tiles <= 2 * p->slots + 1; tiles += p->slots)
        if (!plan_check(p, tiles, 3, (unsigned)tiles - 1, why, sizeof why)) fail_msg("%s: %s", text, why);
}
static void test_proof_holds_for_hierarchies(void **state)
{
    static struct hosts hosts;
    uint64_t random = 271828;
    int plans = 0;
    (void)state;
    for (int a = 0; a < HIERARCHIES; a++)
        for (int l = 0; l < LAYOUTS; l++)
            for (int way = 0; way < WAYS + MIXED; way += WAY_STEP, plans++) {
                struct plan p = plan_by(&hierarchies[a], layout_nth(&hosts, l), way, &random);
                prove(&p);
                plan_finish(&p);
            }
    print_message("%d plans proved\n", plans);
}
static void test_checker_rejects_every_mutant_of_hierarchies(void **state)
{
    enum { SMALL_LAYOUTS = 4 };
    static struct hosts hosts;
    uint64_t random = 577215;
    (void)state;
    for (int a = 0; a < HIERARCHIES; a++)
        for (int l = 0; l < SMALL_LAYOUTS; l++)
            for (int way = 0; way < WAYS; way += 3 * WAY_STEP) {
                struct plan p = plan_by(&hierarchies[a], layout_nth(&hosts, l), way, &random);
                prove(&p);
                mutate(&p);
                plan_finish(&p);
            }
    mutants_report();
}

/* ---- a host's own plan and the plan of all ranks ---- */
static void test_host_builds_its_part_of_the_plan_of_all(void **state)
{
    static struct hosts hosts;
    uint64_t random = 161803;
    int compared = 0, refused = 0;
    (void)state;
    for (int a = 0; a < HIERARCHIES; a++)
        for (int l = 0; l < LAYOUTS; l++)
            for (int way = 0; way < WAYS + MIXED; way += WAY_STEP) {
                struct plan p = plan_by(&hierarchies[a], layout_nth(&hosts, l), way, &random);
                refused += !compare_hosts(&p, &compared);
            }
    print_message("%d hosts compared; %d plans refused, by one of their hosts too\n", compared, refused);
    assert_true(refused > 0);
}
unit_function test_plan_hierarchy;
int test_plan_hierarchy(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_proof_holds_for_hierarchies),
        cmocka_unit_test(test_checker_rejects_every_mutant_of_hierarchies),
        cmocka_unit_test(test_host_builds_its_part_of_the_plan_of_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
