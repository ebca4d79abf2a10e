/* Completion queues and their channels. A queue has exactly the room that was asked for: a completion too many breaks
   it, as on a device, with CQ_ERR and the failure of every queue pair that reports to it. */
#include "tests/verbs/machine.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct context *context_of(struct completion_queue *q) { return (struct context *)q->ibv.context; }

static void completion_queue_overrun(struct completion_queue *q)
{
    q->overrun = true;
    events_push(&context_of(q)->async, (struct ibv_async_event){ { .cq = &q->ibv }, IBV_EVENT_CQ_ERR });
    for (uint32_t i = 0; i < machine.pairs_end; i++) {
        struct pair *p = machine.pairs[i];
        if (!p || (p->ibv.send_cq != &q->ibv && p->ibv.recv_cq != &q->ibv)) continue;
        pair_fail(p);
        pair_raise(p, IBV_EVENT_QP_FATAL);
    }
}
void completion_queue_push(struct completion_queue *q, const struct completion *c)
{
    if (q->overrun) return;
    uint64_t pushed = atomic_load_explicit(&q->pushed, memory_order_relaxed);
    if (pushed - atomic_load_explicit(&q->polled, memory_order_acquire) == q->capacity) {
        completion_queue_overrun(q);
        return;
    }
    q->slots[pushed % q->capacity] = *c;
    /* Published before `armed` is read. A program polls once more after it has armed, so it misses no completion. */
    atomic_store(&q->pushed, pushed + 1);
    int wanted = c->solicited || c->wc.status != IBV_WC_SUCCESS ? 2 : 1, armed = atomic_load(&q->armed);
    if (!q->ibv.channel || !armed || armed > wanted) return;
    if (!atomic_compare_exchange_strong(&q->armed, &armed, 0)) return;
    machine_count(FAKE_EVENTS, 1);
    events_push(&((struct channel *)q->ibv.channel)->events, (struct ibv_async_event){ .element.cq = &q->ibv });
}
/* The caller holds machine.lock, so the wire adds no completions meanwhile. */
void completion_queue_forget(struct completion_queue *q, struct pair *p)
{
    pthread_mutex_lock(&q->lock);
    uint64_t end = atomic_load(&q->pushed), kept = atomic_load(&q->polled);
    for (uint64_t i = kept; i < end; i++) {
        struct completion c = q->slots[i % q->capacity];
        if (c.pair == p && !machine.limits.stale) continue;
        if (c.pair == p) c.pair = NULL;
        q->slots[kept++ % q->capacity] = c;
    }
    atomic_store(&q->pushed, kept);
    pthread_mutex_unlock(&q->lock);
}

/* Gives the queues of the polled requests their room back. A program that never polls a completion runs out of room. */
int completion_queue_poll(struct ibv_cq *cq, int most, struct ibv_wc *out)
{
    struct completion_queue *q = (struct completion_queue *)cq;
    int found = 0;
    pthread_mutex_lock(&q->lock);
    uint64_t polled = atomic_load_explicit(&q->polled, memory_order_relaxed);
    uint64_t pushed = atomic_load(&q->pushed);
    for (; found < most && polled < pushed; found++, polled++) {
        const struct completion *c = &q->slots[polled % q->capacity];
        out[found] = c->wc;
        trace_completion(c);
        struct queue *works = !c->pair ? NULL : c->of_send ? &c->pair->send : &c->pair->receive;
        if (works) atomic_store_explicit(&works->reclaimed, c->reclaims, memory_order_release);
    }
    atomic_store_explicit(&q->polled, polled, memory_order_release);
    pthread_mutex_unlock(&q->lock);
    if (found) machine_count(FAKE_COMPLETIONS, (uint64_t)found);
    return found;
}
int completion_queue_arm(struct ibv_cq *cq, int solicited_only)
{
    int armed = 0, wanted = solicited_only ? 2 : 1;
    atomic_int *now = &((struct completion_queue *)cq)->armed;
    /* Arming for solicited completions does not undo arming for any. */
    while (armed != 1 && !atomic_compare_exchange_weak(now, &armed, wanted)) {}
    return 0;
}

/* ---- what the program calls ---- */
struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
    int error = call_fails(FAKE_CREATE_CHANNEL);
    struct channel *c = error ? NULL : calloc(1, sizeof *c);
    if (!c) { errno = error; return NULL; }
    if ((error = events_init(&c->events))) { free(c); errno = error; return NULL; }
    c->ibv = (struct ibv_comp_channel){ .context = context, .fd = c->events.descriptor };
    machine_lock();
    ((struct context *)context)->children++;
    machine_unlock();
    machine.alive[FAKE_CHANNEL]++;
    return &c->ibv;
}
int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
    machine_lock();
    bool busy = channel->refcnt;
    if (!busy) ((struct context *)channel->context)->children--;
    machine_unlock();
    if (busy) return EBUSY;
    events_finish(&((struct channel *)channel)->events);
    free(channel);
    machine.alive[FAKE_CHANNEL]--;
    return 0;
}

static int completion_queue_refused(struct ibv_context *context, int works, int vector)
{
    int error = call_fails(FAKE_CREATE_CQ);
    if (error) return error;
    if (((struct context *)context)->device->broken) return EIO;
    return works < 1 || works > machine.limits.max_cqe || vector < 0 || vector >= context->num_comp_vectors ? EINVAL
                                                                                                            : 0;
}
struct ibv_cq *ibv_create_cq(struct ibv_context *context, int works, void *cq_context, struct ibv_comp_channel *channel,
    int vector)
{
    machine_lock();
    int error = completion_queue_refused(context, works, vector);
    struct completion_queue *q = error ? NULL : calloc(1, sizeof *q);
    if (q && !(q->slots = calloc((size_t)works, sizeof *q->slots))) { free(q); q = NULL; }
    if (q) {
        q->capacity = (uint64_t)works;
        q->ibv = (struct ibv_cq){ .context = context, .channel = channel, .cq_context = cq_context, .cqe = works };
        ((struct context *)context)->children++;
        if (channel) channel->refcnt++;
    }
    machine_unlock();
    if (!q) { errno = error ? error : ENOMEM; return NULL; }
    pthread_mutex_init(&q->lock, NULL);
    pthread_mutex_init(&q->ibv.mutex, NULL);
    pthread_cond_init(&q->ibv.cond, NULL);
    machine.alive[FAKE_COMPLETION_QUEUE]++;
    return &q->ibv;
}
/* Changes the room of a queue, and keeps its completions. The caller holds machine.lock and the queue's lock. */
static int completion_queue_resize(struct completion_queue *q, int works)
{
    uint64_t polled = atomic_load(&q->polled), held = atomic_load(&q->pushed) - polled;
    if (works < 1 || works > machine.limits.max_cqe || (uint64_t)works < held) return EINVAL;
    struct completion *slots = calloc((size_t)works, sizeof *slots);
    if (!slots) return ENOMEM;
    for (uint64_t i = polled; i < polled + held; i++) slots[i % (uint64_t)works] = q->slots[i % q->capacity];
    free(q->slots);
    q->slots = slots;
    q->capacity = (uint64_t)works;
    q->ibv.cqe = works;
    return 0;
}
int ibv_resize_cq(struct ibv_cq *cq, int works)
{
    struct completion_queue *q = (struct completion_queue *)cq;
    machine_lock();
    pthread_mutex_lock(&q->lock);
    int error = call_fails(FAKE_RESIZE_CQ);
    if (!error) error = completion_queue_resize(q, works);
    pthread_mutex_unlock(&q->lock);
    machine_unlock();
    return error;
}
static void completion_queue_destroy(struct completion_queue *q)
{
    pthread_mutex_destroy(&q->lock);
    pthread_mutex_destroy(&q->ibv.mutex);
    pthread_cond_destroy(&q->ibv.cond);
    free(q->slots);
    free(q);
    machine.alive[FAKE_COMPLETION_QUEUE]--;
}
int ibv_destroy_cq(struct ibv_cq *cq)
{
    struct completion_queue *q = (struct completion_queue *)cq;
    machine_lock();
    bool busy = q->pairs;
    if (!busy) {
        context_of(q)->children--;
        events_remove(&context_of(q)->async, cq);
        if (cq->channel) events_remove(&((struct channel *)cq->channel)->events, cq);
    }
    machine_unlock();
    if (busy) return EBUSY;
    wait_for_acknowledgements(&cq->mutex, &cq->cond, &q->delivered, &cq->comp_events_completed, "ibv_destroy_cq");
    wait_for_acknowledgements(&cq->mutex, &cq->cond, &q->delivered_async, &cq->async_events_completed,
        "ibv_destroy_cq");
    machine_lock();
    if (cq->channel) cq->channel->refcnt--;
    machine_unlock();
    completion_queue_destroy(q);
    return 0;
}

const char *ibv_wc_status_str(enum ibv_wc_status status)
{
    static const char *const texts[] = {
        [IBV_WC_SUCCESS] = "success",
        [IBV_WC_LOC_LEN_ERR] = "local length error",
        [IBV_WC_LOC_QP_OP_ERR] = "local QP operation error",
        [IBV_WC_LOC_EEC_OP_ERR] = "local EE context error",
        [IBV_WC_LOC_PROT_ERR] = "local protection error",
        [IBV_WC_WR_FLUSH_ERR] = "work request flushed",
        [IBV_WC_MW_BIND_ERR] = "memory bind error",
        [IBV_WC_BAD_RESP_ERR] = "bad response",
        [IBV_WC_LOC_ACCESS_ERR] = "local access error",
        [IBV_WC_REM_INV_REQ_ERR] = "remote invalid request",
        [IBV_WC_REM_ACCESS_ERR] = "remote access error",
        [IBV_WC_REM_OP_ERR] = "remote operation error",
        [IBV_WC_RETRY_EXC_ERR] = "retries exceeded",
        [IBV_WC_RNR_RETRY_EXC_ERR] = "receiver not ready",
        [IBV_WC_LOC_RDD_VIOL_ERR] = "local RDD violation",
        [IBV_WC_REM_INV_RD_REQ_ERR] = "remote invalid RD request",
        [IBV_WC_REM_ABORT_ERR] = "remote aborted",
        [IBV_WC_INV_EECN_ERR] = "invalid EE number",
        [IBV_WC_INV_EEC_STATE_ERR] = "invalid EE state",
        [IBV_WC_FATAL_ERR] = "fatal error",
        [IBV_WC_RESP_TIMEOUT_ERR] = "response timeout",
        [IBV_WC_GENERAL_ERR] = "general error",
        [IBV_WC_TM_ERR] = "tag matching error",
        [IBV_WC_TM_RNDV_INCOMPLETE] = "tag matching incomplete",
    };
    return status < sizeof texts / sizeof *texts && texts[status] ? texts[status] : "unknown";
}
