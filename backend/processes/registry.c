/* The registry's data, and the functions on it that several files use. */
#include "backend/processes/registry.h"
#include "backend/base/memory.h"
#include "backend/base/text.h"
#include "backend/host/socket.h"
#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

static const char magic[8] = "tutti-p";
static_assert(sizeof(struct identity) == 64 && sizeof(struct packet) == 112
        && offsetof(struct packet_and_ctrl_msg, msg) == 112 && offsetof(struct ctrl_msg, bytes) == 32,
    "no padding");

struct registry registry = { .lock = PTHREAD_MUTEX_INITIALIZER, .listener = -1, .poller = -1, .waker = -1 };

bool nonce_equal(const unsigned char a[16], const unsigned char b[16]) { return memcmp(a, b, 16) == 0; }
void descriptor_close(int *descriptor)
{
    if (*descriptor >= 0) close(*descriptor);
    *descriptor = -1;
}
void registry_wait(int64_t until_ms)
{
    if (until_ms == INT64_MAX) { pthread_cond_wait(&registry.changed, &registry.lock); return; }
    struct timespec until = { until_ms / 1000, until_ms % 1000 * 1000000 };
    pthread_cond_timedwait(&registry.changed, &registry.lock, &until);
}
void registry_wake(void)
{
    uint64_t one = 1;
    /* The write fails only if the counter is full, and then the watch thread is awake. */
    ssize_t ignored = write(registry.waker, &one, sizeof one);
    (void)ignored;
}
int registry_poll_add(int descriptor)
{
    struct epoll_event event = { .events = EPOLLIN, .data.fd = descriptor };
    return epoll_ctl(registry.poller, EPOLL_CTL_ADD, descriptor, &event) == 0 ? 0 : -errno;
}
void registry_poll_writing(int descriptor, bool on)
{
    struct epoll_event event = { .events = on ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.fd = descriptor };
    epoll_ctl(registry.poller, EPOLL_CTL_MOD, descriptor, &event);
}
/* A close alone may not end the polling, because a child that ran no fork handler may share the socket. */
void registry_close_descriptor(int *descriptor)
{
    if (*descriptor >= 0) epoll_ctl(registry.poller, EPOLL_CTL_DEL, *descriptor, NULL);
    descriptor_close(descriptor);
}
struct packet registry_make_packet(const unsigned char to[16], enum kind kind)
{
    struct packet packet = { .version = PROTOCOL, .kind = kind, .from = registry.self };
    memcpy(packet.magic, magic, sizeof magic);
    memcpy(packet.to, to, sizeof packet.to);
    return packet;
}
static size_t ctrl_msg_packet_bytes(uint32_t length)
{
    return sizeof(struct packet) + offsetof(struct ctrl_msg, bytes) + length;
}
static int peer_send_bytes(struct peer *peer, const struct packet *packet, size_t bytes, int gift)
{
    if (!peer->link) return socket_send(peer->descriptor, packet, bytes, gift);
    return gift < 0 ? link_send_packet(peer, packet, bytes) : -EOPNOTSUPP;
}
int peer_send_packet(struct peer *peer, enum kind kind, const unsigned char *token, int gift)
{
    struct packet packet = registry_make_packet(peer->identity.nonce, kind);
    if (token) memcpy(packet.token, token, sizeof packet.token);
    return peer_send_bytes(peer, &packet, sizeof packet, gift);
}
int peer_send_ctrl_msg(struct peer *peer, const struct ctrl_msg *msg)
{
    struct packet_and_ctrl_msg message;
    message.packet = registry_make_packet(peer->identity.nonce, CTRL_MSG);
    memcpy(&message.msg, msg, offsetof(struct ctrl_msg, bytes) + msg->length);
    return peer_send_bytes(peer, &message.packet, ctrl_msg_packet_bytes(msg->length), -1);
}
/* A link awaits room as long as it has control messages, so only `on` matters for it. */
void peer_set_await_room(struct peer *peer, bool on)
{
    if (!peer->link) registry_poll_writing(peer->descriptor, on);
    else if (on) link_request_connect(peer);
}
bool ctrl_msg_is_for_us(int bytes, const struct packet_and_ctrl_msg *m)
{
    return bytes >= (int)ctrl_msg_packet_bytes(0) && m->packet.kind == CTRL_MSG
        && packet_is_for_us(sizeof m->packet, &m->packet) && m->msg.length <= CHANNEL_BYTES
        && bytes == (int)ctrl_msg_packet_bytes(m->msg.length) && m->msg.type < CHANNEL_TYPES
        && m->msg.flags <= CTRL_MSG_FLAGS;
}
bool packet_is_for_us(int bytes, const struct packet *packet)
{
    return bytes == (int)sizeof *packet && memcmp(packet->magic, magic, sizeof magic) == 0
        && packet->version == PROTOCOL && nonce_equal(packet->to, registry.self.nonce);
}

/* ---- lists of the registry ---- */
struct peer *registry_find_peer(const unsigned char nonce[16])
{
    for (struct peer *p = registry.peers; p; p = p->next)
        if (!p->link && p->state <= OPEN && nonce_equal(p->identity.nonce, nonce)) return p;
    return NULL;
}
struct peer *registry_add_peer(const struct identity *identity, const struct key_id *key)
{
    struct peer *peer = memory_alloc_zeroed(1, sizeof *peer);
    if (!peer) return NULL;
    peer->identity = *identity;
    peer->key = *key;
    text_make_printable(peer->identity.host, sizeof peer->identity.host);
    peer->descriptor = -1;
    peer->next = registry.peers;
    return registry.peers = peer;
}
int peer_begin_handshake(struct peer *peer, const char purpose[8])
{
    if (!peer->handshake) peer->handshake = memory_alloc_zeroed(1, sizeof *peer->handshake);
    if (!peer->handshake) return -ENOMEM;
    handshake_begin(peer->handshake, purpose);
    return 0;
}
void registry_free_peer(struct peer *peer)
{
    assert(peer->users == 0 && !peer->watches && peer->descriptor < 0);
    struct peer **at = &registry.peers;
    while (*at && *at != peer) at = &(*at)->next;
    if (*at) *at = peer->next;
    views_free_all(peer);
    if (peer->route_refs) channels_remove_peer(peer);
    if (peer->link) link_free(peer);
    ctrl_queue_free(&peer->unsent);
    free(peer->handshake);
    free(peer);
}
bool registry_take_early_descriptor(const unsigned char token[16], int *out)
{
    for (int i = 0; i < registry.kept_count; i++) {
        if (!nonce_equal(registry.kept[i].token, token)) continue;
        *out = registry.kept[i].descriptor;
        memmove(&registry.kept[i], &registry.kept[i + 1], (size_t)(--registry.kept_count - i) * sizeof *registry.kept);
        return true;
    }
    return false;
}
const struct join_abort *registry_find_join_abort(const unsigned char token[16])
{
    for (unsigned i = 0; i < MOST_JOIN_ABORTS && i < registry.given_up_count; i++)
        if (nonce_equal(registry.given_up[i].token, token)) return &registry.given_up[i];
    return NULL;
}
bool registry_record_join_abort(const unsigned char token[16], const struct identity *by)
{
    int kept = -1;
    /* Later processes give up because of the first one, so only the first is recorded. */
    if (registry_find_join_abort(token)) return false;
    struct join_abort *g = &registry.given_up[registry.given_up_count++ % MOST_JOIN_ABORTS];
    memcpy(g->token, token, sizeof g->token);
    g->by = *by;
    text_make_printable(g->by.host, sizeof g->by.host);
    if (registry_take_early_descriptor(token, &kept)) descriptor_close(&kept);
    return true;
}
static void peer_send_join_abort(struct peer *peer, const struct join_abort *g)
{
    struct packet packet = registry_make_packet(peer->identity.nonce, JOIN_ABORTED);
    memcpy(packet.token, g->token, sizeof packet.token);
    packet.from = g->by;
    if (peer->state != OPEN || peer_send_bytes(peer, &packet, sizeof packet, -1) != -EAGAIN) return;
    peer->owes_join_aborts = true;
    peer_set_await_room(peer, true);
}
void registry_forward_join_abort(const unsigned char token[16], const struct peer *heard_of)
{
    const struct join_abort *g = registry_find_join_abort(token);
    for (struct peer *p = registry.peers; p; p = p->next)
        if (p != heard_of && (!heard_of || p->link || heard_of->link)) peer_send_join_abort(p, g);
}
void peer_send_join_aborts(struct peer *peer)
{
    peer->owes_join_aborts = false;
    for (unsigned i = 0; i < MOST_JOIN_ABORTS && i < registry.given_up_count; i++)
        peer_send_join_abort(peer, &registry.given_up[i]);
}
struct pending_conn registry_take_pending_conn(int index)
{
    struct pending_conn pending = registry.pending[index];
    size_t behind = (size_t)(--registry.pending_count - index);
    memmove(&registry.pending[index], &registry.pending[index + 1], behind * sizeof *registry.pending);
    return pending;
}
