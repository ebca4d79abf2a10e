/* Outgoing connections. A process tries to connect a link again and again while it has messages to send or a thread
 * waits for it. But a process that published its address did listen then, so several refused attempts mean that it has
 * ended.
 *
 * Two processes may connect to each other at once. The one with the smaller nonce decides. Once it has sent its hello,
 * it refuses the other's as superfluous. Once it has welcomed the other, it does not connect until that attempt has
 * ended. So a pair never has a second connection that could carry messages. A refused process tries again unless the
 * link is open by then. The called process opens the link only after the confirmation, because the caller may have
 * given up. */
#include "backend/base/clock.h"
#include "backend/links/link.h"
#include "backend/links/tcp.h"
#include <errno.h>
#include <string.h>

enum { GONE = 3, CALL_MS = 5000, HANDSHAKE_MS = 3000, RETRY_MS = 100, TRY_MS = 10000 };

/* Ends an attempt and plans the next one. The link may end. */
static void link_connect_fail(struct peer *peer, int error)
{
    struct link *link = peer->link;
    /* The process with the smaller nonce waits longer, so that the other's next attempt falls into the gap. */
    int64_t gap_ms = memcmp(registry.self.nonce, peer->identity.nonce, 16) < 0 ? 2 * RETRY_MS : RETRY_MS;
    registry_close_descriptor(&peer->descriptor);
    link->stage = IDLE;
    /* A random part spreads the attempts of many processes that connect to one. */
    link->again_ms = clock_ms() + gap_ms + registry.self.nonce[0] % RETRY_MS;
    links_schedule_tick(link->again_ms);
    if (error != -EALREADY || !link->error) link->error = error;
    link->refusals = error == -ECONNREFUSED ? link->refusals + 1 : 0;
    bool is_refused = error == -ENOPROTOOPT || error == -EKEYREJECTED || error == -ENOKEY;
    /* Another attempt would get the same result. */
    if (is_refused || link->refusals == GONE) link_end(peer, error);
}
/* Starts a connection to the peer's address. */
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
    link->stage = CALLING;
    link->until_ms = clock_ms() + CALL_MS;
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
/* Sends the version over a new connection. Returns 0 or -errno. */
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
    if (peer->link->stage == CALLING) {
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
static bool link_is_wanted(const struct peer *peer)
{
    return peer->link->waiters || peer->unsent.first || peer->link->wants_address;
}
void link_connect_tick(struct peer *peer, int64_t now_ms)
{
    struct link *link = peer->link;
    if (!link_is_wanted(peer)) link->since_ms = 0;
    else if (!link->since_ms) link->since_ms = now_ms;
    if (link->stage != IDLE && now_ms >= link->until_ms) link_connect_fail(peer, -ETIMEDOUT);
    if (link->stage == IDLE && link->since_ms) {
        if (!link->waiters && now_ms - link->since_ms >= TRY_MS) {
            link_end(peer, link->error ? link->error : -ETIMEDOUT);
            return;
        }
        bool may = link->at.family && now_ms >= link->again_ms && !incoming_links_include(peer->identity.nonce);
        if (may) link_connect_start(peer);
        if (link->stage == IDLE) links_schedule_tick(now_ms < link->again_ms ? link->again_ms : now_ms + RETRY_MS);
    }
    if (link->stage != IDLE) links_schedule_tick(link->until_ms);
}
