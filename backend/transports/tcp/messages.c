/* The state of each fabric op. An eager message completes when the kernel has taken its bytes. An announced message is
 * offered first, and its bytes leave in parts after the peer has sent PULL. The send completes when the kernel has
 * taken the last part, the fetch when the last part has arrived. */
#include "backend/base/memory.h"
#include "backend/transports/tcp/sockets.h"
#include <stdlib.h>

/* ---- transfers ---- */
struct tcp_xfer *tcp_xfer_new(struct fabric *fabric, struct tcp_endpoint *e)
{
    struct sockets *s = tcp_sockets_of(fabric);
    struct tcp_xfer *xfer = s->spare;
    if (xfer) s->spare = xfer->next;
    else if (!(xfer = memory_alloc_zeroed(1, sizeof *xfer))) return NULL;
    *xfer = (struct tcp_xfer){ .endpoint = e };
    return xfer;
}
void tcp_xfer_free(struct fabric *fabric, struct tcp_xfer *xfer)
{
    struct sockets *s = tcp_sockets_of(fabric);
    if (xfer == &xfer->endpoint->goodbye) return;
    xfer->next = s->spare;
    s->spare = xfer;
}
void tcp_xfers_push(struct tcp_xfers *list, struct tcp_xfer *xfer)
{
    xfer->next = NULL;
    if (list->last) list->last->next = xfer;
    else list->first = xfer;
    list->last = xfer;
}
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
void tcp_xfer_complete(struct fabric *fabric, struct tcp_xfer *xfer, const char *why)
{
    struct fabric_op *op = xfer->op;
    tcp_xfer_free(fabric, xfer);
    if (op) fabric_op_complete(fabric, op, why);
}
static void tcp_xfers_complete_all(struct fabric *fabric, struct tcp_xfers *list, const char *why)
{
    for (struct tcp_xfer *xfer; (xfer = list->first) != NULL; tcp_xfer_complete(fabric, xfer, why))
        tcp_xfers_remove(list, xfer);
}
void tcp_endpoint_complete_xfers(struct fabric *fabric, struct tcp_endpoint *e, const char *why)
{
    tcp_xfers_complete_all(fabric, &e->waiting, why);
    tcp_xfers_complete_all(fabric, &e->pulled, why);
    tcp_xfers_complete_all(fabric, &e->offered, why);
    tcp_xfers_complete_all(fabric, &e->fetching, why);
}

/* ---- requests of the port ---- */
static bool fabric_op_refuse(struct fabric_op *op, const char *why)
{
    op->why = why;
    return false;
}
static const char no_memory[] = "no memory for a message";
/* Frees a transfer that has left or failed. Returns false, which means that the op has completed. */
static bool tcp_xfer_end(struct fabric *fabric, struct tcp_xfer *xfer, enum send_status status)
{
    struct fabric_op *op = xfer->op;
    const char *why = status == FAILED ? xfer->endpoint->base.why : NULL;
    tcp_xfer_free(fabric, xfer);
    return fabric_op_refuse(op, why);
}
bool tcp_send(struct fabric *fabric, struct fabric_op *f, const void *data, bool announced)
{
    struct tcp_endpoint *e = tcp_endpoint_of(f->endpoint);
    struct tcp_xfer *xfer = endpoint_is_broken(&e->base) ? NULL : tcp_xfer_new(fabric, e);
    if (!xfer) return fabric_op_refuse(f, e->base.why ? e->base.why : no_memory);
    xfer->op = f;
    xfer->from = data ? data : f->room;
    xfer->bytes = f->bytes;
    xfer->frame = announced
        ? (struct tcp_frame){ .what = OFFER, .id = ++tcp_sockets_of(fabric)->ids, .extent = f->bytes }
        : (struct tcp_frame){ .what = EAGER, .bytes = f->bytes };
    enum send_status status = tcp_xfer_write(fabric, e, xfer);
    if (status == FAILED || (status == SENT && !announced)) return tcp_xfer_end(fabric, xfer, status);
    if (status == SENT) tcp_xfers_push(&e->offered, xfer);
    return true;
}
/* The descriptor is the transfer that was created when the OFFER arrived. */
bool tcp_fetch(struct fabric *fabric, struct fabric_op *f, void *descriptor, void *buffer)
{
    struct tcp_xfer *xfer = descriptor;
    struct tcp_endpoint *e = xfer->endpoint;
    xfer->op = f;
    xfer->into = buffer ? buffer : f->room;
    xfer->frame.what = PULL;
    enum send_status status = endpoint_is_broken(&e->base) ? FAILED : tcp_xfer_write(fabric, e, xfer);
    if (status == FAILED) return tcp_xfer_end(fabric, xfer, status);
    if (status == SENT) tcp_xfers_push(&e->fetching, xfer);
    return true;
}
void tcp_release(struct fabric *fabric, void *descriptor)
{
    struct tcp_xfer *xfer = descriptor;
    struct tcp_endpoint *e = xfer->endpoint;
    xfer->frame.what = RELEASE;
    if (endpoint_is_broken(&e->base) || e->is_shutdown || tcp_xfer_write(fabric, e, xfer) != QUEUED)
        tcp_xfer_free(fabric, xfer);
}
