/* Events are in a list, and an eventfd counts them. events_remove takes the events of a destroyed object from the list,
   but not from the count. So a descriptor may be readable without an event, as with a real device. */
#include "tests/verbs/machine.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

int events_init(struct events *e)
{
    *e = (struct events){ .descriptor = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC) };
    if (e->descriptor < 0) return errno;
    pthread_mutex_init(&e->lock, NULL);
    return 0;
}
void events_finish(struct events *e)
{
    close(e->descriptor);
    pthread_mutex_destroy(&e->lock);
    free(e->items);
}
void events_push(struct events *e, struct ibv_async_event event)
{
    pthread_mutex_lock(&e->lock);
    if (e->count == e->room) {
        e->room = e->room ? 2 * e->room : 16;
        e->items = realloc(e->items, e->room * sizeof *e->items);
    }
    e->items[e->count++] = event;
    pthread_mutex_unlock(&e->lock);
    if (eventfd_write(e->descriptor, 1)) perror("fake verbs: eventfd_write");
}
int events_pop(struct events *e, struct ibv_async_event *out)
{
    eventfd_t one;
    for (bool found = false; !found;) {
        if (eventfd_read(e->descriptor, &one)) return -1;
        pthread_mutex_lock(&e->lock);
        if (e->count) {
            found = true;
            *out = e->items[0];
            memmove(e->items, e->items + 1, --e->count * sizeof *e->items);
        }
        pthread_mutex_unlock(&e->lock);
    }
    return 0;
}
static bool event_is_about(const struct ibv_async_event *e, const void *element)
{
    bool has_element = e->event_type != IBV_EVENT_DEVICE_FATAL && e->event_type != IBV_EVENT_PORT_ACTIVE
        && e->event_type != IBV_EVENT_PORT_ERR;
    return has_element && (const void *)e->element.qp == element;
}
void events_remove(struct events *e, const void *element)
{
    size_t kept = 0;
    pthread_mutex_lock(&e->lock);
    for (size_t i = 0; i < e->count; i++)
        if (!event_is_about(&e->items[i], element)) e->items[kept++] = e->items[i];
    e->count = kept;
    pthread_mutex_unlock(&e->lock);
}

static struct context *context_of(struct ibv_context *c) { return (struct context *)c; }
void pair_raise(struct pair *p, enum ibv_event_type type)
{
    events_push(&context_of(p->ibv.context)->async, (struct ibv_async_event){ { .qp = &p->ibv }, type });
}

/* ---- what the program calls ---- */
int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *out)
{
    if (events_pop(&context_of(context)->async, out)) return -1;
    if (out->event_type == IBV_EVENT_CQ_ERR) {
        struct completion_queue *q = (struct completion_queue *)out->element.cq;
        pthread_mutex_lock(&q->ibv.mutex);
        q->delivered_async++;
        pthread_mutex_unlock(&q->ibv.mutex);
    } else if (event_is_about(out, out->element.qp)) {
        struct pair *p = (struct pair *)out->element.qp;
        pthread_mutex_lock(&p->ibv.mutex);
        p->delivered_async++;
        pthread_mutex_unlock(&p->ibv.mutex);
    }
    return 0;
}
static void acknowledge(pthread_mutex_t *mutex, pthread_cond_t *changed, uint32_t *completed, uint32_t count)
{
    pthread_mutex_lock(mutex);
    *completed += count;
    pthread_cond_broadcast(changed);
    pthread_mutex_unlock(mutex);
}
void ibv_ack_async_event(struct ibv_async_event *event)
{
    struct ibv_cq *cq = event->element.cq;
    struct ibv_qp *qp = event->element.qp;
    if (event->event_type == IBV_EVENT_CQ_ERR) acknowledge(&cq->mutex, &cq->cond, &cq->async_events_completed, 1);
    else if (event_is_about(event, qp)) acknowledge(&qp->mutex, &qp->cond, &qp->events_completed, 1);
}
int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **out, void **context)
{
    struct ibv_async_event event;
    if (events_pop(&((struct channel *)channel)->events, &event)) return -1;
    struct completion_queue *q = (struct completion_queue *)event.element.cq;
    pthread_mutex_lock(&q->ibv.mutex);
    q->delivered++;
    pthread_mutex_unlock(&q->ibv.mutex);
    *out = &q->ibv;
    *context = q->ibv.cq_context;
    return 0;
}
void ibv_ack_cq_events(struct ibv_cq *cq, unsigned count)
{
    acknowledge(&cq->mutex, &cq->cond, &cq->comp_events_completed, count);
}

/* Waits without limit, as a real library does. Every 3 s it prints that it waits, because a program hangs here that has
   forgotten to acknowledge an event. */
void wait_for_acknowledgements(pthread_mutex_t *mutex, pthread_cond_t *changed, const uint32_t *delivered,
    const uint32_t *completed, const char *what)
{
    pthread_mutex_lock(mutex);
    while (*delivered != *completed) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 3;
        if (pthread_cond_timedwait(changed, mutex, &until))
            fprintf(stderr, "fake verbs: %s waits for %u events to be acknowledged\n", what, *delivered - *completed);
    }
    pthread_mutex_unlock(mutex);
}
