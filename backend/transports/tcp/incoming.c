/* The receiving side. One read takes many small frames into a buffer that all connections share. The bytes of a frame
 * that has begun go straight to their place. Frames are checked before use, and an invalid one ends the connection. */
#include "backend/base/memory.h"
#include "backend/transports/tcp/sockets.h"
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

static const char invalid_message[] = "its process has sent an invalid message";
static const char no_memory[] = "no memory for an incoming message";

/* ---- frames: a handler returns NULL, or the reason to end the connection ---- */
/* Returns the header that follows the head of an EAGER or OFFER frame. */
static struct header incoming_frame_header(const struct incoming_frame *in)
{
    struct header header;
    memcpy(&header, in->head + sizeof(struct tcp_frame), sizeof header);
    return header;
}
/* Handles OFFER: passes an announced message to the fabric, or releases it. Returns NULL, or the reason to end the
   connection. */
static const char *tcp_endpoint_handle_offer(struct fabric *fabric, struct tcp_endpoint *endpoint,
    const struct tcp_frame *frame)
{
    struct header header = incoming_frame_header(&endpoint->in);
    if (!frame->extent || frame->id <= endpoint->last_offer) return invalid_message;
    struct tcp_xfer *xfer = tcp_xfer_new(fabric, endpoint);
    if (!xfer) return no_memory;
    xfer->frame.id = endpoint->last_offer = frame->id;
    xfer->bytes = (size_t)frame->extent;
    if (!fabric_handle_message(fabric, &endpoint->base, &header, xfer, xfer->bytes, true)) tcp_release(fabric, xfer);
    return NULL;
}
/* Handles PULL (the parts of the message are sent) and RELEASE (the message will not be received, so its send is
   complete). Returns NULL, or the reason to end the connection. */
static const char *tcp_endpoint_handle_answer(struct fabric *fabric, struct tcp_endpoint *endpoint,
    const struct tcp_frame *frame)
{
    struct tcp_xfer *xfer = tcp_xfers_find(&endpoint->offered, frame->id);
    if (!xfer) return invalid_message;
    tcp_xfers_remove(&endpoint->offered, xfer);
    if (frame->kind == RELEASE) {
        tcp_xfer_complete(fabric, xfer, NULL);
        return NULL;
    }
    tcp_xfer_begin_part(xfer);
    tcp_xfers_push_by_priority(&endpoint->pulled, xfer);
    if (!(endpoint->handle.events & EPOLLOUT)) tcp_endpoint_make_busy(fabric, endpoint);
    return NULL;
}
/* Handles the head of a DATA frame: its bytes go straight into the receiver's buffer. Returns NULL, or the reason to
   end the connection. */
static const char *tcp_endpoint_handle_data(struct tcp_endpoint *endpoint, const struct tcp_frame *frame)
{
    struct tcp_xfer *xfer = tcp_xfers_find(&endpoint->fetching, frame->id);
    if (!xfer || !frame->bytes || frame->extent != xfer->moved || frame->bytes > xfer->bytes - xfer->moved)
        return invalid_message;
    endpoint->in.fetch = xfer;
    endpoint->in.into = xfer->into + xfer->moved;
    endpoint->in.missing = (size_t)frame->bytes;
    return NULL;
}
/* Handles the head of an EAGER frame whose bytes have not all arrived: they go into the buffer of a new op. Returns
   NULL, or the reason to end the connection. */
static const char *incoming_frame_expect_eager(struct fabric *fabric, struct incoming_frame *in,
    const struct tcp_frame *frame)
{
    in->eager_op = fabric_op_new(fabric, (size_t)frame->bytes);
    if (!in->eager_op) return no_memory;
    in->into = in->eager_op->buffer;
    in->missing = in->eager_op->bytes = (size_t)frame->bytes;
    return NULL;
}
/* Ends a DATA frame of the transfer; after the last part the fetch is complete. */
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
    struct fabric_op *eager_op = endpoint->in.eager_op;
    if (endpoint->in.fetch) tcp_endpoint_end_data_part(fabric, endpoint, endpoint->in.fetch);
    if (!eager_op) return;
    struct header header = incoming_frame_header(&endpoint->in);
    endpoint->in.eager_op = NULL;
    fabric_handle_message(fabric, &endpoint->base, &header, eager_op->buffer, eager_op->bytes, false);
    fabric_op_free(fabric, eager_op);
}
/* Handles a frame whose head has arrived, and which the `bytes` bytes at `at` follow. Returns how many of these bytes
   it has handled. An invalid frame ends the endpoint. */
static size_t tcp_endpoint_begin_frame(struct fabric *fabric, struct tcp_endpoint *endpoint, unsigned char *at,
    size_t bytes)
{
    struct tcp_frame frame;
    const char *problem = NULL;
    memcpy(&frame, endpoint->in.head, sizeof frame);
    endpoint->in.head_bytes = 0;
    if (frame.kind != EAGER && frame.kind != DATA && frame.bytes) frame.kind = UINT64_MAX;
    switch (frame.kind) {
    case EAGER:
        if (frame.bytes > EAGER_BYTES) problem = invalid_message;
        else if (frame.bytes > bytes) problem = incoming_frame_expect_eager(fabric, &endpoint->in, &frame);
        else {
            struct header header = incoming_frame_header(&endpoint->in);
            fabric_handle_message(fabric, &endpoint->base, &header, at, (size_t)frame.bytes, false);
            return (size_t)frame.bytes;
        }
        break;
    case OFFER: problem = tcp_endpoint_handle_offer(fabric, endpoint, &frame); break;
    case PULL:
    case RELEASE: problem = tcp_endpoint_handle_answer(fabric, endpoint, &frame); break;
    case DATA: problem = tcp_endpoint_handle_data(endpoint, &frame); break;
    case GOODBYE: endpoint->base.has_left = true; break;
    default: problem = invalid_message; break;
    }
    if (problem == invalid_message) endpoint_mark_faulty(fabric, &endpoint->base, problem);
    if (problem) tcp_endpoint_end(fabric, endpoint, problem);
    return 0;
}

/* ---- bytes ---- */
/* Returns how many bytes of the head of the frame, its header included, have not arrived. */
static size_t incoming_frame_head_missing(const struct incoming_frame *in)
{
    struct tcp_frame frame;
    if (in->head_bytes < sizeof frame) return sizeof frame - in->head_bytes;
    memcpy(&frame, in->head, sizeof frame);
    return frame.kind <= OFFER ? MOST_HEAD - in->head_bytes : 0;
}
/* Handles `bytes` bytes of the common buffer at `at`: heads of frames, and bytes of frames that have begun. */
static void tcp_endpoint_parse_frames(struct fabric *fabric, struct tcp_endpoint *endpoint, unsigned char *at,
    size_t bytes)
{
    struct incoming_frame *in = &endpoint->in;
    while (bytes && endpoint->handle.descriptor >= 0) {
        size_t needed = in->missing ? in->missing : incoming_frame_head_missing(in), n = size_smaller(needed, bytes);
        memcpy(in->missing ? in->into : in->head + in->head_bytes, at, n);
        at += n;
        bytes -= n;
        if (in->missing) {
            in->into += n;
            in->missing -= n;
            if (!in->missing) tcp_endpoint_end_frame(fabric, endpoint);
            continue;
        }
        in->head_bytes += n;
        if (incoming_frame_head_missing(in)) continue;
        n = tcp_endpoint_begin_frame(fabric, endpoint, at, bytes);
        at += n;
        bytes -= n;
    }
}
/* Reads once from the socket: first the missing bytes of the current frame to their destination, then into the common
   buffer. Returns the number of bytes, 0 at the end, or -1 with errno; *asked is how many it asked for. During a fetch
   it reads only AHEAD_BYTES into the buffer, because most of the bytes that follow belong elsewhere. */
static ssize_t tcp_endpoint_read_some(struct fabric *fabric, struct tcp_endpoint *endpoint, size_t *asked)
{
    struct incoming_frame *in = &endpoint->in;
    unsigned char *buffer = tcp_sockets_of(fabric)->buffer;
    bool has_fetch = endpoint->fetching.first;
    size_t direct = size_smaller(in->missing, READ_BYTES),
           buffered = direct < in->missing ? 0
        : has_fetch                        ? AHEAD_BYTES
                                           : BUFFER_BYTES;
    struct iovec list[2] = { { in->into, direct }, { buffer, buffered } };
    *asked = direct + buffered;
    if (endpoint->tls) return tls_receive(endpoint->tls, endpoint->handle.descriptor, list, 2);
    if (!direct) return recv(endpoint->handle.descriptor, buffer, buffered, MSG_DONTWAIT);
    return readv(endpoint->handle.descriptor, list, 2);
}
/* Handles `bytes` bytes of one read: first those read straight to their destination, then those in the common
   buffer. */
static void tcp_endpoint_take_bytes(struct fabric *fabric, struct tcp_endpoint *endpoint, size_t bytes)
{
    struct incoming_frame *in = &endpoint->in;
    size_t direct = size_smaller(in->missing, bytes);
    if (direct) {
        in->into += direct;
        in->missing -= direct;
        if (!in->missing) tcp_endpoint_end_frame(fabric, endpoint);
    }
    tcp_endpoint_parse_frames(fabric, endpoint, tcp_sockets_of(fabric)->buffer, bytes - direct);
}
/* Returns whether frames should be written before more are read: a peer has pulled a message, or a receive has met an
   announced one. */
static bool tcp_has_urgent_frames(const struct fabric *fabric)
{
    return tcp_sockets_of(fabric)->busy_endpoints || (fabric->polling && fabric->polling->due_fetches.first);
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
