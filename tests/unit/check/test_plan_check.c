/* The checker rejects plans that have one mistake, with a text that names the mistake. */
#include "backend/check/check.h"
#include "tests/support/unit.h"
#include "tests/unit/schedule/examples.h"

static struct hosts hosts;

static void rejects(const struct plan *p, int tiles, const char *text)
{
    char why[200] = "";
    assert_false(plan_check(p, tiles, 3, 0, why, sizeof why));
    if (!strstr(why, text)) fail_msg("\"%s\" does not contain \"%s\"", why, text);
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
static void test_reading_a_peer_before_it_has_arrived_is_a_race(void **state)
{
    struct plan p = built(&one_shot, together(&hosts, 2), 3);
    (void)state;
    p.ranks[1].prelude = p.ranks[1].step_count;
    rejects(&p, 1, "race: written, then read: rank 1 step 0");
    plan_finish(&p);
}
static void test_returning_while_a_peer_reads_is_a_race(void **state)
{
    struct plan p = built(&one_shot, together(&hosts, 2), 3);
    (void)state;
    p.ranks[0].steps[p.ranks[0].step_count - 1].wait_count = 0;
    rejects(&p, 1, "race");
    plan_finish(&p);
}
static void test_filling_a_slot_before_it_was_read_is_a_race(void **state)
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
static void test_reading_a_slot_before_it_was_filled_is_a_race(void **state)
{
    struct plan p = built(&one_shot, together(&hosts, 2), 0);
    (void)state;
    p.ranks[0].steps[1].wait_count = 0;
    rejects(&p, 1, "race: written, then read: rank 0 step 1");
    plan_finish(&p);
}
static void test_using_a_message_before_its_completion_is_a_race(void **state)
{
    struct plan p = built(&ring, apart(&hosts, 2), 0);
    (void)state;
    for (int j = 0; j < p.ranks[0].step_count; j++)
        if (p.ranks[0].steps[j].kind == WORK) p.ranks[0].steps[j].wait_count = 0;
    rejects(&p, 1, "race: written, then read: rank 0 step 2");
    plan_finish(&p);
}
static void test_awaiting_an_unpublished_step_is_a_deadlock(void **state)
{
    struct plan p = built(&one_shot, together(&hosts, 2), 0);
    (void)state;
    p.ranks[0].steps[0].by_tile = p.ranks[0].steps[0].by_reuse = p.ranks[0].steps[0].by_leave = false;
    rejects(&p, 1, "deadlock");
    plan_finish(&p);
}
static void test_finishing_a_value_twice_is_found(void **state)
{
    struct plan p = built(&two_shot, together(&hosts, 3), 0);
    (void)state;
    /* This step copies a finished result from a peer. */
    p.ranks[0].steps[p.ranks[0].step_count - 1].finish = true;
    rejects(&p, 1, "finishes a value twice: rank 0");
    plan_finish(&p);
}
static void test_summing_finished_values_is_a_wrong_result(void **state)
{
    struct plan p = built(&ring, apart(&hosts, 3), 0);
    (void)state;
    for (int j = 0; j < p.ranks[0].step_count; j++) p.ranks[0].steps[j].finish = p.ranks[0].steps[j].kind == WORK;
    rejects(&p, 1, "wrong result");
    plan_finish(&p);
}
static void test_unfinished_value_is_a_wrong_result(void **state)
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
static void test_contribution_that_counts_twice_is_a_wrong_result(void **state)
{
    struct algorithm twice = { .name = "twice", .collective = ALLREDUCE, .record = record_twice };
    struct plan p = plan_of(&twice, together(&hosts, 2), 0);
    (void)state;
    assert_int_equal(plan_build(&p), TUTTI_OK);
    rejects(&p, 1, "wrong result");
    plan_finish(&p);
    /* In a barrier a contribution may count twice. */
    twice.collective = BARRIER;
    p = plan_of(&twice, together(&hosts, 2), 0);
    assert_int_equal(plan_build(&p), TUTTI_OK);
    accepts(&p);
    plan_finish(&p);
}
static void record_nothing(struct schedule *s) { (void)s; }
static void test_barrier_without_steps_is_a_wrong_result(void **state)
{
    const struct algorithm nothing = { .name = "nothing", .collective = BARRIER, .record = record_nothing };
    struct plan p = plan_of(&nothing, together(&hosts, 2), 0);
    (void)state;
    assert_int_equal(plan_build(&p), TUTTI_OK);
    rejects(&p, 1, "wrong result");
    plan_finish(&p);
}
/* The test makes the second copy write INPUT. The result stays right, but the caller's tensor is changed. */
static void record_two_copies(struct schedule *s)
{
    record_one_shot(s);
    step_copy(s, span_new_scratch(s, 1), span_of_buffer(s, s->rank, OUTPUT));
}
static void test_changed_input_is_found(void **state)
{
    const struct algorithm two_copies = { .name = "two_copies", .collective = ALLREDUCE, .record = record_two_copies };
    struct plan p = built(&two_copies, together(&hosts, 2), 0);
    struct schedule *s = &p.ranks[0];
    (void)state;
    *step_to(s, &s->steps[2]) = span_of_chunk(0, INPUT, 0);
    rejects(&p, 1, "input changed: rank 0 chunk 0 tile 0");
    plan_finish(&p);
}
/* No step of a plan can write the value of another tile without making it invalid, so the test writes the cell itself.
   The rank has no OUTPUT, so only INPUT is judged. */
static void test_input_with_the_value_of_another_tile_is_found(void **state)
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
static void test_plan_of_some_ranks_cannot_be_checked(void **state)
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
        cmocka_unit_test(test_reading_a_peer_before_it_has_arrived_is_a_race),
        cmocka_unit_test(test_returning_while_a_peer_reads_is_a_race),
        cmocka_unit_test(test_filling_a_slot_before_it_was_read_is_a_race),
        cmocka_unit_test(test_reading_a_slot_before_it_was_filled_is_a_race),
        cmocka_unit_test(test_using_a_message_before_its_completion_is_a_race),
        cmocka_unit_test(test_awaiting_an_unpublished_step_is_a_deadlock),
        cmocka_unit_test(test_finishing_a_value_twice_is_found),
        cmocka_unit_test(test_summing_finished_values_is_a_wrong_result),
        cmocka_unit_test(test_unfinished_value_is_a_wrong_result),
        cmocka_unit_test(test_contribution_that_counts_twice_is_a_wrong_result),
        cmocka_unit_test(test_barrier_without_steps_is_a_wrong_result),
        cmocka_unit_test(test_changed_input_is_found),
        cmocka_unit_test(test_input_with_the_value_of_another_tile_is_found),
        cmocka_unit_test(test_plan_of_some_ranks_cannot_be_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
