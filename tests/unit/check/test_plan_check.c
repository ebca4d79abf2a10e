/* What the checker says of plans that are wrong in one known way. */
#include "backend/check/check.h"
#include "tests/support/unit.h"
#include "tests/unit/schedule/examples.h"

static struct hosts hosts;

static void rejects(const struct plan *p, int tiles, const char *text)
{
    char why[200] = "";
    assert_false(plan_check(p, tiles, 3, 0, why, sizeof why));
    if (!strstr(why, text)) fail_msg("\"%s\" does not say \"%s\"", why, text);
}
static void accepts(const struct plan *p)
{
    char why[200] = "";
    if (!plan_check(p, 5, 3, 0, why, sizeof why)) fail_msg("%s", why);
}
static struct plan built(const struct algorithm *a, const struct layout *l, uint64_t shared)
{
    struct plan p = plan_of(a, l, 0);
    p.shared = mask_of(shared);
    p.slots = 2;
    assert_int_equal(plan_build(&p), TUTTI_OK);
    accepts(&p);
    return p;
}
static void a_peer_is_read_before_it_has_come(void **state)
{
    struct plan p = built(&one_shot, together(&hosts, 2), 3);
    (void)state;
    p.ranks[1].prelude = p.ranks[1].step_count;
    rejects(&p, 1, "race: written, then read: rank 1 step 0");
    plan_finish(&p);
}
static void the_caller_returns_while_a_peer_reads(void **state)
{
    struct plan p = built(&one_shot, together(&hosts, 2), 3);
    (void)state;
    p.ranks[0].steps[p.ranks[0].step_count - 1].wait_count = 0;
    rejects(&p, 1, "race");
    plan_finish(&p);
}
static void a_slot_is_filled_before_it_was_read(void **state)
{
    struct plan p = built(&one_shot, together(&hosts, 2), 0);
    (void)state;
    assert_int_equal(p.ranks[0].waits[p.ranks[0].steps[0].wait].lag, SLOT_REUSE);
    p.ranks[0].steps[0].wait_count = 0;
    accepts(&(struct plan){ .algorithm = p.algorithm,
        .layout = p.layout,
        .size = 2,
        .count = 2,
        .slots = 5,
        .period = p.period,
        .ranks = p.ranks });
    rejects(&p, 3, "race: read, then written: rank 0 step 0 tile 2");
    plan_finish(&p);
}
static void a_slot_is_read_before_it_was_filled(void **state)
{
    struct plan p = built(&one_shot, together(&hosts, 2), 0);
    (void)state;
    p.ranks[0].steps[1].wait_count = 0;
    rejects(&p, 1, "race: written, then read: rank 0 step 1");
    plan_finish(&p);
}
static void a_message_is_used_before_it_is_complete(void **state)
{
    struct plan p = built(&ring, apart(&hosts, 2), 0);
    (void)state;
    for (int j = 0; j < p.ranks[0].step_count; j++)
        if (p.ranks[0].steps[j].kind == WORK) p.ranks[0].steps[j].wait_count = 0;
    rejects(&p, 1, "race: written, then read: rank 0 step 2");
    plan_finish(&p);
}
static void nobody_publishes(void **state)
{
    struct plan p = built(&one_shot, together(&hosts, 2), 0);
    (void)state;
    p.ranks[0].steps[0].by_tile = p.ranks[0].steps[0].by_reuse = p.ranks[0].steps[0].by_leave = false;
    rejects(&p, 1, "deadlock");
    plan_finish(&p);
}
static void an_average_divides_twice(void **state)
{
    struct plan p = built(&two_shot, together(&hosts, 3), 0);
    (void)state;
    p.ranks[0].steps[p.ranks[0].step_count - 1].finish = true; /* takes a result from a peer */
    rejects(&p, 1, "finishes a value twice: rank 0");
    plan_finish(&p);
}
static void a_quotient_is_summed(void **state)
{
    struct plan p = built(&ring, apart(&hosts, 3), 0);
    (void)state;
    for (int j = 0; j < p.ranks[0].step_count; j++) p.ranks[0].steps[j].finish = p.ranks[0].steps[j].kind == WORK;
    rejects(&p, 1, "wrong result");
    plan_finish(&p);
}
static void nobody_divides(void **state)
{
    struct plan p = built(&one_shot, together(&hosts, 2), 0);
    (void)state;
    for (int j = 0; j < p.ranks[0].step_count; j++) p.ranks[0].steps[j].finish = false;
    rejects(&p, 1, "wrong result: rank 0 chunk 0 tile 0");
    plan_finish(&p);
}
static void record_twice(struct schedule *s)
{
    record_one_shot(s);
    step_reduce(s, span_of_buffer(s, s->rank, OUTPUT), span_of_buffer(s, 0, INPUT));
}
static void a_contribution_counts_twice(void **state)
{
    struct algorithm twice = { .name = "twice", .collective = ALLREDUCE, .record = record_twice };
    struct plan p = plan_of(&twice, together(&hosts, 2), 0);
    (void)state;
    assert_int_equal(plan_build(&p), TUTTI_OK);
    rejects(&p, 1, "wrong result");
    plan_finish(&p);
    twice.collective = BARRIER; /* there it may */
    p = plan_of(&twice, together(&hosts, 2), 0);
    assert_int_equal(plan_build(&p), TUTTI_OK);
    accepts(&p);
    plan_finish(&p);
}
static void record_nothing(struct schedule *s) { (void)s; }
static void nothing_is_done(void **state)
{
    const struct algorithm nothing = { .name = "nothing", .collective = BARRIER, .record = record_nothing };
    struct plan p = plan_of(&nothing, together(&hosts, 2), 0);
    (void)state;
    assert_int_equal(plan_build(&p), TUTTI_OK);
    rejects(&p, 1, "wrong result");
    plan_finish(&p);
}
/* The result is right all the same, but the caller's tensor is not what it was. */
static void record_two_copies(struct schedule *s)
{
    record_one_shot(s);
    step_copy(s, span_new_scratch(s, 1), span_of_buffer(s, s->rank, OUTPUT));
}
static void an_input_is_changed(void **state)
{
    const struct algorithm two_copies = { .name = "two_copies", .collective = ALLREDUCE, .record = record_two_copies };
    struct plan p = built(&two_copies, together(&hosts, 2), 0);
    struct schedule *s = &p.ranks[0];
    (void)state;
    *step_to(s, &s->steps[2]) = span_of_chunk(0, INPUT, 0);
    rejects(&p, 1, "input changed: rank 0 chunk 0 tile 0");
    plan_finish(&p);
}
/* Steps make a value of another tile invalid, so this test writes one itself. Without OUTPUT only INPUT is judged. */
static void an_input_has_the_value_of_another_tile(void **state)
{
    struct plan p = built(&one_shot, together(&hosts, 2), 0);
    struct schedule *s = &p.ranks[0];
    char why[200] = "";
    struct checker checker = { .plan = &p,
        .tiles = 2,
        .operations = 1,
        .slots = p.slots,
        .threads = p.size * p.slots,
        .tensor_cells = s->chunks[INPUT] + s->chunks[OUTPUT],
        .why = why,
        .why_bytes = sizeof why };
    (void)state;
    assert_true(checker_init(&checker));
    s->absent[OUTPUT] = true;
    checker_rewrite_tensors(&checker, s, 0);
    checker_judge_operation(&checker, s, 0);
    assert_false(checker.failed);
    checker_cell(&checker, span_of_chunk(0, INPUT, 0), 0, 1, 0)->value.tile = 0;
    checker_judge_operation(&checker, s, 0);
    assert_string_equal(why, "input changed: rank 0 chunk 0 tile 1");
    checker_finish(&checker);
    plan_finish(&p);
}
static void a_plan_of_some_ranks_cannot_be_checked(void **state)
{
    struct plan p = plan_of(&ring, apart(&hosts, 2), 0);
    (void)state;
    p.one_host = true;
    assert_int_equal(plan_build(&p), TUTTI_OK);
    rejects(&p, 1, "all ranks");
    plan_finish(&p);
}
unit_function test_plan_check;
int test_plan_check(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_peer_is_read_before_it_has_come),
        cmocka_unit_test(the_caller_returns_while_a_peer_reads),
        cmocka_unit_test(a_slot_is_filled_before_it_was_read),
        cmocka_unit_test(a_slot_is_read_before_it_was_filled),
        cmocka_unit_test(a_message_is_used_before_it_is_complete),
        cmocka_unit_test(nobody_publishes),
        cmocka_unit_test(an_average_divides_twice),
        cmocka_unit_test(a_quotient_is_summed),
        cmocka_unit_test(nobody_divides),
        cmocka_unit_test(a_contribution_counts_twice),
        cmocka_unit_test(nothing_is_done),
        cmocka_unit_test(an_input_is_changed),
        cmocka_unit_test(an_input_has_the_value_of_another_tile),
        cmocka_unit_test(a_plan_of_some_ranks_cannot_be_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
