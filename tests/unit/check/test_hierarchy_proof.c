/* Proves every hierarchical algorithm of the table on every layout of placements.h, with the plans that the hosts build
   separately. Also checks that a host's own plan equals its part of the plan of all ranks. Layouts of up to SMALL ranks
   are tested with every root and in every way to build a plan (the bits below), larger layouts in DRAWN random ones. */
#include "backend/collectives/collectives.h"
#include "tests/support/unit.h"
#include "tests/unit/check/local.h"
#include "tests/unit/check/placements.h"

enum { IN_PLACE = 1, HOIST = 2, STAGE_INPUTS = 4, SHARED = 8, WAYS = 16, MIXED = 16, SMALL = 4, DRAWN = 2 };
static int plans, checks, bad, cured, layouts;
static uint64_t random_state = 299792458;

static void complain(const struct plan *p, const char *why)
{
    char text[300] = "";
    describe(p, text, sizeof text);
    if (bad++ < 10) print_error("%s: %s\n", text, why);
    for (int r = 0; bad <= 10 && r < p->layout->ranks; r++) print_error("%d ", layout_host(p->layout, r));
}
static struct plan plan_by(const struct algorithm *a, const struct layout *l, int root, int way)
{
    struct plan p = plan_of(a, l, root);
    p.in_place = way & MIXED ? mask_of(xorshift_next(&random_state)) : way & IN_PLACE ? mask_all : NULL;
    p.shared = way & MIXED ? mask_of(xorshift_next(&random_state)) : way & SHARED ? mask_all : NULL;
    p.hoists_receives = way & HOIST;
    p.stage_inputs = way & STAGE_INPUTS;
    p.slots = 1 + (way + root) % 3;
    return p;
}
static void check(const struct plan *p)
{
    char why[200] = "";
    bool large = p->size > 12;
    for (int tiles = 1; tiles <= (large ? p->slots + 1 : 2 * p->slots + 1); tiles += p->slots, checks++)
        if (!plan_check(p, tiles, large ? 2 : 3, (unsigned)tiles - 1, why, sizeof why)) {
            complain(p, why);
            return;
        }
}
static void prove_one(const struct algorithm *a, const struct layout *l, int root, int way)
{
    static struct assembled x;
    if (way & STAGE_INPUTS && !is_reducing(a->collective)) return;
    struct plan key = plan_by(a, l, root, way);
    plans++;
    if (assembled_build(&x, &key) == TUTTI_OK) check(&x.all);
    else complain(&key, x.all.error);
    cured += x.cured;
    assembled_finish(&x);
}
static void prove_layout(const struct layout *l)
{
    layouts++;
    for (const struct algorithm *a = collectives_table; a->name; a++) {
        if (!a->hierarchical) continue;
        int roots = is_rooted(a->collective) ? l->ranks : 1;
        for (int root = 0; root < roots && l->ranks <= SMALL; root++)
            for (int way = 0; way < WAYS + 2; way++) prove_one(a, l, root, way < WAYS ? way : MIXED | way % 2 * HOIST);
        for (int i = 0; i < DRAWN && l->ranks > SMALL; i++) {
            int way = (int)(xorshift_next(&random_state) >> 16 & (WAYS + MIXED - 1));
            prove_one(a, l, (int)(xorshift_next(&random_state) >> 16 & 0xffff) % roots, way);
        }
    }
}
static void report(const char *what)
{
    print_message("%s: %d layouts, %d plans (%d hosts cured), %d checks, %d bad\n", what, layouts, plans, cured, checks,
        bad);
    int failures = bad;
    layouts = plans = checks = cured = bad = 0;
    assert_int_equal(failures, 0);
}
static void test_proof_holds_on_equal_hosts(void **state)
{
    (void)state;
    visit_equal(prove_layout);
    report("equal hosts");
}
static void test_proof_holds_on_unequal_hosts(void **state)
{
    (void)state;
    visit_unequal(prove_layout);
    report("unequal hosts");
}
static void test_proof_holds_on_interleaved_hosts(void **state)
{
    (void)state;
    visit_interleaved(prove_layout);
    report("interleaved hosts");
}
static void test_proof_holds_on_shuffled_hosts(void **state)
{
    (void)state;
    visit_shuffled(prove_layout);
    report("shuffled hosts");
}
/* The steps of algorithms over messages do not depend on the layout, but the roll call does. So these algorithms are
   checked where the ranks of a host are not consecutive. */
static void prove_messages(const struct layout *l)
{
    layouts++;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        if (!a->host_memory && !a->hierarchical)
            prove_one(a, l, is_rooted(a->collective) ? l->ranks / 2 : 0, IN_PLACE | HOIST);
}
static void test_proof_of_messages_holds_on_interleaved_hosts(void **state)
{
    (void)state;
    visit_interleaved(prove_messages);
    report("messages");
}

/* ---- a host's own plan and the plan of all ranks ---- */
static void compare_layout(const struct layout *l)
{
    layouts++;
    for (const struct algorithm *a = collectives_table; a->name; a++) {
        if (!a->hierarchical) continue;
        int root = is_rooted(a->collective) ? (int)(xorshift_next(&random_state) % (uint64_t)l->ranks) : 0;
        struct plan p =
            plan_by(a, l, root, (int)(xorshift_next(&random_state) >> 16) & (SHARED | IN_PLACE | HOIST | MIXED));
        plans++;
        compare_hosts(&p, &checks);
    }
}
static void test_host_builds_its_part_of_the_plan_of_all(void **state)
{
    (void)state;
    visit_all(compare_layout);
    report("local and global");
}
unit_function test_hierarchy_proof;
int test_hierarchy_proof(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_proof_holds_on_equal_hosts),
        cmocka_unit_test(test_proof_holds_on_unequal_hosts),
        cmocka_unit_test(test_proof_holds_on_interleaved_hosts),
        cmocka_unit_test(test_proof_holds_on_shuffled_hosts),
        cmocka_unit_test(test_proof_of_messages_holds_on_interleaved_hosts),
        cmocka_unit_test(test_host_builds_its_part_of_the_plan_of_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
