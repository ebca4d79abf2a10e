/* Every host-memory algorithm moves what its comment states, for 1 to 17 ranks: the chunks that the busiest rank reads
   from its peers and writes to them, if all tensors are shared and no chunk is staged. */
#include "backend/collectives/common.h"
#include "tests/support/unit.h"
#include "tests/unit/schedule/plans.h"

enum { MOST_RANKS = 17 };
static struct hosts hosts;
typedef int formula(int p);
static int none(int p) { (void)p; return 0; }
static int one(int p) { return p > 1; }
static int all(int p) { return p > 1 ? p : 0; }
static int others(int p) { return p - 1; }
static int twice_others(int p) { return 2 * (p - 1); }

static const struct cost {
    enum collective collective;
    const char *name;
    formula *read, *written;
} costs[] = {
    { ALLREDUCE, "one_shot", others, none },
    { ALLREDUCE, "two_shot", others, others },
    { ALLREDUCE, "two_shot_read", twice_others, none },
    { REDUCE, "read", others, none },
    { REDUCE, "two_shot", others, one },
    { REDUCE, "two_shot_read", twice_others, none },
    { BROADCAST, "read", one, none },
    { BROADCAST, "read_write", others, others },
    { BROADCAST, "two_shot_read", all, none },
    { REDUCE_SCATTER, "read", others, none },
    { ALLGATHER, "read", others, none },
    { ALLGATHER, "write", none, others },
    { ALL_TO_ALL, "read", others, none },
    { ALL_TO_ALL, "write", none, others },
    { GATHER, "read", others, none },
    { GATHER, "write", none, one },
    { GATHER, "read_write", others, others },
    { SCATTER, "read", one, none },
    { SCATTER, "read_write", others, others },
    { BARRIER, "read", others, none },
};
static const struct cost *cost_of(const struct algorithm *a)
{
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++)
        if (costs[i].collective == a->collective && strcmp(costs[i].name, a->name) == 0) return &costs[i];
    fail_msg("%s %s has no row in this file's table of costs", collective_name(a->collective), a->name);
    return NULL;
}
static int peers_chunks(const struct schedule *s, const struct span *spans, int count)
{
    int chunks = 0;
    for (int i = 0; i < count; i++)
        if (spans[i].rank != s->rank) chunks += spans[i].count;
    return chunks;
}
static void check_costs(const struct plan *plan, const struct cost *cost)
{
    int most_read = 0, most_written = 0;
    for (int r = 0; r < plan->size; r++) {
        const struct schedule *s = &plan->ranks[r];
        int read = 0, written = 0;
        for (int j = 0; j < s->step_count; j++) {
            const struct step *t = &s->steps[j];
            assert_true(t->kind != SEND && t->kind != RECV);
            read += peers_chunks(s, step_from(s, t), t->from_count);
            written += peers_chunks(s, step_to(s, t), t->to_count);
        }
        if (read > most_read) most_read = read;
        if (written > most_written) most_written = written;
    }
    if (most_read != cost->read(plan->size) || most_written != cost->written(plan->size))
        fail_msg("%s %s of %d ranks: reads %d, writes %d, not %d, %d", collective_name(cost->collective), cost->name,
            plan->size, most_read, most_written, cost->read(plan->size), cost->written(plan->size));
}
static void test_host_costs_are_as_stated(void **state)
{
    (void)state;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        for (int size = 1; size <= MOST_RANKS && a->host_memory; size++) {
            struct plan plan = plan_of(a, together(&hosts, size), size / 2);
            plan.shared = mask_all;
            if (plan_build(&plan) != TUTTI_OK)
                fail_msg("%s %s of %d ranks: %s", collective_name(a->collective), a->name, size, plan.error);
            check_costs(&plan, cost_of(a));
            plan_finish(&plan);
        }
}
/* So the bits of a result depend neither on the rank that sums nor on the algorithm. */
static void test_sums_are_in_rank_order(void **state)
{
    (void)state;
    int sums = 0;
    for (const struct algorithm *a = collectives_table; a->name; a++) {
        struct plan plan = plan_of(a, together(&hosts, 5), 3);
        plan.shared = mask_all;
        if (!a->host_memory) continue;
        assert_int_equal(plan_build(&plan), TUTTI_OK);
        for (int r = 0; r < plan.size; r++)
            for (int j = 0; j < plan.ranks[r].step_count; j++) {
                const struct step *t = &plan.ranks[r].steps[j];
                if (t->from_count < 2) continue;
                assert_int_equal(t->from_count, plan.size);
                for (int f = 0; f < t->from_count; f++) assert_int_equal(step_from(&plan.ranks[r], t)[f].rank, f);
                sums++;
            }
        plan_finish(&plan);
    }
    assert_true(sums > 0);
}

unit_function test_host_costs;
int test_host_costs(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_costs_are_as_stated),
        cmocka_unit_test(test_sums_are_in_rank_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
