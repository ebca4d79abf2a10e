/* Every received length is checked before its use. Numbers are in the host's byte order. A host with another byte order
 * is refused in the handshake, because it reads another version number. */
#include "backend/links/frame.h"
#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static_assert(sizeof(struct frame) == 8
        && sizeof(struct packet_and_address) == sizeof(struct packet) + PROCESS_ADDRESS_BYTES,
    "no padding");
static_assert(sizeof(struct frame) + sizeof(union link_message) <= STREAM_IN_BYTES, "the longest frame fits");

int frame_stream_put(struct frame_stream *stream, const void *message, size_t bytes, size_t most)
{
    struct frame frame = { (uint32_t)bytes, stream->got };
    size_t whole = sizeof frame + bytes;
    if (stream->put - stream->taken + whole > most || stream->out_bytes + whole > sizeof stream->out) return -EAGAIN;
    memcpy(stream->out + stream->out_bytes, &frame, sizeof frame);
    memcpy(stream->out + stream->out_bytes + sizeof frame, message, bytes);
    stream->out_bytes += whole;
    stream->put += (uint32_t)whole;
    stream->acked = stream->got;
    return 0;
}
static ssize_t frame_stream_send_some(struct frame_stream *stream, int socket)
{
    const struct iovec all = { stream->out, stream->out_bytes };
    return stream->tls ? tls_send(stream->tls, socket, &all, 1)
                       : send(socket, stream->out, stream->out_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}
static ssize_t frame_stream_receive_some(struct frame_stream *stream, int socket)
{
    const struct iovec room = { stream->in + stream->in_bytes, sizeof stream->in - stream->in_bytes };
    return stream->tls ? tls_receive(stream->tls, socket, &room, 1)
                       : recv(socket, room.iov_base, room.iov_len, MSG_DONTWAIT);
}
int frame_stream_push(struct frame_stream *stream, int socket)
{
    while (stream->out_bytes) {
        ssize_t sent = frame_stream_send_some(stream, socket);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return errno == EAGAIN ? 0 : -errno;
        stream->out_bytes -= (size_t)sent;
        memmove(stream->out, stream->out + sent, stream->out_bytes);
    }
    return stream->tls ? tls_push(stream->tls, socket) : 0;
}
bool frame_stream_waits_for_socket(const struct frame_stream *stream)
{
    return (stream->out_bytes && tls_is_open(stream->tls)) || tls_has_unsent(stream->tls);
}
bool frame_stream_has_unsent(const struct frame_stream *stream)
{
    return stream->out_bytes || tls_has_unsent(stream->tls) || !tls_is_open(stream->tls);
}
void frame_stream_free(struct frame_stream *stream)
{
    if (stream) tls_free(stream->tls);
    free(stream);
}
int frame_stream_pull(struct frame_stream *stream, int socket)
{
    ssize_t came;
    do came = frame_stream_receive_some(stream, socket);
    while (came < 0 && errno == EINTR);
    if (came < 0) return -errno;
    stream->in_bytes += (size_t)came;
    return (int)came;
}
/* True if a message has a possible length and is addressed to this process. */
static bool link_message_is_for_us(const union link_message *m, size_t bytes)
{
    switch (m->packet.kind) {
    case CTRL_MSG: return ctrl_msg_is_for_us((int)bytes, &m->entry);
    case ADDRESS: return packet_is_for_us(sizeof m->packet, &m->packet);
    case GOODBYE:
    case JOIN_ABORTED:
    case HEARTBEAT:
    case ADDRESS_REQUEST: return packet_is_for_us((int)bytes, &m->packet);
    default: return false;
    }
}
int frame_stream_next_message(struct frame_stream *stream, union link_message *out)
{
    struct frame frame;
    if (stream->in_bytes < sizeof frame) return 0;
    memcpy(&frame, stream->in, sizeof frame);
    uint32_t sent = stream->put - (uint32_t)stream->out_bytes;
    if (frame.length < sizeof(struct packet) || frame.length > sizeof *out) return -EPROTO;
    /* A peer cannot acknowledge bytes that were not sent. */
    if (frame.received - stream->taken > sent - stream->taken) return -EPROTO;
    size_t whole = sizeof frame + frame.length;
    if (stream->in_bytes < whole) return 0;
    memcpy(out, stream->in + sizeof frame, frame.length);
    if (!link_message_is_for_us(out, frame.length)) return -EPROTO;
    stream->in_bytes -= whole;
    memmove(stream->in, stream->in + whole, stream->in_bytes);
    stream->got += (uint32_t)whole;
    stream->taken = frame.received;
    return (int)frame.length;
}
