/* The lock and the two lists of a queue: open operations that may be deferred, and finished operations. The state of an
 * operation with a queue becomes OVER only under the lock, so every finished operation that no waiter has taken is in
 * its list. */
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
    /* The next operation of the list of deferrable or of finished ones. `link` is the pointer to this operation in the
       deferrable list. */
    struct operation *next, **link;
    /* True from the call until the operation is taken. */
    bool is_queued;
    /* True while the operation is in the list of deferrable ones: no thread has detached it. */
    bool may_defer;
    /* A thread is detaching the operation, so it cannot be taken now. */
    bool is_detaching;
};
struct tutti_queue {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* The process_generation of the process that made the queue. */
    unsigned generation;
    /* Open operations that may be deferred, newest first. */
    struct operation *deferrable;
    /* Finished operations, in the order in which they ended. */
    struct operation *finished, **finished_end;
    /* The numbers of open and of finished operations. */
    size_t open_count, finished_count;
    /* The number of waiting threads. */
    int waiter_count;
};
/* Adds an operation that is about to start. */
void queue_add_operation(struct operation *op);
/* Moves a finished operation to the list of those that are over, and sets its state to OVER. */
void queue_finish_operation(struct operation *op);

/* ---- the caller holds the lock ---- */
/* Removes the operation from those that may be deferred, if it is among them. */
void queue_unlink_deferrable(struct operation *op);
/* Takes the finished operation that ended first and that no thread is detaching. Returns NULL if there is no such
   operation. */
struct operation *queue_take_finished(tutti_queue *queue);
