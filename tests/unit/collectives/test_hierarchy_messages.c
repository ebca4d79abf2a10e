/* A host builds its plan for the places of its own ranks' tensors, which other hosts do not know. So its messages must
   not depend on them: for each mask of shared ranks and of ranks in place, the messages go to the same peers, in the
   same order, with the same chunks. Shared tensors are not copied into slots. */
#include "backend/collectives/collectives.h"
#include "tests/support/unit.h"
#include "tests/unit/check/local.h"
#include "tests/unit/check/placements.h"

enum { MOST_HOSTS = 3, MOST_RANKS = 6 };
static int plans, messages;

/* Returns the next message of that kind at or after a step, or step_count if no message follows. */
static int next_message(const struct schedule *s, enum step_kind kind, int step)
{
    while (step < s->step_count && s->steps[step].kind != kind) step++;
    return step;
}
static int chunks_of(const struct schedule *s, const struct step *t)
{
    int sum = 0;
    for (int k = 0; k < t->from_count + t->to_count; k++) sum += s->spans[t->span + k].count;
    return sum;
}
/* True if span k of two messages has the same chunks of a tensor. Of staged chunks only the number is compared. */
static bool is_same_span(const struct schedule *a, const struct schedule *b, const struct step *x, const struct step *y,
    int k)
{
    struct span m = a->spans[x->span + k], n = b->spans[y->span + k];
    return m.count == n.count && m.rank == n.rank
        && (m.buffer == SCRATCH || n.buffer == SCRATCH || (m.buffer == n.buffer && m.first == n.first));
}
static bool is_same_message(const struct schedule *a, const struct schedule *b, int i, int j)
{
    if (i == a->step_count || j == b->step_count) return i == a->step_count && j == b->step_count;
    const struct step *x = &a->steps[i], *y = &b->steps[j];
    bool same = x->peer == y->peer && x->number == y->number && chunks_of(a, x) == chunks_of(b, y)
        && x->from_count == y->from_count && x->to_count == y->to_count;
    for (int k = 0; same && k < x->from_count + x->to_count; k++) same = is_same_span(a, b, x, y, k);
    messages++;
    return same;
}
static bool has_same_messages(const struct schedule *a, const struct schedule *b)
{
    for (int kind = SEND; kind <= RECV; kind++)
        for (int i = 0, j = 0; i < a->step_count || j < b->step_count; i++, j++) {
            i = next_message(a, (enum step_kind)kind, i);
            j = next_message(b, (enum step_kind)kind, j);
            if (!is_same_message(a, b, i, j)) return false;
        }
    return true;
}
static struct plan host_of_plan(const struct algorithm *a, const struct layout *l, int root, int host)
{
    struct plan p = plan_of(a, l, root);
    p.one_host = p.hoists_receives = true;
    p.host = host;
    p.slots = 3;
    return p;
}
static void compare(const struct plan *wanted, uint64_t shared, uint64_t in_place)
{
    struct plan p = *wanted;
    char text[200];
    p.shared = mask_of(shared);
    p.in_place = mask_of(in_place);
    p.stage_sends = false;
    p.ranks = NULL;
    p.unshared = NULL;
    describe(&p, text, sizeof text);
    if (plan_build_staging(&p) != TUTTI_OK) fail_msg("%s: %s", text, p.error);
    if (p.ranks[0].cut != wanted->ranks[0].cut) fail_msg("%s: the message is cut differently", text);
    for (int m = 0; m < p.count; m++)
        if (!has_same_messages(&wanted->ranks[m], &p.ranks[m])) fail_msg("%s: rank %d has other messages", text, m);
    plans++;
    plan_finish(&p);
}
static void compare_masks(const struct algorithm *a, const struct layout *l, int root, int host, bool stage_inputs)
{
    struct plan wanted = host_of_plan(a, l, root, host);
    uint64_t masks = (uint64_t)1 << layout_host_size(l, host);
    wanted.stage_inputs = stage_inputs;
    wanted.in_place = a->collective == ALL_TO_ALL ? NULL : mask_all;
    assert_int_equal(plan_build_staging(&wanted), TUTTI_OK);
    for (uint64_t shared = 0; shared < masks; shared++)
        for (uint64_t in_place = 0; in_place < (a->collective == ALL_TO_ALL ? 1 : masks); in_place++)
            compare(&wanted, shared, in_place);
    plan_finish(&wanted);
}
static void compare_layout(const struct layout *l)
{
    if (l->hosts > MOST_HOSTS || l->ranks > MOST_RANKS) return;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        for (int h = 0; a->hierarchical && h < l->hosts; h++)
            for (int inputs = 0; inputs <= is_reducing(a->collective); inputs++)
                compare_masks(a, l, is_rooted(a->collective) ? l->ranks - 1 : 0, h, inputs);
}
static void test_messages_do_not_depend_on_the_places_of_tensors(void **state)
{
    (void)state;
    visit_unequal(compare_layout);
    visit_interleaved(compare_layout);
    print_message("%d plans, %d messages compared\n", plans, messages);
    assert_true(plans > 10000 && messages > plans);
}

/* ---- copies ---- */
/* The chunks that the ranks of a host write, and those that they copy into slots, in % of a message or block. */
struct moved { int written, staged; };
static struct moved count_moved(const struct algorithm *a, const struct layout *l, const uint64_t *shared)
{
    struct moved sum = { 0, 0 };
    struct plan p = host_of_plan(a, l, 0, 0);
    p.shared = shared;
    p.in_place = a->collective == ALL_TO_ALL ? NULL : mask_all;
    assert_int_equal(plan_build_staging(&p), TUTTI_OK);
    for (int m = 0; m < p.count; m++)
        for (int j = 0; j < p.ranks[m].step_count; j++) {
            const struct schedule *s = &p.ranks[m];
            const struct step *t = &s->steps[j];
            for (int d = 0; t->kind == WORK && d < t->to_count; d++) {
                struct span to = step_to(s, t)[d];
                bool in_place = t->from_count == 1 && step_from(s, t)->rank == to.rank
                    && step_from(s, t)->buffer == INPUT && to.buffer == OUTPUT && p.in_place;
                sum.written += in_place ? 0 : to.count;
                sum.staged +=
                    to.buffer == SCRATCH && t->from_count == 1 && step_from(s, t)->buffer != SCRATCH ? to.count : 0;
            }
        }
    sum.written = sum.written * 100 / p.ranks[0].cut;
    sum.staged = sum.staged * 100 / p.ranks[0].cut;
    plan_finish(&p);
    return sum;
}
static void test_shared_tensors_are_not_staged(void **state)
{
    static struct hosts hosts;
    const struct layout *l = hosts_of(&hosts, (int[]){ 4, 4 }, 2);
    (void)state;
    for (const struct algorithm *a = collectives_table; a->name; a++) {
        if (!a->hierarchical || a->collective == BARRIER) continue;
        struct moved private = count_moved(a, l, NULL), mixed = count_moved(a, l, mask_of(5));
        struct moved shared = count_moved(a, l, mask_all);
        print_message("%d %s: %% of a chunk written, all ranks: %d private, %d mixed, %d shared\n", (int)a->collective,
            a->name, private.written, mixed.written, shared.written);
        assert_true(shared.staged == 0 && mixed.staged <= private.staged);
        assert_true(shared.written <= mixed.written && mixed.written <= private.written);
        assert_true(private.staged > 0 && shared.written < private.written);
    }
}

unit_function test_hierarchy_messages;
int test_hierarchy_messages(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_do_not_depend_on_the_places_of_tensors),
        cmocka_unit_test(test_shared_tensors_are_not_staged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
