/* One rank of a large group builds its own schedule without the others. The time is printed, not judged. */
#include "backend/base/clock.h"
#include "backend/collectives/collectives.h"
#include "tests/support/unit.h"
#include "tests/unit/schedule/plans.h"

enum { LARGE = 4096, LARGEST = 65536 };

static struct layout *layout_apart(int ranks)
{
    struct layout *l = NULL;
    int *hosts = calloc((size_t)ranks, sizeof *hosts);
    assert_non_null(hosts);
    for (int r = 0; r < ranks; r++) hosts[r] = r;
    assert_int_equal(layout_create(hosts, ranks, &l), TUTTI_OK);
    free(hosts);
    return l;
}
static void build_one(const struct algorithm *a, const struct layout *l, int size)
{
    struct plan p = plan_of(a, l, 0);
    p.one_host = true;
    p.host = size / 3;
    p.slots = 4;
    p.in_place = mask_all;
    p.hoists_receives = true;
    int64_t start = clock_ns();
    if (plan_build_staging(&p) != TUTTI_OK) fail_msg("%s of %d ranks: %s", a->name, size, p.error);
    int64_t spent = clock_ns() - start;
    print_message("%-16s %-13s %6d ranks: %6d steps, %6d spans, %6d waits, %9.2f ms\n", collective_name(a->collective),
        a->name, size, p.ranks[0].step_count, p.ranks[0].span_count, p.ranks[0].wait_count, (double)spent * 1e-6);
    plan_finish(&p);
}
static void test_algorithms_are_built_for_4096_ranks(void **state)
{
    struct layout *l = layout_apart(LARGE);
    (void)state;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        if (!a->host_memory) build_one(a, l, LARGE);
    layout_destroy(l);
}
static void test_algorithms_of_few_rounds_are_built_for_65536_ranks(void **state)
{
    struct layout *l = layout_apart(LARGEST);
    (void)state;
    build_one(collectives_find_algorithm(ALLREDUCE, "doubling"), l, LARGEST);
    build_one(collectives_find_algorithm(ALLREDUCE, "double_tree"), l, LARGEST);
    build_one(collectives_find_algorithm(BROADCAST, "binomial"), l, LARGEST);
    build_one(collectives_find_algorithm(BARRIER, "dissemination"), l, LARGEST);
    layout_destroy(l);
}
unit_function test_plan_scale;
int test_plan_scale(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_algorithms_are_built_for_4096_ranks),
        cmocka_unit_test(test_algorithms_of_few_rounds_are_built_for_65536_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
