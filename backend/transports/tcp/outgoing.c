/* The sending side. Frames are written one after the other, straight from the memory of their bytes. Frames wait while
 * the socket accepts no bytes, until epoll reports that it does again. */
#include "backend/base/memory.h"
#include "backend/transports/tcp/sockets.h"
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

static size_t tcp_frame_header_bytes(const struct tcp_frame *f) { return f->what <= OFFER ? sizeof(struct header) : 0; }
static size_t tcp_frame_bytes(const struct tcp_frame *f)
{
    return sizeof *f + tcp_frame_header_bytes(f) + (size_t)f->bytes;
}
/* Writes more of the frame. Returns the number of bytes written, or -1 with errno. */
static ssize_t tcp_xfer_write_some(const struct tcp_endpoint *e, struct tcp_xfer *xfer)
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
    ssize_t n = e->tls ? tls_send(e->tls, e->handle.descriptor, at, count)
                       : sendmsg(e->handle.descriptor, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) xfer->written += (size_t)n;
    return n;
}
void tcp_xfer_begin_part(struct tcp_xfer *xfer)
{
    xfer->frame = (struct tcp_frame){ .what = DATA,
        .bytes = size_smaller(PART_BYTES, xfer->bytes - xfer->moved),
        .id = xfer->frame.id,
        .extent = xfer->moved };
    xfer->written = 0;
}
static void tcp_endpoint_set_blocked(struct fabric *fabric, struct tcp_endpoint *e, bool blocked)
{
    uint32_t events = blocked ? EPOLLIN | EPOLLOUT : EPOLLIN;
    if (e->handle.events == events) return;
    if (socket_handle_watch(fabric, &e->handle, events) != TUTTI_OK) {
        tcp_endpoint_end(fabric, e, "epoll cannot watch it");
        return;
    }
    tcp_sockets_of(fabric)->blocked += blocked ? 1 : -1;
}
/* Writes the whole frame. false: the socket accepts no more bytes now, or has failed. */
static bool tcp_xfer_write_frame(struct fabric *fabric, struct tcp_endpoint *e, struct tcp_xfer *xfer)
{
    size_t bytes = tcp_frame_bytes(&xfer->frame);
    while (xfer->written < bytes) {
        ssize_t n = tcp_xfer_write_some(e, xfer);
        if (n >= 0) continue;
        int error = errno;
        if (error == EINTR) continue;
        e->current = xfer->written ? xfer : NULL;
        if (error == EAGAIN || error == ENOBUFS)
            tcp_endpoint_set_blocked(fabric, e, tls_is_open(e->tls) || tls_has_unsent(e->tls));
        else tcp_endpoint_end(fabric, e, strerror(error));
        return false;
    }
    e->current = NULL;
    if (tls_has_unsent(e->tls)) tcp_endpoint_set_blocked(fabric, e, true);
    return e->handle.descriptor >= 0;
}
void tcp_endpoint_make_busy(struct fabric *fabric, struct tcp_endpoint *e)
{
    struct sockets *s = tcp_sockets_of(fabric);
    if (e->busy) return;
    e->busy = true;
    e->next_busy = s->busy;
    s->busy = e;
}
static struct tcp_xfer *tcp_endpoint_next_xfer(const struct tcp_endpoint *e)
{
    if (e->current) return e->current;
    return e->waiting.first ? e->waiting.first : e->pulled.first;
}
void tcp_endpoint_push_tls(struct fabric *fabric, struct tcp_endpoint *e)
{
    int error = e->tls ? tls_push(e->tls, e->handle.descriptor) : 0;
    if (error) tcp_endpoint_end(fabric, e, strerror(-error));
    else if (tls_has_unsent(e->tls)) tcp_endpoint_set_blocked(fabric, e, true);
    else if (tls_has_unread(e->tls) || (tls_is_open(e->tls) && tcp_endpoint_next_xfer(e)))
        tcp_endpoint_make_busy(fabric, e);
}
enum send_status tcp_xfer_write(struct fabric *fabric, struct tcp_endpoint *e, struct tcp_xfer *xfer)
{
    bool now = !e->current && !e->waiting.first && !(e->handle.events & EPOLLOUT);
    if (now && tcp_xfer_write_frame(fabric, e, xfer)) return SENT;
    if (e->handle.descriptor < 0) return FAILED;
    tcp_xfers_push(&e->waiting, xfer);
    return QUEUED;
}

/* ---- waiting frames ---- */
static void tcp_xfer_handle_written(struct fabric *fabric, struct tcp_endpoint *e, struct tcp_xfer *xfer)
{
    if (xfer->frame.what == DATA) {
        xfer->moved += (size_t)xfer->frame.bytes;
        if (xfer->moved < xfer->bytes) {
            tcp_xfer_begin_part(xfer);
            return;
        }
        tcp_xfers_remove(&e->pulled, xfer);
        tcp_xfer_complete(fabric, xfer, NULL);
        return;
    }
    tcp_xfers_remove(&e->waiting, xfer);
    if (xfer->frame.what == OFFER) tcp_xfers_push(&e->offered, xfer);
    else if (xfer->frame.what == PULL) tcp_xfers_push(&e->fetching, xfer);
    else tcp_xfer_complete(fabric, xfer, NULL);
}
bool tcp_endpoint_write(struct fabric *fabric, struct tcp_endpoint *e)
{
    size_t written = 0;
    for (struct tcp_xfer *xfer;
        written < WRITE_BYTES && e->handle.descriptor >= 0 && (xfer = tcp_endpoint_next_xfer(e)) != NULL;) {
        size_t before = xfer->written;
        bool whole = tcp_xfer_write_frame(fabric, e, xfer);
        if (!whole) return written > 0 || e->handle.descriptor < 0;
        written += xfer->written - before;
        tcp_xfer_handle_written(fabric, e, xfer);
    }
    if (!tcp_endpoint_next_xfer(e) && e->handle.descriptor >= 0) tcp_endpoint_push_tls(fabric, e);
    if (e->handle.descriptor < 0) return true;
    if (tcp_endpoint_next_xfer(e)) tcp_endpoint_make_busy(fabric, e);
    else tcp_endpoint_set_blocked(fabric, e, tls_has_unsent(e->tls));
    return written > 0;
}
