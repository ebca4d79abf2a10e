/* Our own calls. A link is called while something is to be sent over it or somebody waits for it, again and again. But
 * who said where it listens did listen then: that nobody does any more means that it has ended.
 *
 * Both may call at once. Of the two the one with the smaller nonce decides: once it has said hello, it turns the
 * other's hello down; once it has welcomed the other, it does not call until that has come to an end. So there is never
 * a second connection that could carry messages, and whoever was turned down calls again unless the link is open by
 * then. */
#include "backend/base/clock.h"
#include "backend/base/random.h"
#include "backend/processes/link.h"
#include "backend/processes/tcp.h"
#include <errno.h>
#include <string.h>

enum { GONE = 3, CALL_MS = 5000, GREETING_MS = 3000, RETRY_MS = 100, TRY_MS = 10000 };

static void call_fail(struct peer *peer, int error)     /* may end it */
{
    struct link *link = peer->link;
    /* the smaller one leaves a gap that the other's next call hits */
    int64_t gap_ms = memcmp(registry.self.nonce, peer->identity.nonce, 16) < 0 ? 2 * RETRY_MS : RETRY_MS;
    registry_hang_up(&peer->descriptor);
    link->stage = IDLE;
    link->again_ms = clock_ms() + gap_ms + registry.self.nonce[0] % RETRY_MS;     /* many may call one at once */
    links_due(link->again_ms);
    if (error != -EALREADY || !link->error) link->error = error;
    link->refusals = error == -ECONNREFUSED ? link->refusals + 1 : 0;
    bool is_gone = link->refusals == GONE;
    if (error == -ENOPROTOOPT || error == -EKEYREJECTED || is_gone) link_end(peer, error);      /* it will not change */
}
static void call(struct peer *peer)
{
    struct link *link = peer->link;
    int descriptor = tcp_call(&link->at, &links.at);
    int error = descriptor < 0 ? descriptor : registry_poll(descriptor);
    peer->descriptor = descriptor < 0 ? -1 : descriptor;
    if (error) { call_fail(peer, error); return; }
    registry_poll_writing(descriptor, true);
    link->from = tcp_here(descriptor);
    link->stage = CALLING;
    link->until_ms = clock_ms() + CALL_MS;
}
static int say_hello(struct peer *peer)
{
    struct link *link = peer->link;
    registry_poll_writing(peer->descriptor, false);
    if (random_fill(link->challenge, sizeof link->challenge) != TUTTI_OK) return -EIO;
    link->greeting.bytes = 0;
    link->stage = GREETING;
    link->until_ms = clock_ms() + GREETING_MS;
    links_due(link->until_ms);
    return shake_send(peer->descriptor, peer->identity.nonce, HELLO, link->challenge, NULL);
}
static int confirm(const struct peer *peer)             /* 0: it is who it should be, and knows that we are */
{
    const struct shake *s = &peer->link->greeting.shake;
    const unsigned char *me = registry.self.nonce, *other = peer->identity.nonce;
    unsigned char proof[PROOF_BYTES];
    if (s->kind == SUPERFLUOUS) return -EALREADY;
    if (s->kind == TURNED_AWAY) return -EKEYREJECTED;
    if (s->kind != WELCOME || !nonce_equal(s->from.nonce, other)) return -EPROTO;
    struct oath theirs = oath_of(WELCOME, me, other, peer->link->challenge, s->challenge);
    struct oath ours = oath_of(CONFIRM, me, other, peer->link->challenge, s->challenge);
    if (!s->has_secret != !secret_is_set() || !secret_proves(&theirs, sizeof theirs, s->proof)) return -EKEYREJECTED;
    if (!secret_sign(&ours, sizeof ours, proof)) return -EIO;
    return shake_send(peer->descriptor, other, CONFIRM, NULL, proof);
}
void call_ready(struct peer *peer)
{
    struct link *link = peer->link;
    if (link->stage == CALLING) {
        int error = tcp_error(peer->descriptor);
        if (!error && !tcp_there(peer->descriptor).family) return;     /* not yet */
        if (!error) error = say_hello(peer);
        if (error) call_fail(peer, error);
        return;
    }
    int said = greeting_read(&link->greeting, peer->descriptor);
    if (said > 0) said = confirm(peer);
    else if (said == 0) return;
    if (said) call_fail(peer, said);
    else link_open(peer);
}
static bool is_wanted(const struct peer *peer)
{
    return peer->link->waiters || peer->unsent.first || peer->link->wants_card;
}
void call_tick(struct peer *peer, int64_t now_ms)
{
    struct link *link = peer->link;
    if (!is_wanted(peer)) link->since_ms = 0;
    else if (!link->since_ms) link->since_ms = now_ms;
    if (link->stage != IDLE && now_ms >= link->until_ms) call_fail(peer, -ETIMEDOUT);
    if (link->stage == IDLE && link->since_ms) {
        if (!link->waiters && now_ms - link->since_ms >= TRY_MS) {
            link_end(peer, link->error ? link->error : -ETIMEDOUT);
            return;
        }
        bool may = link->at.family && now_ms >= link->again_ms && !callers_include(peer->identity.nonce);
        if (may) call(peer);
        if (link->stage == IDLE) links_due(now_ms < link->again_ms ? link->again_ms : now_ms + RETRY_MS);
    }
    if (link->stage != IDLE) links_due(link->until_ms);
}
