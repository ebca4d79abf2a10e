/* Shared receive queues. A message that needs a receive moves the oldest receive of the shared queue into the receive
   queue of the queue pair that it reaches. That queue pair then treats the receive as its own. So receives
   that are still in the shared queue are not flushed when a queue pair fails. */
#include "tests/verbs/machine.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct shared_queue *shared_of(struct ibv_srq *srq) { return (struct shared_queue *)srq; }

struct work *receive_head(struct pair *p)
{
    struct work *own = queue_head(&p->receive);
    struct queue *from = p->ibv.srq ? &shared_of(p->ibv.srq)->queue : NULL;
    struct work *shared = own || !from ? NULL : queue_head(from);
    struct work *taken = shared ? queue_slot(&p->receive) : NULL;
    if (!taken) return own;
    struct ibv_sge *sges = taken->sges;
    if (shared->count) memcpy(sges, shared->sges, (size_t)shared->count * sizeof *sges);
    *taken = *shared;
    taken->sges = sges;
    queue_publish(&p->receive);
    atomic_store_explicit(&from->reclaimed, ++from->taken, memory_order_release);
    return taken;
}

/* ---- what the program calls ---- */
static int shared_refused(const struct ibv_pd *pd, const struct ibv_srq_init_attr *a)
{
    int error = call_fails(FAKE_CREATE_SRQ);
    if (error) return error;
    if (((struct context *)pd->context)->device->broken) return EIO;
    bool fits = a->attr.max_wr && a->attr.max_wr <= (uint32_t)machine.limits.max_qp_wr
        && a->attr.max_sge <= (uint32_t)machine.limits.max_sge;
    return fits ? 0 : EINVAL;
}
struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *a)
{
    int error = shared_refused(pd, a);
    struct shared_queue *s = error ? NULL : calloc(1, sizeof *s);
    if (s && queue_init(&s->queue, a->attr.max_wr, a->attr.max_sge, 0)) {
        queue_finish(&s->queue);
        free(s);
        s = NULL;
    }
    if (!s) { errno = error ? error : ENOMEM; return NULL; }
    s->ibv = (struct ibv_srq){ .context = pd->context, .pd = pd };
    machine_lock();
    ((struct domain *)pd)->children++;
    machine_unlock();
    machine.alive[FAKE_SHARED_QUEUE]++;
    return &s->ibv;
}
int ibv_destroy_srq(struct ibv_srq *srq)
{
    struct shared_queue *s = shared_of(srq);
    machine_lock();
    bool busy = s->pairs;
    if (!busy) ((struct domain *)srq->pd)->children--;
    machine_unlock();
    if (busy) return EBUSY;
    queue_finish(&s->queue);
    free(s);
    machine.alive[FAKE_SHARED_QUEUE]--;
    return 0;
}
int shared_post_receive(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    return receives_post(&shared_of(srq)->queue, wr, bad);
}
