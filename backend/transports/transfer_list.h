/* A first-in first-out list of transfers, linked through transfer->next. A transfer is in one list at most. Zeroed
   memory is an empty list. */
#pragma once
#include "backend/transports/transfer.h"

struct transfer_list { struct transfer *first, *last; };

/* Appends a transfer to the list. */
static inline void transfer_list_push(struct transfer_list *list, struct transfer *transfer)
{
    transfer->next = NULL;
    if (list->first) list->last->next = transfer;
    else list->first = transfer;
    list->last = transfer;
}
/* Removes and returns the transfer that follows `before`, or the first one if `before` is NULL; there must be one. */
static inline struct transfer *transfer_list_take(struct transfer_list *list, struct transfer *before)
{
    struct transfer *transfer = before ? before->next : list->first;
    if (before) before->next = transfer->next;
    else list->first = transfer->next;
    if (list->last == transfer) list->last = before;
    transfer->next = NULL;
    return transfer;
}
/* Empties the list, and fails each of its transfers with this status. */
static inline void transfer_list_fail_all(struct transfer_list *list, tutti_status status)
{
    while (list->first) transfer_fail(transfer_list_take(list, NULL), status);
}
/* Removes all transfers whose other end is `rank` from the list, and fails them with this status. */
static inline void transfer_list_fail_all_with_rank(struct transfer_list *list, int rank, tutti_status status)
{
    for (struct transfer *before = NULL, *x = list->first; x; x = before ? before->next : list->first)
        if (transfer_peer_rank(x) == rank) transfer_fail(transfer_list_take(list, before), status);
        else before = x;
}
/* Removes this transfer from the list. false: the list does not have it. */
static inline bool transfer_list_remove(struct transfer_list *list, const struct transfer *transfer)
{
    struct transfer *before = NULL, *at = list->first;
    for (; at && at != transfer; at = at->next) before = at;
    if (at) transfer_list_take(list, before);
    return at != NULL;
}
