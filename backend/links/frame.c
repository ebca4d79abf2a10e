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

int frame_stream_put(struct frame_stream *stream, const void *message, size_t bytes, size_t most_in_flight)
{
    struct frame frame = { (uint32_t)bytes, stream->got };
    size_t frame_bytes = sizeof frame + bytes;
    if (stream->put - stream->taken + frame_bytes > most_in_flight
        || stream->out_bytes + frame_bytes > sizeof stream->out)
        return -EAGAIN;
    memcpy(stream->out + stream->out_bytes, &frame, sizeof frame);
    memcpy(stream->out + stream->out_bytes + sizeof frame, message, bytes);
    stream->out_bytes += frame_bytes;
    stream->put += (uint32_t)frame_bytes;
    stream->acknowledged = stream->got;
    return 0;
}
/* Sends or encrypts some of the queued bytes once. Returns their number, or -1 and errno. */
static ssize_t frame_stream_send_some(struct frame_stream *stream, int socket)
{
    const struct iovec all = { stream->out, stream->out_bytes };
    return stream->tls ? tls_send(stream->tls, socket, &all, 1)
                       : send(socket, stream->out, stream->out_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}
/* Receives once, as much as the buffer has room for. Returns the number of bytes, 0 at the end, or -1 and errno. */
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
    ssize_t received;
    do received = frame_stream_receive_some(stream, socket);
    while (received < 0 && errno == EINTR);
    if (received < 0) return -errno;
    stream->in_bytes += (size_t)received;
    return (int)received;
}
/* Returns true if a message of `bytes` bytes has a right length and is addressed to this process. */
static bool link_message_is_for_us(const union link_message *message, size_t bytes)
{
    switch (message->packet.kind) {
    case CTRL_MSG: return ctrl_msg_is_for_us((int)bytes, &message->entry);
    case ADDRESS: return packet_is_for_us(sizeof message->packet, &message->packet);
    case GOODBYE:
    case JOIN_ABORTED:
    case HEARTBEAT:
    case ADDRESS_REQUEST: return packet_is_for_us((int)bytes, &message->packet);
    default: return false;
    }
}
int frame_stream_next_message(struct frame_stream *stream, union link_message *out)
{
    struct frame frame;
    if (stream->in_bytes < sizeof frame) return 0;
    memcpy(&frame, stream->in, sizeof frame);
    uint32_t sent_total = stream->put - (uint32_t)stream->out_bytes;
    if (frame.length < sizeof(struct packet) || frame.length > sizeof *out) return -EPROTO;
    /* A peer cannot acknowledge bytes that were not sent. */
    if (frame.received - stream->taken > sent_total - stream->taken) return -EPROTO;
    size_t frame_bytes = sizeof frame + frame.length;
    if (stream->in_bytes < frame_bytes) return 0;
    memcpy(out, stream->in + sizeof frame, frame.length);
    if (!link_message_is_for_us(out, frame.length)) return -EPROTO;
    stream->in_bytes -= frame_bytes;
    memmove(stream->in, stream->in + frame_bytes, stream->in_bytes);
    stream->got += (uint32_t)frame_bytes;
    stream->taken = frame.received;
    return (int)frame.length;
}
