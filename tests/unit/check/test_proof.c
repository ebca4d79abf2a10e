/* Proves every algorithm of the table: in groups of up to 9 ranks in every way to build a plan, in groups of up to 33,
   64 and 100 ranks in some ways. */
#include "backend/collectives/collectives.h"
#include "tests/support/unit.h"
#include "tests/unit/schedule/plans.h"

enum { EXHAUSTIVE = 9, THINNER = 33 };
static int plans, checks, bad, cured;

static void complain(const struct plan *p, const char *why)
{
    char text[200];
    describe(p, text, sizeof text);
    if (bad++ < 10) print_error("%s: %s\n", text, why);
}
static bool build(struct plan *p)
{
    struct plan first = *p;
    plans++;
    if (plan_build_staging(p) != TUTTI_OK) {
        complain(p, p->error);
        return false;
    }
    cured += p->stage_sends > (first.stage_sends || first.algorithm->stage_in_place) || p->unshared;
    return true;
}
static void check(const struct plan *p, int tiles, int operations, unsigned seed)
{
    char why[200] = "";
    checks++;
    if (!plan_check(p, tiles, operations, seed, why, sizeof why)) complain(p, why);
}
static int roots_of(const struct algorithm *a, int size)
{
    if (!is_rooted(a->collective)) return 1;
    return size <= EXHAUSTIVE ? size : 2;
}
static int root_of(int nth, int size) { return size <= EXHAUSTIVE ? nth : nth ? size - 2 : size / 3; }
/* How a plan is built: a bit of `way` for each choice. */
enum { IN_PLACE = 1, HOIST = 2, STAGE_INPUTS = 4, SHARED = 8, READS = 16, WAYS = 32 };
static bool is_a_way(const struct algorithm *a, int way)
{
    return !(way & STAGE_INPUTS && !is_reducing(a->collective)) && !(way & (SHARED | READS) && !a->host_memory)
        && (way & (SHARED | READS)) != (SHARED | READS) && !(way & HOIST && a->host_memory);
}
static struct plan plan_by(const struct algorithm *a, const struct layout *l, int root, int way)
{
    struct plan p = plan_of(a, l, root);
    p.in_place = way & IN_PLACE ? mask_all : NULL;
    p.shared = way & SHARED ? mask_all : NULL;
    p.can_read_private = way & READS;
    p.hoists_receives = way & HOIST;
    p.stage_inputs = way & STAGE_INPUTS;
    return p;
}
static const struct layout *usual(struct hosts *h, const struct algorithm *a, int size)
{
    return a->host_memory ? together(h, size) : apart(h, size);
}
static void report(const char *what)
{
    print_message("%s: %d plans (%d cured by staging), %d checks, %d bad\n", what, plans, cured, checks, bad);
    int failures = bad;
    plans = checks = cured = bad = 0;
    assert_int_equal(failures, 0);
}

static void test_proof_holds_for_small_groups_in_every_way(void **state)
{
    static struct hosts hosts;
    (void)state;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        for (int size = 1; size <= EXHAUSTIVE; size++)
            for (int n = 0; n < roots_of(a, size); n++)
                for (int way = 0; way < WAYS; way++) {
                    struct plan p = plan_by(a, usual(&hosts, a, size), root_of(n, size), way);
                    p.slots = 1 + (size + n + way) % 4;
                    if (!is_a_way(a, way)) continue;
                    if (build(&p)) {
                        check(&p, 1, 3, 0);
                        check(&p, 2 * p.slots + 1, 3, 0);
                    }
                    plan_finish(&p);
                }
    report("small groups");
}
static void test_proof_holds_for_larger_groups(void **state)
{
    static const int sizes_beyond[] = { 64, 100 };
    static struct hosts hosts;
    (void)state;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        for (int i = EXHAUSTIVE + 1; i <= THINNER + 2; i++)
            for (int way = 0; way < WAYS; way++) {
                int size = i <= THINNER ? i : sizes_beyond[i - THINNER - 1];
                bool all_ways = size == 10 || size == 13 || size == 16, chosen = way == (i * 7 + 3) % WAYS;
                if (!is_a_way(a, way) || !(all_ways || chosen || way <= (size <= THINNER))) continue;
                struct plan p = plan_by(a, usual(&hosts, a, size), root_of((i + way) % 2, size), way);
                p.slots = size <= THINNER ? 1 + i % 2 : 1;
                if (build(&p)) check(&p, size <= THINNER ? p.slots + 1 : 1, 2, 0);
                plan_finish(&p);
            }
    report("larger groups");
}
/* A plan for calls in place also serves if only some of the ranks, or none, are called in place. */
static void test_plans_for_in_place_serve_out_of_place(void **state)
{
    static struct hosts hosts;
    uint64_t random = 20240229;
    (void)state;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        for (int size = 1; size <= 12; size++)
            for (int n = 0; n < roots_of(a, size); n++) {
                struct plan p = plan_by(a, usual(&hosts, a, size), root_of(n, size), IN_PLACE | (size % 2 ? HOIST : 0));
                p.slots = 1 + size % 3;
                p.stage_inputs = is_reducing(a->collective) && size % 4 == 3;
                bool built = build(&p);
                for (int k = 0; built && a->collective != ALL_TO_ALL && k < 5; k++) {
                    p.in_place = k ? mask_of(xorshift_next(&random)) : NULL;
                    check(&p, k % 2 ? 2 * p.slots : 1, 3, 0);
                }
                if (built) check(&p, 2, 2, 0);
                plan_finish(&p);
            }
    report("in place and not, one plan");
}
static void test_proof_holds_if_some_ranks_are_shared_or_in_place(void **state)
{
    static struct hosts hosts;
    uint64_t random = 314159;
    (void)state;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        for (int size = 2; size <= 12 && a->host_memory; size++)
            for (int k = 0; k < 8; k++) {
                struct plan p = plan_of(a, together(&hosts, size), (int)(xorshift_next(&random) % (uint64_t)size));
                p.in_place = mask_of(xorshift_next(&random));
                p.shared = mask_of(xorshift_next(&random));
                p.can_read_private = k % 2;
                p.stage_inputs = is_reducing(a->collective) && k % 4 == 3;
                p.slots = 1 + k % 4;
                if (build(&p)) check(&p, 2 * p.slots + k % 2, 3, 0);
                plan_finish(&p);
            }
    report("mixtures");
}
static void test_proof_of_messages_holds_on_one_host(void **state)
{
    static struct hosts hosts;
    (void)state;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        for (int size = 1; size <= 17 && !a->host_memory; size++)
            for (int way = 0; way < SHARED; way++) {
                struct plan p = plan_by(a, together(&hosts, size), size / 2, way);
                p.slots = 4;
                if (is_a_way(a, way) && build(&p)) check(&p, 5, 2, 0);
                plan_finish(&p);
            }
    report("messages on one host");
}
static void test_proof_holds_for_random_orders_of_steps(void **state)
{
    static struct hosts hosts;
    (void)state;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        for (int size = 2; size <= 8; size++)
            for (unsigned seed = 1; seed <= 4; seed++) {
                int way = (int)(seed * 5 + (unsigned)size) % WAYS;
                if (!is_a_way(a, way)) way = IN_PLACE;
                struct plan p = plan_by(a, usual(&hosts, a, size), (int)seed % size, way);
                p.slots = 1 + (int)seed % 4;
                if (build(&p)) check(&p, 2 * p.slots + 1, 3, seed);
                plan_finish(&p);
            }
    report("random orders");
}

/* A host that builds its plan cannot see a cycle that leads over other hosts. So the table marks the algorithms that
   have one in place (stage_in_place). The mark must not cost copies where there is no cycle. */
/* Returns the number of steps in place, or -1 if they form a cycle. */
static int steps_in_place(const struct algorithm *a, int size, int root)
{
    static struct hosts hosts;
    struct plan p = plan_of(a, apart(&hosts, size), root);
    int steps = 0;
    p.in_place = mask_all;
    if (plan_build(&p) != TUTTI_OK) steps = -1;
    for (int m = 0; m < p.count && steps >= 0; m++) steps += p.ranks[m].step_count;
    plan_finish(&p);
    return steps;
}
static void test_stage_in_place_is_set_where_it_is_needed(void **state)
{
    (void)state;
    for (const struct algorithm *a = collectives_table; a->name; a++) {
        struct algorithm unflagged = *a;
        bool cycles = false, costs = false;
        unflagged.stage_in_place = false;
        for (int size = 1; size <= EXHAUSTIVE && !a->host_memory; size++)
            for (int root = 0; root < (is_rooted(a->collective) ? size : 1); root++) {
                int without = steps_in_place(&unflagged, size, root);
                cycles |= without < 0;
                costs |= without != steps_in_place(a, size, root);
            }
        if (cycles && !a->stage_in_place) fail_msg("%s needs stage_in_place", a->name);
        if (!cycles && costs) fail_msg("%s does not need stage_in_place, and it costs copies", a->name);
    }
}
unit_function test_proof;
int test_proof(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_proof_holds_for_small_groups_in_every_way),
        cmocka_unit_test(test_proof_holds_for_larger_groups),
        cmocka_unit_test(test_plans_for_in_place_serve_out_of_place),
        cmocka_unit_test(test_proof_holds_if_some_ranks_are_shared_or_in_place),
        cmocka_unit_test(test_proof_of_messages_holds_on_one_host),
        cmocka_unit_test(test_proof_holds_for_random_orders_of_steps),
        cmocka_unit_test(test_stage_in_place_is_set_where_it_is_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
