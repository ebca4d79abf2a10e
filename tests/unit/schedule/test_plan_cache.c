/* A plan is built once for each key, stays where it is while it is kept, and is found by what was asked, not by what
 * was built. What was not asked for longest goes, and only when more is held than is allowed. */
#include "backend/base/status.h"
#include "tests/support/unit.h"
#include "tests/unit/schedule/examples.h"

static struct hosts hosts;

static const struct plan *found(struct plan_cache *c, struct plan key)
{
    const struct plan *plan = NULL;
    assert_int_equal(plan_cache_get(c, &key, &plan), TUTTI_OK);
    return plan;
}
static void the_same_key_finds_the_same_plan(void **state)
{
    struct plan_cache *c = plan_cache_create(SIZE_MAX, NULL, NULL);
    struct plan key = plan_of(&ring, apart(&hosts, 3), 0);
    const struct plan *plan = found(c, key);
    (void)state;
    assert_ptr_equal(found(c, key), plan);
    assert_int_equal(plan->count, 3);
    assert_true(plan->ranks[2].step_count > 0);
    plan_cache_destroy(c);
}
static void every_part_of_the_key_counts(void **state)
{
    struct plan_cache *c = plan_cache_create(SIZE_MAX, NULL, NULL);
    struct plan key = plan_of(&one_shot, together(&hosts, 3), 0), keys[9];
    (void)state;
    for (int i = 0; i < 9; i++) keys[i] = key;
    keys[1].algorithm = &two_shot;
    keys[2].root = 1;
    keys[3].slots = 2;
    keys[4].in_place = mask_of(2);
    keys[5].shared = mask_of(2);
    keys[6].stage_inputs = true;
    keys[7].hoists_receives = true;
    keys[8].in_place = keys[8].shared = mask_of(7);
    for (int i = 0; i < 9; i++)
        for (int j = 0; j < i; j++) assert_ptr_not_equal(found(c, keys[i]), found(c, keys[j]));
    plan_cache_destroy(c);
}
static void members_are_a_part_of_the_key(void **state)
{
    struct plan_cache *c = plan_cache_create(SIZE_MAX, NULL, NULL);
    struct plan all = plan_of(&ring, apart(&hosts, 3), 0), mine = all, other = all;
    (void)state;
    mine.one_host = other.one_host = true;
    other.host = 1;
    assert_ptr_not_equal(found(c, all), found(c, mine));
    assert_ptr_not_equal(found(c, mine), found(c, other));
    assert_int_equal(found(c, other)->ranks[0].rank, 1);
    plan_cache_destroy(c);
}
static void a_plan_cured_by_staging_is_found_again(void **state)
{
    struct plan_cache *c = plan_cache_create(SIZE_MAX, NULL, NULL);
    struct plan key = plan_of(&one_shot, together(&hosts, 3), 0);
    (void)state;
    key.in_place = key.shared = mask_of(7);
    const struct plan *plan = found(c, key);
    assert_non_null(plan->unshared);
    assert_ptr_equal(found(c, key), plan);
    plan_cache_destroy(c);
}
static void plans_stay_where_they_are(void **state)
{
    struct plan_cache *c = plan_cache_create(SIZE_MAX, NULL, NULL);
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
    plan_cache_destroy(c);
}

/* ---- the bound ---- */
enum { BOUND = 64 << 10, MADE_BYTES = 100 };
struct user { const struct plan *keeps; int asked, gone; const struct plan *first_gone; };
static int made;                                        /* stands for whatever is made of plans */
static bool release(void *context, const struct plan *plan, void *of_it)
{
    struct user *u = context;
    u->asked++;
    assert_ptr_equal(of_it, &made);
    assert_ptr_equal(plan_cache_get_made(plan), &made);
    if (plan == u->keeps) return false;
    if (!u->gone++) u->first_gone = plan;
    return true;
}
static const struct plan *asked_for(struct plan_cache *c, struct plan *key, int root)
{
    key->root = root;
    const struct plan *plan = found(c, *key);
    if (!plan_cache_get_made(plan)) plan_cache_attach_made(c, plan, &made, MADE_BYTES);
    return plan;
}
static void what_is_held_stays_within_the_bound(void **state)
{
    struct user user = { NULL, 0, 0, NULL };
    struct plan_cache *c = plan_cache_create(BOUND, release, &user);
    struct plan key = plan_of(&binomial, apart(&hosts, 100), 0);
    (void)state;
    for (int n = 0; n < 3000; n++) {
        const struct plan *plan = asked_for(c, &key, n * 37 % 100);
        key.slots = 1 + n % 3;
        assert_int_equal(plan->root, n * 37 % 100);
        assert_int_equal(plan->count, 100);
        assert_true(plan_cache_held_bytes(c) <= BOUND || plan_cache_held_bytes(c) <= plan_held_bytes(plan) + 1024);
    }
    assert_true(user.gone > 100);
    plan_cache_destroy(c);
}
static void what_was_not_asked_for_longest_goes_first(void **state)
{
    struct user user = { NULL, 0, 0, NULL };
    struct plan_cache *c = plan_cache_create(SIZE_MAX, release, &user);
    struct plan key = plan_of(&binomial, apart(&hosts, 5), 0);
    const struct plan *plans[5];
    (void)state;
    for (int root = 0; root < 4; root++) plans[root] = asked_for(c, &key, root);
    assert_ptr_equal(asked_for(c, &key, 0), plans[0]);                 /* so plan 1 is the oldest */
    plan_cache_set_limit(c, plan_cache_held_bytes(c));
    asked_for(c, &key, 4);
    assert_ptr_equal(user.first_gone, plans[1]);
    assert_int_equal(user.gone, 1);
    assert_ptr_equal(asked_for(c, &key, 0), plans[0]);
    assert_ptr_equal(asked_for(c, &key, 2), plans[2]);
    plan_cache_destroy(c);
    assert_int_equal(user.gone, 5);                                    /* all of them, once */
}
static void what_is_in_use_stays(void **state)
{
    struct user user = { NULL, 0, 0, NULL };
    struct plan_cache *c = plan_cache_create(1, release, &user);
    struct plan key = plan_of(&binomial, apart(&hosts, 5), 0);
    (void)state;
    user.keeps = asked_for(c, &key, 3);
    for (int n = 0; n < 50; n++) asked_for(c, &key, n % 3);
    assert_int_equal(user.gone, 49);                                   /* but for the newest */
    assert_int_equal(user.keeps->root, 3);
    assert_ptr_equal(asked_for(c, &key, 3), user.keeps);
    plan_cache_destroy(c);
}
static void what_is_made_of_a_plan_counts(void **state)
{
    struct user user = { NULL, 0, 0, NULL };
    struct plan_cache *c = plan_cache_create(SIZE_MAX, release, &user);
    struct plan key = plan_of(&binomial, apart(&hosts, 5), 0);
    const struct plan *plan = found(c, key);
    size_t before = plan_cache_held_bytes(c);
    (void)state;
    assert_true(before >= plan_held_bytes(plan));
    assert_null(plan_cache_get_made(plan));
    plan_cache_attach_made(c, plan, &made, MADE_BYTES);
    assert_int_equal(plan_cache_held_bytes(c), before + MADE_BYTES);
    plan_cache_destroy(c);
}
static void record_wrong(struct schedule *s)
{
    step_copy(s, span_of_chunk(s->rank, OUTPUT, 1), span_of_chunk(s->rank, INPUT, 0));
}
static void an_error_is_said(void **state)
{
    const struct algorithm wrong = { .name = "wrong", .collective = ALLREDUCE, .record = record_wrong };
    struct plan_cache *c = plan_cache_create(SIZE_MAX, NULL, NULL);
    struct plan key = plan_of(&wrong, together(&hosts, 2), 0);
    const struct plan *plan = NULL;
    (void)state;
    assert_int_equal(plan_cache_get(c, &key, &plan), TUTTI_INTERNAL);
    assert_null(plan);
    assert_string_equal(status_detail(), "cannot plan wrong for 2 ranks: rank 0: span out of range");
    plan_cache_destroy(c);
}
static void nothing_can_be_destroyed(void **state)
{
    (void)state;
    plan_cache_destroy(NULL);
}
unit_function test_plan_cache;
int test_plan_cache(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_key_finds_the_same_plan),
        cmocka_unit_test(every_part_of_the_key_counts),
        cmocka_unit_test(members_are_a_part_of_the_key),
        cmocka_unit_test(a_plan_cured_by_staging_is_found_again),
        cmocka_unit_test(plans_stay_where_they_are),
        cmocka_unit_test(what_is_held_stays_within_the_bound),
        cmocka_unit_test(what_was_not_asked_for_longest_goes_first),
        cmocka_unit_test(what_is_in_use_stays),
        cmocka_unit_test(what_is_made_of_a_plan_counts),
        cmocka_unit_test(an_error_is_said),
        cmocka_unit_test(nothing_can_be_destroyed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
