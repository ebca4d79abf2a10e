/* A waiter detaches each deferred operation of the queue once; operations that are added while it sleeps are detached
   from their start. */
#include "backend/engine/queue.h"
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/engine/fork.h"
#include "backend/engine/operation.h"
#include <stdlib.h>

tutti_status queue_check(const tutti_queue *queue)
{
    if (queue->generation == process_generation()) return TUTTI_OK;
    return status_fail(TUTTI_FORKED,
        "this queue was made by the parent process before a fork; only the parent can use it");
}
tutti_status queue_create(tutti_queue **out)
{
    tutti_queue *queue = memory_alloc_zeroed(1, sizeof *queue);
    *out = queue;
    if (!queue) return status_refuse(TUTTI_NO_MEMORY, "no memory for a queue");
    process_watch_forks();
    pthread_mutex_init(&queue->lock, NULL);
    clock_condition_init(&queue->changed);
    queue->generation = process_generation();
    queue->finished_end = &queue->finished;
    return TUTTI_OK;
}
tutti_status queue_destroy(tutti_queue *queue)
{
    if (queue->generation != process_generation()) return TUTTI_OK;
    pthread_mutex_lock(&queue->lock);
    size_t open = queue->open_count, ended = queue->finished_count;
    int waiting = queue->waiter_count;
    pthread_mutex_unlock(&queue->lock);
    if (open || ended)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "the queue is not empty: %zu of its requests are not finished, and %zu are finished but were not taken; "
            "take all with tutti_queue_wait before you destroy it",
            open, ended);
    if (waiting) return status_refuse(TUTTI_INVALID_ARGUMENT, "%d threads are waiting for the queue", waiting);
    pthread_mutex_destroy(&queue->lock);
    pthread_cond_destroy(&queue->changed);
    free(queue);
    return TUTTI_OK;
}
/* Detaches one operation of the queue. It releases the lock meanwhile, because this may end the operation on this
   thread. */
static void queue_detach_operation(tutti_queue *queue, struct operation *op)
{
    queue_unlink_deferrable(op);
    op->queued.is_detaching = true;
    pthread_mutex_unlock(&queue->lock);
    operation_detach(op);
    pthread_mutex_lock(&queue->lock);
    op->queued.is_detaching = false;
    /* Another waiter may have skipped the operation while this thread detached it. */
    if (queue->waiter_count) pthread_cond_broadcast(&queue->changed);
}
/* Sleeps until the queue changes or the deadline passes. Returns false if the deadline has passed. Called with the
   lock. */
static bool queue_sleep_until(tutti_queue *queue, int64_t deadline_ms)
{
    struct timespec until = { deadline_ms / 1000, deadline_ms % 1000 * 1000000 };
    queue->waiter_count++;
    if (deadline_ms == INT64_MAX) pthread_cond_wait(&queue->changed, &queue->lock);
    else pthread_cond_timedwait(&queue->changed, &queue->lock, &until);
    queue->waiter_count--;
    return clock_ms() < deadline_ms;
}
tutti_status queue_wait_finished(tutti_queue *queue, int64_t timeout_ms, struct operation **out)
{
    int64_t deadline_ms = timeout_ms ? clock_deadline(timeout_ms) : 0;
    bool in_time = timeout_ms != 0;
    pthread_mutex_lock(&queue->lock);
    while ((*out = queue_take_finished(queue)) == NULL && (queue->open_count || queue->finished_count)) {
        if (queue->deferrable) queue_detach_operation(queue, queue->deferrable);
        else if (!in_time) break;
        else in_time = queue_sleep_until(queue, deadline_ms);
    }
    bool is_empty = !queue->open_count && !queue->finished_count, is_late = !*out && !is_empty;
    /* Other waiters of an empty queue return, too. */
    if (is_empty && queue->waiter_count) pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
    return is_late ? TUTTI_IN_PROGRESS : TUTTI_OK;
}
