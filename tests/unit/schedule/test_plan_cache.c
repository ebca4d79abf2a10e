/* A plan is built once for each key, stays where it is, and is found by what was asked, not by what was built. */
#include "backend/base/status.h"
#include "tests/unit/schedule/examples.h"

static struct hosts hosts;

static const struct plan *found(struct cache *c, struct plan key)
{
    const struct plan *plan = NULL;
    assert_int_equal(cache_plan(c, &key, &plan), TUTTI_OK);
    return plan;
}
static void the_same_key_finds_the_same_plan(void **state)
{
    struct cache *c = cache_create();
    struct plan key = plan_of(&ring, apart(&hosts, 3), 0);
    const struct plan *plan = found(c, key);
    (void)state;
    assert_ptr_equal(found(c, key), plan);
    assert_int_equal(plan->count, 3);
    assert_true(plan->ranks[2].step_count > 0);
    cache_destroy(c);
}
static void every_part_of_the_key_counts(void **state)
{
    struct cache *c = cache_create();
    struct plan key = plan_of(&one_shot, together(&hosts, 3), 0), keys[9];
    (void)state;
    for (int i = 0; i < 9; i++) keys[i] = key;
    keys[1].algorithm = &two_shot;
    keys[2].root = 1;
    keys[3].slots = 2;
    keys[4].in_place = mask_of(2);
    keys[5].shared = mask_of(2);
    keys[6].stage_inputs = true;
    keys[7].hoist = true;
    keys[8].in_place = keys[8].shared = mask_of(7);
    for (int i = 0; i < 9; i++)
        for (int j = 0; j < i; j++) assert_ptr_not_equal(found(c, keys[i]), found(c, keys[j]));
    cache_destroy(c);
}
static void members_are_a_part_of_the_key(void **state)
{
    struct cache *c = cache_create();
    struct plan all = plan_of(&ring, apart(&hosts, 3), 0), mine = all, other = all;
    (void)state;
    mine.one_host = other.one_host = true;
    other.host = 1;
    assert_ptr_not_equal(found(c, all), found(c, mine));
    assert_ptr_not_equal(found(c, mine), found(c, other));
    assert_int_equal(found(c, other)->ranks[0].rank, 1);
    cache_destroy(c);
}
static void a_plan_cured_by_staging_is_found_again(void **state)
{
    struct cache *c = cache_create();
    struct plan key = plan_of(&one_shot, together(&hosts, 3), 0);
    (void)state;
    key.in_place = key.shared = mask_of(7);
    const struct plan *plan = found(c, key);
    assert_non_null(plan->unshared);
    assert_ptr_equal(found(c, key), plan);
    cache_destroy(c);
}
static void plans_stay_where_they_are(void **state)
{
    struct cache *c = cache_create();
    struct plan key = plan_of(&binomial, apart(&hosts, 100), 0);
    const struct plan *plans[100];
    (void)state;
    key.count = 1;
    for (int root = 0; root < 100; root++) {
        key.root = root;
        plans[root] = found(c, key);
    }
    for (int root = 0; root < 100; root++) {
        key.root = root;
        assert_ptr_equal(found(c, key), plans[root]);
        assert_int_equal(plans[root]->root, root);
    }
    cache_destroy(c);
}
static void record_wrong(struct schedule *s) { step_copy(s, chunk(s->rank, OUTPUT, 1), chunk(s->rank, INPUT, 0)); }
static void an_error_is_said(void **state)
{
    const struct algorithm wrong = { .name = "wrong", .family = ALLREDUCE, .record = record_wrong };
    struct cache *c = cache_create();
    struct plan key = plan_of(&wrong, together(&hosts, 2), 0);
    const struct plan *plan = NULL;
    (void)state;
    assert_int_equal(cache_plan(c, &key, &plan), TUTTI_INTERNAL);
    assert_null(plan);
    assert_string_equal(status_detail(), "cannot plan wrong for 2 ranks: rank 0: span out of range");
    cache_destroy(c);
}
static void nothing_can_be_destroyed(void **state)
{
    (void)state;
    cache_destroy(NULL);
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_key_finds_the_same_plan),
        cmocka_unit_test(every_part_of_the_key_counts),
        cmocka_unit_test(members_are_a_part_of_the_key),
        cmocka_unit_test(a_plan_cured_by_staging_is_found_again),
        cmocka_unit_test(plans_stay_where_they_are),
        cmocka_unit_test(an_error_is_said),
        cmocka_unit_test(nothing_can_be_destroyed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
