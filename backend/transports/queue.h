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
static inline void queue_fail_all(struct queue *q, tutti_status status)
{
    while (q->first) transfer_fail(queue_take(q, NULL), status, 0);
}
static inline void queue_fail_all_with_rank(struct queue *q, int rank, tutti_status status)
{
    for (struct transfer *before = NULL, *x = q->first; x; x = before ? before->next : q->first)
        if (transfer_peer_rank(x) == rank) transfer_fail(queue_take(q, before), status, 0);
        else before = x;
}
static inline bool queue_remove(struct queue *q, const struct transfer *x)
{
    struct transfer *before = NULL, *at = q->first;
    for (; at && at != x; at = at->next) before = at;
    if (at) queue_take(q, before);
    return at != NULL;
}
