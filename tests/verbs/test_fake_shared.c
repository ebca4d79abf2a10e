/* Tests of the fake's shared receive queues: which message uses which receive, which waits for one, and which receives
   a failed queue pair leaves. */
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
/* Connects `from` on device 0 to `to` on device 1. `from` waits for receives without limit. */
static void pairs_connect_patiently(struct ibv_qp *from, struct ibv_qp *to)
{
    struct ibv_qp_attr there = path_to(1, to->qp_num), back = path_to(0, from->qp_num);
    there.rnr_retry = 7;
    pair_init(from, END_ACCESS);
    pair_init(to, END_ACCESS);
    assert_int_equal(pair_receive(from, there), 0);
    assert_int_equal(pair_receive(to, back), 0);
    assert_int_equal(pair_send(from, there), 0);
    assert_int_equal(pair_send(to, back), 0);
}
/* PAIRS connections from end 0 to end 1, whose queue pairs share `srq`. */
struct scene { struct end ends[2]; struct ibv_srq *srq; struct ibv_qp *from[PAIRS], *to[PAIRS]; };
static void scene_init(struct scene *s)
{
    fake_reset();
    for (int i = 0; i < 2; i++) end_init(&s->ends[i], i, IBV_QPT_RC, END_WORKS);
    s->srq = queue_on(&s->ends[1]);
    for (int i = 0; i < PAIRS; i++) {
        s->from[i] = end_pair(&s->ends[0], IBV_QPT_RC, END_WORKS);
        s->to[i] = pair_on(&s->ends[1], s->srq);
        pairs_connect_patiently(s->from[i], s->to[i]);
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
/* Posts a write with immediate on one of the connections. */
static void scene_post_write(struct scene *s, int pair, uint64_t id)
{
    struct ibv_send_wr wr = request(id, IBV_WR_RDMA_WRITE_WITH_IMM, NULL, &s->ends[1], 0);
    assert_int_equal(post(s->from[pair], &wr), 0);
}
static void test_messages_of_all_pairs_take_the_oldest_receive(void **state)
{
    struct scene s;
    (void)state;
    scene_init(&s);
    for (uint64_t id = 1; id <= 4; id++) assert_int_equal(post_shared(s.srq, id), 0);
    assert_int_equal(post_shared(s.srq, 5), ENOMEM);
    for (int i = 0; i < 4; i++) {
        scene_post_write(&s, i % PAIRS, (uint64_t)i);
        struct ibv_wc wc = completion(s.ends[1].cq);
        assert_int_equal(wc.status, IBV_WC_SUCCESS);
        assert_int_equal(wc.wr_id, i + 1);
        assert_int_equal(wc.qp_num, s.to[i % PAIRS]->qp_num);
        assert_int_equal(completion(s.ends[0].cq).status, IBV_WC_SUCCESS);
    }
    scene_finish(&s);
}
static void test_a_message_waits_for_a_receive(void **state)
{
    struct scene s;
    (void)state;
    scene_init(&s);
    scene_post_write(&s, 0, 7);
    no_completion(s.ends[1].cq);
    assert_true(fake_count(FAKE_NOT_READY) > 0);
    assert_int_equal(post_shared(s.srq, 1), 0);
    assert_int_equal(completion(s.ends[1].cq).status, IBV_WC_SUCCESS);
    assert_int_equal(completion(s.ends[0].cq).status, IBV_WC_SUCCESS);
    scene_finish(&s);
}
static void test_receives_in_the_queue_outlive_a_pair(void **state)
{
    struct scene s;
    (void)state;
    scene_init(&s);
    assert_int_equal(post_shared(s.srq, 1), 0);
    fake_break_pair(s.to[0]->qp_num);
    /* The receive is not flushed. */
    no_completion(s.ends[1].cq);
    assert_int_equal(async_event(&s.ends[1]), IBV_EVENT_QP_FATAL);
    scene_post_write(&s, 1, 3);
    assert_int_equal(completion(s.ends[1].cq).wr_id, 1);
    assert_int_equal(completion(s.ends[0].cq).status, IBV_WC_SUCCESS);
    scene_finish(&s);
}
static void test_calls_that_are_refused(void **state)
{
    struct scene s;
    struct ibv_recv_wr *bad, wr = { .wr_id = 1 };
    (void)state;
    scene_init(&s);
    /* A queue pair with a shared queue has no receive queue of its own. */
    assert_int_equal(ibv_post_recv(s.to[0], &wr, &bad), EINVAL);
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
        cmocka_unit_test(test_messages_of_all_pairs_take_the_oldest_receive),
        cmocka_unit_test(test_a_message_waits_for_a_receive),
        cmocka_unit_test(test_receives_in_the_queue_outlive_a_pair),
        cmocka_unit_test(test_calls_that_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
