/* The state of each fabric op. An eager message completes when the kernel has taken its bytes. An announced message is
 * offered first, and its bytes leave in parts after the peer has sent PULL. The send completes when the kernel has
 * taken the last part, the fetch when the last part has arrived. */
#include "backend/transports/tcp/sockets.h"

/* Sets the reason for which an op has completed (NULL: success). Returns false, as tcp_send and tcp_fetch must for a
   completed op. */
static bool tcp_op_end(struct fabric_op *op, const char *why)
{
    op->why = why;
    return false;
}
static const char no_memory[] = "no memory for a message";
/* Frees a transfer that has left (SENT) or failed (FAILED). Returns false, which means that its op has completed. */
static bool tcp_xfer_end(struct fabric *fabric, struct tcp_xfer *xfer, enum send_status status)
{
    struct fabric_op *op = xfer->op;
    const char *why = status == FAILED ? xfer->endpoint->base.why : NULL;
    tcp_xfer_free(fabric, xfer);
    return tcp_op_end(op, why);
}
bool tcp_send(struct fabric *fabric, struct fabric_op *op, const void *data, bool is_announced)
{
    struct tcp_endpoint *endpoint = tcp_endpoint_of(op->endpoint);
    struct tcp_xfer *xfer = endpoint_is_broken(&endpoint->base) ? NULL : tcp_xfer_new(fabric, endpoint);
    if (!xfer) return tcp_op_end(op, endpoint->base.why ? endpoint->base.why : no_memory);
    xfer->op = op;
    xfer->from = data ? data : op->buffer;
    xfer->bytes = op->bytes;
    xfer->frame = is_announced
        ? (struct tcp_frame){ .kind = OFFER, .id = ++tcp_sockets_of(fabric)->last_id, .extent = op->bytes }
        : (struct tcp_frame){ .kind = EAGER, .bytes = op->bytes };
    enum send_status status = tcp_xfer_write(fabric, endpoint, xfer);
    if (status == FAILED || (status == SENT && !is_announced)) return tcp_xfer_end(fabric, xfer, status);
    if (status == SENT) tcp_xfers_push(&endpoint->offered, xfer);
    return true;
}
/* The descriptor is the transfer that was created when the OFFER arrived. */
bool tcp_fetch(struct fabric *fabric, struct fabric_op *op, void *descriptor, void *buffer)
{
    struct tcp_xfer *xfer = descriptor;
    struct tcp_endpoint *endpoint = xfer->endpoint;
    xfer->op = op;
    xfer->into = buffer ? buffer : op->buffer;
    xfer->frame.kind = PULL;
    enum send_status status = endpoint_is_broken(&endpoint->base) ? FAILED : tcp_xfer_write(fabric, endpoint, xfer);
    if (status == FAILED) return tcp_xfer_end(fabric, xfer, status);
    if (status == SENT) tcp_xfers_push(&endpoint->fetching, xfer);
    return true;
}
void tcp_release(struct fabric *fabric, void *descriptor)
{
    struct tcp_xfer *xfer = descriptor;
    struct tcp_endpoint *endpoint = xfer->endpoint;
    xfer->frame.kind = RELEASE;
    if (endpoint_is_broken(&endpoint->base) || endpoint->is_shutdown
        || tcp_xfer_write(fabric, endpoint, xfer) != QUEUED)
        tcp_xfer_free(fabric, xfer);
}
