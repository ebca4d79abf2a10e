/* A plan is built once for each key and keeps its address while it is in the cache. It is found by the key of the
   request, also if it was built with more staging. The cache removes the least recently used plans, and only while it
   holds more bytes than its limit. */
#include "backend/base/status.h"
#include "tests/support/unit.h"
#include "tests/unit/schedule/examples.h"

static struct hosts hosts;

static const struct plan *plan_find(struct plan_cache *c, struct plan key)
{
    const struct plan *plan = NULL;
    assert_int_equal(plan_cache_get(c, &key, &plan), TUTTI_OK);
    return plan;
}
static void test_equal_keys_find_one_plan(void **state)
{
    struct plan_cache *c = plan_cache_create(SIZE_MAX, NULL, NULL);
    struct plan key = plan_of(&ring, apart(&hosts, 3), 0);
    const struct plan *plan = plan_find(c, key);
    (void)state;
    assert_ptr_equal(plan_find(c, key), plan);
    assert_int_equal(plan->count, 3);
    assert_true(plan->ranks[2].step_count > 0);
    plan_cache_destroy(c);
}
static void test_every_part_of_the_key_counts(void **state)
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
        for (int j = 0; j < i; j++) assert_ptr_not_equal(plan_find(c, keys[i]), plan_find(c, keys[j]));
    plan_cache_destroy(c);
}
static void test_members_are_a_part_of_the_key(void **state)
{
    struct plan_cache *c = plan_cache_create(SIZE_MAX, NULL, NULL);
    struct plan all = plan_of(&ring, apart(&hosts, 3), 0), mine = all, other = all;
    (void)state;
    mine.one_host = other.one_host = true;
    other.host = 1;
    assert_ptr_not_equal(plan_find(c, all), plan_find(c, mine));
    assert_ptr_not_equal(plan_find(c, mine), plan_find(c, other));
    assert_int_equal(plan_find(c, other)->ranks[0].rank, 1);
    plan_cache_destroy(c);
}
static void test_plan_cured_by_staging_is_found_again(void **state)
{
    struct plan_cache *c = plan_cache_create(SIZE_MAX, NULL, NULL);
    struct plan key = plan_of(&one_shot, together(&hosts, 3), 0);
    (void)state;
    key.in_place = key.shared = mask_of(7);
    const struct plan *plan = plan_find(c, key);
    assert_non_null(plan->unshared);
    assert_ptr_equal(plan_find(c, key), plan);
    plan_cache_destroy(c);
}
static void test_plans_keep_their_addresses(void **state)
{
    struct plan_cache *c = plan_cache_create(SIZE_MAX, NULL, NULL);
    struct plan key = plan_of(&binomial, apart(&hosts, 100), 0);
    const struct plan *plans[100];
    (void)state;
    key.count = 1;
    for (int root = 0; root < 100; root++) {
        key.root = root;
        plans[root] = plan_find(c, key);
    }
    for (int root = 0; root < 100; root++) {
        key.root = root;
        assert_ptr_equal(plan_find(c, key), plans[root]);
        assert_int_equal(plans[root]->root, root);
    }
    plan_cache_destroy(c);
}

/* ---- the limit ---- */
enum { LIMIT = 64 << 10, MADE_BYTES = 100 };
/* The user of a cache. It keeps one plan; it counts the calls of `release` and the removed plans. */
struct user { const struct plan *keeps; int asked, gone; const struct plan *first_gone; };
/* Stands for data that a user attaches to a plan. */
static int made;
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
static const struct plan *plan_request(struct plan_cache *c, struct plan *key, int root)
{
    key->root = root;
    const struct plan *plan = plan_find(c, *key);
    if (!plan_cache_get_made(plan)) plan_cache_attach_made(c, plan, &made, MADE_BYTES);
    return plan;
}
static void test_held_bytes_stay_within_the_limit(void **state)
{
    struct user user = { NULL, 0, 0, NULL };
    struct plan_cache *c = plan_cache_create(LIMIT, release, &user);
    struct plan key = plan_of(&binomial, apart(&hosts, 100), 0);
    (void)state;
    for (int n = 0; n < 3000; n++) {
        const struct plan *plan = plan_request(c, &key, n * 37 % 100);
        key.slots = 1 + n % 3;
        assert_int_equal(plan->root, n * 37 % 100);
        assert_int_equal(plan->count, 100);
        assert_true(plan_cache_held_bytes(c) <= LIMIT || plan_cache_held_bytes(c) <= plan_held_bytes(plan) + 1024);
    }
    assert_true(user.gone > 100);
    plan_cache_destroy(c);
}
static void test_least_recently_used_plan_is_removed_first(void **state)
{
    struct user user = { NULL, 0, 0, NULL };
    struct plan_cache *c = plan_cache_create(SIZE_MAX, release, &user);
    struct plan key = plan_of(&binomial, apart(&hosts, 5), 0);
    const struct plan *plans[5];
    (void)state;
    for (int root = 0; root < 4; root++) plans[root] = plan_request(c, &key, root);
    /* Then plan 1 is the least recently used. */
    assert_ptr_equal(plan_request(c, &key, 0), plans[0]);
    plan_cache_set_limit(c, plan_cache_held_bytes(c));
    plan_request(c, &key, 4);
    assert_ptr_equal(user.first_gone, plans[1]);
    assert_int_equal(user.gone, 1);
    assert_ptr_equal(plan_request(c, &key, 0), plans[0]);
    assert_ptr_equal(plan_request(c, &key, 2), plans[2]);
    plan_cache_destroy(c);
    assert_int_equal(user.gone, 5);
}
static void test_plan_in_use_is_not_removed(void **state)
{
    struct user user = { NULL, 0, 0, NULL };
    struct plan_cache *c = plan_cache_create(1, release, &user);
    struct plan key = plan_of(&binomial, apart(&hosts, 5), 0);
    (void)state;
    user.keeps = plan_request(c, &key, 3);
    for (int n = 0; n < 50; n++) plan_request(c, &key, n % 3);
    /* Each of the 50 requests removed the plan of the request before it. */
    assert_int_equal(user.gone, 49);
    assert_int_equal(user.keeps->root, 3);
    assert_ptr_equal(plan_request(c, &key, 3), user.keeps);
    plan_cache_destroy(c);
}
static void test_attached_data_counts_as_held(void **state)
{
    struct user user = { NULL, 0, 0, NULL };
    struct plan_cache *c = plan_cache_create(SIZE_MAX, release, &user);
    struct plan key = plan_of(&binomial, apart(&hosts, 5), 0);
    const struct plan *plan = plan_find(c, key);
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
static void test_error_of_the_builder_is_reported(void **state)
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
static void test_null_can_be_destroyed(void **state)
{
    (void)state;
    plan_cache_destroy(NULL);
}
unit_function test_plan_cache;
int test_plan_cache(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_keys_find_one_plan),
        cmocka_unit_test(test_every_part_of_the_key_counts),
        cmocka_unit_test(test_members_are_a_part_of_the_key),
        cmocka_unit_test(test_plan_cured_by_staging_is_found_again),
        cmocka_unit_test(test_plans_keep_their_addresses),
        cmocka_unit_test(test_held_bytes_stay_within_the_limit),
        cmocka_unit_test(test_least_recently_used_plan_is_removed_first),
        cmocka_unit_test(test_plan_in_use_is_not_removed),
        cmocka_unit_test(test_attached_data_counts_as_held),
        cmocka_unit_test(test_error_of_the_builder_is_reported),
        cmocka_unit_test(test_null_can_be_destroyed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
