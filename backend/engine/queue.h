/* Queues of requests, for who waits for any of several. A request is in its queue from its call until it is taken; for
 * as long its memory is the operation's. All of any thread. An operation without a queue knows nothing of it. */
#pragma once
#include "backend/base/status.h"

struct operation;
struct queued {                                         /* an operation's place in a queue; under the queue's lock */
    tutti_queue *queue;                                 /* or NULL; constant */
    struct operation *next, **at;                       /* of those that may rest, or of those that are over */
    bool inside;                                        /* not taken yet */
    bool may_rest;                                      /* nobody has seen to it that it ends */
    bool held;                                          /* a thread is at it: it cannot be taken now */
};
tutti_status queue_create(tutti_queue **out);
/* INVALID_ARGUMENT while something is in it, or a thread waits. In a child of fork the parent's are left alone. */
tutti_status queue_destroy(tutti_queue *queue);
/* One that is over, oldest first; NULL and OK: none is in it, NULL and IN_PROGRESS: none is over in time. timeout_ms as
   in tutti_queue_wait. */
tutti_status queue_wait(tutti_queue *queue, int64_t timeout_ms, struct operation **out);
tutti_status queue_check(const tutti_queue *queue);     /* FORKED, or OK */
/* Of an operation that is about to start. */
void queue_enter(struct operation *op);
/* Of one that is over but for its state, which this sets. */
void queue_pass(struct operation *op);
