/* Outgoing connections. A process tries to connect a link again and again while it has messages to send or a thread
 * waits for it. But a process that published its address did listen then, so several refused attempts mean that it has
 * ended.
 *
 * Two processes may connect to each other at once. The one with the smaller nonce decides. Once it has sent its hello,
 * it refuses the other's hello as superfluous. Once it has welcomed the other process, it does not connect until the
 * other's attempt has ended. So a pair never has a second connection that could carry messages. A refused process tries
 * again unless the link is open by then. The called process opens the link only after the confirmation, because the
 * caller may have given up. */
#include "backend/base/clock.h"
#include "backend/links/link.h"
#include "backend/links/tcp.h"
#include <errno.h>
#include <string.h>

/* GONE attempts in a row without a listener mean that the process has ended. TRY_MS is the time after which a link is
   given up that has messages to send, but no thread that waits for it. */
enum { GONE = 3, CONNECT_MS = 5000, HANDSHAKE_MS = 3000, RETRY_MS = 100, TRY_MS = 10000 };

/* Ends a failed attempt to connect and schedules the next one. `error` is a -errno. The link ends if another attempt
   would get the same result. */
static void link_connect_fail(struct peer *peer, int error)
{
    struct link *link = peer->link;
    /* The process with the smaller nonce waits longer, so that the other's next attempt falls into the gap. */
    int64_t gap_ms = memcmp(registry.self.nonce, peer->identity.nonce, 16) < 0 ? 2 * RETRY_MS : RETRY_MS;
    registry_close_descriptor(&peer->descriptor);
    link->stage = IDLE;
    /* A random part spreads the attempts of many processes that connect to one. */
    link->next_attempt_ms = clock_ms() + gap_ms + registry.self.nonce[0] % RETRY_MS;
    links_schedule_tick(link->next_attempt_ms);
    if (error != -EALREADY || !link->error) link->error = error;
    link->refusals_in_a_row = error == -ECONNREFUSED ? link->refusals_in_a_row + 1 : 0;
    bool is_refused = error == -ENOPROTOOPT || error == -EKEYREJECTED || error == -ENOKEY;
    if (is_refused || link->refusals_in_a_row == GONE) link_end(peer, error);
}
/* Starts to connect to the peer's address. */
static void link_connect_start(struct peer *peer)
{
    struct link *link = peer->link;
    int error = peer_begin_handshake(peer, handshake_of_links);
    int descriptor = error ? error : tcp_start_connect(&link->at, &links.at);
    error = descriptor < 0 ? descriptor : registry_poll_add(descriptor);
    peer->descriptor = descriptor < 0 ? -1 : descriptor;
    if (error) { link_connect_fail(peer, error); return; }
    registry_poll_writing(descriptor, true);
    link->from = tcp_local_address(descriptor);
    link->stage = CONNECT_STARTED;
    link->until_ms = clock_ms() + CONNECT_MS;
}
/* Handles the next message of the handshake. Returns 1 if the link can open, 0 if not yet, or -errno. */
static int link_connect_advance(struct peer *peer)
{
    struct handshake *handshake = peer->handshake;
    int socket = peer->descriptor;
    if (handshake->has_sent_hello) {
        int got = handshake_receive_answer(handshake, socket);
        if (got <= 0) return got;
        int error = handshake_send_confirm(handshake, socket);
        return error ? error : 1;
    }
    int got = handshake_receive_opening(handshake, socket);
    if (got <= 0) return got;
    peer->link->stage = HELLO_SENT;
    return handshake_send_hello(handshake, &registry.self, peer->identity.nonce, &peer->key, 0, socket);
}
/* Sends this process's version when the socket is connected. Returns 0 or -errno. */
static int link_connect_on_connected(struct peer *peer)
{
    struct link *link = peer->link;
    registry_poll_writing(peer->descriptor, false);
    link->stage = CONNECTED;
    link->until_ms = clock_ms() + HANDSHAKE_MS;
    links_schedule_tick(link->until_ms);
    return handshake_send_version(peer->handshake, peer->descriptor);
}
void link_connect_on_ready(struct peer *peer)
{
    int error;
    if (peer->link->stage == CONNECT_STARTED) {
        error = tcp_take_error(peer->descriptor);
        /* A socket without a peer address is not connected yet. */
        if (!error && !tcp_remote_address(peer->descriptor).family) return;
        if (!error) error = link_connect_on_connected(peer);
    } else {
        error = link_connect_advance(peer);
        if (error > 0) { link_open(peer, peer->handshake, false); return; }
    }
    if (error) link_connect_fail(peer, error);
}
/* Returns true if a thread waits for the link, or something waits to be sent over it. */
static bool link_is_wanted(const struct peer *peer)
{
    return peer->link->waiters || peer->unsent.first || peer->link->wants_address;
}
void link_connect_tick(struct peer *peer, int64_t now_ms)
{
    struct link *link = peer->link;
    if (!link_is_wanted(peer)) link->wanted_since_ms = 0;
    else if (!link->wanted_since_ms) link->wanted_since_ms = now_ms;
    if (link->stage != IDLE && now_ms >= link->until_ms) link_connect_fail(peer, -ETIMEDOUT);
    if (link->stage == IDLE && link->wanted_since_ms) {
        if (!link->waiters && now_ms - link->wanted_since_ms >= TRY_MS) {
            link_end(peer, link->error ? link->error : -ETIMEDOUT);
            return;
        }
        bool may_start =
            link->at.family && now_ms >= link->next_attempt_ms && !incoming_links_include(peer->identity.nonce);
        if (may_start) link_connect_start(peer);
        if (link->stage == IDLE)
            links_schedule_tick(now_ms < link->next_attempt_ms ? link->next_attempt_ms : now_ms + RETRY_MS);
    }
    if (link->stage != IDLE) links_schedule_tick(link->until_ms);
}
