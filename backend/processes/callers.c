/* Incoming connections from other hosts. Anyone can connect to the port, so most callers may be strangers. Callers have
 * a list of their own with a bounded number of places and a bounded time. A caller that has proved its key keeps its
 * place until it confirms, because it takes its link for open. Among the others, the network with the most callers
 * loses its oldest when the list is full. So callers of one network leave room for callers of others. */
#include "backend/base/clock.h"
#include "backend/processes/link.h"
#include "backend/processes/tcp.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { HELLO_MS = 2000, PROVED_MS = 10000, AT_ONCE = 64 };

static struct caller *caller_take(int index, struct caller *out)
{
    *out = links.callers[index];
    size_t behind = (size_t)(--links.caller_count - index);
    memmove(&links.callers[index], &links.callers[index + 1], behind * sizeof *links.callers);
    return out;
}
/* Closes a caller's connection. `why` is NULL if the caller did no wrong. */
static void caller_drop(int index, const char *why)
{
    char text[160], address[CONTACT_TEXT_BYTES];
    struct caller c;
    caller_take(index, &c);
    /* A close with unread bytes could cut off the answer. */
    tcp_drain(c.descriptor);
    snprintf(text, sizeof text, "came from %s and %s", contact_print(&c.from, address), why ? why : "");
    if (why) registry_turn_away(c.descriptor, text);
    else registry_hang_up(&c.descriptor);
}
bool callers_include(const unsigned char nonce[16])
{
    for (int i = 0; i < links.caller_count; i++)
        if (links.callers[i].proved && nonce_equal(links.callers[i].handshake.hello.from.nonce, nonce)) return true;
    return false;
}

/* ---- the handshake ---- */
static struct peer *find_living(const unsigned char nonce[16])
{
    struct peer *peer = link_find(nonce);
    /* The old link may have ended unnoticed, and this caller wants the next one. */
    if (peer && peer->state == OPEN) link_ready(peer);
    return link_find(nonce);
}
/* Decides between a caller and this process's own attempt (calls.c). */
static bool is_superfluous(const unsigned char nonce[16])
{
    struct peer *peer = find_living(nonce);
    if (!peer || memcmp(registry.self.nonce, nonce, 16) > 0) return peer && peer->state == OPEN;
    if (peer->state == OPEN || peer->link->stage == GREETING) return true;
    /* This process's attempt may never succeed, and the caller's connection has. */
    registry_hang_up(&peer->descriptor);
    peer->link->stage = IDLE;
    return false;
}
/* Answers a valid hello. */
static void caller_welcome(int index)
{
    struct caller *c = &links.callers[index];
    const unsigned char *from = c->handshake.hello.from.nonce;
    if (nonce_equal(from, registry.self.nonce)) caller_drop(index, NULL);
    else if (is_superfluous(from)) {
        handshake_answer_hello(&c->handshake, HANDSHAKE_SUPERFLUOUS, 0, c->descriptor);
        caller_drop(index, NULL);
    } else if (handshake_answer_hello(&c->handshake, HANDSHAKE_WELCOME, 0, c->descriptor) != 0)
        caller_drop(index, NULL);
    else {
        c->proved = true;
        c->until_ms = clock_ms() + PROVED_MS;
    }
}
/* Opens the link of a caller that has confirmed. */
static void caller_open(int index)
{
    struct caller c;
    const struct handshake_hello *hello = &links.callers[index].handshake.hello;
    struct peer *peer = find_living(hello->from.nonce);
    if (!peer) peer = link_add(&hello->from, &hello->key);
    if (!peer || peer->state == OPEN) { caller_drop(index, NULL); return; }
    registry_hang_up(&peer->descriptor);
    peer->descriptor = caller_take(index, &c)->descriptor;
    /* Messages may have arrived with the confirmation. */
    if (link_open(peer, &c.handshake, true)) link_ready(peer);
}
/* Handles the caller's next message. Returns false if it has not arrived. */
static bool caller_hear(int index)
{
    struct caller *c = &links.callers[index];
    struct handshake *h = &c->handshake;
    int got = c->proved ? handshake_await_confirm(h, c->descriptor)
                        : handshake_await_hello(h, registry.self.nonce, c->descriptor);
    if (got == 0) return false;
    /* A caller hangs up (-ECONNRESET) when the two processes keep another connection. */
    if (got > 0 && c->proved) caller_open(index);
    else if (got > 0) caller_welcome(index);
    else if (got == -ECONNRESET) caller_drop(index, NULL);
    else {
        handshake_refuse(h, got, c->descriptor);
        caller_drop(index, handshake_refusal_text(h, got));
    }
    return true;
}

/* ---- accepting and dropping ---- */
/* Returns the caller that makes room, or -1 if all have proved their key. */
static int caller_find_superfluous(void)
{
    struct unproved list[MOST_CALLERS];
    int index[MOST_CALLERS], count = 0;
    for (int i = 0; i < links.caller_count; i++) {
        const struct caller *c = &links.callers[i];
        if (c->proved) continue;
        list[count] = (struct unproved){ contact_network(&c->from), c->until_ms - HELLO_MS };
        index[count++] = i;
    }
    int found = unproved_find_superfluous(list, count);
    return found < 0 ? -1 : index[found];
}
/* Drops callers until a place is free. Each is read before it is dropped, because its hello may have arrived while this
   process was stopped. */
static void make_room(void)
{
    for (int found; links.caller_count == MOST_CALLERS && (found = caller_find_superfluous()) >= 0;)
        if (!caller_hear(found)) caller_drop(found, "sent nothing while many others connected");
}
static void caller_add(int descriptor)
{
    struct caller *c = &links.callers[links.caller_count++];
    *c = (struct caller){ .descriptor = descriptor, .until_ms = clock_ms() + HELLO_MS, .from = tcp_there(descriptor) };
    links_due(c->until_ms);
    if (handshake_open(&c->handshake, handshake_of_links, descriptor) != 0) caller_drop(links.caller_count - 1, NULL);
}
static void callers_accept(void)
{
    for (int i = 0; i < AT_ONCE; i++) {
        int descriptor = tcp_accept(links.listener);
        if (descriptor < 0) { registry.out_of_descriptors |= descriptor != -EAGAIN; return; }
        if (links.caller_count == MOST_CALLERS) make_room();
        bool room = links.caller_count < MOST_CALLERS;
        if (!room || registry_poll(descriptor) != 0) registry_hang_up(&descriptor);
        else caller_add(descriptor);
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
