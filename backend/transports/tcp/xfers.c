/* The transfers of an endpoint: their memory, the lists that they are in, and their completion. Freed transfers are
 * kept, so that a steady load needs no allocation. */
#include "backend/base/memory.h"
#include "backend/transports/tcp/sockets.h"
#include <stdlib.h>

struct tcp_xfer *tcp_xfer_new(struct fabric *fabric, struct tcp_endpoint *endpoint)
{
    struct sockets *sockets = tcp_sockets_of(fabric);
    struct tcp_xfer *xfer = sockets->free_xfers;
    if (xfer) sockets->free_xfers = xfer->next;
    else if (!(xfer = memory_alloc_zeroed(1, sizeof *xfer))) return NULL;
    *xfer = (struct tcp_xfer){ .endpoint = endpoint };
    return xfer;
}
void tcp_xfer_free(struct fabric *fabric, struct tcp_xfer *xfer)
{
    struct sockets *sockets = tcp_sockets_of(fabric);
    if (xfer == &xfer->endpoint->goodbye) return;
    xfer->next = sockets->free_xfers;
    sockets->free_xfers = xfer;
}

/* ---- lists ---- */
void tcp_xfers_push(struct tcp_xfers *list, struct tcp_xfer *xfer)
{
    xfer->next = NULL;
    if (list->last) list->last->next = xfer;
    else list->first = xfer;
    list->last = xfer;
}
/* Returns the priority of the operation that the transfer belongs to, or 0. */
static int tcp_xfer_priority(const struct tcp_xfer *xfer)
{
    const struct fabric_transport *owner = xfer->op ? xfer->op->owner : NULL;
    return owner ? router_priority(owner->base.router) : 0;
}
void tcp_xfers_push_by_priority(struct tcp_xfers *list, struct tcp_xfer *xfer)
{
    int priority = tcp_xfer_priority(xfer);
    struct tcp_xfer **at = &list->first;
    if (!priority) {
        tcp_xfers_push(list, xfer);
        return;
    }
    while (*at && tcp_xfer_priority(*at) >= priority) at = &(*at)->next;
    xfer->next = *at;
    *at = xfer;
    if (!xfer->next) list->last = xfer;
}
void tcp_xfers_remove(struct tcp_xfers *list, const struct tcp_xfer *xfer)
{
    struct tcp_xfer *before = NULL, *at = list->first;
    for (; at != xfer; at = at->next) before = at;
    if (before) before->next = xfer->next;
    else list->first = xfer->next;
    if (list->last == xfer) list->last = before;
}
struct tcp_xfer *tcp_xfers_find(const struct tcp_xfers *list, uint64_t id)
{
    struct tcp_xfer *xfer = list->first;
    while (xfer && xfer->frame.id != id) xfer = xfer->next;
    return xfer;
}

/* ---- completion ---- */
void tcp_xfer_complete(struct fabric *fabric, struct tcp_xfer *xfer, const char *why)
{
    struct fabric_op *op = xfer->op;
    tcp_xfer_free(fabric, xfer);
    if (op) fabric_op_complete(fabric, op, why);
}
/* Removes all transfers from the list, and completes them as failed for the reason `why`. */
static void tcp_xfers_complete_all(struct fabric *fabric, struct tcp_xfers *list, const char *why)
{
    for (struct tcp_xfer *xfer; (xfer = list->first) != NULL; tcp_xfer_complete(fabric, xfer, why))
        tcp_xfers_remove(list, xfer);
}
void tcp_endpoint_complete_xfers(struct fabric *fabric, struct tcp_endpoint *endpoint, const char *why)
{
    tcp_xfers_complete_all(fabric, &endpoint->waiting, why);
    tcp_xfers_complete_all(fabric, &endpoint->pulled, why);
    tcp_xfers_complete_all(fabric, &endpoint->offered, why);
    tcp_xfers_complete_all(fabric, &endpoint->fetching, why);
}
