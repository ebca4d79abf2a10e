/* Creates, finds, clears and destroys queue pairs; creates and destroys address handles. states.c has the states. */
#include "tests/verbs/machine.h"
#include <errno.h>
#include <stdlib.h>

/* The number of a queue pair consists of its index in the table and of the number of uses of that entry. So the number
   of a destroyed queue pair finds none. */
struct pair *pair_find(uint32_t qp_num)
{
    struct pair *p = machine.pairs[qp_num % PAIRS_MOST];
    return p && p->ibv.qp_num == qp_num ? p : NULL;
}

int queue_init(struct queue *q, uint32_t works, uint32_t sges, uint32_t inlined)
{
    q->capacity = works ? works : 1;
    q->most_sges = sges;
    q->most_inline = inlined;
    q->slots = calloc(q->capacity, sizeof *q->slots);
    q->sges = calloc((size_t)q->capacity * (sges ? sges : 1), sizeof *q->sges);
    q->inlined = calloc((size_t)q->capacity, inlined ? inlined : 1);
    q->staged = calloc(q->capacity, sizeof *q->staged);
    if (!works) q->capacity = 0;
    pthread_mutex_init(&q->lock, NULL);
    return q->slots && q->sges && q->inlined && q->staged ? 0 : ENOMEM;
}
void queue_finish(struct queue *q)
{
    free(q->slots);
    free(q->sges);
    free(q->inlined);
    free(q->staged);
    pthread_mutex_destroy(&q->lock);
}
static void queue_clear(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    atomic_store(&q->posted, 0);
    atomic_store(&q->reclaimed, 0);
    q->taken = q->staged_in = q->staged_out = 0;
    pthread_mutex_unlock(&q->lock);
}
static struct completion_queue *queue_of(struct ibv_cq *cq) { return (struct completion_queue *)cq; }
void pair_clear(struct pair *p)
{
    completion_queue_forget(queue_of(p->ibv.send_cq), p);
    if (p->ibv.recv_cq != p->ibv.send_cq) completion_queue_forget(queue_of(p->ibv.recv_cq), p);
    queue_clear(&p->send);
    queue_clear(&p->receive);
    p->attr = (struct ibv_qp_attr){ 0 };
    p->begun = p->established = false;
}
void pair_fail(struct pair *p)
{
    int state = atomic_load(&p->state);
    if (state != IBV_QPS_RESET) atomic_store(&p->state, IBV_QPS_ERR);
}

void fake_break_pair(uint32_t qp_num)
{
    machine_lock();
    struct pair *p = pair_find(qp_num);
    if (p) {
        pair_fail(p);
        pair_raise(p, IBV_EVENT_QP_FATAL);
    }
    machine_unlock();
    wire_ring();
}
void fake_unplug_pair(uint32_t qp_num, bool unplugged)
{
    machine_lock();
    struct pair *p = pair_find(qp_num);
    if (p) p->unplugged = unplugged;
    machine_unlock();
    wire_ring();
}
enum ibv_qp_state fake_pair_state(uint32_t qp_num)
{
    machine_lock();
    struct pair *p = pair_find(qp_num);
    int state = p ? atomic_load(&p->state) : IBV_QPS_UNKNOWN;
    machine_unlock();
    return (enum ibv_qp_state)state;
}

/* ---- what the program calls ---- */
static int pair_refused(const struct ibv_pd *pd, const struct ibv_qp_init_attr *a)
{
    const struct fake_limits *l = &machine.limits;
    int error = call_fails(FAKE_CREATE_QP);
    if (error) return error;
    if (((struct context *)pd->context)->device->broken) return EIO;
    if (a->qp_type != IBV_QPT_RC && a->qp_type != IBV_QPT_UD) return EOPNOTSUPP;
    if (!a->send_cq || !a->recv_cq || (a->srq && (a->qp_type != IBV_QPT_RC || a->srq->pd != pd))) return EINVAL;
    if (a->send_cq->context != pd->context || a->recv_cq->context != pd->context) return EINVAL;
    if (a->cap.max_send_wr > (uint32_t)l->max_qp_wr || a->cap.max_recv_wr > (uint32_t)l->max_qp_wr) return EINVAL;
    if (a->cap.max_send_sge > (uint32_t)l->max_sge || a->cap.max_recv_sge > (uint32_t)l->max_sge) return EINVAL;
    return a->cap.max_inline_data > l->max_inline ? EINVAL : 0;
}
static int pair_enter(struct pair *p)
{
    uint32_t place = 1;
    while (place < machine.pairs_end && machine.pairs[place]) place++;
    if (place > (uint32_t)machine.limits.max_qp || place >= PAIRS_MOST) return ENOMEM;
    if (place >= machine.pairs_end) machine.pairs_end = place + 1;
    p->ibv.qp_num = (++machine.pair_uses[place] % PAIRS_MOST) * PAIRS_MOST + place;
    machine.pairs[place] = p;
    queue_of(p->ibv.send_cq)->pairs++;
    queue_of(p->ibv.recv_cq)->pairs++;
    ((struct domain *)p->ibv.pd)->children++;
    if (p->ibv.srq) shared_of(p->ibv.srq)->pairs++;
    return 0;
}
static void pair_destroy(struct pair *p)
{
    queue_finish(&p->send);
    queue_finish(&p->receive);
    pthread_mutex_destroy(&p->ibv.mutex);
    pthread_cond_destroy(&p->ibv.cond);
    free(p);
}
static struct pair *pair_create(struct ibv_pd *pd, const struct ibv_qp_init_attr *a)
{
    struct pair *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->ibv = (struct ibv_qp){ .context = pd->context,
        .qp_context = a->qp_context,
        .pd = pd,
        .send_cq = a->send_cq,
        .recv_cq = a->recv_cq,
        .srq = a->srq,
        .state = IBV_QPS_RESET,
        .qp_type = a->qp_type };
    p->device = ((struct context *)pd->context)->device;
    p->signals_all = a->sq_sig_all;
    pthread_mutex_init(&p->ibv.mutex, NULL);
    pthread_cond_init(&p->ibv.cond, NULL);
    int failed = queue_init(&p->send, a->cap.max_send_wr, a->cap.max_send_sge, a->cap.max_inline_data);
    const struct queue *shared = a->srq ? &shared_of(a->srq)->queue : NULL;
    failed |= queue_init(&p->receive, shared ? shared->capacity : a->cap.max_recv_wr,
        shared ? shared->most_sges : a->cap.max_recv_sge, 0);
    if (!failed) return p;
    pair_destroy(p);
    return NULL;
}
struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
    machine_lock();
    int error = pair_refused(pd, a);
    struct pair *p = error ? NULL : pair_create(pd, a);
    if (!error) error = p ? pair_enter(p) : ENOMEM;
    machine_unlock();
    if (error) {
        if (p) pair_destroy(p);
        errno = error;
        return NULL;
    }
    machine.alive[FAKE_QUEUE_PAIR]++;
    return &p->ibv;
}
int ibv_destroy_qp(struct ibv_qp *qp)
{
    struct pair *p = (struct pair *)qp;
    machine_lock();
    machine.pairs[qp->qp_num % PAIRS_MOST] = NULL;
    pair_clear(p);
    queue_of(qp->send_cq)->pairs--;
    queue_of(qp->recv_cq)->pairs--;
    ((struct domain *)qp->pd)->children--;
    if (qp->srq) shared_of(qp->srq)->pairs--;
    events_remove(&((struct context *)qp->context)->async, qp);
    machine_unlock();
    wait_for_acknowledgements(&qp->mutex, &qp->cond, &p->delivered_async, &qp->events_completed, "ibv_destroy_qp");
    pair_destroy(p);
    machine.alive[FAKE_QUEUE_PAIR]--;
    return 0;
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    machine_lock();
    int error = call_fails(FAKE_CREATE_AH);
    if (!error && !path_is_valid(((struct context *)pd->context)->device, attr)) error = EINVAL;
    struct handle *h = error ? NULL : calloc(1, sizeof *h);
    if (h) ((struct domain *)pd)->children++;
    machine_unlock();
    if (!h) { errno = error ? error : ENOMEM; return NULL; }
    h->ibv = (struct ibv_ah){ .context = pd->context, .pd = pd };
    h->attr = *attr;
    machine.alive[FAKE_HANDLE]++;
    return &h->ibv;
}
int ibv_destroy_ah(struct ibv_ah *ah)
{
    machine_lock();
    ((struct domain *)ah->pd)->children--;
    machine_unlock();
    free(ah);
    machine.alive[FAKE_HANDLE]--;
    return 0;
}
