/* A connection of this host, from its acceptance to its end. Both ends prove that they know the key of a shared group
 * (handshake.h). If two processes connect to each other at once, the connection of the smaller nonce stays, and the
 * other is superfluous. */
#include "backend/processes/local_peer.h"
#include "backend/base/clock.h"
#include "backend/host/socket.h"
#include "backend/processes/handshake.h"
#include "backend/processes/registry.h"
#include "backend/processes/views.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { HELLO_MS = 2000 };

/* ---- the operations ---- */
static int local_peer_send(struct peer *peer, const struct packet *packet, size_t bytes, int attached_fd)
{
    return socket_send(peer->descriptor, packet, bytes, attached_fd);
}
static void local_peer_set_await_room(struct peer *peer, bool on) { registry_poll_writing(peer->descriptor, on); }
static void local_peer_close(struct peer *peer) { registry_close_descriptor(&peer->descriptor); }
const struct peer_ops local_peer_ops = {
    .send = local_peer_send,
    .set_await_room = local_peer_set_await_room,
    .close = local_peer_close,
    .free = views_free_all,
};

/* ---- packets of peers ---- */
/* Handles a packet of an open peer and takes over `attached_fd`. Returns true while the connection lasts. */
static bool local_peer_handle_packet(struct peer *peer, const struct packet *packet, int attached_fd)
{
    if (packet->kind == DESCRIPTOR) {
        /* `attached_fd` is -1 if this process had no room for it, and the rank that waits for it gets an error. */
        registry_keep_early_descriptor(packet->token, attached_fd);
        return true;
    }
    if (packet->kind == BLOCK) {
        views_receive_block(peer, packet->token, attached_fd);
        return true;
    }
    descriptor_close(&attached_fd);
    if (packet->kind == WANTED) {
        views_send_block(peer, packet->token);
        return true;
    }
    if (packet->kind == JOIN_ABORTED) {
        peer_receive_join_abort(peer, packet);
        return true;
    }
    peer_end(peer, packet->kind == GOODBYE ? LEFT : LOST);
    return false;
}
/* Continues the handshake of a connection attempt by this process. Returns false if the next message has not arrived or
   the attempt is over. */
static bool local_peer_connect_advance(struct peer *peer)
{
    struct handshake *handshake = peer->handshake;
    bool has_sent_hello = handshake->has_sent_hello;
    int got = has_sent_hello ? handshake_receive_answer(handshake, peer->descriptor)
                             : handshake_receive_opening(handshake, peer->descriptor);
    if (got == 0) return false;
    if (got > 0 && has_sent_hello) peer_open(peer);
    else if (got > 0)
        got = handshake_send_hello(handshake, &registry.self, peer->identity.nonce, &peer->key, 0, peer->descriptor);
    if (got >= 0) return true;
    /* Without users the connection of the other process, when it comes, makes a new peer. */
    if (got == -EALREADY && peer->users) {
        registry_close_descriptor(&peer->descriptor);
        peer->awaits_incoming = true;
        pthread_cond_broadcast(&registry.changed);
    } else {
        peer->error = got;
        peer_end(peer, REFUSED);
    }
    return false;
}
/* Continues the handshake if needed, and handles all packets that the peer has sent. A packet may carry a file
   descriptor (`attached_fd`). The peer may end. */
static void local_peer_receive_packets(struct peer *peer)
{
    struct packet_and_ctrl_msg message;
    int attached_fd;
    while (peer->state == CONNECTING)
        if (!local_peer_connect_advance(peer)) return;
    for (;;) {
        int got = socket_receive(peer->descriptor, &message, sizeof message, &attached_fd);
        if (got == -EAGAIN) return;
        if (ctrl_msg_is_for_us(got, &message)) {
            descriptor_close(&attached_fd);
            peer_receive_ctrl_msg(peer, &message.msg);
            continue;
        }
        if (!packet_is_for_us(got, &message.packet)) break;
        if (!local_peer_handle_packet(peer, &message.packet, attached_fd)) return;
    }
    descriptor_close(&attached_fd);
    peer_end(peer, LOST);
}
void local_peer_on_ready(struct peer *peer)
{
    if (peer->unsent.first || peer->owes_join_aborts) peer_flush_queue(peer);
    local_peer_receive_packets(peer);
}

/* ---- connections without a proof ---- */
/* Answers a caller that has proved its identity. Takes its connection as the one of the peer, unless this process keeps
   another one: an open one, or, if both connect to each other and its own nonce is smaller, its own. */
static void pending_conn_welcome(struct pending_conn *pending)
{
    const struct handshake_hello *hello = &pending->handshake.hello;
    const unsigned char *from = hello->from.nonce;
    struct peer *peer = registry_find_peer(from);
    /* The old connection may have ended unnoticed, and this is the next one. */
    if (peer && peer->state == OPEN) {
        local_peer_receive_packets(peer);
        peer = registry_find_peer(from);
    }
    bool has_connection = peer && peer->descriptor >= 0;
    bool keeps_connection = has_connection && (peer->state == OPEN || memcmp(registry.self.nonce, from, 16) < 0);
    if (!peer) peer = registry_add_peer(&hello->from, &hello->key, &local_peer_ops);
    if (!peer || keeps_connection) {
        if (peer) handshake_send_answer(&pending->handshake, HANDSHAKE_SUPERFLUOUS, 0, pending->descriptor);
        registry_close_descriptor(&pending->descriptor);
        return;
    }
    registry_close_descriptor(&peer->descriptor);
    peer->descriptor = pending->descriptor;
    int error = handshake_send_answer(&pending->handshake, HANDSHAKE_WELCOME, 0, pending->descriptor);
    peer_open(peer);
    if (error) peer_end(peer, LOST);
}
/* Handles the hello of the pending connection with that index, which then is not pending any more. Returns false if the
   hello has not arrived. */
static bool pending_conn_receive(int index)
{
    struct pending_conn *unproved = &registry.pending[index];
    int got = handshake_receive_hello(&unproved->handshake, registry.self.nonce, unproved->descriptor);
    if (got == 0) return false;
    struct pending_conn pending = registry_take_pending_conn(index);
    if (got > 0 && !nonce_equal(pending.handshake.hello.from.nonce, registry.self.nonce))
        pending_conn_welcome(&pending);
    else if (got == -ECONNRESET) registry_close_descriptor(&pending.descriptor);
    else {
        handshake_send_refusal(&pending.handshake, got, pending.descriptor);
        registry_refuse_connection(pending.descriptor, handshake_refusal_text(&pending.handshake, got));
    }
    return true;
}
/* Drops the oldest pending connection for the reason `why`, unless its hello arrived meanwhile, for example while this
   process was stopped. */
static void pending_conn_dismiss(const char *why)
{
    if (!pending_conn_receive(0)) registry_refuse_connection(registry_take_pending_conn(0).descriptor, why);
}
void pending_conn_accept(void)
{
    int descriptor = socket_accept(registry.listener);
    if (descriptor == -EPERM) { registry_refuse_connection(-1, "belongs to another user"); return; }
    if (descriptor < 0) { registry.out_of_descriptors = descriptor != -EAGAIN; return; }
    if (registry.pending_count == MOST_PENDING) pending_conn_dismiss("sent nothing while many others connected");
    struct pending_conn *pending = &registry.pending[registry.pending_count];
    *pending = (struct pending_conn){ .descriptor = descriptor, .until_ms = clock_ms() + HELLO_MS };
    if (handshake_send_opening(&pending->handshake, handshake_of_peers, descriptor) != 0
        || registry_poll_add(descriptor) != 0)
        close(descriptor);
    else registry.pending_count++;
}
void pending_conns_on_ready(int descriptor)
{
    for (int i = 0; i < registry.pending_count; i++)
        if (registry.pending[i].descriptor == descriptor) { pending_conn_receive(i); return; }
}
void pending_conns_expire(void)
{
    while (registry.pending_count && registry.pending[0].until_ms <= clock_ms()) pending_conn_dismiss("sent nothing");
}
