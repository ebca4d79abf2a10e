/* One rank of a large group builds its own schedule, without the others. How long that takes is printed, not judged. */
#include "backend/base/clock.h"
#include "backend/collectives/collectives.h"
#include "tests/unit/schedule/plans.h"
#include <stdlib.h>

enum { LARGE = 4096, LARGEST = 65536 };

static void build_one(const struct algorithm *a, const struct layout *l, int size)
{
    struct plan p = plan_of(a, l, 0);
    p.first = size / 3;
    p.count = 1;
    p.slots = 4;
    p.in_place = UINT64_MAX;
    p.hoist = true;
    int64_t start = clock_ns();
    if (plan_build_staging(&p) != TUTTI_OK) fail_msg("%s of %d ranks: %s", a->name, size, p.error);
    int64_t spent = clock_ns() - start;
    print_message("%-16s %-13s %6d ranks: %6d steps, %6d spans, %6d waits, %9.2f ms\n", family_name(a->family), a->name,
        size, p.ranks[0].step_count, p.ranks[0].span_count, p.ranks[0].wait_count, (double)spent * 1e-6);
    plan_finish(&p);
}
static void every_algorithm_at_4096_ranks(void **state)
{
    int *first = calloc(LARGE + 1, sizeof *first);
    struct layout l = { LARGE, first };
    (void)state;
    for (int r = 0; r <= LARGE; r++) first[r] = r;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        if (!a->host_memory) build_one(a, &l, LARGE);
    free(first);
}
static void short_messages_at_65536_ranks(void **state)
{
    int *first = calloc(LARGEST + 1, sizeof *first);
    struct layout l = { LARGEST, first };
    (void)state;
    for (int r = 0; r <= LARGEST; r++) first[r] = r;
    build_one(collectives_find(ALLREDUCE, "doubling"), &l, LARGEST);
    build_one(collectives_find(ALLREDUCE, "double_tree"), &l, LARGEST);
    build_one(collectives_find(BROADCAST, "binomial"), &l, LARGEST);
    build_one(collectives_find(BARRIER, "dissemination"), &l, LARGEST);
    free(first);
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_algorithm_at_4096_ranks),
        cmocka_unit_test(short_messages_at_65536_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
