/* Who calls us from other hosts; the port is open to everybody, so most may be strangers. They have a list of their
 * own, in which who says nothing makes room for those that come; who has been welcomed keeps its place for a while, and
 * is not sent away for others, since it takes its link for open. */
#include "backend/base/clock.h"
#include "backend/base/random.h"
#include "backend/processes/link.h"
#include "backend/processes/tcp.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { HELLO_MS = 2000, GREETED_MS = 10000, AT_ONCE = 64 };

static struct caller *caller_take(int index, struct caller *out)
{
    *out = links.callers[index];
    size_t behind = (size_t)(--links.caller_count - index);
    memmove(&links.callers[index], &links.callers[index + 1], behind * sizeof *links.callers);
    return out;
}
static void caller_drop(int index, const char *why)     /* NULL: one of us, and nothing is wrong */
{
    char text[160], address[CONTACT_TEXT_BYTES];
    struct caller c;
    caller_take(index, &c);
    struct contact there = tcp_there(c.descriptor);
    tcp_drain(c.descriptor);                            /* or what it was answered might not arrive */
    snprintf(text, sizeof text, "came from %s and %s", contact_print(&there, address), why ? why : "");
    if (why) registry_turn_away(c.descriptor, text);
    else registry_hang_up(&c.descriptor);
}
bool callers_include(const unsigned char nonce[16])
{
    for (int i = 0; i < links.caller_count; i++)
        if (links.callers[i].greeted && nonce_equal(links.callers[i].hello.from.nonce, nonce)) return true;
    return false;
}

/* ---- the handshake ---- */
static struct peer *find_living(const unsigned char nonce[16])
{
    struct peer *peer = link_find(nonce);
    if (peer && peer->state == OPEN) link_ready(peer);  /* perhaps it has ended, and this is the next one */
    return link_find(nonce);
}
static bool is_superfluous(const unsigned char nonce[16])              /* see calls.c */
{
    struct peer *peer = find_living(nonce);
    if (!peer || memcmp(registry.self.nonce, nonce, 16) > 0) return peer && peer->state == OPEN;
    if (peer->state == OPEN || peer->link->stage == GREETING) return true;
    registry_hang_up(&peer->descriptor);                /* it may lead nowhere, and this has come here */
    peer->link->stage = IDLE;
    return false;
}
static int welcome(struct caller *c)
{
    unsigned char proof[PROOF_BYTES];
    const unsigned char *from = c->hello.from.nonce;
    if (random_fill(c->challenge, sizeof c->challenge) != TUTTI_OK) return -EIO;
    struct oath oath = oath_of(WELCOME, from, registry.self.nonce, c->hello.challenge, c->challenge);
    if (!secret_sign(&oath, sizeof oath, proof)) return -EIO;
    c->greeted = true;
    c->greeting.bytes = 0;
    c->until_ms = clock_ms() + GREETED_MS;
    return shake_send(c->descriptor, from, WELCOME, c->challenge, proof);
}
static void hear_hello(int index)
{
    struct caller *c = &links.callers[index];
    c->hello = c->greeting.shake;
    const unsigned char *from = c->hello.from.nonce;
    if (!c->hello.has_secret != !secret_is_set()) {
        shake_send(c->descriptor, from, TURNED_AWAY, NULL, NULL);
        caller_drop(index,
            secret_is_set() ? "has no secret (TUTTI_SECRET_FILE)"
                            : "has a secret (TUTTI_SECRET_FILE) where this process has none");
    } else if (nonce_equal(from, registry.self.nonce)) caller_drop(index, NULL);
    else if (is_superfluous(from)) {
        shake_send(c->descriptor, from, SUPERFLUOUS, NULL, NULL);
        caller_drop(index, NULL);
    } else if (welcome(c) != 0) caller_drop(index, NULL);
}
static void hear_confirm(int index)
{
    struct caller c;
    const struct shake *said = &links.callers[index].greeting.shake;
    const struct shake *hello = &links.callers[index].hello;
    struct oath oath =
        oath_of(CONFIRM, hello->from.nonce, registry.self.nonce, hello->challenge, links.callers[index].challenge);
    if (!secret_proves(&oath, sizeof oath, said->proof)) {
        caller_drop(index, "does not know the secret (TUTTI_SECRET_FILE)");
        return;
    }
    struct peer *peer = find_living(hello->from.nonce);
    if (!peer) peer = link_add(&hello->from);
    if (!peer || peer->state == OPEN) { caller_drop(index, NULL); return; }
    registry_hang_up(&peer->descriptor);
    peer->descriptor = caller_take(index, &c)->descriptor;
    if (link_open(peer)) link_ready(peer);              /* more may have come with it */
}
static bool caller_hear(int index)                      /* false: it still says nothing */
{
    struct caller *c = &links.callers[index];
    int said = greeting_read(&c->greeting, c->descriptor);
    if (said == 0) return false;
    if (said == -ENOPROTOOPT) shake_send(c->descriptor, c->greeting.shake.from.nonce, TURNED_AWAY, NULL, NULL);
    if (said == -ENOPROTOOPT) caller_drop(index, "is of another version of tutti");
    else if (said == -ECONNRESET && !c->greeting.bytes) caller_drop(index, NULL);      /* and has told nothing else */
    else if (said > 0 && !c->greeted && c->greeting.shake.kind == HELLO) hear_hello(index);
    else if (said > 0 && c->greeted && c->greeting.shake.kind == CONFIRM) hear_confirm(index);
    else caller_drop(index, "did not speak as a process of its group does");
    return true;
}

/* ---- coming and going ---- */
static void make_room(void)                             /* unless all are welcome */
{
    for (int i = 0; i < links.caller_count; i++) {
        if (links.callers[i].greeted) continue;
        if (!caller_hear(i)) caller_drop(i, "said nothing while many came");
        if (links.caller_count < MOST_CALLERS) return;
    }
}
static void callers_accept(void)
{
    for (int i = 0; i < AT_ONCE; i++) {
        int descriptor = tcp_accept(links.listener);
        if (descriptor < 0) { registry.starved |= descriptor != -EAGAIN; return; }
        if (links.caller_count == MOST_CALLERS) make_room();
        bool room = links.caller_count < MOST_CALLERS;
        if (!room || registry_poll(descriptor) != 0) { registry_hang_up(&descriptor); continue; }
        struct caller *c = &links.callers[links.caller_count++];
        c->descriptor = descriptor;
        c->until_ms = clock_ms() + HELLO_MS;
        c->greeted = false;
        c->greeting.bytes = 0;
        links_due(c->until_ms);
    }
}
bool links_handle(int descriptor)
{
    if (descriptor == links.listener) { callers_accept(); return true; }
    for (int i = 0; i < links.caller_count; i++)
        if (links.callers[i].descriptor == descriptor) { caller_hear(i); return true; }
    return false;
}
void callers_tick(int64_t now_ms)
{
    for (int i = 0; i < links.caller_count;) {
        int before = links.caller_count;
        if (links.callers[i].until_ms <= now_ms && !caller_hear(i)) caller_drop(i, "said nothing");
        if (links.caller_count < before) continue;
        links_due(links.callers[i++].until_ms);
    }
}
