/* The watch thread, the only thread that reads from the sockets of peers. It accepts connections, handles packets, and
 * calls the watchers of a peer that is gone. */
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/host/socket.h"
#include "backend/processes/registry.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum { HELLO_MS = 2000, OUT_OF_DESCRIPTORS_MS = 10, LINGER_MS = 50 };

/* ---- packets of peers ---- */
void peer_end(struct peer *peer, enum state state)
{
    registry_close_descriptor(&peer->descriptor);
    ctrl_queue_free(&peer->unsent);
    peer->state = state;
    pthread_cond_broadcast(&registry.changed);
    if (peer->users == 0) registry_free_peer(peer);
}
void peer_open(struct peer *peer)
{
    free(peer->handshake);
    peer->handshake = NULL;
    peer->state = OPEN;
    peer_send_join_aborts(peer);
    pthread_cond_broadcast(&registry.changed);
}
void peer_handle_join_abort(struct peer *peer, const struct packet *packet)
{
    if (registry_record_join_abort(packet->token, &packet->from)) registry_forward_join_abort(packet->token, peer);
}
/* Closes the oldest kept descriptor if there are too many. A rank that waits for it later gets an error. */
static void early_descriptors_make_room(void)
{
    int open = 0, *oldest = NULL;
    for (int i = registry.kept_count - 1; i >= 0; i--) {
        if (registry.kept[i].descriptor < 0) continue;
        oldest = &registry.kept[i].descriptor;
        open++;
    }
    if (open < KEPT_OPEN) return;
    descriptor_close(oldest);
    if (registry.dropped++ == 0)
        LOG(WARN, "%d file descriptors arrived that were not requested; from now on the oldest is closed", KEPT_OPEN);
}
static void early_descriptor_add(const unsigned char token[16], int descriptor)
{
    int forgotten = -1;
    if (registry_find_join_abort(token)) { descriptor_close(&descriptor); return; }
    early_descriptors_make_room();
    if (registry.kept_count == KEPT) registry_take_early_descriptor(registry.kept[0].token, &forgotten);
    descriptor_close(&forgotten);
    struct early_descriptor *kept = &registry.kept[registry.kept_count++];
    kept->descriptor = descriptor;
    memcpy(kept->token, token, sizeof kept->token);
    pthread_cond_broadcast(&registry.changed);
}
/* Handles a packet and takes over `gift`. Returns true while the connection lasts. */
static bool peer_handle_packet(struct peer *peer, const struct packet *packet, int gift)
{
    if (packet->kind == DESCRIPTOR) {
        /* `gift` is -1 if this process had no room for it, and the rank that waits for it gets an error. */
        early_descriptor_add(packet->token, gift);
        return true;
    }
    if (packet->kind == BLOCK) {
        views_receive_block(peer, packet->token, gift);
        return true;
    }
    descriptor_close(&gift);
    if (packet->kind == WANTED) {
        views_send_block(peer, packet->token);
        return true;
    }
    if (packet->kind == JOIN_ABORTED) {
        peer_handle_join_abort(peer, packet);
        return true;
    }
    peer_end(peer, packet->kind == GOODBYE ? LEFT : LOST);
    return false;
}
/* Continues the handshake of a connection attempt by this process. Returns false if the next message has not arrived or
   the attempt is over. */
static bool peer_connect_advance(struct peer *peer)
{
    struct handshake *h = peer->handshake;
    bool said = h->has_sent_hello;
    int got = said ? handshake_receive_answer(h, peer->descriptor) : handshake_receive_opening(h, peer->descriptor);
    if (got == 0) return false;
    if (got > 0 && said) peer_open(peer);
    else if (got > 0)
        got = handshake_send_hello(h, &registry.self, peer->identity.nonce, &peer->key, 0, peer->descriptor);
    if (got >= 0) return true;
    if (got == -EALREADY) {
        registry_close_descriptor(&peer->descriptor);
        peer->expects_theirs = true;
        pthread_cond_broadcast(&registry.changed);
    } else {
        peer->error = got;
        peer_end(peer, REFUSED);
    }
    return false;
}
static void peer_receive_packets(struct peer *peer)
{
    struct packet_and_ctrl_msg message;
    int gift;
    while (peer->state == CONNECTING)
        if (!peer_connect_advance(peer)) return;
    for (;;) {
        int got = socket_receive(peer->descriptor, &message, sizeof message, &gift);
        if (got == -EAGAIN) return;
        if (ctrl_msg_is_for_us(got, &message)) {
            descriptor_close(&gift);
            channels_receive(&message.msg, peer);
            continue;
        }
        if (!packet_is_for_us(got, &message.packet)) break;
        if (!peer_handle_packet(peer, &message.packet, gift)) return;
    }
    descriptor_close(&gift);
    peer_end(peer, LOST);
}

/* ---- connections without a proof ---- */
void registry_refuse_connection(int descriptor, const char *why)
{
    if (descriptor >= 0) registry_close_descriptor(&descriptor);
    if (registry.turned_away++ == 0)
        LOG(WARN, "a connection that %s was dropped; further ones are dropped without a warning", why);
}
static void pending_conn_welcome(struct pending_conn *pending)
{
    const struct handshake_hello *hello = &pending->handshake.hello;
    const unsigned char *from = hello->from.nonce;
    struct peer *peer = registry_find_peer(from);
    /* The old connection may have ended unnoticed, and this is the next one. */
    if (peer && peer->state == OPEN) {
        peer_receive_packets(peer);
        peer = registry_find_peer(from);
    }
    bool ours_is_up = peer && peer->descriptor >= 0;
    bool ours_stays = ours_is_up && (peer->state == OPEN || memcmp(registry.self.nonce, from, 16) < 0);
    if (!peer) peer = registry_add_peer(&hello->from, &hello->key);
    if (!peer || ours_stays) {
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
/* Handles the hello of a pending connection. Returns false if it has not arrived. */
static bool pending_conn_receive(int index)
{
    struct pending_conn *waiting = &registry.pending[index];
    int got = handshake_receive_hello(&waiting->handshake, registry.self.nonce, waiting->descriptor);
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
/* Drops the oldest connection, unless its hello arrived meanwhile, for example while this process was stopped. */
static void pending_conn_dismiss(const char *why)
{
    if (!pending_conn_receive(0)) registry_refuse_connection(registry_take_pending_conn(0).descriptor, why);
}
static void pending_conn_accept(void)
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
static void pending_conns_expire(void)
{
    while (registry.pending_count && registry.pending[0].until_ms <= clock_ms()) pending_conn_dismiss("said nothing");
}

/* ---- the watch thread ---- */
/* Handles a descriptor that the poll returned. It may be closed by now. */
static void watch_handle_descriptor(int descriptor)
{
    uint64_t ignored;
    if (descriptor == registry.waker && read(descriptor, &ignored, sizeof ignored) >= 0) return;
    if (descriptor == registry.listener) { pending_conn_accept(); return; }
    if (host_elections_answer(descriptor)) return;
    for (struct peer *p = registry.peers; p; p = p->next)
        if (p->descriptor == descriptor) {
            if (p->link) { link_on_ready(p); return; }
            if (p->unsent.first || p->owes_join_aborts) peer_flush_queue(p);
            peer_receive_packets(p);
            return;
        }
    if (incoming_links_on_ready(descriptor)) return;
    for (int i = 0; i < registry.pending_count; i++)
        if (registry.pending[i].descriptor == descriptor) { pending_conn_receive(i); return; }
}
static struct peer_watch *peer_watch_find_due(void)
{
    for (struct peer *p = registry.peers; p; p = p->next)
        for (struct peer_watch *w = peer_is_over(p) ? p->watches : NULL; w; w = w->next)
            if (!w->called) return w;
    return NULL;
}
/* Calls the watchers of peers that are gone. The lists may change during each call. */
static void peer_watches_call(void)
{
    for (struct peer_watch *watch;;) {
        /* Messages of a dead peer come before the report of its death. */
        channels_deliver();
        if (!(watch = peer_watch_find_due())) return;
        void (*lost)(void *) = watch->lost;
        void *context = watch->context;
        watch->called = true;
        registry.calling = watch;
        pthread_mutex_unlock(&registry.lock);
        lost(context);
        pthread_mutex_lock(&registry.lock);
        registry.calling = NULL;
        pthread_cond_broadcast(&registry.changed);
    }
}
/* -1 means never. */
static int timeout_sooner_ms(int a, int b) { return a < 0 || (b >= 0 && b < a) ? b : a; }
/* Returns the time until a pending connection expires or a channel or link has work, or -1 for no limit. */
static int watch_poll_timeout_ms(void)
{
    int most_ms = timeout_sooner_ms(channels_poll_timeout_ms(), links_poll_timeout_ms());
    if (!registry.pending_count) return most_ms;
    int64_t left = registry.pending[0].until_ms - clock_ms();
    return timeout_sooner_ms(most_ms, left < 0 ? 0 : (int)left + 1);
}
static int watch_await_events(struct epoll_event *events, int count, int most_ms)
{
    int poller = registry.poller;
    bool out_of_descriptors = registry.out_of_descriptors;
    registry.out_of_descriptors = false;
    pthread_mutex_unlock(&registry.lock);
    /* Without free descriptors the listener stays ready and accept fails, so the thread pauses instead of spinning. */
    if (out_of_descriptors) nanosleep(&(struct timespec){ 0, OUT_OF_DESCRIPTORS_MS * 1000000 }, NULL);
    int ready = epoll_wait(poller, events, count, most_ms);
    pthread_mutex_lock(&registry.lock);
    return ready;
}
/* Polls once and handles the events. Returns false if there were none. */
static bool watch_poll_once(int most_ms)
{
    struct epoll_event events[16];
    int ready = watch_await_events(events, 16, most_ms);
    for (int i = 0; i < ready; i++) watch_handle_descriptor(events[i].data.fd);
    pending_conns_expire();
    links_tick();
    channels_deliver();
    channels_call_ticks();
    peer_watches_call();
    return ready > 0;
}
/* At the end the thread still passes on the messages that have arrived, because their senders count on it. */
void *registry_run_thread(void *unused)
{
    pthread_mutex_lock(&registry.lock);
    while (!registry.stop) watch_poll_once(watch_poll_timeout_ms());
    for (int64_t until_ms = clock_ms() + LINGER_MS; watch_poll_once(0) && clock_ms() < until_ms;) {}
    pthread_mutex_unlock(&registry.lock);
    return unused;
}
