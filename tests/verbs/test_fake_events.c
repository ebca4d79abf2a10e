/* Tests of the fake's channels, asynchronous events and datagrams, with and without failures. */
#include "tests/support/unit.h"
#include "tests/verbs/ends.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>

/* ---- channels ---- */
static bool descriptor_is_readable(int descriptor, int ms)
{
    return poll(&(struct pollfd){ descriptor, POLLIN, 0 }, 1, ms) == 1;
}
static void *event_acknowledge(void *cq)
{
    usleep(20000);
    ibv_ack_cq_events(cq, 1);
    return NULL;
}
static void test_an_armed_queue_sends_one_event(void **state)
{
    (void)state;
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    struct ibv_send_wr wr = request(1, IBV_WR_RDMA_WRITE, NULL, &e[1], 0);
    assert_int_equal(post(e[0].qp, &wr), 0);
    completion(e[0].cq);
    /* The queue was not armed. */
    assert_false(descriptor_is_readable(e[0].channel->fd, 20));
    assert_int_equal(ibv_req_notify_cq(e[0].cq, 0), 0);
    for (int i = 0; i < 2; i++) assert_int_equal(post(e[0].qp, &wr), 0);
    assert_true(descriptor_is_readable(e[0].channel->fd, 20000));
    struct ibv_cq *cq;
    void *context;
    assert_int_equal(ibv_get_cq_event(e[0].channel, &cq, &context), 0);
    assert_ptr_equal(cq, e[0].cq);
    assert_ptr_equal(context, &e[0]);
    for (int i = 0; i < 2; i++) completion(e[0].cq);
    assert_int_equal(fake_count(FAKE_EVENTS), 1);
    fcntl(e[0].channel->fd, F_SETFL, O_NONBLOCK);
    assert_int_equal(ibv_get_cq_event(e[0].channel, &cq, &context), -1);
    assert_int_equal(errno, EAGAIN);
    /* ibv_destroy_cq has to wait until this thread has acknowledged the event. */
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, event_acknowledge, e[0].cq), 0);
    ends_finish(e);
    pthread_join(thread, NULL);
}
static void test_only_solicited_completions_send_an_event(void **state)
{
    (void)state;
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    for (uint64_t i = 0; i < 2; i++) assert_int_equal(post_receive(e[1].qp, i, NULL), 0);
    assert_int_equal(ibv_req_notify_cq(e[1].cq, 1), 0);
    struct ibv_send_wr wr = request(1, IBV_WR_RDMA_WRITE_WITH_IMM, NULL, &e[1], 0);
    assert_int_equal(post(e[0].qp, &wr), 0);
    completion(e[1].cq);
    assert_false(descriptor_is_readable(e[1].channel->fd, 20));
    wr.send_flags |= IBV_SEND_SOLICITED;
    assert_int_equal(post(e[0].qp, &wr), 0);
    assert_true(descriptor_is_readable(e[1].channel->fd, 20000));
    for (int i = 0; i < 2; i++) completion(e[0].cq);
    /* An event that was never taken is destroyed with its queue. */
    ends_finish(e);
}
/* Completions of a destroyed queue pair that were not polled vanish, or stay with limits.stale. */
static void test_completions_of_a_destroyed_pair(void **state)
{
    (void)state;
    for (int stale = 0; stale < 2; stale++) {
        struct end e[2];
        struct fake_limits limits = fake_limits();
        limits.stale = stale;
        fake_set_limits(&limits);
        ends_init(e, IBV_QPT_RC);
        struct ibv_send_wr wr = request(6, IBV_WR_RDMA_WRITE, NULL, &e[1], 0);
        assert_int_equal(ibv_req_notify_cq(e[0].cq, 0), 0);
        assert_int_equal(post(e[0].qp, &wr), 0);
        assert_true(descriptor_is_readable(e[0].channel->fd, 20000));
        assert_int_equal(ibv_destroy_qp(e[0].qp), 0);
        e[0].qp = NULL;
        struct ibv_wc wc;
        assert_int_equal(ibv_poll_cq(e[0].cq, 1, &wc), stale);
        ends_finish(e);
    }
}

/* ---- datagrams ---- */
static struct ibv_send_wr datagram_request(struct ibv_sge *sge, struct ibv_ah *ah, uint32_t qpn)
{
    struct ibv_send_wr wr = { .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = qpn;
    wr.wr.ud.remote_qkey = 0x1234;
    return wr;
}
static void test_a_datagram_arrives_behind_a_route_header(void **state)
{
    (void)state;
    struct end e[2];
    ends_init(e, IBV_QPT_UD);
    end_fill(&e[0], 0, 100, 6);
    struct ibv_sge sge = sge_of(&e[0], 0, 100), into = sge_of(&e[1], 0, 140);
    struct ibv_ah *ah = handle_to(&e[0], 1);
    struct ibv_send_wr wr = datagram_request(&sge, ah, e[1].qp->qp_num);
    assert_int_equal(post_receive(e[1].qp, 3, &into), 0);
    assert_int_equal(post(e[0].qp, &wr), 0);
    struct ibv_wc wc = completion(e[1].cq);
    assert_int_equal(wc.wr_id, 3);
    assert_int_equal(wc.byte_len, 140);
    assert_int_equal(wc.src_qp, e[0].qp->qp_num);
    assert_int_equal(wc.wc_flags, IBV_WC_GRH);
    assert_memory_equal(e[1].memory + 40, e[0].memory, 100);
    static const unsigned char addresses[8] = { 10, 0, 0, 1, 10, 0, 0, 2 };
    assert_memory_equal(e[1].memory + 32, addresses, 8);
    assert_int_equal(completion(e[0].cq).status, IBV_WC_SUCCESS);
    ibv_destroy_ah(ah);
    ends_finish(e);
}
/* Sends 20 datagrams with this Q_Key, to the queue pair whose number is `other_pair` above the receiver's, which has
   posted `receives` receives. Returns how many arrived. */
static uint64_t count_arrived_datagrams(const struct fake_faults *faults, uint32_t receives, uint32_t qkey,
    uint32_t other_pair)
{
    struct end e[2];
    ends_init(e, IBV_QPT_UD);
    struct ibv_sge sge = sge_of(&e[0], 0, 8), into = sge_of(&e[1], 0, 48);
    struct ibv_ah *ah = handle_to(&e[0], 1);
    struct ibv_send_wr wr = datagram_request(&sge, ah, e[1].qp->qp_num + other_pair);
    wr.wr.ud.remote_qkey = qkey;
    uint64_t before = fake_count(FAKE_DATAGRAMS);
    uint64_t all = before + fake_count(FAKE_DATAGRAMS_LOST) - fake_count(FAKE_DATAGRAMS_DOUBLED) + 20;
    fake_set_faults(faults);
    for (uint64_t i = 0; i < receives; i++) assert_int_equal(post_receive(e[1].qp, i, &into), 0);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(post(e[0].qp, &wr), 0);
        /* A sender does not notice that a datagram is lost. */
        assert_int_equal(completion(e[0].cq).status, IBV_WC_SUCCESS);
    }
    while (fake_count(FAKE_DATAGRAMS) + fake_count(FAKE_DATAGRAMS_LOST) < all + fake_count(FAKE_DATAGRAMS_DOUBLED))
        usleep(100);
    ibv_destroy_ah(ah);
    ends_finish(e);
    return fake_count(FAKE_DATAGRAMS) - before;
}
static void test_datagrams_are_lost_and_doubled(void **state)
{
    (void)state;
    struct fake_faults none = { 0 }, some = { .seed = 5, .drop = 500000 }, twice = { .duplicate = 1000000 };
    assert_int_equal(count_arrived_datagrams(&none, 40, 0x1234, 0), 20);
    /* Datagrams are lost without a receive, with a wrong Q_Key, and without a queue pair of that number. */
    assert_int_equal(count_arrived_datagrams(&none, 5, 0x1234, 0), 5);
    assert_int_equal(count_arrived_datagrams(&none, 40, 0x1235, 0), 0);
    assert_int_equal(count_arrived_datagrams(&none, 40, 0x1234, 1), 0);
    assert_in_range(count_arrived_datagrams(&some, 40, 0x1234, 0), 1, 19);
    assert_int_equal(count_arrived_datagrams(&twice, 40, 0x1234, 0), 40);
    assert_int_equal(fake_count(FAKE_DATAGRAMS_DOUBLED), 20);
}
static void test_a_failed_datagram_stops_sending_only(void **state)
{
    (void)state;
    struct end e[2];
    ends_init(e, IBV_QPT_UD);
    struct ibv_ah *ah[2] = { handle_to(&e[0], 1), handle_to(&e[1], 0) };
    struct ibv_sge sge = sge_of(&e[0], 0, 1025), reply = sge_of(&e[1], 0, 8), into = sge_of(&e[0], 0, 48);
    struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };
    wr.wr.ud.ah = ah[0];
    wr.wr.ud.remote_qpn = e[1].qp->qp_num;
    wr.wr.ud.remote_qkey = 0x1234;
    assert_int_equal(post(e[0].qp, &wr), 0);
    assert_int_equal(completion(e[0].cq).status, IBV_WC_LOC_LEN_ERR);
    assert_int_equal(fake_pair_state(e[0].qp->qp_num), IBV_QPS_SQE);
    sge.length = 8;
    assert_int_equal(post(e[0].qp, &wr), 0);
    assert_int_equal(completion(e[0].cq).status, IBV_WC_WR_FLUSH_ERR);
    assert_int_equal(post_receive(e[0].qp, 2, &into), 0);
    wr.sg_list = &reply;
    wr.wr.ud.ah = ah[1];
    wr.wr.ud.remote_qpn = e[0].qp->qp_num;
    assert_int_equal(post(e[1].qp, &wr), 0);
    assert_int_equal(completion(e[0].cq).wr_id, 2);
    assert_int_equal(pair_state(e[0].qp, IBV_QPS_RTS), 0);
    wr.sg_list = &sge;
    wr.wr.ud.ah = ah[0];
    wr.send_flags = IBV_SEND_SIGNALED;
    assert_int_equal(post(e[0].qp, &wr), 0);
    assert_int_equal(completion(e[0].cq).status, IBV_WC_SUCCESS);
    wr.opcode = IBV_WR_RDMA_WRITE;
    assert_int_equal(post(e[0].qp, &wr), EINVAL);
    for (int i = 0; i < 2; i++) ibv_destroy_ah(ah[i]);
    ends_finish(e);
}

/* ---- events ---- */
static void test_a_retry_succeeds_when_the_port_is_up_again(void **state)
{
    (void)state;
    struct fake_limits l = fake_limits();
    l.retry_us = 1000000;
    fake_set_limits(&l);
    struct end e[2];
    struct ibv_port_attr port;
    ends_init(e, IBV_QPT_RC);
    fake_set_port(1, false);
    assert_int_equal(async_event(&e[1]), IBV_EVENT_PORT_ERR);
    assert_int_equal(ibv_query_port(e[1].context, 1, &port), 0);
    assert_int_equal(port.state, IBV_PORT_DOWN);
    struct ibv_send_wr wr = request(1, IBV_WR_RDMA_WRITE, NULL, &e[1], 0);
    assert_int_equal(post(e[0].qp, &wr), 0);
    no_completion(e[0].cq);
    fake_set_port(1, true);
    assert_int_equal(async_event(&e[1]), IBV_EVENT_PORT_ACTIVE);
    assert_int_equal(completion(e[0].cq).status, IBV_WC_SUCCESS);
    ends_finish(e);
}
static void test_objects_of_a_broken_device_can_only_be_destroyed(void **state)
{
    (void)state;
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    assert_int_equal(post_receive(e[0].qp, 4, NULL), 0);
    fake_break_device(0);
    assert_int_equal(async_event(&e[0]), IBV_EVENT_DEVICE_FATAL);
    assert_int_equal(completion(e[0].cq).status, IBV_WC_WR_FLUSH_ERR);
    assert_null(ibv_reg_mr(e[0].pd, e[0].memory, 8, 0));
    assert_int_equal(errno, EIO);
    ends_finish(e);
}
static void test_a_broken_pair_flushes_its_receives(void **state)
{
    (void)state;
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    assert_int_equal(post_receive(e[0].qp, 4, NULL), 0);
    fake_break_pair(e[0].qp->qp_num);
    assert_int_equal(async_event(&e[0]), IBV_EVENT_QP_FATAL);
    assert_int_equal(completion(e[0].cq).status, IBV_WC_WR_FLUSH_ERR);
    ends_finish(e);
}
static void test_an_overrun_completion_queue_fails_its_pairs(void **state)
{
    (void)state;
    struct end e[2];
    struct ibv_qp *qp[2];
    struct ibv_cq *small = small_queue_begin(e, qp, 2);
    struct ibv_send_wr wr = request(1, IBV_WR_RDMA_WRITE, NULL, &e[1], 0);
    for (int i = 0; i < 3; i++) assert_int_equal(post(qp[0], &wr), 0);
    assert_int_equal(async_event(&e[0]), IBV_EVENT_CQ_ERR);
    assert_int_equal(async_event(&e[0]), IBV_EVENT_QP_FATAL);
    await_state(qp[0], IBV_QPS_ERR);
    /* This queue pair reports to another completion queue. */
    assert_int_equal(fake_pair_state(e[0].qp->qp_num), IBV_QPS_RTS);
    small_queue_finish(e, qp, small);
}
static void test_a_resized_completion_queue_keeps_its_completions(void **state)
{
    (void)state;
    struct end e[2];
    struct ibv_qp *qp[2];
    struct ibv_cq *small = small_queue_begin(e, qp, 3);
    for (uint64_t i = 1; i <= 7; i++) {
        struct ibv_send_wr wr = request(i, IBV_WR_RDMA_WRITE, NULL, &e[1], 0);
        assert_int_equal(post(qp[0], &wr), 0);
        /* After this poll the oldest completion is not in the first slot of the queue. */
        if (i == 1) assert_int_equal(completion(small).wr_id, 1);
        if (i != 3) continue;
        usleep(20000);
        assert_int_equal(ibv_resize_cq(small, 1), EINVAL);
        assert_int_equal(ibv_resize_cq(small, 8), 0);
        assert_int_equal(small->cqe, 8);
    }
    for (uint64_t i = 2; i <= 7; i++) assert_int_equal(completion(small).wr_id, i);
    small_queue_finish(e, qp, small);
}
static void test_the_first_message_to_a_pair_in_rtr_sends_an_event(void **state)
{
    (void)state;
    struct end e[2];
    for (int i = 0; i < 2; i++) end_init(&e[i], i, IBV_QPT_RC, END_WORKS);
    struct ibv_qp_attr to[2] = { path_to(1, e[1].qp->qp_num), path_to(0, e[0].qp->qp_num) };
    for (int i = 0; i < 2; i++) {
        pair_init(e[i].qp, END_ACCESS);
        assert_int_equal(pair_receive(e[i].qp, to[i]), 0);
    }
    assert_int_equal(pair_send(e[0].qp, to[0]), 0);
    struct ibv_send_wr wr = request(1, IBV_WR_RDMA_WRITE, NULL, &e[1], 0);
    assert_int_equal(post(e[0].qp, &wr), 0);
    assert_int_equal(completion(e[0].cq).status, IBV_WC_SUCCESS);
    assert_int_equal(async_event(&e[1]), IBV_EVENT_COMM_EST);
    ends_finish(e);
}
unit_function test_fake_events;
int test_fake_events(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_an_armed_queue_sends_one_event, fake_begin),
        cmocka_unit_test_setup(test_only_solicited_completions_send_an_event, fake_begin),
        cmocka_unit_test_setup(test_completions_of_a_destroyed_pair, fake_begin),
        cmocka_unit_test_setup(test_a_datagram_arrives_behind_a_route_header, fake_begin),
        cmocka_unit_test_setup(test_datagrams_are_lost_and_doubled, fake_begin),
        cmocka_unit_test_setup(test_a_failed_datagram_stops_sending_only, fake_begin),
        cmocka_unit_test_setup(test_a_retry_succeeds_when_the_port_is_up_again, fake_begin),
        cmocka_unit_test_setup(test_objects_of_a_broken_device_can_only_be_destroyed, fake_begin),
        cmocka_unit_test_setup(test_a_broken_pair_flushes_its_receives, fake_begin),
        cmocka_unit_test_setup(test_an_overrun_completion_queue_fails_its_pairs, fake_begin),
        cmocka_unit_test_setup(test_a_resized_completion_queue_keeps_its_completions, fake_begin),
        cmocka_unit_test_setup(test_the_first_message_to_a_pair_in_rtr_sends_an_event, fake_begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
