/* Posts work requests: refuses what a driver refuses at once, and copies each other request for the wire. */
#include "tests/verbs/machine.h"
#include <errno.h>
#include <string.h>

struct work *queue_slot(struct queue *q)
{
    uint64_t posted = atomic_load_explicit(&q->posted, memory_order_relaxed);
    if (posted - atomic_load_explicit(&q->reclaimed, memory_order_acquire) >= q->capacity) return NULL;
    uint32_t slot = (uint32_t)(posted % q->capacity);
    struct work *w = &q->slots[slot];
    *w = (struct work){ .sges = &q->sges[(size_t)slot * q->most_sges] };
    return w;
}
void queue_publish(struct queue *q) { atomic_fetch_add_explicit(&q->posted, 1, memory_order_release); }

static void sges_take(struct work *w, const struct ibv_sge *sges, int count)
{
    w->count = count;
    for (int i = 0; i < count; i++) {
        w->sges[i] = sges[i];
        w->length += sges[i].length;
    }
}
/* Copies inline bytes now, because the program may reuse them when the call returns. Their keys are ignored. */
static void sges_take_inline(struct work *w, unsigned char *room, const struct ibv_sge *sges, int count)
{
    w->inlined = room;
    for (int i = 0; i < count; i++) {
        if (sges[i].length) memcpy(room + w->length, (const void *)(uintptr_t)sges[i].addr, sges[i].length);
        w->length += sges[i].length;
    }
}

static uint64_t sges_length(const struct ibv_sge *sges, int count)
{
    uint64_t length = 0;
    for (int i = 0; i < count; i++) length += sges[i].length;
    return length;
}
static int send_refused(const struct pair *p, const struct ibv_send_wr *wr)
{
    bool is_datagram = p->ibv.qp_type == IBV_QPT_UD;
    if (wr->opcode > IBV_WR_RDMA_READ) return EINVAL;
    if (is_datagram && wr->opcode != IBV_WR_SEND && wr->opcode != IBV_WR_SEND_WITH_IMM) return EINVAL;
    if (is_datagram && (!wr->wr.ud.ah || wr->wr.ud.ah->pd != p->ibv.pd)) return EINVAL;
    if (wr->num_sge < 0 || (uint32_t)wr->num_sge > p->send.most_sges) return EINVAL;
    if (!(wr->send_flags & IBV_SEND_INLINE)) return 0;
    if (wr->opcode == IBV_WR_RDMA_READ) return EINVAL;
    return sges_length(wr->sg_list, wr->num_sge) > p->send.most_inline ? EINVAL : 0;
}
static void send_take(struct pair *p, struct work *w, const struct ibv_send_wr *wr)
{
    uint64_t slot = (uint64_t)(w - p->send.slots);
    w->id = wr->wr_id;
    w->opcode = wr->opcode;
    w->flags = wr->send_flags | (p->signals_all ? IBV_SEND_SIGNALED : 0);
    w->immediate = wr->imm_data;
    if (p->ibv.qp_type == IBV_QPT_UD) {
        w->to = ((struct handle *)wr->wr.ud.ah)->attr;
        w->remote_qpn = wr->wr.ud.remote_qpn;
        w->remote_qkey = wr->wr.ud.remote_qkey;
    } else {
        w->remote_address = wr->wr.rdma.remote_addr;
        w->rkey = wr->wr.rdma.rkey;
    }
    if (w->flags & IBV_SEND_INLINE)
        sges_take_inline(w, p->send.inlined + slot * p->send.most_inline, wr->sg_list, wr->num_sge);
    else sges_take(w, wr->sg_list, wr->num_sge);
}
static void send_count(const struct work *w)
{
    static const enum fake_counter by_opcode[] = { FAKE_WRITES, FAKE_WRITES_WITH_IMMEDIATE, FAKE_SENDS,
        FAKE_SENDS_WITH_IMMEDIATE, FAKE_READS };
    machine_count(FAKE_REQUESTS, 1);
    machine_count(by_opcode[w->opcode], 1);
    if (w->inlined) machine_count(FAKE_INLINED, 1);
    if (w->flags & IBV_SEND_SIGNALED) machine_count(FAKE_SIGNALED, 1);
}
static int send_post(struct pair *p, const struct ibv_send_wr *wr, bool rings)
{
    int error = call_fails(FAKE_POST_SEND), state = atomic_load_explicit(&p->state, memory_order_relaxed);
    if (error) return error;
    if (state == IBV_QPS_RESET || state == IBV_QPS_INIT || state == IBV_QPS_RTR) return EINVAL;
    if ((error = send_refused(p, wr))) return error;
    struct work *w = queue_slot(&p->send);
    if (!w) return ENOMEM;
    send_take(p, w, wr);
    send_count(w);
    trace_request(FAKE_POSTED, p, w, rings);
    queue_publish(&p->send);
    return 0;
}
/* Posts the list up to the first request that is refused. */
int pair_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct pair *p = (struct pair *)qp;
    struct ibv_send_wr *first = wr;
    int error = 0;
    pthread_mutex_lock(&p->send.lock);
    while (wr && !(error = send_post(p, wr, wr == first))) wr = wr->next;
    pthread_mutex_unlock(&p->send.lock);
    if (error) *bad = wr;
    if (wr == first) return error;
    machine_count(FAKE_DOORBELLS, 1);
    wire_ring();
    return error;
}

static int receive_post(struct queue *q, const struct ibv_recv_wr *wr)
{
    int error = call_fails(FAKE_POST_RECV);
    if (error) return error;
    if (wr->num_sge < 0 || (uint32_t)wr->num_sge > q->most_sges) return EINVAL;
    struct work *w = queue_slot(q);
    if (!w) return ENOMEM;
    w->id = wr->wr_id;
    sges_take(w, wr->sg_list, wr->num_sge);
    machine_count(FAKE_RECEIVES, 1);
    queue_publish(q);
    return 0;
}
int receives_post(struct queue *q, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct ibv_recv_wr *first = wr;
    int error = 0;
    pthread_mutex_lock(&q->lock);
    while (wr && !(error = receive_post(q, wr))) wr = wr->next;
    pthread_mutex_unlock(&q->lock);
    if (error) *bad = wr;
    if (wr == first) return error;
    machine_count(FAKE_RECEIVE_DOORBELLS, 1);
    wire_ring();
    return error;
}
int pair_post_receive(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct pair *p = (struct pair *)qp;
    bool can = !qp->srq && atomic_load_explicit(&p->state, memory_order_relaxed) != IBV_QPS_RESET;
    if (can) return receives_post(&p->receive, wr, bad);
    *bad = wr;
    return EINVAL;
}
