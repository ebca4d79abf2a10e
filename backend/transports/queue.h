/* A first-in first-out list of transfers, linked through transfer->next. A transfer is in one queue at most. Zeroed
   memory is an empty queue. */
#pragma once
#include "backend/transports/transfer.h"

struct queue { struct transfer *first, *last; };

static inline void queue_push(struct queue *q, struct transfer *x)
{
    x->next = NULL;
    if (q->first) q->last->next = x;
    else q->first = x;
    q->last = x;
}
/* Removes the transfer that follows `before`, or the first one if `before` is NULL. */
static inline struct transfer *queue_take(struct queue *q, struct transfer *before)
{
    struct transfer *x = before ? before->next : q->first;
    if (before) before->next = x->next;
    else q->first = x->next;
    if (q->last == x) q->last = before;
    x->next = NULL;
    return x;
}
static inline bool queue_remove(struct queue *q, const struct transfer *x)
{
    struct transfer *before = NULL, *at = q->first;
    for (; at && at != x; at = at->next) before = at;
    if (at) queue_take(q, before);
    return at != NULL;
}
