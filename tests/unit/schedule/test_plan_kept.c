/* A rank builds only its own schedule of a plan, equal to that in the plan of all members, and few facts about the
   other ranks. The bytes of such a plan grow with the number of ranks, not with its square, except for the algorithms
   that have a span for each pair of ranks. */
#include "backend/collectives/collectives.h"
#include "tests/support/unit.h"
#include "tests/unit/check/local.h"

static struct hosts hosts;

static struct plan kept_plan(const struct plan *all, int rank)
{
    struct plan p = *all;
    p.one_rank = true;
    p.rank = rank;
    p.unshared = NULL;
    p.ranks = NULL;
    p.stage_sends = false;
    if (plan_build_staging(&p) != TUTTI_OK) fail_msg("%s rank %d: %s", p.algorithm->name, rank, p.error);
    return p;
}
static void compare_kept(const struct plan *all, int rank)
{
    struct plan p = kept_plan(all, rank);
    assert_int_equal(p.count, all->count);
    assert_int_equal(p.period, all->period);
    assert_memory_equal(&p.counts, &all->counts, sizeof p.counts);
    assert_int_equal(p.has_messages, all->has_messages);
    compare_rank(plan_schedule_of_rank(&p, rank), plan_schedule_of_rank(all, rank), p.algorithm->name);
    assert_int_equal(plan_schedule_of_rank(&p, rank)->chunks[SCRATCH],
        plan_schedule_of_rank(all, rank)->chunks[SCRATCH]);
    for (int m = 0; m < p.count; m++)
        if (plan_rank_of_member(&p, m) != rank) assert_null(plan_schedule_of_rank(&p, plan_rank_of_member(&p, m)));
    assert_true(plan_held_bytes(&p) <= plan_held_bytes(all));
    plan_finish(&p);
}
static void compare_all(const struct layout *l, int host, bool hierarchical)
{
    for (const struct algorithm *a = collectives_table; a->name; a++)
        for (int way = 0; way < 4; way++) {
            if (hierarchical ? !a->hierarchical : !a->host_memory) continue;
            struct plan p = plan_of(a, l, 1);
            p.one_host = true;
            p.host = host;
            p.slots = 3;
            p.hoists_receives = hierarchical;
            p.in_place = way & 1 && a->collective != ALL_TO_ALL ? mask_all : NULL;
            p.shared = way & 2 ? mask_of(5) : NULL;
            if (plan_build_staging(&p) != TUTTI_OK) fail_msg("%s: %s", a->name, p.error);
            for (int m = 0; m < p.count; m++) compare_kept(&p, plan_rank_of_member(&p, m));
            plan_finish(&p);
        }
}
static void test_rank_builds_its_part_of_the_plan_of_all(void **state)
{
    static const int sizes[] = { 2, 3, 1 };
    (void)state;
    compare_all(together(&hosts, 5), 0, false);
    for (int host = 0; host < 3; host++) compare_all(hosts_of(&hosts, sizes, 3), host, true);
}

/* ---- bytes ---- */
enum { BYTES = 1024, BYTES_PER_RANK = 160, BYTES_PER_PAIR = 104 };
/* True if the root's schedule has a span for each pair of ranks. */
static bool is_by_pairs(const struct algorithm *a)
{
    return (a->collective == GATHER && !strcmp(a->name, "read_write"))
        || (a->collective == REDUCE && !strcmp(a->name, "two_shot"));
}
static void test_bytes_grow_in_proportion_to_the_ranks(void **state)
{
    (void)state;
    for (int size = 8; size <= 128; size *= 2)
        for (const struct algorithm *a = collectives_table; a->name; a++) {
            if (!a->host_memory) continue;
            struct plan all = plan_of(a, together(&hosts, size), 0);
            all.one_host = true;
            all.slots = 3;
            all.in_place = a->collective == ALL_TO_ALL ? NULL : mask_all;
            struct plan root = kept_plan(&all, 0), other = kept_plan(&all, size - 1);
            size_t n = (size_t)size, most = BYTES + BYTES_PER_RANK * n;
            if (plan_held_bytes(&other) > most) fail_msg("%s of %d: %zu bytes", a->name, size, plan_held_bytes(&other));
            if (is_by_pairs(a)) most += BYTES_PER_PAIR * n * n;
            if (plan_held_bytes(&root) > most)
                fail_msg("%s of %d, root: %zu bytes", a->name, size, plan_held_bytes(&root));
            plan_finish(&root);
            plan_finish(&other);
        }
}
static void test_bytes_are_bounded_for_4096_hosts(void **state)
{
    enum { HOSTS = 4096, PER_HOST = 8 };
    struct layout *l = NULL;
    int *host = calloc(HOSTS * PER_HOST, sizeof *host);
    (void)state;
    assert_non_null(host);
    for (int r = 0; r < HOSTS * PER_HOST; r++) host[r] = r / PER_HOST;
    assert_int_equal(layout_create(host, HOSTS * PER_HOST, &l), TUTTI_OK);
    for (const struct algorithm *a = collectives_table; a->name; a++) {
        if (!a->hierarchical) continue;
        bool one_part = collective_count_chunks(a->collective, INPUT, 2) == 1
            && collective_count_chunks(a->collective, OUTPUT, 2) == 1;
        size_t most = one_part && !a->few_hosts ? 8 << 10 : 256 * HOSTS * PER_HOST;
        struct plan all = plan_of(a, l, 0);
        all.one_host = true;
        all.host = HOSTS / 3;
        all.slots = 4;
        all.hoists_receives = true;
        all.in_place = a->collective == ALL_TO_ALL ? NULL : mask_all;
        struct plan p = kept_plan(&all, HOSTS / 3 * PER_HOST);
        if (plan_held_bytes(&p) > most) fail_msg("%s: %zu bytes", a->name, plan_held_bytes(&p));
        plan_finish(&p);
    }
    layout_destroy(l);
    free(host);
}
unit_function test_plan_kept;
int test_plan_kept(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rank_builds_its_part_of_the_plan_of_all),
        cmocka_unit_test(test_bytes_grow_in_proportion_to_the_ranks),
        cmocka_unit_test(test_bytes_are_bounded_for_4096_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
