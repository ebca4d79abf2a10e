/* The lock and the two lists of a queue: open operations that may be deferred, and finished operations. A state becomes
 * OVER only under the lock, so every finished operation is in the list. */
#pragma once
#include "include/tutti.h"
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

struct operation;
/* An operation's place in a queue. The queue's lock guards all but `queue`. */
struct queued {
    /* NULL: the operation has no queue. Constant. */
    tutti_queue *queue;
    /* The links of the list of operations that may be deferred, or of those that are over. */
    struct operation *next, **at;
    /* True until the operation is taken. */
    bool inside;
    /* True while no thread has detached the operation. */
    bool may_defer;
    /* A thread is detaching the operation, so it cannot be taken now. */
    bool held;
};
struct tutti_queue {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* The process_generation of the process that made the queue. */
    unsigned generation;
    /* Open operations that may be deferred, newest first. */
    struct operation *resting;
    /* Finished operations, in the order in which they ended. */
    struct operation *over, **over_end;
    /* The number of open and of finished operations. */
    size_t open, ended;
    /* The number of waiting threads. */
    int waiting;
};
/* Adds an operation that is about to start. */
void queue_add_operation(struct operation *op);
/* Moves a finished operation to the list of those that are over, and sets its state to OVER. */
void queue_finish_operation(struct operation *op);

/* ---- the caller holds the lock ---- */
/* Removes the operation from those that may be deferred, if it is among them. */
void queue_unlink_deferrable(struct operation *op);
/* Takes the finished operation that ended first, but for those that are held; or returns NULL. */
struct operation *queue_take_finished(tutti_queue *queue);
