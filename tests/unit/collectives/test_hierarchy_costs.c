/* What hierarchical algorithms send between hosts, counted in their plans, beside the least that can be sent. Bytes are
 * those of all hosts together; n is the message of a rank, b a block, p the ranks, m the ranks of the root's host, H
 * the hosts. Whatever the hosts' sizes and the placement, it can not be less than
 *   broadcast       (H - 1)n   the message has to reach every other host
 *   reduce          (H - 1)n   the same backwards
 *   allreduce      2(H - 1)n   whoever makes the sum of an element hears from H - 1 hosts, and tells H - 1
 *   reduce_scatter  (H - 1)pb  each of p blocks needs the sum of every host but its own
 *   allgather       (H - 1)pb  each of p blocks has to reach every host but its own
 *   gather, scatter (p - m)b   each block of another host has to cross once
 *   all_to_all      the sum over hosts of their ranks x the ranks elsewhere, b each
 * and every algorithm but those of leaders sends just that, on every layout, equal or not: 1.00. One does not want to:
 * doubling takes the fewest rounds instead, and sends the more the more hosts there are, here 2^k + e hosts with
 * 0 <= e < 2^k: 2^k k n + 2 e n in place of 2(H - 1)n, 1.00 for two and three hosts, 1.33 for four. */
#include "backend/collectives/common.h"
#include "backend/model/cost.h"
#include "tests/support/unit.h"
#include "tests/unit/check/placements.h"

/* Chunks that cross, as a chunk of the whole message or a block is cut in `cut`. */
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
/* In messages, or blocks, of a rank. */
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
static bool has(const struct algorithm *a, const char *word) { return strstr(a->name, word) != NULL; }
static int plans, layouts;
static double worst_doubling;

static void count(const struct algorithm *a, const struct layout *l, int root)
{
    struct plan p = plan_of(a, l, root);
    char text[300];
    describe(&p, text, sizeof text);
    if (plan_build_staging(&p) != TUTTI_OK) fail_msg("%s: %s", text, p.error);
    int sent = sent_between_hosts(&p), least_sent = least_between_hosts(&p), cut = p.ranks[0].cut;
    bool doubles = a->collective == ALLREDUCE && (has(a, "doubling") || has(a, "leaders"));
    int expected = doubles ? by_doubling(l->hosts) : least_sent;
    if (a->collective != BARRIER && sent != expected * cut)
        fail_msg("%s: %d chunks cross, not %d", text, sent, expected * cut);
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
            count(a, l, root);
}
static void what_crosses_is_the_least(void **state)
{
    (void)state;
    visit_all(count_layout);
    print_message("%d plans of %d layouts; doubling at worst %.2f of the least\n", plans, layouts, worst_doubling);
    assert_true(plans > 0);
}

/* ---- what is staged, for which slots must have room on every host ---- */
static double most_staged;
static void weigh(const struct algorithm *a, const struct layout *l, bool in_place, bool stage_inputs)
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
static void weigh_layout(const struct layout *l)
{
    for (const struct algorithm *a = collectives_table; a->name; a++)
        for (int way = 0; way < 4 && !a->host_memory && a->collective != BARRIER; way++)
            if (a->collective != ALL_TO_ALL || !(way & 1)) weigh(a, l, way & 1, way & 2);
}
static void there_is_room_for_what_is_staged(void **state)
{
    (void)state;
    visit_all(weigh_layout);
    print_message("%.2f of a message are staged at most\n", most_staged);
    assert_true(most_staged > 1);
}

/* ---- how the load of a host is shared among its ranks ---- */
static int sent_by(const struct schedule *s)
{
    int chunks = 0;
    for (int j = 0; j < s->step_count; j++)
        for (int f = 0; s->steps[j].kind == SEND && f < s->steps[j].from_count; f++)
            chunks += step_from(s, &s->steps[j])[f].count;
    return chunks;
}
/* Of equal hosts all ranks of a host send alike; so no network and no core waits for another. */
static void count_ranks(const struct layout *l)
{
    static const enum collective shared[] = { ALLREDUCE, BROADCAST, REDUCE, REDUCE_SCATTER, ALLGATHER, ALL_TO_ALL };
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        for (const struct algorithm *a = collectives_table; a->name; a++) {
            if (a->collective != shared[i] || !a->hierarchical || has(a, "leaders")) continue;
            struct plan p = plan_of(a, l, l->ranks / 2);
            assert_int_equal(plan_build_staging(&p), TUTTI_OK);
            for (int r = 0; r < p.size; r++) {
                int first = layout_rank(l, layout_host(l, r), 0);
                if (sent_by(&p.ranks[r]) != sent_by(&p.ranks[first]))
                    fail_msg("%s: ranks %d and %d of %d on %d hosts do not send alike", a->name, first, r, p.size,
                        l->hosts);
            }
            plan_finish(&p);
        }
}
static void ranks_of_a_host_send_alike(void **state)
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
/* With a rank per host a hierarchy is the flat algorithm, to the step: there is nothing to add up and to collect. */
static void a_rank_per_host_is_the_flat_algorithm(void **state)
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
/* On one host nothing is sent, and the message is read in two rounds. */
static void one_host_sends_nothing(void **state)
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
        cmocka_unit_test(what_crosses_is_the_least),
        cmocka_unit_test(there_is_room_for_what_is_staged),
        cmocka_unit_test(ranks_of_a_host_send_alike),
        cmocka_unit_test(a_rank_per_host_is_the_flat_algorithm),
        cmocka_unit_test(one_host_sends_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
