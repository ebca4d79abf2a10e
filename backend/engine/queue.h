/* Queues of requests, for a thread that waits for any of several. A request stays in its queue from its call until it
 * is taken, and its memory belongs to the operation until then. Any thread may call these functions. Operations without
 * a queue never use this file. */
#pragma once
#include "backend/base/status.h"

struct operation;
/* Creates an empty queue. NO_MEMORY. */
tutti_status queue_create(tutti_queue **out);
/* Frees the queue. INVALID_ARGUMENT while requests are in the queue or a thread waits. In a child of fork it leaves the
   parent's queue alone. */
tutti_status queue_destroy(tutti_queue *queue);
/* Takes the finished operation that ended first into *out. Returns OK with *out NULL if the queue is empty, and
   IN_PROGRESS with *out NULL if no operation ended in time. timeout_ms: 0 does not wait, a negative value waits without
   limit. */
tutti_status queue_wait_finished(tutti_queue *queue, int64_t timeout_ms, struct operation **out);
/* Returns FORKED if the parent process made the queue, else OK. */
tutti_status queue_check(const tutti_queue *queue);
