/* Tests of the fake's failures: calls that are refused at once, every error of a completion and its effects on both
   ends, flushing, and memory that must stay unchanged. */
#include "tests/support/unit.h"
#include "tests/verbs/ends.h"
#include <errno.h>

/* ---- states ---- */
static void test_states_follow_each_other_in_order(void **state)
{
    (void)state;
    struct end e;
    end_init(&e, 0, IBV_QPT_RC, END_WORKS);
    struct ibv_qp_attr a = path_to(0, e.qp->qp_num);
    struct ibv_send_wr wr = request(1, IBV_WR_RDMA_WRITE, NULL, &e, 0);
    assert_int_equal(pair_receive(e.qp, a), EINVAL);
    assert_int_equal(post(e.qp, &wr), EINVAL);
    assert_int_equal(post_receive(e.qp, 1, NULL), EINVAL);
    struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    /* The access flags are missing. */
    assert_int_equal(ibv_modify_qp(e.qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT), EINVAL);
    pair_init(e.qp, END_ACCESS);
    assert_int_equal(post(e.qp, &wr), EINVAL);
    assert_int_equal(post_receive(e.qp, 1, NULL), 0);
    assert_int_equal(pair_send(e.qp, a), EINVAL);
    assert_int_equal(pair_receive(e.qp, a), 0);
    assert_int_equal(post(e.qp, &wr), EINVAL);
    assert_int_equal(pair_send(e.qp, a), 0);
    assert_int_equal(e.qp->state, IBV_QPS_RTS);
    assert_int_equal(pair_receive(e.qp, a), EINVAL);
    assert_int_equal(pair_state(e.qp, IBV_QPS_RESET), 0);
    assert_int_equal(post(e.qp, &wr), EINVAL);
    /* RESET forgets the posted receive without a completion. */
    no_completion(e.cq);
    end_finish(&e);
}
/* The wrong values: an MTU above the port's 1024, an empty GID, a path without a GID, and numbers out of range. */
static void test_wrong_attributes_are_refused(void **state)
{
    (void)state;
    struct end e;
    end_init(&e, 0, IBV_QPT_RC, END_WORKS);
    struct ibv_qp_attr good = path_to(1, 1), a = good;
    pair_init(e.qp, END_ACCESS);
    a.path_mtu = IBV_MTU_2048;
    assert_int_equal(pair_receive(e.qp, a), EINVAL);
    a = good;
    a.ah_attr.grh.sgid_index = 9;
    assert_int_equal(pair_receive(e.qp, a), EINVAL);
    a = good;
    a.ah_attr.is_global = 0;
    assert_int_equal(pair_receive(e.qp, a), EINVAL);
    assert_null(ibv_create_ah(e.pd, &a.ah_attr));
    a = good;
    a.rq_psn = 1 << 24;
    assert_int_equal(pair_receive(e.qp, a), EINVAL);
    a = good;
    a.max_dest_rd_atomic = 17;
    assert_int_equal(pair_receive(e.qp, a), EINVAL);
    assert_int_equal(pair_receive(e.qp, good), 0);
    a = good;
    a.retry_cnt = 8;
    assert_int_equal(pair_send(e.qp, a), EINVAL);
    a = good;
    a.rnr_retry = 8;
    assert_int_equal(pair_send(e.qp, a), EINVAL);
    assert_int_equal(pair_send(e.qp, good), 0);
    end_finish(&e);
}
static void test_objects_that_cannot_be_created(void **state)
{
    (void)state;
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    struct ibv_qp_init_attr good = { .send_cq = e[0].cq, .recv_cq = e[0].cq, .qp_type = IBV_QPT_RC }, a = good;
    a.cap.max_inline_data = 257;
    assert_null(ibv_create_qp(e[0].pd, &a));
    a = good;
    a.cap.max_send_wr = 16385;
    assert_null(ibv_create_qp(e[0].pd, &a));
    a = good;
    a.recv_cq = e[1].cq;                                /* owned by another context */
    assert_null(ibv_create_qp(e[0].pd, &a));
    assert_int_equal(errno, EINVAL);
    struct fake_limits l = fake_limits();
    l.pinned_most = 2 * END_BYTES + 100;
    l.max_cqe = 10;
    fake_set_limits(&l);
    assert_null(ibv_create_cq(e[0].context, 11, NULL, NULL, 0));
    assert_null(ibv_reg_mr(e[0].pd, e[0].memory, 101, 0));
    assert_int_equal(errno, ENOMEM);
    /* Remote writes need the access for local writes, too. */
    assert_null(ibv_reg_mr(e[0].pd, e[0].memory, 10, IBV_ACCESS_REMOTE_WRITE));
    assert_int_equal(errno, EINVAL);
    assert_null(ibv_reg_mr(e[0].pd, (void *)4096, 10, IBV_ACCESS_LOCAL_WRITE));
    assert_int_equal(errno, EFAULT);
    ends_finish(e);
}

/* ---- errors of one request ---- */
/* Posts a receive, and the request between two others. Expects that the first succeeds, `wr` fails with this status,
   and the receive, the last and a later request are flushed, although all but the first are unsignalled. */
static void expect_failure(struct end e[2], struct ibv_send_wr *wr, enum ibv_wc_status status)
{
    struct ibv_send_wr before = request(100, IBV_WR_RDMA_WRITE, NULL, &e[1], 0), after = before;
    after.wr_id = 102;
    after.send_flags = 0;
    wr->wr_id = 101;
    wr->send_flags &= ~(unsigned)IBV_SEND_SIGNALED;
    assert_int_equal(post_receive(e[0].qp, 55, NULL), 0);
    before.next = wr;
    wr->next = &after;
    assert_int_equal(post(e[0].qp, &before), 0);
    struct ibv_wc wc = completion(e[0].cq);
    assert_int_equal(wc.wr_id, 100);
    assert_int_equal(wc.status, IBV_WC_SUCCESS);
    wc = completion(e[0].cq);
    assert_int_equal(wc.wr_id, 101);
    assert_int_equal(wc.status, status);
    bool flushed[2] = { false };
    for (int i = 0; i < 2; i++) {
        wc = completion(e[0].cq);
        assert_int_equal(wc.status, IBV_WC_WR_FLUSH_ERR);
        assert_true(wc.wr_id == 102 || wc.wr_id == 55);
        flushed[wc.wr_id == 55] = true;
    }
    assert_true(flushed[0] && flushed[1]);
    after.wr_id = 103;
    assert_int_equal(post(e[0].qp, &after), 0);
    assert_int_equal(completion(e[0].cq).status, IBV_WC_WR_FLUSH_ERR);
    assert_int_equal(fake_pair_state(e[0].qp->qp_num), IBV_QPS_ERR);
}
/* The faults: one byte beyond the region; an lkey; a region of another domain; a deregistered region; a region without
   remote access, which is written and read; the key 0. */
static void test_remote_access_errors_fail_both_ends(void **state)
{
    (void)state;
    for (int fault = 0; fault < 7; fault++) {
        struct end e[2];
        ends_init(e, IBV_QPT_RC);
        struct ibv_sge sge = sge_of(&e[0], 0, 64);
        struct ibv_send_wr wr = request(1, fault == 5 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, &sge, &e[1], 0);
        struct ibv_pd *other_pd = ibv_alloc_pd(e[1].context);
        struct ibv_mr *other = ibv_reg_mr(other_pd, e[1].memory, END_BYTES, END_ACCESS);
        struct ibv_mr *guarded = ibv_reg_mr(e[1].pd, e[1].memory, END_BYTES, IBV_ACCESS_LOCAL_WRITE);
        struct ibv_mr *gone = ibv_reg_mr(e[1].pd, e[1].memory, END_BYTES, END_ACCESS);
        uint32_t keys[] = { e[1].mr->rkey, e[1].mr->lkey, other->rkey, gone->rkey, guarded->rkey, guarded->rkey, 0 };
        ibv_dereg_mr(gone);
        wr.wr.rdma.rkey = keys[fault];
        if (fault == 0) wr.wr.rdma.remote_addr += END_BYTES - 63;
        memset(e[0].memory, 1, 64);
        assert_int_equal(post_receive(e[1].qp, 9, NULL), 0);
        expect_failure(e, &wr, IBV_WC_REM_ACCESS_ERR);
        assert_int_equal(completion(e[1].cq).status, IBV_WC_WR_FLUSH_ERR);
        assert_int_equal(fake_pair_state(e[1].qp->qp_num), IBV_QPS_ERR);
        assert_int_equal(async_event(&e[1]), IBV_EVENT_QP_ACCESS_ERR);
        for (int i = 0; i < END_BYTES; i++) assert_int_equal(e[1].memory[i], 0);
        assert_int_equal(e[0].memory[0], 1);
        ibv_dereg_mr(other);
        ibv_dereg_mr(guarded);
        ibv_dealloc_pd(other_pd);
        ends_finish(e);
    }
}
/* The faults: beyond the region; an rkey; the key 0; a read into a region that is read-only. */
static void test_local_protection_errors_fail_the_sender_alone(void **state)
{
    (void)state;
    for (int fault = 0; fault < 4; fault++) {
        struct end e[2];
        ends_init(e, IBV_QPT_RC);
        struct ibv_mr *read_only = ibv_reg_mr(e[0].pd, e[0].memory, END_BYTES, 0);
        struct ibv_sge sge = sge_of(&e[0], fault == 0 ? END_BYTES - 63 : 0, 64);
        uint32_t keys[] = { e[0].mr->lkey, e[0].mr->rkey, 0, read_only->lkey };
        sge.lkey = keys[fault];
        struct ibv_send_wr wr = request(1, fault == 3 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, &sge, &e[1], 0);
        expect_failure(e, &wr, IBV_WC_LOC_PROT_ERR);
        assert_int_equal(fake_pair_state(e[1].qp->qp_num), IBV_QPS_RTS);
        ibv_dereg_mr(read_only);
        ends_finish(e);
    }
}
/* The faults: the receive is one byte too short; its memory is not registered. */
static void test_an_unsuitable_receive_fails_both_ends(void **state)
{
    (void)state;
    for (int fault = 0; fault < 2; fault++) {
        struct end e[2];
        ends_init(e, IBV_QPT_RC);
        struct ibv_sge sge = sge_of(&e[0], 0, 64), into = sge_of(&e[1], 0, fault ? 64 : 63);
        if (fault) into.lkey = 0;
        struct ibv_send_wr wr = request(1, IBV_WR_SEND, &sge, &e[1], 0);
        assert_int_equal(post_receive(e[1].qp, 8, &into), 0);
        assert_int_equal(post_receive(e[1].qp, 9, &into), 0);
        expect_failure(e, &wr, fault ? IBV_WC_REM_OP_ERR : IBV_WC_REM_INV_REQ_ERR);
        struct ibv_wc wc = completion(e[1].cq);
        assert_int_equal(wc.wr_id, 8);
        assert_int_equal(wc.status, fault ? IBV_WC_LOC_PROT_ERR : IBV_WC_LOC_LEN_ERR);
        assert_int_equal(completion(e[1].cq).status, IBV_WC_WR_FLUSH_ERR);
        ends_finish(e);
    }
}
/* The faults: the peer's queue pair permits no reads; it answers none at a time; this end may have none open. */
static void test_reads_that_are_not_permitted_fail(void **state)
{
    (void)state;
    for (int fault = 0; fault < 3; fault++) {
        struct end e[2];
        for (int i = 0; i < 2; i++) end_init(&e[i], i, IBV_QPT_RC, END_WORKS);
        struct ibv_qp_attr to[2] = { path_to(1, e[1].qp->qp_num), path_to(0, e[0].qp->qp_num) };
        if (fault == 1) to[1].max_dest_rd_atomic = 0;
        if (fault == 2) to[0].max_rd_atomic = 0;
        for (int i = 0; i < 2; i++) {
            pair_init(e[i].qp, fault ? END_ACCESS : IBV_ACCESS_REMOTE_WRITE);
            assert_int_equal(pair_receive(e[i].qp, to[i]), 0);
            assert_int_equal(pair_send(e[i].qp, to[i]), 0);
        }
        struct ibv_sge sge = sge_of(&e[0], 0, 8);
        struct ibv_send_wr wr = request(1, IBV_WR_RDMA_READ, &sge, &e[1], 0);
        expect_failure(e, &wr, fault == 2 ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_REM_INV_REQ_ERR);
        if (fault < 2) assert_int_equal(async_event(&e[1]), IBV_EVENT_QP_REQ_ERR);
        ends_finish(e);
    }
}
static void test_a_message_that_is_too_long_fails(void **state)
{
    (void)state;
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    struct fake_limits l = fake_limits();
    l.max_message = 4096;
    fake_set_limits(&l);
    struct ibv_sge sge = sge_of(&e[0], 0, 4097);
    struct ibv_send_wr wr = request(1, IBV_WR_RDMA_WRITE, &sge, &e[1], 0);
    expect_failure(e, &wr, IBV_WC_LOC_LEN_ERR);
    ends_finish(e);
}

/* ---- a receiver that is not ready ---- */
static void test_a_missing_receive_fails_after_the_retries(void **state)
{
    (void)state;
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    struct ibv_send_wr wr = request(1, IBV_WR_RDMA_WRITE_WITH_IMM, NULL, &e[1], 0);
    expect_failure(e, &wr, IBV_WC_RNR_RETRY_EXC_ERR);
    /* One attempt and 3 retries. */
    assert_int_equal(fake_count(FAKE_NOT_READY), 4);
    assert_int_equal(fake_pair_state(e[1].qp->qp_num), IBV_QPS_RTS);
    ends_finish(e);
}
static void test_a_message_waits_for_a_late_receive(void **state)
{
    (void)state;
    struct end e[2];
    for (int i = 0; i < 2; i++) end_init(&e[i], i, IBV_QPT_RC, END_WORKS);
    struct ibv_qp_attr to[2] = { path_to(1, e[1].qp->qp_num), path_to(0, e[0].qp->qp_num) };
    for (int i = 0; i < 2; i++) {
        to[i].rnr_retry = 7;                            /* without limit */
        pair_init(e[i].qp, END_ACCESS);
        assert_int_equal(pair_receive(e[i].qp, to[i]), 0);
        assert_int_equal(pair_send(e[i].qp, to[i]), 0);
    }
    struct ibv_send_wr wr = request(1, IBV_WR_RDMA_WRITE_WITH_IMM, NULL, &e[1], 0);
    assert_int_equal(post(e[0].qp, &wr), 0);
    while (fake_count(FAKE_NOT_READY) < 20) usleep(100);
    assert_int_equal(post_receive(e[1].qp, 3, NULL), 0);
    assert_int_equal(completion(e[1].cq).wr_id, 3);
    assert_int_equal(completion(e[0].cq).status, IBV_WC_SUCCESS);
    ends_finish(e);
}

/* ---- a peer that does not answer ---- */
/* Expects that a request fails after 3 retries because the peer does not answer, and destroys both ends. */
static void expect_no_answer(struct end e[2])
{
    struct ibv_send_wr wr = request(1, IBV_WR_RDMA_WRITE, NULL, &e[1], 0);
    uint64_t before = fake_count(FAKE_RETRIES);
    assert_int_equal(post(e[0].qp, &wr), 0);
    assert_int_equal(completion(e[0].cq).status, IBV_WC_RETRY_EXC_ERR);
    assert_int_equal(fake_count(FAKE_RETRIES) - before, 3);
    ends_finish(e);
}
static void test_a_peer_that_is_gone_does_not_answer(void **state)
{
    (void)state;
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    ibv_destroy_qp(e[1].qp);
    /* The new queue pair takes the destroyed one's entry in the table, but has another number. */
    e[1].qp = end_pair(&e[1], IBV_QPT_RC, END_WORKS);
    expect_no_answer(e);
    ends_init(e, IBV_QPT_RC);
    assert_int_equal(pair_state(e[1].qp, IBV_QPS_ERR), 0);
    expect_no_answer(e);
    ends_init(e, IBV_QPT_RC);
    fake_unplug_pair(e[1].qp->qp_num, true);
    expect_no_answer(e);
}
static void test_a_retry_reaches_a_peer_that_was_unplugged(void **state)
{
    (void)state;
    struct fake_limits l = fake_limits();
    l.retry_us = 2000000;
    fake_set_limits(&l);
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    fake_unplug_pair(e[0].qp->qp_num, true);
    struct ibv_send_wr wr = request(1, IBV_WR_RDMA_WRITE, NULL, &e[1], 0);
    assert_int_equal(post(e[0].qp, &wr), 0);
    no_completion(e[0].cq);
    fake_unplug_pair(e[0].qp->qp_num, false);
    assert_int_equal(completion(e[0].cq).status, IBV_WC_SUCCESS);
    ends_finish(e);
}
/* In each round one attribute of one end does not match the other end; in one the ends use RoCE v1 and v2. */
static void test_ends_that_do_not_match_get_no_answer(void **state)
{
    (void)state;
    for (int fault = 0; fault < 5; fault++) {
        struct end e[2];
        for (int i = 0; i < 2; i++) end_init(&e[i], i, IBV_QPT_RC, END_WORKS);
        struct ibv_qp_attr to[2] = { path_to(1, e[1].qp->qp_num), path_to(0, e[0].qp->qp_num) };
        if (fault == 0) to[1].rq_psn++;
        if (fault == 1) to[1].dest_qp_num++;
        if (fault == 2) to[1].ah_attr.grh.dgid.raw[15]++;
        if (fault == 3) to[0].ah_attr.grh.sgid_index--;
        if (fault == 4) to[0].ah_attr.grh.dgid.raw[15] += 9;
        for (int i = 0; i < 2; i++) {
            pair_init(e[i].qp, END_ACCESS);
            assert_int_equal(pair_receive(e[i].qp, to[i]), 0);
            assert_int_equal(pair_send(e[i].qp, to[i]), 0);
        }
        expect_no_answer(e);
    }
}
static void test_different_mtus_fail_longer_messages(void **state)
{
    (void)state;
    struct end e[2];
    for (int i = 0; i < 2; i++) end_init(&e[i], i, IBV_QPT_RC, END_WORKS);
    struct ibv_qp_attr to[2] = { path_to(1, e[1].qp->qp_num), path_to(0, e[0].qp->qp_num) };
    to[1].path_mtu = IBV_MTU_512;
    for (int i = 0; i < 2; i++) {
        pair_init(e[i].qp, END_ACCESS);
        assert_int_equal(pair_receive(e[i].qp, to[i]), 0);
        assert_int_equal(pair_send(e[i].qp, to[i]), 0);
    }
    struct ibv_sge sge = sge_of(&e[0], 0, 512);
    struct ibv_send_wr wr = request(1, IBV_WR_RDMA_WRITE, &sge, &e[1], 0);
    assert_int_equal(post(e[0].qp, &wr), 0);
    assert_int_equal(completion(e[0].cq).status, IBV_WC_SUCCESS);
    sge.length = 513;
    expect_failure(e, &wr, IBV_WC_REM_INV_REQ_ERR);
    ends_finish(e);
}

/* ---- failures that a test orders ---- */
static void test_every_status_can_be_ordered(void **state)
{
    (void)state;
    for (int status = IBV_WC_LOC_LEN_ERR; status <= IBV_WC_TM_RNDV_INCOMPLETE; status++) {
        bool executed = status % 2;
        struct end e[2];
        ends_init(e, IBV_QPT_RC);
        struct ibv_sge sge = sge_of(&e[0], 0, 8);
        struct ibv_send_wr wr = request(1, IBV_WR_RDMA_WRITE, &sge, &e[1], 0);
        e[0].memory[0] = 1;
        fake_fail_request(1, (enum ibv_wc_status)status, executed);
        expect_failure(e, &wr, (enum ibv_wc_status)status);
        assert_int_equal(e[1].memory[0], executed);
        /* The peer answers with these errors, so its end has failed, too, unless the request was carried out. */
        bool by_peer = status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR
            || status == IBV_WC_REM_OP_ERR || status == IBV_WC_REM_ABORT_ERR;
        assert_int_equal(fake_pair_state(e[1].qp->qp_num), by_peer && !executed ? IBV_QPS_ERR : IBV_QPS_RTS);
        ends_finish(e);
        assert_string_not_equal(ibv_wc_status_str((enum ibv_wc_status)status), "unknown");
    }
}
static void test_a_receive_fails_as_ordered(void **state)
{
    (void)state;
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    for (uint64_t i = 0; i < 3; i++) assert_int_equal(post_receive(e[1].qp, i, NULL), 0);
    struct ibv_send_wr wr = request(1, IBV_WR_SEND, NULL, &e[1], 0);
    fake_fail_receive(1, IBV_WC_LOC_PROT_ERR);
    for (int i = 0; i < 2; i++) assert_int_equal(post(e[0].qp, &wr), 0);
    assert_int_equal(completion(e[0].cq).status, IBV_WC_SUCCESS);
    assert_int_equal(completion(e[0].cq).status, IBV_WC_REM_OP_ERR);
    static const enum ibv_wc_status expected[] = { IBV_WC_SUCCESS, IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR };
    for (uint64_t i = 0; i < 3; i++) {
        struct ibv_wc wc = completion(e[1].cq);
        assert_int_equal(wc.wr_id, i);
        assert_int_equal(wc.status, expected[i]);
    }
    ends_finish(e);
}
static void test_deregistered_memory_is_not_read(void **state)
{
    (void)state;
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    struct ibv_sge sge = sge_of(&e[0], 0, END_BYTES);
    struct ibv_send_wr wr = request(1, IBV_WR_RDMA_READ, &sge, &e[1], 0);
    fake_set_faults(&(struct fake_faults){ .seed = 4, .delay = 1000000, .delay_most_us = 200000 });
    for (int i = 0; i < END_WORKS; i++) assert_int_equal(post(e[0].qp, &wr), 0);
    assert_int_equal(ibv_dereg_mr(e[1].mr), 0);
    e[1].mr = NULL;
    /* The thread sanitizer reports a race if the wire still reads this memory. */
    memset(e[1].memory, 3, END_BYTES);
    int failed = 0;
    for (int i = 0; i < END_WORKS; i++) failed += completion(e[0].cq).status != IBV_WC_SUCCESS;
    assert_in_range(failed, 1, END_WORKS);
    ends_finish(e);
}
static void test_a_destroyed_pair_writes_no_memory(void **state)
{
    (void)state;
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    struct ibv_sge sge = sge_of(&e[0], 0, END_BYTES);
    struct ibv_send_wr wr = request(1, IBV_WR_RDMA_READ, &sge, &e[1], 0);
    for (int i = 0; i < END_WORKS; i++) assert_int_equal(post(e[0].qp, &wr), 0);
    assert_int_equal(ibv_destroy_qp(e[0].qp), 0);
    e[0].qp = NULL;
    memset(e[0].memory, 3, END_BYTES);
    no_completion(e[0].cq);
    for (int i = 0; i < END_BYTES; i++) assert_int_equal(e[0].memory[i], 3);
    ends_finish(e);
}
unit_function test_fake_errors;
int test_fake_errors(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_states_follow_each_other_in_order, fake_begin),
        cmocka_unit_test_setup(test_wrong_attributes_are_refused, fake_begin),
        cmocka_unit_test_setup(test_objects_that_cannot_be_created, fake_begin),
        cmocka_unit_test_setup(test_remote_access_errors_fail_both_ends, fake_begin),
        cmocka_unit_test_setup(test_local_protection_errors_fail_the_sender_alone, fake_begin),
        cmocka_unit_test_setup(test_an_unsuitable_receive_fails_both_ends, fake_begin),
        cmocka_unit_test_setup(test_reads_that_are_not_permitted_fail, fake_begin),
        cmocka_unit_test_setup(test_a_message_that_is_too_long_fails, fake_begin),
        cmocka_unit_test_setup(test_a_missing_receive_fails_after_the_retries, fake_begin),
        cmocka_unit_test_setup(test_a_message_waits_for_a_late_receive, fake_begin),
        cmocka_unit_test_setup(test_a_peer_that_is_gone_does_not_answer, fake_begin),
        cmocka_unit_test_setup(test_a_retry_reaches_a_peer_that_was_unplugged, fake_begin),
        cmocka_unit_test_setup(test_ends_that_do_not_match_get_no_answer, fake_begin),
        cmocka_unit_test_setup(test_different_mtus_fail_longer_messages, fake_begin),
        cmocka_unit_test_setup(test_every_status_can_be_ordered, fake_begin),
        cmocka_unit_test_setup(test_a_receive_fails_as_ordered, fake_begin),
        cmocka_unit_test_setup(test_deregistered_memory_is_not_read, fake_begin),
        cmocka_unit_test_setup(test_a_destroyed_pair_writes_no_memory, fake_begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
