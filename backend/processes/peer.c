/* A control message that finds no room waits in the peer's queue, and a notice of an aborted join as a flag. */
#include "backend/processes/peer.h"
#include "backend/base/memory.h"
#include "backend/processes/handshake.h"
#include "backend/processes/registry.h"
#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct peer peer_freed = { .state = LOST, .descriptor = -1 };

/* ---- references ---- */
void peer_weak_ref_set(struct peer_weak_ref *ref, struct peer *peer)
{
    *ref = (struct peer_weak_ref){ .peer = peer, .next = peer->weak_refs, .at = &peer->weak_refs };
    if (ref->next) ref->next->at = &ref->next;
    peer->weak_refs = ref;
}
void peer_weak_ref_clear(struct peer_weak_ref *ref)
{
    if (!ref->at) return;
    *ref->at = ref->next;
    if (ref->next) ref->next->at = ref->at;
    *ref = (struct peer_weak_ref){ 0 };
}

/* ---- sending ---- */
int peer_send_packet(struct peer *peer, enum packet_kind kind, const unsigned char *token, int attached_fd)
{
    struct packet packet = packet_make_from_us(peer->identity.nonce, kind);
    if (token) memcpy(packet.token, token, sizeof packet.token);
    return peer->ops->send(peer, &packet, sizeof packet, attached_fd);
}
/* Sends a control message now. Returns 0 or -errno; -EAGAIN means that there is no room. */
static int peer_send_ctrl_msg(struct peer *peer, const struct ctrl_msg *msg)
{
    struct packet_and_ctrl_msg message;
    message.packet = packet_make_from_us(peer->identity.nonce, CTRL_MSG);
    memcpy(&message.msg, msg, offsetof(struct ctrl_msg, bytes) + msg->length);
    return peer->ops->send(peer, &message.packet, ctrl_msg_packet_bytes(msg->length), -1);
}
/* Sends the peer a notice that a rank could not join. If there is no room, all notices are sent again when there is. */
static void peer_send_join_abort(struct peer *peer, const struct join_abort *record)
{
    struct packet packet = packet_make_from_us(peer->identity.nonce, JOIN_ABORTED);
    memcpy(packet.token, record->token, sizeof packet.token);
    packet.from = record->by;
    if (peer->state != OPEN || peer->ops->send(peer, &packet, sizeof packet, -1) != -EAGAIN) return;
    peer->owes_join_aborts = true;
    peer->ops->set_await_room(peer, true);
}
/* Sends all recorded notices of aborted joins, because the peer may be about to join one of those groups. */
static void peer_send_join_aborts(struct peer *peer)
{
    peer->owes_join_aborts = false;
    for (unsigned i = 0; i < MOST_JOIN_ABORTS && i < registry.join_abort_count; i++)
        peer_send_join_abort(peer, &registry.join_aborts[i]);
}
void peers_forward_join_abort(const unsigned char token[16], const struct peer *sender)
{
    const struct join_abort *record = registry_find_join_abort(token);
    for (struct peer *peer = registry.peers; peer; peer = peer->next)
        if (peer != sender && (!sender || peer->link || sender->link)) peer_send_join_abort(peer, record);
}
void peer_flush_queue(struct peer *peer)
{
    if (peer->owes_join_aborts) peer_send_join_aborts(peer);
    while (peer->unsent.first && peer_send_ctrl_msg(peer, &peer->unsent.first->msg) != -EAGAIN)
        /* The message was sent, or the connection has failed and its end is about to be read. */
        free(ctrl_queue_pop(&peer->unsent));
    if (!peer->unsent.first && !peer->owes_join_aborts) peer->ops->set_await_room(peer, false);
}
bool peer_post_ctrl_msg(struct peer *peer, const struct ctrl_msg *msg)
{
    /* A link that is still CONNECTING takes the message later. */
    if (peer->state > OPEN) return false;
    bool queue_was_empty = !peer->unsent.first;
    int error = queue_was_empty ? peer_send_ctrl_msg(peer, msg) : -EAGAIN;
    if (error != -EAGAIN) return !error;
    if (!ctrl_queue_add_or_replace(&peer->unsent, msg, registry.self.nonce)) return false;
    if (queue_was_empty) peer->ops->set_await_room(peer, true);
    return true;
}

/* ---- receiving ---- */
void peer_receive_ctrl_msg(const struct peer *peer, const struct ctrl_msg *msg)
{
    ctrl_queue_add_or_replace(&registry.incoming, msg, peer->identity.nonce);
}
void peer_receive_join_abort(struct peer *peer, const struct packet *packet)
{
    if (registry_record_join_abort(packet->token, &packet->from)) peers_forward_join_abort(packet->token, peer);
}

/* ---- lifetime ---- */
int peer_begin_handshake(struct peer *peer, const char purpose[8])
{
    if (!peer->handshake) peer->handshake = memory_alloc_zeroed(1, sizeof *peer->handshake);
    if (!peer->handshake) return -ENOMEM;
    handshake_begin(peer->handshake, purpose);
    return 0;
}
void peer_open(struct peer *peer)
{
    free(peer->handshake);
    peer->handshake = NULL;
    peer->state = OPEN;
    peer_send_join_aborts(peer);
    pthread_cond_broadcast(&registry.changed);
}
/* Removes and frees a peer that has no users and no socket. References to it then point to peer_freed. */
static void peer_free(struct peer *peer)
{
    assert(peer->users == 0 && !peer->watches && peer->descriptor < 0);
    registry_remove_peer(peer);
    for (struct peer_weak_ref *ref; (ref = peer->weak_refs) != NULL;) {
        peer_weak_ref_clear(ref);
        ref->peer = &peer_freed;
    }
    peer->ops->free(peer);
    ctrl_queue_free(&peer->unsent);
    free(peer->handshake);
    free(peer);
}
void peer_end(struct peer *peer, enum peer_state state)
{
    registry_close_descriptor(&peer->descriptor);
    ctrl_queue_free(&peer->unsent);
    peer->state = state;
    registry.watch_calls.are_due = true;
    pthread_cond_broadcast(&registry.changed);
    if (peer->users == 0) peer_free(peer);
}
void peer_close_with_goodbye(struct peer *peer)
{
    if (peer->descriptor >= 0) peer_send_packet(peer, GOODBYE, NULL, -1);
    peer->ops->close(peer);
    peer_free(peer);
}
