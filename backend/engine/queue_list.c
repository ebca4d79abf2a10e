/* queue_add_operation and queue_finish_operation take the lock themselves. Callers of the other functions hold it. */
#include "backend/engine/queue_list.h"
#include "backend/engine/operation.h"

void queue_unlink_deferrable(struct operation *op)
{
    struct queued *q = &op->queued;
    if (!q->may_defer) return;
    *q->link = q->next;
    if (q->next) q->next->queued.link = q->link;
    q->may_defer = false;
}
/* Adds an operation to the list of those that a waiter must detach. */
static void queue_link_deferrable(tutti_queue *queue, struct operation *op)
{
    op->queued.next = queue->deferrable;
    op->queued.link = &queue->deferrable;
    if (queue->deferrable) queue->deferrable->queued.link = &op->queued.next;
    queue->deferrable = op;
    op->queued.may_defer = true;
}
struct operation *queue_take_finished(tutti_queue *queue)
{
    struct operation **at = &queue->finished, *op;
    while ((op = *at) != NULL && op->queued.is_detaching) at = &op->queued.next;
    if (!op) return NULL;
    *at = op->queued.next;
    if (queue->finished_end == &op->queued.next) queue->finished_end = at;
    queue->finished_count--;
    op->queued.is_queued = false;
    return op;
}
void queue_add_operation(struct operation *op)
{
    tutti_queue *queue = op->queued.queue;
    pthread_mutex_lock(&queue->lock);
    queue->open_count++;
    op->queued.is_queued = true;
    op->queued.may_defer = op->queued.is_detaching = false;
    if (queue->waiter_count) atomic_store_explicit(&op->detached, true, memory_order_relaxed);
    else queue_link_deferrable(queue, op);
    pthread_mutex_unlock(&queue->lock);
}
void queue_finish_operation(struct operation *op)
{
    tutti_queue *queue = op->queued.queue;
    pthread_mutex_lock(&queue->lock);
    queue_unlink_deferrable(op);
    queue->open_count--;
    queue->finished_count++;
    op->queued.next = NULL;
    *queue->finished_end = op;
    queue->finished_end = &op->queued.next;
    atomic_store_explicit(&op->state, OPERATION_OVER, memory_order_release);
    if (queue->waiter_count) pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
}
