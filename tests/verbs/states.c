/* ibv_modify_qp: the legal transitions, the attributes that each needs and allows, and the values that are refused. */
#include "tests/verbs/machine.h"
#include <errno.h>

struct transition { enum ibv_qp_type type; enum ibv_qp_state from, to; int needed, allowed; };

enum {
    RC_INIT = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
    UD_INIT = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
    RC_READY_TO_RECEIVE = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER,
    RC_READY_TO_SEND = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
    RC_LATER = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER,
    UD_LATER = IBV_QP_CUR_STATE | IBV_QP_QKEY,
};
// clang-format off
static const struct transition transitions[] = {
    { IBV_QPT_RC, IBV_QPS_RESET, IBV_QPS_INIT, RC_INIT, 0 },
    { IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_INIT, 0, RC_INIT },
    { IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, RC_READY_TO_RECEIVE, IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX },
    { IBV_QPT_RC, IBV_QPS_RTR, IBV_QPS_RTS, RC_READY_TO_SEND, RC_LATER },
    { IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_RTS, 0, RC_LATER },
    { IBV_QPT_UD, IBV_QPS_RESET, IBV_QPS_INIT, UD_INIT, 0 },
    { IBV_QPT_UD, IBV_QPS_INIT, IBV_QPS_INIT, 0, UD_INIT },
    { IBV_QPT_UD, IBV_QPS_INIT, IBV_QPS_RTR, 0, IBV_QP_QKEY | IBV_QP_PKEY_INDEX },
    { IBV_QPT_UD, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, UD_LATER },
    { IBV_QPT_UD, IBV_QPS_RTS, IBV_QPS_RTS, 0, UD_LATER },
    { IBV_QPT_UD, IBV_QPS_SQE, IBV_QPS_RTS, 0, UD_LATER },
};
// clang-format on

static bool transition_is_legal(const struct pair *p, enum ibv_qp_state from, enum ibv_qp_state to, int mask)
{
    mask &= ~IBV_QP_STATE;
    if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return !(mask & ~IBV_QP_CUR_STATE);
    for (size_t i = 0; i < sizeof transitions / sizeof *transitions; i++) {
        const struct transition *t = &transitions[i];
        if (t->type == p->ibv.qp_type && t->from == from && t->to == to)
            return (mask & t->needed) == t->needed && !(mask & ~(t->needed | t->allowed));
    }
    return false;
}
static bool values_are_legal(const struct pair *p, const struct ibv_qp_attr *a, int mask)
{
    const struct fake_limits *l = &machine.limits;
    if (mask & IBV_QP_PORT && a->port_num != 1) return false;
    if (mask & IBV_QP_PKEY_INDEX && a->pkey_index) return false;
    if (mask & IBV_QP_AV && !path_is_valid(p->device, &a->ah_attr)) return false;
    if (mask & IBV_QP_PATH_MTU && (a->path_mtu < IBV_MTU_256 || a->path_mtu > l->mtu)) return false;
    if (mask & IBV_QP_DEST_QPN && a->dest_qp_num >> 24) return false;
    if (mask & (IBV_QP_RQ_PSN | IBV_QP_SQ_PSN) && ((mask & IBV_QP_RQ_PSN ? a->rq_psn : a->sq_psn) >> 24)) return false;
    if (mask & IBV_QP_MAX_DEST_RD_ATOMIC && a->max_dest_rd_atomic > l->max_rd_atomic) return false;
    if (mask & IBV_QP_MAX_QP_RD_ATOMIC && a->max_rd_atomic > l->max_rd_atomic) return false;
    if (mask & IBV_QP_MIN_RNR_TIMER && a->min_rnr_timer > 31) return false;
    if (mask & IBV_QP_TIMEOUT && a->timeout > 31) return false;
    if (mask & IBV_QP_RETRY_CNT && a->retry_cnt > 7) return false;
    return !(mask & IBV_QP_RNR_RETRY) || a->rnr_retry <= 7;
}
static void values_take(struct pair *p, const struct ibv_qp_attr *a, int mask)
{
    struct ibv_qp_attr *to = &p->attr;
    if (mask & IBV_QP_ACCESS_FLAGS) to->qp_access_flags = a->qp_access_flags;
    if (mask & IBV_QP_QKEY) to->qkey = a->qkey;
    if (mask & IBV_QP_AV) to->ah_attr = a->ah_attr;
    if (mask & IBV_QP_PATH_MTU) to->path_mtu = a->path_mtu;
    if (mask & IBV_QP_DEST_QPN) to->dest_qp_num = a->dest_qp_num;
    if (mask & IBV_QP_RQ_PSN) p->receive_psn = a->rq_psn;
    if (mask & IBV_QP_SQ_PSN) p->send_psn = a->sq_psn;
    if (mask & IBV_QP_MAX_DEST_RD_ATOMIC) to->max_dest_rd_atomic = a->max_dest_rd_atomic;
    if (mask & IBV_QP_MAX_QP_RD_ATOMIC) to->max_rd_atomic = a->max_rd_atomic;
    if (mask & IBV_QP_MIN_RNR_TIMER) to->min_rnr_timer = a->min_rnr_timer;
    if (mask & IBV_QP_TIMEOUT) to->timeout = a->timeout;
    if (mask & IBV_QP_RETRY_CNT) to->retry_cnt = a->retry_cnt;
    if (mask & IBV_QP_RNR_RETRY) to->rnr_retry = a->rnr_retry;
}
static int pair_modify(struct pair *p, const struct ibv_qp_attr *a, int mask)
{
    enum ibv_qp_state from = (enum ibv_qp_state)atomic_load(&p->state), to = mask & IBV_QP_STATE ? a->qp_state : from;
    if (mask & IBV_QP_CUR_STATE && a->cur_qp_state != from) return EINVAL;
    if (!transition_is_legal(p, from, to, mask) || !values_are_legal(p, a, mask)) return EINVAL;
    if (p->device->broken && to != IBV_QPS_RESET && to != IBV_QPS_ERR) return EIO;
    if (to == IBV_QPS_RESET) pair_clear(p);
    values_take(p, a, mask);
    atomic_store(&p->state, to);
    p->ibv.state = to;
    return 0;
}
int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    int error = call_fails(FAKE_MODIFY_QP);
    if (error) return error;
    machine_lock();
    error = pair_modify((struct pair *)qp, attr, mask);
    machine_unlock();
    wire_ring();
    return error;
}
