/* Counts in the plans of hierarchical algorithms what is sent between hosts, and compares it with the minimum. Bytes
 * are those of all hosts together; n is the message of a rank, b a block, p the number of ranks, m that of the root's
 * host, H the number of hosts. For hosts of any sizes and any placement of ranks the minimum is
 *   broadcast       (H - 1)n   the message must reach every other host
 *   reduce          (H - 1)n   a part of the sum must leave every other host
 *   allreduce      2(H - 1)n   the rank that sums an element receives it from H - 1 hosts and sends it to H - 1
 *   reduce_scatter  (H - 1)pb  each of p blocks needs the sum of every host but its own
 *   allgather       (H - 1)pb  each of p blocks must reach every host but its own
 *   gather, scatter (p - m)b   each block of another host is sent once
 *   all_to_all      the sum over hosts of their ranks x the ranks elsewhere, b each
 * Every algorithm but the all-reduces by doubling and by leaders sends exactly the minimum on every layout: 1.00.
 * Doubling takes the fewest rounds instead. Over 2^k + e hosts with 0 <= e < 2^k it sends 2^k k n + 2 e n in place of
 * 2(H - 1)n, which is 1.00 for two and three hosts and 1.33 for four. */
#include "backend/collectives/common.h"
#include "backend/model/cost.h"
#include "tests/support/unit.h"
#include "tests/unit/check/placements.h"

/* Returns the number of chunks that are sent between hosts. A message or block has `cut` chunks. */
static int sent_between_hosts(const struct plan *p)
{
    int chunks = 0;
    for (int r = 0; r < p->size; r++) {
        const struct schedule *s = &p->ranks[r];
        for (int j = 0; j < s->step_count; j++) {
            const struct step *t = &s->steps[j];
            if (t->kind == SEND) assert_int_not_equal(layout_host(p->layout, r), layout_host(p->layout, t->peer));
            for (int f = 0; t->kind == SEND && f < t->from_count; f++) chunks += step_from(s, t)[f].count;
        }
    }
    return chunks;
}
/* Returns the minimum, in messages or blocks of a rank. */
static int least_between_hosts(const struct plan *p)
{
    int hosts = p->layout->hosts, ranks = p->layout->ranks, blocks_between_hosts = 0;
    for (int h = 0; h < hosts; h++)
        blocks_between_hosts += layout_host_size(p->layout, h) * (ranks - layout_host_size(p->layout, h));
    switch (p->algorithm->collective) {
    case ALLREDUCE: return 2 * (hosts - 1);
    case BROADCAST:
    case REDUCE: return hosts - 1;
    case REDUCE_SCATTER:
    case ALLGATHER: return (hosts - 1) * ranks;
    case GATHER:
    case SCATTER: return ranks - layout_host_size(p->layout, layout_host(p->layout, p->root));
    case ALL_TO_ALL: return blocks_between_hosts;
    default: return -1;
    }
}
static int by_doubling(int hosts)
{
    int rounds = 0, power = power_of_two_at_most(hosts);
    for (int bit = 1; bit < power; bit *= 2) rounds++;
    return power * rounds + 2 * (hosts - power);
}
static bool name_contains(const struct algorithm *a, const char *word) { return strstr(a->name, word) != NULL; }
static int plans, layouts;
static double worst_doubling;

static void count_sent(const struct algorithm *a, const struct layout *l, int root)
{
    struct plan p = plan_of(a, l, root);
    char text[300];
    describe(&p, text, sizeof text);
    if (plan_build_staging(&p) != TUTTI_OK) fail_msg("%s: %s", text, p.error);
    int sent = sent_between_hosts(&p), least_sent = least_between_hosts(&p), cut = p.ranks[0].cut;
    bool doubles = a->collective == ALLREDUCE && (name_contains(a, "doubling") || name_contains(a, "leaders"));
    int expected = doubles ? by_doubling(l->hosts) : least_sent;
    if (a->collective != BARRIER && sent != expected * cut)
        fail_msg("%s: %d chunks are sent between hosts, not %d", text, sent, expected * cut);
    if (a->collective != BARRIER) assert_true(sent >= least_sent * cut);
    if (doubles && least_sent && (double)sent / (least_sent * cut) > worst_doubling)
        worst_doubling = (double)sent / (least_sent * cut);
    plans++;
    plan_finish(&p);
}
static void count_layout(const struct layout *l)
{
    layouts++;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        for (int root = 0; root < (is_rooted(a->collective) ? l->ranks : 1) && a->hierarchical;
            root += 1 + l->ranks / 8)
            count_sent(a, l, root);
}
static void test_bytes_between_hosts_are_the_minimum(void **state)
{
    (void)state;
    visit_all(count_layout);
    print_message("%d plans of %d layouts; doubling at worst %.2f of the least\n", plans, layouts, worst_doubling);
    assert_true(plans > 0);
}

/* ---- staged chunks, for which the slots must have room ---- */
static double most_staged;
static void count_staged(const struct algorithm *a, const struct layout *l, bool in_place, bool stage_inputs)
{
    struct plan p = plan_of(a, l, l->ranks - 1);
    p.in_place = in_place ? mask_all : NULL;
    p.stage_inputs = stage_inputs;
    assert_int_equal(plan_build_staging(&p), TUTTI_OK);
    for (int r = 0; r < p.size; r++) {
        const int *chunks = p.ranks[r].chunks;
        double staged = (double)chunks[SCRATCH] / (chunks[INPUT] > chunks[OUTPUT] ? chunks[INPUT] : chunks[OUTPUT]);
        if (staged > most_staged) most_staged = staged;
        if (staged > STAGED_AT_MOST) fail_msg("%s: %.2f of a message are staged", a->name, staged);
    }
    plan_finish(&p);
}
static void count_staged_of_layout(const struct layout *l)
{
    for (const struct algorithm *a = collectives_table; a->name; a++)
        for (int way = 0; way < 4 && !a->host_memory && a->collective != BARRIER; way++)
            if (a->collective != ALL_TO_ALL || !(way & 1)) count_staged(a, l, way & 1, way & 2);
}
static void test_slots_have_room_for_staged_chunks(void **state)
{
    (void)state;
    visit_all(count_staged_of_layout);
    print_message("%.2f of a message are staged at most\n", most_staged);
    assert_true(most_staged > 1);
}

/* ---- the chunks that each rank of a host sends ---- */
static int sent_by(const struct schedule *s)
{
    int chunks = 0;
    for (int j = 0; j < s->step_count; j++)
        for (int f = 0; s->steps[j].kind == SEND && f < s->steps[j].from_count; f++)
            chunks += step_from(s, &s->steps[j])[f].count;
    return chunks;
}
/* If the hosts have equal sizes, all ranks of a host send equally many chunks, so no rank waits for a busier one. */
static void count_ranks(const struct layout *l)
{
    static const enum collective shared[] = { ALLREDUCE, BROADCAST, REDUCE, REDUCE_SCATTER, ALLGATHER, ALL_TO_ALL };
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        for (const struct algorithm *a = collectives_table; a->name; a++) {
            if (a->collective != shared[i] || !a->hierarchical || name_contains(a, "leaders")) continue;
            struct plan p = plan_of(a, l, l->ranks / 2);
            assert_int_equal(plan_build_staging(&p), TUTTI_OK);
            for (int r = 0; r < p.size; r++) {
                int first = layout_rank(l, layout_host(l, r), 0);
                if (sent_by(&p.ranks[r]) != sent_by(&p.ranks[first]))
                    fail_msg("%s: ranks %d and %d of %d on %d hosts send different numbers of chunks", a->name, first,
                        r, p.size, l->hosts);
            }
            plan_finish(&p);
        }
}
static void test_ranks_of_a_host_send_equally_many_chunks(void **state)
{
    (void)state;
    visit_equal(count_ranks);
}

/* ---- one rank per host, one host ---- */
static int steps_of(const char *name, enum collective collective, const struct layout *l)
{
    struct plan p = plan_of(collectives_find_algorithm(collective, name), l, 0);
    assert_int_equal(plan_build_staging(&p), TUTTI_OK);
    int steps = 0;
    for (int r = 0; r < p.size; r++) steps += p.ranks[r].step_count;
    plan_finish(&p);
    return steps;
}
/* With one rank on each host a hierarchical algorithm has as many steps as the flat one: the host has nothing to sum
   and nothing to collect. */
static void test_hierarchy_of_single_ranks_is_the_flat_algorithm(void **state)
{
    static const char *const between[] = { "ring", "circulant", "rabenseifner", "doubling", "double_tree" };
    (void)state;
    for (int i = 0; i < 5; i++)
        for (int size = 1; size <= 9; size++) {
            char name[40];
            snprintf(name, sizeof name, "hierarchy_%s", between[i]);
            int flat = steps_of(between[i], ALLREDUCE, apart(&visited, size));
            assert_int_equal(steps_of(name, ALLREDUCE, apart(&visited, size)), flat);
        }
}
/* On one host no message is sent, and an all-reduce has as many steps as two_shot_read. */
static void test_hierarchy_on_one_host_sends_no_message(void **state)
{
    (void)state;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        for (int size = 1; size <= 8 && a->hierarchical; size++) {
            struct plan p = plan_of(a, together(&visited, size), size / 2);
            p.shared = mask_all;
            assert_int_equal(plan_build_staging(&p), TUTTI_OK);
            for (int r = 0; r < size; r++) assert_true(p.ranks[r].first_message < 0);
            plan_finish(&p);
        }
    int two_shot = steps_of("two_shot_read", ALLREDUCE, together(&visited, 4));
    assert_int_equal(steps_of("hierarchy_doubling", ALLREDUCE, together(&visited, 4)), two_shot);
}
unit_function test_hierarchy_costs;
int test_hierarchy_costs(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_between_hosts_are_the_minimum),
        cmocka_unit_test(test_slots_have_room_for_staged_chunks),
        cmocka_unit_test(test_ranks_of_a_host_send_equally_many_chunks),
        cmocka_unit_test(test_hierarchy_of_single_ranks_is_the_flat_algorithm),
        cmocka_unit_test(test_hierarchy_on_one_host_sends_no_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
