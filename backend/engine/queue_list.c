/* The functions of operations take the lock themselves; those of waiters leave it to their caller. */
#include "backend/engine/queue_list.h"
#include "backend/engine/operation.h"

void queue_unlink_deferrable(struct operation *op)
{
    struct queued *q = &op->queued;
    if (!q->may_defer) return;
    *q->at = q->next;
    if (q->next) q->next->queued.at = q->at;
    q->may_defer = false;
}
/* Adds an operation to the list of those that a waiter must resume. */
static void queue_link_deferrable(tutti_queue *queue, struct operation *op)
{
    op->queued.next = queue->resting;
    op->queued.at = &queue->resting;
    if (queue->resting) queue->resting->queued.at = &op->queued.next;
    queue->resting = op;
    op->queued.may_defer = true;
}
struct operation *queue_take_finished(tutti_queue *queue)
{
    struct operation **at = &queue->over, *op;
    while ((op = *at) != NULL && op->queued.held) at = &op->queued.next;
    if (!op) return NULL;
    *at = op->queued.next;
    if (queue->over_end == &op->queued.next) queue->over_end = at;
    queue->ended--;
    op->queued.inside = false;
    return op;
}
void queue_add_operation(struct operation *op)
{
    tutti_queue *queue = op->queued.queue;
    pthread_mutex_lock(&queue->lock);
    queue->open++;
    op->queued.inside = true;
    op->queued.may_defer = op->queued.held = false;
    if (queue->waiting) atomic_store_explicit(&op->detached, true, memory_order_relaxed);
    else queue_link_deferrable(queue, op);
    pthread_mutex_unlock(&queue->lock);
}
void queue_finish_operation(struct operation *op)
{
    tutti_queue *queue = op->queued.queue;
    pthread_mutex_lock(&queue->lock);
    queue_unlink_deferrable(op);
    queue->open--;
    queue->ended++;
    op->queued.next = NULL;
    *queue->over_end = op;
    queue->over_end = &op->queued.next;
    atomic_store_explicit(&op->state, OPERATION_OVER, memory_order_release);
    if (queue->waiting) pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
}
