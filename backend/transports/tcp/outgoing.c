/* The sending side. Frames are written one after the other, straight from the memory of their bytes. Frames wait while
 * the socket accepts no bytes, until epoll reports that it does again. */
#include "backend/base/memory.h"
#include "backend/transports/tcp/sockets.h"
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* Returns the bytes of the struct header that follows a frame of this kind, or 0. */
static size_t tcp_frame_header_bytes(const struct tcp_frame *frame)
{
    return frame->kind <= OFFER ? sizeof(struct header) : 0;
}
/* Returns the bytes of a frame with its header and data. */
static size_t tcp_frame_bytes(const struct tcp_frame *frame)
{
    return sizeof *frame + tcp_frame_header_bytes(frame) + (size_t)frame->bytes;
}
/* Writes as much of the transfer's frame as the socket accepts. Returns the number of bytes written, or -1 with
   errno. */
static ssize_t tcp_xfer_write_some(const struct tcp_endpoint *endpoint, struct tcp_xfer *xfer)
{
    struct tcp_frame *frame = &xfer->frame;
    unsigned char *from = (unsigned char *)(uintptr_t)xfer->from;
    struct iovec list[3], *at = list;
    size_t skip = xfer->written;
    int count = 0;
    list[count++] = (struct iovec){ frame, sizeof *frame };
    if (tcp_frame_header_bytes(frame)) list[count++] = (struct iovec){ &xfer->op->header, sizeof(struct header) };
    if (frame->bytes) list[count++] = (struct iovec){ from + xfer->moved, (size_t)frame->bytes };
    for (; skip >= at->iov_len; at++, count--) skip -= at->iov_len;
    at->iov_base = (unsigned char *)at->iov_base + skip;
    at->iov_len -= skip;
    const struct msghdr message = { .msg_iov = at, .msg_iovlen = (size_t)count };
    ssize_t n = endpoint->tls ? tls_send(endpoint->tls, endpoint->handle.descriptor, at, count)
                              : sendmsg(endpoint->handle.descriptor, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) xfer->written += (size_t)n;
    return n;
}
void tcp_xfer_begin_part(struct tcp_xfer *xfer)
{
    xfer->frame = (struct tcp_frame){ .kind = DATA,
        .bytes = size_smaller(PART_BYTES, xfer->bytes - xfer->moved),
        .id = xfer->frame.id,
        .extent = xfer->moved };
    xfer->written = 0;
}
/* Records whether the socket accepts no more bytes. If so, epoll reports when it accepts them again. */
static void tcp_endpoint_set_blocked(struct fabric *fabric, struct tcp_endpoint *endpoint, bool is_blocked)
{
    uint32_t events = is_blocked ? EPOLLIN | EPOLLOUT : EPOLLIN;
    if (endpoint->handle.events == events) return;
    if (socket_handle_watch(fabric, &endpoint->handle, events) != TUTTI_OK) {
        tcp_endpoint_end(fabric, endpoint, "epoll cannot watch it");
        return;
    }
    tcp_sockets_of(fabric)->blocked_count += is_blocked ? 1 : -1;
}
/* Writes the whole frame of the transfer. false: the socket accepts no more bytes now, or has failed and the endpoint
   has ended. */
static bool tcp_xfer_write_frame(struct fabric *fabric, struct tcp_endpoint *endpoint, struct tcp_xfer *xfer)
{
    size_t bytes = tcp_frame_bytes(&xfer->frame);
    while (xfer->written < bytes) {
        ssize_t n = tcp_xfer_write_some(endpoint, xfer);
        if (n >= 0) continue;
        int error = errno;
        if (error == EINTR) continue;
        endpoint->current_xfer = xfer->written ? xfer : NULL;
        if (error == EAGAIN || error == ENOBUFS)
            tcp_endpoint_set_blocked(fabric, endpoint, tls_is_open(endpoint->tls) || tls_has_unsent(endpoint->tls));
        else tcp_endpoint_end(fabric, endpoint, strerror(error));
        return false;
    }
    endpoint->current_xfer = NULL;
    if (tls_has_unsent(endpoint->tls)) tcp_endpoint_set_blocked(fabric, endpoint, true);
    return endpoint->handle.descriptor >= 0;
}
void tcp_endpoint_make_busy(struct fabric *fabric, struct tcp_endpoint *endpoint)
{
    struct sockets *sockets = tcp_sockets_of(fabric);
    if (endpoint->is_busy) return;
    endpoint->is_busy = true;
    endpoint->next_busy = sockets->busy_endpoints;
    sockets->busy_endpoints = endpoint;
}
/* Returns the transfer whose frame is to be written next, or NULL. */
static struct tcp_xfer *tcp_endpoint_next_xfer(const struct tcp_endpoint *endpoint)
{
    if (endpoint->current_xfer) return endpoint->current_xfer;
    return endpoint->waiting.first ? endpoint->waiting.first : endpoint->pulled.first;
}
void tcp_endpoint_push_tls(struct fabric *fabric, struct tcp_endpoint *endpoint)
{
    int error = endpoint->tls ? tls_push(endpoint->tls, endpoint->handle.descriptor) : 0;
    if (error) tcp_endpoint_end(fabric, endpoint, strerror(-error));
    else if (tls_has_unsent(endpoint->tls)) tcp_endpoint_set_blocked(fabric, endpoint, true);
    else if (tls_has_unread(endpoint->tls) || (tls_is_open(endpoint->tls) && tcp_endpoint_next_xfer(endpoint)))
        tcp_endpoint_make_busy(fabric, endpoint);
}
enum send_status tcp_xfer_write(struct fabric *fabric, struct tcp_endpoint *endpoint, struct tcp_xfer *xfer)
{
    bool can_write = !endpoint->current_xfer && !endpoint->waiting.first && !(endpoint->handle.events & EPOLLOUT);
    if (can_write && tcp_xfer_write_frame(fabric, endpoint, xfer)) return SENT;
    if (endpoint->handle.descriptor < 0) return FAILED;
    tcp_xfers_push(&endpoint->waiting, xfer);
    return QUEUED;
}

/* ---- waiting frames ---- */
/* Moves a transfer whose frame has been written to the list for its next stage, or completes it. */
static void tcp_xfer_handle_written(struct fabric *fabric, struct tcp_endpoint *endpoint, struct tcp_xfer *xfer)
{
    if (xfer->frame.kind == DATA) {
        xfer->moved += (size_t)xfer->frame.bytes;
        if (xfer->moved < xfer->bytes) {
            tcp_xfer_begin_part(xfer);
            return;
        }
        tcp_xfers_remove(&endpoint->pulled, xfer);
        tcp_xfer_complete(fabric, xfer, NULL);
        return;
    }
    tcp_xfers_remove(&endpoint->waiting, xfer);
    if (xfer->frame.kind == OFFER) tcp_xfers_push(&endpoint->offered, xfer);
    else if (xfer->frame.kind == PULL) tcp_xfers_push(&endpoint->fetching, xfer);
    else tcp_xfer_complete(fabric, xfer, NULL);
}
bool tcp_endpoint_write(struct fabric *fabric, struct tcp_endpoint *endpoint)
{
    size_t written = 0;
    for (struct tcp_xfer *xfer; written < WRITE_BYTES && endpoint->handle.descriptor >= 0
        && (xfer = tcp_endpoint_next_xfer(endpoint)) != NULL;) {
        size_t before = xfer->written;
        bool whole = tcp_xfer_write_frame(fabric, endpoint, xfer);
        if (!whole) return written > 0 || endpoint->handle.descriptor < 0;
        written += xfer->written - before;
        tcp_xfer_handle_written(fabric, endpoint, xfer);
    }
    if (!tcp_endpoint_next_xfer(endpoint) && endpoint->handle.descriptor >= 0) tcp_endpoint_push_tls(fabric, endpoint);
    if (endpoint->handle.descriptor < 0) return true;
    if (tcp_endpoint_next_xfer(endpoint)) tcp_endpoint_make_busy(fabric, endpoint);
    else tcp_endpoint_set_blocked(fabric, endpoint, tls_has_unsent(endpoint->tls));
    return written > 0;
}
