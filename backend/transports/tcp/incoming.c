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

/* ---- frames; a handler returns NULL, or the reason to end the connection ---- */
static struct header incoming_frame_header(const struct incoming_frame *in)
{
    struct header header;
    memcpy(&header, in->head + sizeof(struct tcp_frame), sizeof header);
    return header;
}
/* Handles OFFER: passes an announced message to its receive, or releases it. */
static const char *tcp_endpoint_handle_offer(struct fabric *fabric, struct tcp_endpoint *endpoint,
    const struct tcp_frame *frame)
{
    struct header header = incoming_frame_header(&endpoint->in);
    if (!frame->extent || frame->id <= endpoint->last_offer) return cannot_be;
    struct tcp_xfer *xfer = tcp_xfer_new(fabric, endpoint);
    if (!xfer) return no_memory;
    xfer->frame.id = endpoint->last_offer = frame->id;
    xfer->bytes = (size_t)frame->extent;
    if (!fabric_handle_message(fabric, &endpoint->base, &header, xfer, xfer->bytes, true)) tcp_release(fabric, xfer);
    return NULL;
}
/* Handles PULL (send the data) and RELEASE (the message is not received). */
static const char *tcp_endpoint_handle_answer(struct fabric *fabric, struct tcp_endpoint *endpoint,
    const struct tcp_frame *frame)
{
    struct tcp_xfer *xfer = tcp_xfers_find(&endpoint->offered, frame->id);
    if (!xfer) return cannot_be;
    tcp_xfers_remove(&endpoint->offered, xfer);
    if (frame->what == RELEASE) {
        tcp_xfer_complete(fabric, xfer, NULL);
        return NULL;
    }
    tcp_xfer_begin_part(xfer);
    tcp_xfers_push_by_priority(&endpoint->pulled, xfer);
    if (!(endpoint->handle.events & EPOLLOUT)) tcp_endpoint_make_busy(fabric, endpoint);
    return NULL;
}
/* Prepares to read a DATA frame straight into the receiver's buffer. */
static const char *tcp_endpoint_handle_data(struct tcp_endpoint *endpoint, const struct tcp_frame *frame)
{
    struct tcp_xfer *xfer = tcp_xfers_find(&endpoint->fetching, frame->id);
    if (!xfer || !frame->bytes || frame->extent != xfer->moved || frame->bytes > xfer->bytes - xfer->moved)
        return cannot_be;
    endpoint->in.fetch = xfer;
    endpoint->in.into = xfer->into + xfer->moved;
    endpoint->in.left = (size_t)frame->bytes;
    return NULL;
}
/* Prepares to read an EAGER frame into a new buffer. */
static const char *incoming_frame_expect_eager(struct fabric *fabric, struct incoming_frame *in,
    const struct tcp_frame *frame)
{
    in->room = fabric_op_new(fabric, (size_t)frame->bytes);
    if (!in->room) return no_memory;
    in->into = in->room->room;
    in->left = in->room->bytes = (size_t)frame->bytes;
    return NULL;
}
/* Ends a DATA frame; after the last part the fetch is complete. */
static void tcp_endpoint_end_data_part(struct fabric *fabric, struct tcp_endpoint *endpoint, struct tcp_xfer *xfer)
{
    endpoint->in.fetch = NULL;
    xfer->moved = (size_t)(endpoint->in.into - xfer->into);
    if (xfer->moved < xfer->bytes) return;
    tcp_xfers_remove(&endpoint->fetching, xfer);
    tcp_xfer_complete(fabric, xfer, NULL);
}
/* Handles a frame whose bytes have all arrived at their place. */
static void tcp_endpoint_end_frame(struct fabric *fabric, struct tcp_endpoint *endpoint)
{
    struct fabric_op *room = endpoint->in.room;
    if (endpoint->in.fetch) tcp_endpoint_end_data_part(fabric, endpoint, endpoint->in.fetch);
    if (!room) return;
    struct header header = incoming_frame_header(&endpoint->in);
    endpoint->in.room = NULL;
    fabric_handle_message(fabric, &endpoint->base, &header, room->room, room->bytes, false);
    fabric_op_free(fabric, room);
}
/* Handles a frame whose head has arrived. `bytes` bytes at `at` follow the head. Returns how many of them belong to the
   frame. */
static size_t tcp_endpoint_begin_frame(struct fabric *fabric, struct tcp_endpoint *endpoint, unsigned char *at,
    size_t bytes)
{
    struct tcp_frame frame;
    const char *wrong = NULL;
    memcpy(&frame, endpoint->in.head, sizeof frame);
    endpoint->in.head_bytes = 0;
    if (frame.what != EAGER && frame.what != DATA && frame.bytes) frame.what = UINT64_MAX;
    switch (frame.what) {
    case EAGER:
        if (frame.bytes > EAGER_BYTES) wrong = cannot_be;
        else if (frame.bytes > bytes) wrong = incoming_frame_expect_eager(fabric, &endpoint->in, &frame);
        else {
            struct header header = incoming_frame_header(&endpoint->in);
            fabric_handle_message(fabric, &endpoint->base, &header, at, (size_t)frame.bytes, false);
            return (size_t)frame.bytes;
        }
        break;
    case OFFER: wrong = tcp_endpoint_handle_offer(fabric, endpoint, &frame); break;
    case PULL:
    case RELEASE: wrong = tcp_endpoint_handle_answer(fabric, endpoint, &frame); break;
    case DATA: wrong = tcp_endpoint_handle_data(endpoint, &frame); break;
    case GOODBYE: endpoint->base.left = true; break;
    default: wrong = cannot_be; break;
    }
    if (wrong == cannot_be) endpoint_mark_faulty(fabric, &endpoint->base, wrong);
    if (wrong) tcp_endpoint_end(fabric, endpoint, wrong);
    return 0;
}

/* ---- bytes ---- */
static size_t incoming_frame_head_missing(const struct incoming_frame *in)
{
    struct tcp_frame frame;
    if (in->head_bytes < sizeof frame) return sizeof frame - in->head_bytes;
    memcpy(&frame, in->head, sizeof frame);
    return frame.what <= OFFER ? MOST_HEAD - in->head_bytes : 0;
}
/* Handles `bytes` bytes from the read buffer: heads, and bytes that belong to frames in progress. */
static void tcp_endpoint_parse_frames(struct fabric *fabric, struct tcp_endpoint *endpoint, unsigned char *at,
    size_t bytes)
{
    struct incoming_frame *in = &endpoint->in;
    while (bytes && endpoint->handle.descriptor >= 0) {
        size_t needed = in->left ? in->left : incoming_frame_head_missing(in), n = size_smaller(needed, bytes);
        memcpy(in->left ? in->into : in->head + in->head_bytes, at, n);
        at += n;
        bytes -= n;
        if (in->left) {
            in->into += n;
            in->left -= n;
            if (!in->left) tcp_endpoint_end_frame(fabric, endpoint);
            continue;
        }
        in->head_bytes += n;
        if (incoming_frame_head_missing(in)) continue;
        n = tcp_endpoint_begin_frame(fabric, endpoint, at, bytes);
        at += n;
        bytes -= n;
    }
}
/* Reads first to the place of the current frame, then into the buffer. During a fetch it reads only AHEAD_BYTES into
   the buffer, because most of the bytes that follow belong elsewhere. */
static ssize_t tcp_endpoint_read_some(struct fabric *fabric, struct tcp_endpoint *endpoint, size_t *asked)
{
    struct incoming_frame *in = &endpoint->in;
    unsigned char *buffer = tcp_sockets_of(fabric)->buffer;
    bool bulk = endpoint->fetching.first;
    size_t direct = size_smaller(in->left, READ_BYTES),
           beyond = direct < in->left ? 0
        : bulk                        ? AHEAD_BYTES
                                      : BUFFER_BYTES;
    struct iovec list[2] = { { in->into, direct }, { buffer, beyond } };
    *asked = direct + beyond;
    if (endpoint->tls) return tls_receive(endpoint->tls, endpoint->handle.descriptor, list, 2);
    if (!direct) return recv(endpoint->handle.descriptor, buffer, beyond, MSG_DONTWAIT);
    return readv(endpoint->handle.descriptor, list, 2);
}
/* Handles the result of one read: first the bytes read straight to their place, then those in the buffer. */
static void tcp_endpoint_take_bytes(struct fabric *fabric, struct tcp_endpoint *endpoint, size_t bytes)
{
    struct incoming_frame *in = &endpoint->in;
    size_t direct = size_smaller(in->left, bytes);
    if (direct) {
        in->into += direct;
        in->left -= direct;
        if (!in->left) tcp_endpoint_end_frame(fabric, endpoint);
    }
    tcp_endpoint_parse_frames(fabric, endpoint, tcp_sockets_of(fabric)->buffer, bytes - direct);
}
/* Returns whether frames should be written before more are read: the peer has pulled a message, or a receive has met an
   announced one. */
static bool tcp_has_urgent_frames(const struct fabric *fabric)
{
    return tcp_sockets_of(fabric)->busy || (fabric->polling && fabric->polling->met.first);
}
bool tcp_endpoint_read(struct fabric *fabric, struct tcp_endpoint *endpoint)
{
    size_t all = 0, asked = 0;
    while (all < READ_BYTES && tcp_endpoint_is_connected(endpoint)) {
        ssize_t n = tcp_endpoint_read_some(fabric, endpoint, &asked);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) break;
        if (n <= 0) {
            tcp_endpoint_end(fabric, endpoint, n < 0 ? strerror(errno) : "its process has closed the connection");
            return true;
        }
        tcp_endpoint_take_bytes(fabric, endpoint, (size_t)n);
        all += (size_t)n;
        /* A short read means that the socket is empty. */
        if ((size_t)n < asked) break;
        if (tcp_has_urgent_frames(fabric)) break;
    }
    /* The TLS handshake may have an answer to send, or may be complete. */
    if (tcp_endpoint_is_connected(endpoint) && endpoint->tls) tcp_endpoint_push_tls(fabric, endpoint);
    return all > 0;
}
