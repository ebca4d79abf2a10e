/* The state of each fabric op. An eager message completes when the kernel has taken its bytes. An announced message is
 * offered first, and its bytes leave in parts after the peer has sent PULL. The send completes when the kernel has
 * taken the last part, the fetch when the last part has arrived. */
#include "backend/transports/tcp/sockets.h"

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
bool tcp_send(struct fabric *fabric, struct fabric_op *op, const void *data, bool announced)
{
    struct tcp_endpoint *e = tcp_endpoint_of(op->endpoint);
    struct tcp_xfer *xfer = endpoint_is_broken(&e->base) ? NULL : tcp_xfer_new(fabric, e);
    if (!xfer) return fabric_op_refuse(op, e->base.why ? e->base.why : no_memory);
    xfer->op = op;
    xfer->from = data ? data : op->room;
    xfer->bytes = op->bytes;
    xfer->frame = announced
        ? (struct tcp_frame){ .what = OFFER, .id = ++tcp_sockets_of(fabric)->ids, .extent = op->bytes }
        : (struct tcp_frame){ .what = EAGER, .bytes = op->bytes };
    enum send_status status = tcp_xfer_write(fabric, e, xfer);
    if (status == FAILED || (status == SENT && !announced)) return tcp_xfer_end(fabric, xfer, status);
    if (status == SENT) tcp_xfers_push(&e->offered, xfer);
    return true;
}
/* The descriptor is the transfer that was created when the OFFER arrived. */
bool tcp_fetch(struct fabric *fabric, struct fabric_op *op, void *descriptor, void *buffer)
{
    struct tcp_xfer *xfer = descriptor;
    struct tcp_endpoint *endpoint = xfer->endpoint;
    xfer->op = op;
    xfer->into = buffer ? buffer : op->room;
    xfer->frame.what = PULL;
    enum send_status status = endpoint_is_broken(&endpoint->base) ? FAILED : tcp_xfer_write(fabric, endpoint, xfer);
    if (status == FAILED) return tcp_xfer_end(fabric, xfer, status);
    if (status == SENT) tcp_xfers_push(&endpoint->fetching, xfer);
    return true;
}
void tcp_release(struct fabric *fabric, void *descriptor)
{
    struct tcp_xfer *xfer = descriptor;
    struct tcp_endpoint *endpoint = xfer->endpoint;
    xfer->frame.what = RELEASE;
    if (endpoint_is_broken(&endpoint->base) || endpoint->is_shutdown
        || tcp_xfer_write(fabric, endpoint, xfer) != QUEUED)
        tcp_xfer_free(fabric, xfer);
}
