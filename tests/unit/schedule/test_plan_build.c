/* The builder fuses, stages, finishes, awaits, publishes and moves the steps of an algorithm. */
#include "tests/support/unit.h"
#include "tests/unit/schedule/examples.h"

static struct hosts hosts;

static struct plan built(const struct algorithm *a, const struct layout *l, uint64_t in_place, uint64_t shared)
{
    struct plan p = plan_of(a, l, 0);
    p.in_place = mask_of(in_place);
    p.shared = mask_of(shared);
    p.slots = 2;
    assert_int_equal(plan_build(&p), TUTTI_OK);
    return p;
}
static const struct step *step_at(const struct plan *p, int rank, int step)
{
    assert_true(step < p->ranks[rank].step_count);
    return &p->ranks[rank].steps[step];
}

static void test_sum_and_its_copies_are_one_step(void **state)
{
    struct plan p = built(&two_shot, together(&hosts, 3), 0, UINT64_MAX);
    (void)state;
    assert_int_equal(p.ranks[1].step_count, 2);
    assert_int_equal(step_at(&p, 1, 0)->from_count, 3);
    assert_int_equal(step_at(&p, 1, 0)->to_count, 3);
    assert_int_equal(step_at(&p, 1, 1)->kind, LEAVE);
    plan_finish(&p);
}
static void test_private_inputs_are_staged_in_the_prelude(void **state)
{
    struct plan p = built(&one_shot, together(&hosts, 3), 0, 0);
    (void)state;
    for (int r = 0; r < 3; r++) {
        assert_int_equal(p.ranks[r].prelude, 1);
        assert_int_equal(step_to(&p.ranks[r], step_at(&p, r, 0))->buffer, SCRATCH);
        for (int f = 0; f < 3; f++) {
            struct span from = step_from(&p.ranks[r], step_at(&p, r, 1))[f];
            assert_int_equal(from.rank, f);
            assert_int_equal(from.buffer, f == r ? INPUT : SCRATCH);
        }
    }
    plan_finish(&p);
}
static void test_shared_tensors_are_not_staged(void **state)
{
    struct plan p = built(&one_shot, together(&hosts, 3), 0, UINT64_MAX);
    (void)state;
    assert_int_equal(p.ranks[0].prelude, 0);
    assert_int_equal(p.ranks[0].chunks[SCRATCH], 0);
    for (int f = 0; f < 3; f++) assert_int_equal(step_from(&p.ranks[0], step_at(&p, 0, 0))[f].buffer, INPUT);
    plan_finish(&p);
}
/* A write into a peer's private tensor becomes a copy by that peer. */
static void test_private_outputs_are_written_by_their_owners(void **state)
{
    struct plan p = built(&two_shot, together(&hosts, 3), 0, 0);
    (void)state;
    for (int r = 0; r < 3; r++)
        for (int j = 0; j < p.ranks[r].step_count; j++)
            for (int d = 0; d < step_at(&p, r, j)->to_count; d++)
                assert_int_equal(step_to(&p.ranks[r], step_at(&p, r, j))[d].rank, r);
    plan_finish(&p);
}
static int finishing_steps(const struct plan *p, int rank)
{
    int count = 0;
    for (int j = 0; j < p->ranks[rank].step_count; j++) count += step_at(p, rank, j)->finish;
    return count;
}
static void test_sums_are_finished_once(void **state)
{
    struct plan p = built(&ring, apart(&hosts, 4), 0, 0);
    (void)state;
    for (int r = 0; r < 4; r++) assert_int_equal(finishing_steps(&p, r), 1);
    plan_finish(&p);
    p = built(&two_shot, together(&hosts, 4), 0, 0);
    for (int r = 0; r < 4; r++) assert_int_equal(finishing_steps(&p, r), 1);
    plan_finish(&p);
    p = built(&binomial, apart(&hosts, 4), 0, 0);
    for (int r = 0; r < 4; r++) assert_int_equal(finishing_steps(&p, r), 0);
    plan_finish(&p);
}
/* With stage_inputs a step reads INPUT if and only if it premultiplies. */
static void test_inputs_are_premultiplied_when_they_are_staged(void **state)
{
    const struct algorithm *algorithms[] = { &one_shot, &two_shot, &ring };
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct plan p = plan_of(algorithms[i], together(&hosts, 4), 0);
        p.stage_inputs = true;
        p.shared = i % 2 ? mask_all : NULL;
        assert_int_equal(plan_build(&p), TUTTI_OK);
        for (int r = 0; r < 4; r++)
            for (int j = 0; j < p.ranks[r].step_count; j++)
                for (int f = 0; f < step_at(&p, r, j)->from_count; f++)
                    assert_int_equal(step_from(&p.ranks[r], step_at(&p, r, j))[f].buffer == INPUT,
                        step_at(&p, r, j)->premultiplies);
        plan_finish(&p);
    }
}
static void test_exactly_the_awaited_steps_are_published(void **state)
{
    struct plan p = built(&two_shot, together(&hosts, 4), UINT64_MAX, 0);
    bool awaited[4][32] = { { false } };
    (void)state;
    for (int r = 0; r < 4; r++)
        for (int w = 0; w < p.ranks[r].wait_count; w++)
            awaited[p.ranks[r].waits[w].rank][p.ranks[r].waits[w].step] |= p.ranks[r].waits[w].rank != r;
    for (int r = 0; r < 4; r++)
        for (int j = 0; j < p.ranks[r].step_count; j++) {
            const struct step *t = step_at(&p, r, j);
            assert_int_equal(t->by_tile || t->by_reuse || t->by_leave, awaited[r][j]);
        }
    plan_finish(&p);
}
/* Rank 1 receives data that rank 2, on the same host, reads. So rank 1 must await the message and publish a step. */
static void record_relay(struct schedule *s)
{
    if (s->rank == 0) step_copy(s, span_of_chunk(0, OUTPUT, 0), span_of_chunk(0, INPUT, 0));
    if (s->rank == 0) step_send(s, span_of_chunk(0, OUTPUT, 0), 1);
    if (s->rank == 1) step_recv(s, span_of_chunk(1, OUTPUT, 0), 0);
    if (s->rank == 2) step_copy(s, span_of_chunk(2, OUTPUT, 0), span_of_chunk(1, OUTPUT, 0));
}
static void test_message_that_a_peer_reads_is_awaited(void **state)
{
    static const int sizes[] = { 1, 2 };
    const struct algorithm relay = { .name = "relay", .collective = BROADCAST, .record = record_relay };
    struct plan p = built(&relay, hosts_of(&hosts, sizes, 2), 0, UINT64_MAX);
    char why[200];
    (void)state;
    assert_int_equal(step_at(&p, 1, 0)->kind, RECV);
    assert_int_equal(step_at(&p, 1, 1)->kind, AWAIT);
    assert_int_equal(step_at(&p, 1, 1)->wait_count, 1);
    assert_true(step_at(&p, 1, 1)->by_tile);
    if (!plan_check(&p, 3, 2, 0, why, sizeof why)) fail_msg("%s", why);
    plan_finish(&p);
}
/* The third receive has the chunk of the first one, so it stays behind the sum that reads that chunk. */
static void test_receives_are_posted_early(void **state)
{
    struct plan p = plan_of(&ring, apart(&hosts, 4), 0);
    (void)state;
    p.slots = 2;
    p.hoists_receives = true;
    assert_int_equal(plan_build(&p), TUTTI_OK);
    assert_int_equal(step_at(&p, 0, 0)->kind, RECV);
    assert_int_equal(step_at(&p, 0, 1)->kind, RECV);
    assert_int_equal(step_at(&p, 0, 2)->kind, SEND);
    assert_int_equal(step_at(&p, 0, 3)->kind, WORK);
    assert_int_equal(step_at(&p, 0, 4)->kind, RECV);
    plan_finish(&p);
}
static void test_plan_knows_its_first_and_last_message(void **state)
{
    struct plan p = built(&ring, apart(&hosts, 3), 0, 0);
    (void)state;
    assert_int_equal(p.ranks[0].first_message, 0);
    assert_int_equal(p.ranks[0].last_message, p.ranks[0].step_count - 1);
    plan_finish(&p);
    p = built(&one_shot, together(&hosts, 3), 0, 0);
    assert_int_equal(p.ranks[0].first_message, -1);
    assert_int_equal(p.ranks[0].last_message, -1);
    plan_finish(&p);
}
static void test_messages_are_numbered_for_each_peer(void **state)
{
    struct plan p = built(&ring, apart(&hosts, 2), 0, 0);
    int sends = 0, receives = 0;
    (void)state;
    for (int j = 0; j < p.ranks[1].step_count; j++) {
        const struct step *t = step_at(&p, 1, j);
        if (t->kind == SEND) assert_int_equal(t->number, sends++);
        if (t->kind == RECV) assert_int_equal(t->number, receives++);
    }
    assert_int_equal(sends, 2);
    assert_int_equal(receives, 2);
    plan_finish(&p);
}
/* If all ranks are in place and shared, each overwrites what the others must still read: no order of steps is right. */
static void test_cycle_is_found_and_cured_by_staging(void **state)
{
    struct plan p = plan_of(&one_shot, together(&hosts, 3), 0);
    char why[200];
    (void)state;
    p.in_place = p.shared = mask_all;
    p.slots = 2;
    assert_int_equal(plan_build(&p), TUTTI_INTERNAL);
    assert_true(p.cycle_rank >= 0);
    assert_non_null(strstr(p.error, "waits for itself"));
    plan_finish(&p);
    assert_int_equal(plan_build_staging(&p), TUTTI_OK);
    assert_true(mask_any(p.unshared, 3) && !mask_is_full(p.unshared, 3));
    if (!plan_check(&p, 5, 3, 0, why, sizeof why)) fail_msg("%s", why);
    plan_finish(&p);
}
static void record_swap(struct schedule *s)
{
    int peer = 1 - s->rank;
    step_copy(s, span_of_chunk(s->rank, OUTPUT, s->rank), span_of_chunk(s->rank, INPUT, s->rank));
    step_send(s, span_of_chunk(s->rank, INPUT, peer), peer);
    step_recv(s, span_of_chunk(s->rank, OUTPUT, peer), peer);
}
static void test_cycle_over_messages_is_cured_by_staging_sends(void **state)
{
    const struct algorithm swap = { .name = "swap", .collective = ALL_TO_ALL, .record = record_swap };
    struct plan p = plan_of(&swap, apart(&hosts, 2), 0);
    char why[200];
    (void)state;
    p.in_place = p.shared = mask_all;
    assert_int_equal(plan_build_staging(&p), TUTTI_OK);
    assert_true(p.stage_sends);
    assert_null(p.unshared);
    if (!plan_check(&p, 3, 3, 0, why, sizeof why)) fail_msg("%s", why);
    plan_finish(&p);
}
/* Rank 0 writes into the tensor of rank 1, which sends it on, also if the tensor is private. */
static void record_handed_over(struct schedule *s)
{
    if (s->rank == 0) step_copy(s, span_of_chunk(1, OUTPUT, 0), span_of_chunk(0, INPUT, 0));
    if (s->rank == 0) step_copy(s, span_of_chunk(0, OUTPUT, 0), span_of_chunk(0, INPUT, 0));
    if (s->rank == 1) step_send(s, span_of_chunk(1, OUTPUT, 0), 2);
    if (s->rank == 2) step_recv(s, span_of_chunk(2, OUTPUT, 0), 1);
}
static void test_data_that_a_peer_writes_is_sent_on(void **state)
{
    static const int sizes[] = { 2, 1 };
    const struct algorithm handed_over = {
        .name = "handed_over", .collective = BROADCAST, .record = record_handed_over
    };
    char why[200];
    (void)state;
    for (uint64_t shared = 0; shared < 4; shared++) {
        struct plan p = built(&handed_over, hosts_of(&hosts, sizes, 2), 0, shared);
        if (!plan_check(&p, 3, 2, 0, why, sizeof why)) fail_msg("%s", why);
        plan_finish(&p);
    }
}
unit_function test_plan_build;
int test_plan_build(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sum_and_its_copies_are_one_step),
        cmocka_unit_test(test_private_inputs_are_staged_in_the_prelude),
        cmocka_unit_test(test_shared_tensors_are_not_staged),
        cmocka_unit_test(test_private_outputs_are_written_by_their_owners),
        cmocka_unit_test(test_sums_are_finished_once),
        cmocka_unit_test(test_inputs_are_premultiplied_when_they_are_staged),
        cmocka_unit_test(test_exactly_the_awaited_steps_are_published),
        cmocka_unit_test(test_message_that_a_peer_reads_is_awaited),
        cmocka_unit_test(test_receives_are_posted_early),
        cmocka_unit_test(test_plan_knows_its_first_and_last_message),
        cmocka_unit_test(test_messages_are_numbered_for_each_peer),
        cmocka_unit_test(test_cycle_is_found_and_cured_by_staging),
        cmocka_unit_test(test_cycle_over_messages_is_cured_by_staging_sends),
        cmocka_unit_test(test_data_that_a_peer_writes_is_sent_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
