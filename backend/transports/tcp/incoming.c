/* The receiving side. One read takes many small frames into a buffer that all connections share. The bytes of a frame
 * that has begun go straight to their place. Frames are checked before use, and an invalid one ends the connection. */
#include "backend/base/memory.h"
#include "backend/transports/tcp/sockets.h"
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

static const char cannot_be[] = "its process has sent an invalid message";
static const char no_memory[] = "no memory for an incoming message";

void incoming_forget(struct fabric *fabric, struct incoming *in)
{
    if (in->room) fabric_op_free(fabric, in->room);
    *in = (struct incoming){ .head_bytes = 0 };
}

/* ---- frames ---- */
static struct header header_of(const struct incoming *in)
{
    struct header header;
    memcpy(&header, in->head + sizeof(struct tcp_frame), sizeof header);
    return header;
}
static const char *hear_offer(struct fabric *fabric, struct tcp_endpoint *e, const struct tcp_frame *frame)
{
    struct header header = header_of(&e->in);
    if (!frame->extent || frame->id <= e->last_offer) return cannot_be;
    struct tcp_xfer *xfer = tcp_xfer_new(fabric, e);
    if (!xfer) return no_memory;
    xfer->frame.id = e->last_offer = frame->id;
    xfer->bytes = (size_t)frame->extent;
    if (!fabric_hear(fabric, &e->base, &header, xfer, xfer->bytes, true)) tcp_release(fabric, xfer);
    return NULL;
}
static const char *hear_wish(struct fabric *fabric, struct tcp_endpoint *e, const struct tcp_frame *frame)
{
    struct tcp_xfer *xfer = tcp_xfers_find(&e->offered, frame->id);
    if (!xfer) return cannot_be;
    tcp_xfers_remove(&e->offered, xfer);
    if (frame->what == RELEASE) {
        tcp_xfer_complete(fabric, xfer, NULL);
        return NULL;
    }
    tcp_xfer_begin_part(xfer);
    tcp_xfers_push_by_priority(&e->pulled, xfer);
    if (!(e->handle.events & EPOLLOUT)) endpoint_make_busy(fabric, e);
    return NULL;
}
static const char *hear_data(struct tcp_endpoint *e, const struct tcp_frame *frame)
{
    struct tcp_xfer *xfer = tcp_xfers_find(&e->fetching, frame->id);
    if (!xfer || !frame->bytes || frame->extent != xfer->moved || frame->bytes > xfer->bytes - xfer->moved)
        return cannot_be;
    e->in.fetch = xfer;
    e->in.into = xfer->into + xfer->moved;
    e->in.left = (size_t)frame->bytes;
    return NULL;
}
static const char *expect_eager(struct fabric *fabric, struct incoming *in, const struct tcp_frame *frame)
{
    in->room = fabric_op_new(fabric, (size_t)frame->bytes);
    if (!in->room) return no_memory;
    in->into = in->room->room;
    in->left = in->room->bytes = (size_t)frame->bytes;
    return NULL;
}
static void data_is_whole(struct fabric *fabric, struct tcp_endpoint *e, struct tcp_xfer *xfer)
{
    e->in.fetch = NULL;
    xfer->moved = (size_t)(e->in.into - xfer->into);
    if (xfer->moved < xfer->bytes) return;
    tcp_xfers_remove(&e->fetching, xfer);
    tcp_xfer_complete(fabric, xfer, NULL);
}
/* Handles a frame whose bytes have all arrived at their place. */
static void is_whole(struct fabric *fabric, struct tcp_endpoint *e)
{
    struct fabric_op *room = e->in.room;
    if (e->in.fetch) data_is_whole(fabric, e, e->in.fetch);
    if (!room) return;
    struct header header = header_of(&e->in);
    e->in.room = NULL;
    fabric_hear(fabric, &e->base, &header, room->room, room->bytes, false);
    fabric_op_free(fabric, room);
}
/* Handles a frame whose head has arrived. `bytes` bytes at `at` follow the head. Returns how many of them belong to the
   frame. */
static size_t begin_frame(struct fabric *fabric, struct tcp_endpoint *e, unsigned char *at, size_t bytes)
{
    struct tcp_frame frame;
    const char *wrong = NULL;
    memcpy(&frame, e->in.head, sizeof frame);
    e->in.head_bytes = 0;
    if (frame.what != EAGER && frame.what != DATA && frame.bytes) frame.what = UINT64_MAX;
    switch (frame.what) {
    case EAGER:
        if (frame.bytes > EAGER_BYTES) wrong = cannot_be;
        else if (frame.bytes > bytes) wrong = expect_eager(fabric, &e->in, &frame);
        else {
            struct header header = header_of(&e->in);
            fabric_hear(fabric, &e->base, &header, at, (size_t)frame.bytes, false);
            return (size_t)frame.bytes;
        }
        break;
    case OFFER: wrong = hear_offer(fabric, e, &frame); break;
    case PULL:
    case RELEASE: wrong = hear_wish(fabric, e, &frame); break;
    case DATA: wrong = hear_data(e, &frame); break;
    case GOODBYE: e->base.left = true; break;
    default: wrong = cannot_be; break;
    }
    if (wrong == cannot_be) endpoint_mark_faulty(fabric, &e->base, wrong);
    if (wrong) endpoint_end(fabric, e, wrong);
    return 0;
}

/* ---- bytes ---- */
static size_t head_needs(const struct incoming *in)
{
    struct tcp_frame frame;
    if (in->head_bytes < sizeof frame) return sizeof frame - in->head_bytes;
    memcpy(&frame, in->head, sizeof frame);
    return frame.what <= OFFER ? MOST_HEAD - in->head_bytes : 0;
}
static void frame_hear(struct fabric *fabric, struct tcp_endpoint *e, unsigned char *at, size_t bytes)
{
    struct incoming *in = &e->in;
    while (bytes && e->handle.descriptor >= 0) {
        size_t needed = in->left ? in->left : head_needs(in), n = size_smaller(needed, bytes);
        memcpy(in->left ? in->into : in->head + in->head_bytes, at, n);
        at += n;
        bytes -= n;
        if (in->left) {
            in->into += n;
            in->left -= n;
            if (!in->left) is_whole(fabric, e);
            continue;
        }
        in->head_bytes += n;
        if (head_needs(in)) continue;
        n = begin_frame(fabric, e, at, bytes);
        at += n;
        bytes -= n;
    }
}
/* Reads first to the place of the current frame, then into the buffer. During a fetch it reads only AHEAD_BYTES into
   the buffer, because most of the bytes that follow belong elsewhere. */
static ssize_t read_some(struct fabric *fabric, struct tcp_endpoint *e, size_t *asked)
{
    struct incoming *in = &e->in;
    unsigned char *buffer = sockets_of(fabric)->buffer;
    bool bulk = e->fetching.first;
    size_t direct = size_smaller(in->left, READ_BYTES),
           beyond = direct < in->left ? 0
        : bulk                        ? AHEAD_BYTES
                                      : BUFFER_BYTES;
    struct iovec list[2] = { { in->into, direct }, { buffer, beyond } };
    *asked = direct + beyond;
    if (e->tls) return tls_receive(e->tls, e->handle.descriptor, list, 2);
    if (!direct) return recv(e->handle.descriptor, buffer, beyond, MSG_DONTWAIT);
    return readv(e->handle.descriptor, list, 2);
}
static void hear_all(struct fabric *fabric, struct tcp_endpoint *e, size_t bytes)
{
    struct incoming *in = &e->in;
    size_t direct = size_smaller(in->left, bytes);
    if (direct) {
        in->into += direct;
        in->left -= direct;
        if (!in->left) is_whole(fabric, e);
    }
    frame_hear(fabric, e, sockets_of(fabric)->buffer, bytes - direct);
}
/* Returns whether frames should be written before more are read: the peer has pulled a message, or a receive has met an
   announced one. */
static bool is_asked(const struct fabric *fabric)
{
    return sockets_of(fabric)->busy || (fabric->polling && fabric->polling->met.first);
}
bool endpoint_read(struct fabric *fabric, struct tcp_endpoint *e)
{
    size_t all = 0, asked = 0;
    while (all < READ_BYTES && is_connected(e)) {
        ssize_t n = read_some(fabric, e, &asked);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) break;
        if (n <= 0) {
            endpoint_end(fabric, e, n < 0 ? strerror(errno) : "its process has closed the connection");
            return true;
        }
        hear_all(fabric, e, (size_t)n);
        all += (size_t)n;
        /* A short read means that the socket is empty. */
        if ((size_t)n < asked) break;
        if (is_asked(fabric)) break;
    }
    /* The TLS handshake may have an answer to send, or may be complete. */
    if (is_connected(e) && e->tls) endpoint_push(fabric, e);
    return all > 0;
}
