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

int frame_stream_put(struct frame_stream *w, const void *message, size_t bytes, size_t most)
{
    struct frame frame = { (uint32_t)bytes, w->got };
    size_t whole = sizeof frame + bytes;
    if (w->put - w->taken + whole > most || w->out_bytes + whole > sizeof w->out) return -EAGAIN;
    memcpy(w->out + w->out_bytes, &frame, sizeof frame);
    memcpy(w->out + w->out_bytes + sizeof frame, message, bytes);
    w->out_bytes += whole;
    w->put += (uint32_t)whole;
    w->acked = w->got;
    return 0;
}
static ssize_t frame_stream_send_some(struct frame_stream *w, int socket)
{
    const struct iovec all = { w->out, w->out_bytes };
    return w->tls ? tls_send(w->tls, socket, &all, 1) : send(socket, w->out, w->out_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}
static ssize_t frame_stream_receive_some(struct frame_stream *w, int socket)
{
    const struct iovec room = { w->in + w->in_bytes, sizeof w->in - w->in_bytes };
    return w->tls ? tls_receive(w->tls, socket, &room, 1) : recv(socket, room.iov_base, room.iov_len, MSG_DONTWAIT);
}
int frame_stream_push(struct frame_stream *w, int socket)
{
    while (w->out_bytes) {
        ssize_t sent = frame_stream_send_some(w, socket);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return errno == EAGAIN ? 0 : -errno;
        w->out_bytes -= (size_t)sent;
        memmove(w->out, w->out + sent, w->out_bytes);
    }
    return w->tls ? tls_push(w->tls, socket) : 0;
}
bool frame_stream_waits_for_socket(const struct frame_stream *w)
{
    return (w->out_bytes && tls_is_open(w->tls)) || tls_has_unsent(w->tls);
}
bool frame_stream_has_unsent(const struct frame_stream *w)
{
    return w->out_bytes || tls_has_unsent(w->tls) || !tls_is_open(w->tls);
}
void frame_stream_free(struct frame_stream *w)
{
    if (w) tls_free(w->tls);
    free(w);
}
int frame_stream_pull(struct frame_stream *w, int socket)
{
    ssize_t came;
    do came = frame_stream_receive_some(w, socket);
    while (came < 0 && errno == EINTR);
    if (came < 0) return -errno;
    w->in_bytes += (size_t)came;
    return (int)came;
}
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
int frame_stream_next_message(struct frame_stream *w, union link_message *out)
{
    struct frame frame;
    if (w->in_bytes < sizeof frame) return 0;
    memcpy(&frame, w->in, sizeof frame);
    uint32_t sent = w->put - (uint32_t)w->out_bytes;
    if (frame.length < sizeof(struct packet) || frame.length > sizeof *out) return -EPROTO;
    /* A peer cannot acknowledge bytes that were not sent. */
    if (frame.received - w->taken > sent - w->taken) return -EPROTO;
    size_t whole = sizeof frame + frame.length;
    if (w->in_bytes < whole) return 0;
    memcpy(out, w->in + sizeof frame, frame.length);
    if (!link_message_is_for_us(out, frame.length)) return -EPROTO;
    w->in_bytes -= whole;
    memmove(w->in, w->in + whole, w->in_bytes);
    w->got += (uint32_t)whole;
    w->taken = frame.received;
    return (int)frame.length;
}
