/* The ends that tests of the fake connect. */
#include "tests/verbs/ends.h"
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static void nap(long us) { nanosleep(&(struct timespec){ us / 1000000, us % 1000000 * 1000 }, NULL); }

struct ibv_qp *end_pair(struct end *e, enum ibv_qp_type type, uint32_t works)
{
    struct ibv_qp_init_attr a = {
        .send_cq = e->cq, .recv_cq = e->cq, .qp_type = type, .cap = { works, works, 4, 4, 64 }
    };
    struct ibv_qp *qp = ibv_create_qp(e->pd, &a);
    assert_non_null(qp);
    return qp;
}
int fake_begin(void **state)
{
    (void)state;
    fake_reset();
    return 0;
}
void end_fill(struct end *e, size_t offset, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++) e->memory[offset + i] = (unsigned char)((i + seed) * 7);
}
void end_init(struct end *e, int device, enum ibv_qp_type type, uint32_t works)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    *e = (struct end){ .context = ibv_open_device(list[device]), .memory = calloc(1, END_BYTES) };
    ibv_free_device_list(list);
    assert_non_null(e->context);
    e->pd = ibv_alloc_pd(e->context);
    e->channel = ibv_create_comp_channel(e->context);
    e->cq = ibv_create_cq(e->context, (int)(16 * works), e, e->channel, 0);
    e->mr = ibv_reg_mr(e->pd, e->memory, END_BYTES, END_ACCESS);
    assert_non_null(e->mr);
    e->qp = end_pair(e, type, works);
}
void end_finish(struct end *e)
{
    assert_int_equal(e->qp ? ibv_destroy_qp(e->qp) : 0, 0);
    assert_int_equal(ibv_destroy_cq(e->cq), 0);
    assert_int_equal(ibv_destroy_comp_channel(e->channel), 0);
    assert_int_equal(e->mr ? ibv_dereg_mr(e->mr) : 0, 0);
    assert_int_equal(ibv_dealloc_pd(e->pd), 0);
    assert_int_equal(ibv_close_device(e->context), 0);
    free(e->memory);
}

struct ibv_qp_attr path_to(int device, uint32_t qp_num)
{
    struct ibv_qp_attr a = { .path_mtu = IBV_MTU_1024,
        .dest_qp_num = qp_num,
        .rq_psn = 7,
        .sq_psn = 7,
        .max_rd_atomic = 4,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 1,
        .timeout = 8,
        .retry_cnt = 3,
        .rnr_retry = 3,
        .port_num = 1,
        .ah_attr = { .is_global = 1, .port_num = 1 } };
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = ibv_open_device(list[device]);
    ibv_free_device_list(list);
    assert_int_equal(ibv_query_gid(context, 1, GID_INDEX, &a.ah_attr.grh.dgid), 0);
    ibv_close_device(context);
    a.ah_attr.grh.sgid_index = GID_INDEX;
    a.ah_attr.grh.hop_limit = 64;
    return a;
}
void pair_init(struct ibv_qp *qp, unsigned access)
{
    struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access, .qkey = 0x1234 };
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    mask |= qp->qp_type == IBV_QPT_RC ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY;
    assert_int_equal(ibv_modify_qp(qp, &a, mask), 0);
}
int pair_receive(struct ibv_qp *qp, struct ibv_qp_attr a)
{
    int mask = IBV_QP_STATE;
    if (qp->qp_type == IBV_QPT_RC)
        mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
    a.qp_state = IBV_QPS_RTR;
    return ibv_modify_qp(qp, &a, mask);
}
int pair_send(struct ibv_qp *qp, struct ibv_qp_attr a)
{
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (qp->qp_type == IBV_QPT_RC)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    a.qp_state = IBV_QPS_RTS;
    return ibv_modify_qp(qp, &a, mask);
}
int pair_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
    return ibv_modify_qp(qp, &(struct ibv_qp_attr){ .qp_state = state }, IBV_QP_STATE);
}
void pairs_connect(struct ibv_qp *a, int device_a, struct ibv_qp *b, int device_b)
{
    struct ibv_qp_attr to_a = path_to(device_a, a->qp_num), to_b = path_to(device_b, b->qp_num);
    pair_init(a, END_ACCESS);
    pair_init(b, END_ACCESS);
    assert_int_equal(pair_receive(a, to_b), 0);
    assert_int_equal(pair_receive(b, to_a), 0);
    assert_int_equal(pair_send(a, to_b), 0);
    assert_int_equal(pair_send(b, to_a), 0);
}
void ends_init(struct end ends[2], enum ibv_qp_type type)
{
    for (int i = 0; i < 2; i++) end_init(&ends[i], i, type, END_WORKS);
    pairs_connect(ends[0].qp, 0, ends[1].qp, 1);
}
void ends_finish(struct end ends[2])
{
    for (int i = 0; i < 2; i++) end_finish(&ends[i]);
    assert_int_equal(fake_left(), 0);
    assert_int_equal(fake_pinned_bytes(), 0);
}

struct ibv_sge sge_of(const struct end *e, size_t offset, size_t bytes)
{
    return (struct ibv_sge){ (uintptr_t)e->memory + offset, (uint32_t)bytes, e->mr->lkey };
}
struct ibv_send_wr request(uint64_t id, enum ibv_wr_opcode opcode, struct ibv_sge *sge, const struct end *peer,
    size_t offset)
{
    struct ibv_send_wr wr = { .wr_id = id,
        .sg_list = sge,
        .num_sge = sge ? 1 : 0,
        .opcode = opcode,
        .send_flags = IBV_SEND_SIGNALED,
        .imm_data = (uint32_t)id };
    wr.wr.rdma.remote_addr = (uintptr_t)peer->memory + offset;
    wr.wr.rdma.rkey = peer->mr->rkey;
    return wr;
}
int post(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
    struct ibv_send_wr *bad;
    return ibv_post_send(qp, wr, &bad);
}
int post_receive(struct ibv_qp *qp, uint64_t id, struct ibv_sge *sge)
{
    struct ibv_recv_wr wr = { .wr_id = id, .sg_list = sge, .num_sge = sge ? 1 : 0 }, *bad;
    return ibv_post_recv(qp, &wr, &bad);
}
struct ibv_wc completion(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    /* At least 20 s. */
    for (int turn = 0; turn < 200000; turn++) {
        if (ibv_poll_cq(cq, 1, &wc) == 1) return wc;
        if (turn > 100) nap(100);
    }
    fail_msg("no completion came");
    return wc;
}
void no_completion(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    nap(20000);
    assert_int_equal(ibv_poll_cq(cq, 1, &wc), 0);
}
void await_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
    for (int turn = 0; turn < 200000 && fake_pair_state(qp->qp_num) != state; turn++) nap(100);
    assert_int_equal(fake_pair_state(qp->qp_num), state);
}
enum ibv_event_type async_event(struct end *e)
{
    struct ibv_async_event event;
    struct pollfd readable = { e->context->async_fd, POLLIN, 0 };
    assert_int_equal(poll(&readable, 1, 20000), 1);
    assert_int_equal(ibv_get_async_event(e->context, &event), 0);
    ibv_ack_async_event(&event);
    return event.event_type;
}
struct ibv_ah *handle_to(struct end *e, int device)
{
    struct ibv_qp_attr a = path_to(device, 0);
    struct ibv_ah *ah = ibv_create_ah(e->pd, &a.ah_attr);
    assert_non_null(ah);
    return ah;
}
struct ibv_cq *small_queue_begin(struct end e[2], struct ibv_qp *qp[2], int works)
{
    ends_init(e, IBV_QPT_RC);
    struct ibv_cq *small = ibv_create_cq(e[0].context, works, NULL, NULL, 0);
    struct ibv_qp_init_attr a = { .send_cq = small, .recv_cq = small, .qp_type = IBV_QPT_RC, .cap = { 8, 8, 1, 1, 0 } };
    qp[0] = ibv_create_qp(e[0].pd, &a);
    qp[1] = end_pair(&e[1], IBV_QPT_RC, 8);
    pairs_connect(qp[0], 0, qp[1], 1);
    return small;
}
void small_queue_finish(struct end e[2], struct ibv_qp *qp[2], struct ibv_cq *small)
{
    for (int i = 0; i < 2; i++) ibv_destroy_qp(qp[i]);
    ibv_destroy_cq(small);
    ends_finish(e);
}
