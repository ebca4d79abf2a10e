/* Shared receive queues of the fake: who uses one receive, who waits for one, and what a failure leaves. */
#include "tests/support/unit.h"
#include "tests/verbs/ends.h"
#include <errno.h>

enum { PAIRS = 2 };
static struct ibv_qp *pair_on(struct end *e, struct ibv_srq *srq)
{
    struct ibv_qp_init_attr how = { .send_cq = e->cq,
        .recv_cq = e->cq,
        .srq = srq,
        .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = END_WORKS, .max_send_sge = 1 } };
    struct ibv_qp *pair = ibv_create_qp(e->pd, &how);
    assert_non_null(pair);
    return pair;
}
static struct ibv_srq *queue_on(struct end *e)
{
    struct ibv_srq_init_attr how = { .attr = { .max_wr = 4, .max_sge = 1 } };
    struct ibv_srq *srq = ibv_create_srq(e->pd, &how);
    assert_non_null(srq);
    return srq;
}
static int post_shared(struct ibv_srq *srq, uint64_t id)
{
    struct ibv_recv_wr *bad, wr = { .wr_id = id };
    return ibv_post_srq_recv(srq, &wr, &bad);
}
static void connect_patiently(struct ibv_qp *from, struct ibv_qp *to)
{
    struct ibv_qp_attr there = path_to(1, to->qp_num), back = path_to(0, from->qp_num);
    there.rnr_retry = 7; /* as often as it takes */
    pair_init(from, END_ACCESS);
    pair_init(to, END_ACCESS);
    assert_int_equal(pair_receive(from, there), 0);
    assert_int_equal(pair_receive(to, back), 0);
    assert_int_equal(pair_send(from, there), 0);
    assert_int_equal(pair_send(to, back), 0);
}
struct scene { struct end ends[2]; struct ibv_srq *srq; struct ibv_qp *from[PAIRS], *to[PAIRS]; };
static void scene_init(struct scene *s)
{
    fake_reset();
    for (int i = 0; i < 2; i++) end_init(&s->ends[i], i, IBV_QPT_RC, END_WORKS);
    s->srq = queue_on(&s->ends[1]);
    for (int i = 0; i < PAIRS; i++) {
        s->from[i] = end_pair(&s->ends[0], IBV_QPT_RC, END_WORKS);
        s->to[i] = pair_on(&s->ends[1], s->srq);
        connect_patiently(s->from[i], s->to[i]);
    }
}
static void scene_finish(struct scene *s)
{
    for (int i = 0; i < PAIRS; i++) {
        if (s->from[i]) assert_int_equal(ibv_destroy_qp(s->from[i]), 0);
        if (s->to[i]) assert_int_equal(ibv_destroy_qp(s->to[i]), 0);
    }
    assert_int_equal(ibv_destroy_srq(s->srq), 0);
    ends_finish(s->ends);
}
static void tell(struct scene *s, int pair, uint64_t id)
{
    struct ibv_send_wr wr = request(id, IBV_WR_RDMA_WRITE_WITH_IMM, NULL, &s->ends[1], 0);
    assert_int_equal(post(s->from[pair], &wr), 0);
}
static void test_each_message_takes_one_of_all_pairs(void **state)
{
    struct scene s;
    (void)state;
    scene_init(&s);
    for (uint64_t id = 1; id <= 4; id++) assert_int_equal(post_shared(s.srq, id), 0);
    assert_int_equal(post_shared(s.srq, 5), ENOMEM);
    for (int i = 0; i < 4; i++) {
        tell(&s, i % PAIRS, (uint64_t)i);
        struct ibv_wc wc = completion(s.ends[1].cq);
        assert_int_equal(wc.status, IBV_WC_SUCCESS);
        assert_int_equal(wc.wr_id, i + 1);              /* the oldest */
        assert_int_equal(wc.qp_num, s.to[i % PAIRS]->qp_num);
        assert_int_equal(completion(s.ends[0].cq).status, IBV_WC_SUCCESS);
    }
    scene_finish(&s);
}
static void test_without_one_it_waits(void **state)
{
    struct scene s;
    (void)state;
    scene_init(&s);
    tell(&s, 0, 7);
    no_completion(s.ends[1].cq);
    assert_true(fake_count(FAKE_NOT_READY) > 0);
    assert_int_equal(post_shared(s.srq, 1), 0);
    assert_int_equal(completion(s.ends[1].cq).status, IBV_WC_SUCCESS);
    assert_int_equal(completion(s.ends[0].cq).status, IBV_WC_SUCCESS);
    scene_finish(&s);
}
static void test_what_is_not_taken_outlives_a_pair(void **state)
{
    struct scene s;
    (void)state;
    scene_init(&s);
    assert_int_equal(post_shared(s.srq, 1), 0);
    fake_break_pair(s.to[0]->qp_num);
    no_completion(s.ends[1].cq);                        /* nothing is flushed */
    assert_int_equal(async_event(&s.ends[1]), IBV_EVENT_QP_FATAL);
    tell(&s, 1, 3);
    assert_int_equal(completion(s.ends[1].cq).wr_id, 1);
    assert_int_equal(completion(s.ends[0].cq).status, IBV_WC_SUCCESS);
    scene_finish(&s);
}
static void test_what_is_refused(void **state)
{
    struct scene s;
    struct ibv_recv_wr *bad, wr = { .wr_id = 1 };
    (void)state;
    scene_init(&s);
    assert_int_equal(ibv_post_recv(s.to[0], &wr, &bad), EINVAL);       /* it has a queue that is shared */
    assert_int_equal(ibv_destroy_srq(s.srq), EBUSY);
    fake_fail_call(FAKE_CREATE_SRQ, 0, ENOMEM);
    struct ibv_srq_init_attr how = { .attr = { .max_wr = 4, .max_sge = 1 } };
    assert_null(ibv_create_srq(s.ends[1].pd, &how));
    assert_int_equal(errno, ENOMEM);
    scene_finish(&s);
}
unit_function test_fake_shared;
int test_fake_shared(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_message_takes_one_of_all_pairs),
        cmocka_unit_test(test_without_one_it_waits),
        cmocka_unit_test(test_what_is_not_taken_outlives_a_pair),
        cmocka_unit_test(test_what_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
