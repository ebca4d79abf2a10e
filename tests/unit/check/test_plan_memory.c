/* Every allocation of the builder, the checker and the cache fails in turn. The result is an error, no memory is lost
   (the address sanitizer checks this), and the next attempt works. */
#include "tests/support/unit.h"
#include "tests/unit/check/hierarchies.h"
#include "tests/unit/schedule/examples.h"

enum { MOST_ALLOCATIONS = 20000 };
static struct hosts hosts;
static int failures;

/* Sets *reached if building makes at least that many allocations. */
static struct plan plan_build_with_failure(const struct plan *key, int allocation, tutti_status *status, bool *reached)
{
    struct plan p = *key;
    memory_fail_after(allocation);
    *status = plan_build_staging(&p);
    *reached = memory_fail_after(0) <= 0;
    return p;
}
/* A plan is also built if freeing spare room fails. */
static void fail_every_allocation_of(const struct plan *key)
{
    for (int n = 1; n < MOST_ALLOCATIONS; n++) {
        tutti_status status;
        bool reached;
        struct plan p = plan_build_with_failure(key, n, &status, &reached);
        char text[8];
        failures += reached;
        if (status == TUTTI_OK) {
            plan_print(&p, text, sizeof text);
        } else {
            assert_int_equal(status, TUTTI_NO_MEMORY);
            assert_non_null(strstr(p.error, "out of memory"));
        }
        plan_finish(&p);
        if (!reached) return;
    }
    fail_msg("%s: the plan is never built", key->algorithm->name);
}
static void test_builder_survives_failed_allocations(void **state)
{
    static const int sizes[] = { 2, 1 };
    const struct algorithm *algorithms[] = { &two_shot, &ring, &binomial, &hierarchies[1], &hierarchies[2],
        &hierarchies[3] };
    (void)state;
    for (size_t i = 0; i < sizeof algorithms / sizeof *algorithms; i++)
        for (int way = 0; way < 4; way++) {
            bool flat = i < 3;
            struct plan p = plan_of(algorithms[i], flat ? together(&hosts, 3) : hosts_of(&hosts, sizes, 2), 0);
            p.in_place = way & 1 ? mask_all : NULL;
            p.shared = way & 2 ? mask_all : NULL;
            p.hoists_receives = true;
            p.slots = 2;
            fail_every_allocation_of(&p);
        }
    print_message("%d failures survived\n", failures);
}
static void test_checker_survives_failed_allocations(void **state)
{
    struct plan p = plan_of(&ring, together(&hosts, 3), 0);
    bool right = false;
    (void)state;
    p.slots = 2;
    assert_int_equal(plan_build(&p), TUTTI_OK);
    for (int n = 1; !right; n++) {
        char why[200] = "";
        memory_fail_after(n);
        right = plan_check(&p, 3, 2, 0, why, sizeof why);
        memory_fail_after(0);
        if (!right) assert_non_null(strstr(why, "out of memory"));
        assert_true(n < MOST_ALLOCATIONS);
    }
    plan_finish(&p);
}
static void test_cache_survives_failed_allocations(void **state)
{
    struct plan key = plan_of(&two_shot, together(&hosts, 3), 0);
    struct plan_cache *c = plan_cache_create(SIZE_MAX, NULL, NULL);
    const struct plan *plan = NULL;
    bool reached = true;
    (void)state;
    for (int n = 1; reached; n++) {
        assert_null(plan);
        memory_fail_after(n);
        tutti_status status = plan_cache_get(c, &key, &plan);
        reached = memory_fail_after(0) <= 0;
        assert_true(status == (plan ? TUTTI_OK : TUTTI_NO_MEMORY));
        if (!plan || !reached) continue;
        /* The cache has the plan, so the next attempt needs another cache. */
        plan_cache_destroy(c);
        c = plan_cache_create(SIZE_MAX, NULL, NULL);
        plan = NULL;
    }
    assert_non_null(plan);
    plan_cache_destroy(c);
    memory_fail_after(1);
    assert_null(plan_cache_create(SIZE_MAX, NULL, NULL));
    memory_fail_after(0);
}
unit_function test_plan_memory;
int test_plan_memory(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_builder_survives_failed_allocations),
        cmocka_unit_test(test_checker_survives_failed_allocations),
        cmocka_unit_test(test_cache_survives_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
