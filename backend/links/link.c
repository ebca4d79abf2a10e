/* One link, from the end of its handshake to its own end. A message that finds no room waits until the other end has
 * read more, or the socket takes more. A control message waits in the peer's queue (processes/peer.c), and any other
 * packet as a flag of the link. */
#include "backend/links/link.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/base/settings.h"
#include "backend/links/tcp.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The other files of this folder call link.c. So the state that all share is here, and no two files need each other. */
struct links links = { .listener = -1, .due_ms = INT64_MAX };
void links_schedule_tick(int64_t at_ms)
{
    if (at_ms < links.due_ms) links.due_ms = at_ms;
}

/* ---- lifetime ---- */
struct peer *link_find(const unsigned char nonce[16]) { return registry_find_kind(nonce, true); }
void link_request_connect(struct peer *peer)
{
    if (peer->state != CONNECTING) return;
    if (!peer->link->wanted_since_ms) peer->link->wanted_since_ms = clock_ms();
    links_schedule_tick(clock_ms());
    registry_wake();
}
/* Sends what the socket takes, and makes the watch thread call again when it takes more. */
static void link_flush_stream(struct peer *peer)
{
    struct link *link = peer->link;
    int error = frame_stream_push(link->stream, peer->descriptor);
    /* The next read of the socket ends the link. The error is kept for it, because a socket reports an error once. */
    if (error && !link->error) link->error = error;
    bool is_full = !error && frame_stream_waits_for_socket(link->stream);
    if (is_full != link->is_full) registry_poll_writing(peer->descriptor, is_full);
    link->is_full = is_full;
}
bool link_open(struct peer *peer, const struct handshake *handshake, bool is_incoming)
{
    struct link *link = peer->link;
    link->stream = memory_alloc_zeroed(1, sizeof *link->stream);
    int error = link->stream ? tls_create_after_handshake(handshake, is_incoming, &link->stream->tls) : -ENOMEM;
    if (error) { link_end(peer, error); return false; }
    link->stage = IDLE;
    link->was_open = true;
    link->error = 0;
    link->from = tcp_local_address(peer->descriptor);
    link->sent_ms = clock_ms();
    links_schedule_tick(0);
    peer_open(peer);
    /* This begins the TLS handshake. */
    link_flush_stream(peer);
    link_send_owed(peer);
    return true;
}
void link_end(struct peer *peer, int error)
{
    peer->link->error = error;
    LOG(INFO, "the link to process %llu on %s has ended: %s", (unsigned long long)peer->identity.pid,
        peer->identity.host, strerror(-error));
    peer_end(peer, LOST);
}

/* ---- sending ---- */
/* Puts a message into the stream and sends what the socket takes. Returns 0 or -errno; -EAGAIN if more than
   `most_in_flight` bytes would be in flight, or the link is not open yet. At the end of the registry only the stream's
   buffer is a limit, because the watch thread reads no more acknowledgements. */
static int link_put_frame(struct peer *peer, const void *message, size_t bytes, size_t most_in_flight)
{
    if (peer->state != OPEN) return peer->state == CONNECTING ? -EAGAIN : -EPIPE;
    int error = frame_stream_put(peer->link->stream, message, bytes, registry.stopping ? SIZE_MAX : most_in_flight);
    if (error) return error;
    peer->link->sent_ms = clock_ms();
    link_flush_stream(peer);
    return 0;
}
/* Sends a packet with the data behind it, within the window of its kind. Returns 0 or -errno; -EAGAIN: no room. */
static int link_send_packet(struct peer *peer, const struct packet *packet, size_t bytes)
{
    return link_put_frame(peer, packet, bytes, packet->kind == CTRL_MSG ? CTRL_WINDOW : PACKET_WINDOW);
}
/* Sends a heartbeat, which also acknowledges, if at most that many bytes are in flight afterwards. */
static void link_send_heartbeat(struct peer *peer, size_t most_in_flight)
{
    struct packet packet = packet_make_from_us(peer->identity.nonce, HEARTBEAT);
    link_put_frame(peer, &packet, sizeof packet, most_in_flight);
}
/* Sends this process's process address. Returns false if there is no room. */
static bool link_send_address(struct peer *peer)
{
    struct packet_and_address message = { .packet = packet_make_from_us(peer->identity.nonce, ADDRESS) };
    memcpy(message.process_address, links.process_address->content, links.process_address->bytes);
    return link_send_packet(peer, &message.packet, sizeof message.packet + links.process_address->bytes) == 0;
}
void link_send_owed(struct peer *peer)
{
    struct link *link = peer->link;
    if (peer->state != OPEN) return;
    if (link->wants_address && peer_send_packet(peer, ADDRESS_REQUEST, NULL, -1) == 0) link->wants_address = false;
    if (link->owes_address && link_send_address(peer)) link->owes_address = false;
    if (peer->unsent.first || peer->owes_join_aborts) peer_flush_queue(peer);
    if (link->stream->got - link->stream->acknowledged >= ACK_BYTES) link_send_heartbeat(peer, STREAM_WINDOW);
}
bool link_push(struct peer *peer)
{
    if (peer->state != OPEN) return false;
    /* The watch thread has stopped, so this thread reads the answer that the TLS handshake waits for. */
    if (!tls_is_open(peer->link->stream->tls)) frame_stream_pull(peer->link->stream, peer->descriptor);
    link_flush_stream(peer);
    return peer->unsent.first || frame_stream_has_unsent(peer->link->stream);
}

/* ---- receiving ---- */
/* Stores the peer's process address from a message of `bytes` bytes. */
static void link_store_address(struct link *link, const struct packet_and_address *message, size_t bytes)
{
    if (!link->process_address) link->process_address = memory_alloc_zeroed(1, sizeof *link->process_address);
    /* Without memory the address is requested again later. */
    if (!link->process_address) { link->wants_address = true; return; }
    link->process_address->bytes = bytes - sizeof message->packet;
    memcpy(link->process_address->content, message->process_address, link->process_address->bytes);
}
/* Handles a message. Returns false if the link has ended. A heartbeat needs no handling. */
static bool link_handle_message(struct peer *peer, const union link_message *m, size_t bytes)
{
    struct link *link = peer->link;
    switch (m->packet.kind) {
    case CTRL_MSG: peer_receive_ctrl_msg(peer, &m->entry.msg); return true;
    case ADDRESS: link_store_address(link, &m->process_address, bytes); return true;
    case ADDRESS_REQUEST:
        link->was_asked = true;
        link->owes_address = links.process_address != NULL;
        return true;
    case JOIN_ABORTED: peer_receive_join_abort(peer, &m->packet); return true;
    case GOODBYE: peer_end(peer, LEFT); return false;
    default: return true;
    }
}
/* Handles all complete messages of the stream. Returns false if the link has ended. */
static bool link_handle_messages(struct peer *peer)
{
    union link_message message;
    int bytes;
    while ((bytes = frame_stream_next_message(peer->link->stream, &message)) > 0)
        if (!link_handle_message(peer, &message, (size_t)bytes)) return false;
    if (bytes < 0) link_end(peer, bytes);
    return bytes == 0;
}
void link_receive(struct peer *peer)
{
    link_flush_stream(peer);
    for (;;) {
        int got = frame_stream_pull(peer->link->stream, peer->descriptor);
        if (got == -EAGAIN) break;
        if (got <= 0) { link_end(peer, got ? got : peer->link->error ? peer->link->error : -ECONNRESET); return; }
        if (!link_handle_messages(peer)) return;
    }
    /* The TLS handshake may have waited for the bytes that arrived. */
    if (peer->link->stream->tls) link_flush_stream(peer);
    link_send_owed(peer);
}

/* ---- time ---- */
void link_tick_open(struct peer *peer, int64_t now_ms)
{
    struct link *link = peer->link;
    int64_t period_ms = settings_get()->peer_timeout_ms / 10;
    if (now_ms - link->sent_ms >= period_ms) {
        /* A peer that does not read leaves no room for a heartbeat. Then TCP's keepalive probes the peer's host. */
        link_send_heartbeat(peer, CTRL_WINDOW);
        link->sent_ms = now_ms;
    }
    links_schedule_tick(link->sent_ms + period_ms);
}

/* ---- the operations ---- */
/* Sends a packet (peer_ops.send). A link carries no descriptors. */
static int link_send(struct peer *peer, const struct packet *packet, size_t bytes, int attached_fd)
{
    return attached_fd < 0 ? link_send_packet(peer, packet, bytes) : -EOPNOTSUPP;
}
/* Starts to connect a link that has messages to send (peer_ops.set_await_room). An open link sends its queue each
   time its socket is ready, so there is nothing to do when `on` is false. */
static void link_set_await_room(struct peer *peer, bool on)
{
    if (on) link_request_connect(peer);
}
static void link_close(struct peer *peer)
{
    if (peer->descriptor >= 0) tcp_drain(peer->descriptor);
    registry_close_descriptor(&peer->descriptor);
}
static void link_free(struct peer *peer)
{
    frame_stream_free(peer->link->stream);
    free(peer->link->process_address);
    free(peer->link);
}
static const struct peer_ops link_ops = {
    .send = link_send,
    .set_await_room = link_set_await_room,
    .close = link_close,
    .free = link_free,
};
struct peer *link_add(const struct identity *identity, const struct key_id *key)
{
    struct link *link = memory_alloc_zeroed(1, sizeof *link);
    struct peer *peer = link ? registry_add_peer(identity, key, &link_ops) : NULL;
    if (!peer) free(link);
    else peer->link = link;
    return peer;
}
