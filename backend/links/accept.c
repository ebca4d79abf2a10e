/* Incoming connections from other hosts. Anyone can connect to the port, so most callers may be strangers. Callers have
 * a list of their own with a bounded number of places and a bounded time. A caller that has proved its key keeps its
 * place until it confirms, because it takes its link for open. Among the others, the network with the most callers
 * loses its oldest when the list is full. So callers of one network leave room for callers of others. */
#include "backend/base/clock.h"
#include "backend/links/link.h"
#include "backend/links/sock_address.h"
#include "backend/links/tcp.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { HELLO_MS = 2000, PROVED_MS = 10000, AT_ONCE = 64 };

static struct incoming_link *incoming_link_take(int index, struct incoming_link *out)
{
    *out = links.callers[index];
    size_t behind = (size_t)(--links.caller_count - index);
    memmove(&links.callers[index], &links.callers[index + 1], behind * sizeof *links.callers);
    return out;
}
/* Closes a caller's connection. `why` is NULL if the caller did no wrong. */
static void incoming_link_drop(int index, const char *why)
{
    char text[160], address[SOCK_ADDRESS_TEXT_BYTES];
    struct incoming_link c;
    incoming_link_take(index, &c);
    /* A close with unread bytes could cut off the answer. */
    tcp_drain(c.descriptor);
    snprintf(text, sizeof text, "came from %s and %s", sock_address_print(&c.from, address), why ? why : "");
    if (why) registry_refuse_connection(c.descriptor, text);
    else registry_close_descriptor(&c.descriptor);
}
bool incoming_links_include(const unsigned char nonce[16])
{
    for (int i = 0; i < links.caller_count; i++)
        if (links.callers[i].proved && nonce_equal(links.callers[i].handshake.hello.from.nonce, nonce)) return true;
    return false;
}

/* ---- the handshake ---- */
static struct peer *link_find_alive(const unsigned char nonce[16])
{
    struct peer *peer = link_find(nonce);
    /* The old link may have ended unnoticed, and this caller wants the next one. */
    if (peer && peer->state == OPEN) link_receive(peer);
    return link_find(nonce);
}
/* Decides between a caller and this process's own attempt (connect.c). */
static bool incoming_link_is_superfluous(const unsigned char nonce[16])
{
    struct peer *peer = link_find_alive(nonce);
    if (!peer || memcmp(registry.self.nonce, nonce, 16) > 0) return peer && peer->state == OPEN;
    if (peer->state == OPEN || peer->link->stage == HELLO_SENT) return true;
    /* This process's attempt may never succeed, and the caller's connection has. */
    registry_close_descriptor(&peer->descriptor);
    peer->link->stage = IDLE;
    return false;
}
/* Answers a valid hello. */
static void incoming_link_answer_hello(int index)
{
    struct incoming_link *c = &links.callers[index];
    const unsigned char *from = c->handshake.hello.from.nonce;
    if (nonce_equal(from, registry.self.nonce)) incoming_link_drop(index, NULL);
    else if (incoming_link_is_superfluous(from)) {
        handshake_send_answer(&c->handshake, HANDSHAKE_SUPERFLUOUS, 0, c->descriptor);
        incoming_link_drop(index, NULL);
    } else if (handshake_send_answer(&c->handshake, HANDSHAKE_WELCOME, 0, c->descriptor) != 0)
        incoming_link_drop(index, NULL);
    else {
        c->proved = true;
        c->until_ms = clock_ms() + PROVED_MS;
    }
}
/* Opens the link of a caller that has confirmed. */
static void incoming_link_open(int index)
{
    struct incoming_link c;
    const struct handshake_hello *hello = &links.callers[index].handshake.hello;
    struct peer *peer = link_find_alive(hello->from.nonce);
    if (!peer) peer = link_add(&hello->from, &hello->key);
    if (!peer || peer->state == OPEN) { incoming_link_drop(index, NULL); return; }
    registry_close_descriptor(&peer->descriptor);
    peer->descriptor = incoming_link_take(index, &c)->descriptor;
    /* Messages may have arrived with the confirmation. */
    if (link_open(peer, &c.handshake, true)) link_receive(peer);
}
/* Handles the caller's next message. Returns false if it has not arrived. */
static bool incoming_link_receive(int index)
{
    struct incoming_link *c = &links.callers[index];
    struct handshake *handshake = &c->handshake;
    int got = c->proved ? handshake_receive_confirm(handshake, c->descriptor)
                        : handshake_receive_hello(handshake, registry.self.nonce, c->descriptor);
    if (got == 0) return false;
    /* A caller hangs up (-ECONNRESET) when the two processes keep another connection. */
    if (got > 0 && c->proved) incoming_link_open(index);
    else if (got > 0) incoming_link_answer_hello(index);
    else if (got == -ECONNRESET) incoming_link_drop(index, NULL);
    else {
        handshake_send_refusal(handshake, got, c->descriptor);
        incoming_link_drop(index, handshake_refusal_text(handshake, got));
    }
    return true;
}

/* ---- accepting and dropping ---- */
/* Returns the caller that makes room, or -1 if all have proved their key. */
static int incoming_links_find_superfluous(void)
{
    struct unproved list[MOST_CALLERS];
    int index[MOST_CALLERS], count = 0;
    for (int i = 0; i < links.caller_count; i++) {
        const struct incoming_link *c = &links.callers[i];
        if (c->proved) continue;
        list[count] = (struct unproved){ sock_address_network(&c->from), c->until_ms - HELLO_MS };
        index[count++] = i;
    }
    int found = unproved_find_superfluous(list, count);
    return found < 0 ? -1 : index[found];
}
/* Drops callers until a place is free. Each is read before it is dropped, because its hello may have arrived while this
   process was stopped. */
static void incoming_links_make_room(void)
{
    for (int found; links.caller_count == MOST_CALLERS && (found = incoming_links_find_superfluous()) >= 0;)
        if (!incoming_link_receive(found)) incoming_link_drop(found, "sent nothing while many others connected");
}
/* Adds a connection that must prove its identity within HELLO_MS. */
static void incoming_link_add(int descriptor)
{
    struct incoming_link *c = &links.callers[links.caller_count++];
    *c = (struct incoming_link){
        .descriptor = descriptor, .until_ms = clock_ms() + HELLO_MS, .from = tcp_remote_address(descriptor)
    };
    links_schedule_tick(c->until_ms);
    if (handshake_send_opening(&c->handshake, handshake_of_links, descriptor) != 0)
        incoming_link_drop(links.caller_count - 1, NULL);
}
/* Accepts waiting connections. If all places are taken, one unproved connection is closed. */
static void incoming_links_accept(void)
{
    for (int i = 0; i < AT_ONCE; i++) {
        int descriptor = tcp_accept(links.listener);
        if (descriptor < 0) { registry.out_of_descriptors |= descriptor != -EAGAIN; return; }
        if (links.caller_count == MOST_CALLERS) incoming_links_make_room();
        bool room = links.caller_count < MOST_CALLERS;
        if (!room || registry_poll_add(descriptor) != 0) registry_close_descriptor(&descriptor);
        else incoming_link_add(descriptor);
    }
}
bool incoming_links_on_ready(int descriptor)
{
    if (descriptor == links.listener) { incoming_links_accept(); return true; }
    for (int i = 0; i < links.caller_count; i++)
        if (links.callers[i].descriptor == descriptor) { incoming_link_receive(i); return true; }
    return false;
}
void incoming_links_tick(int64_t now_ms)
{
    for (int i = 0; i < links.caller_count;) {
        int before = links.caller_count;
        if (links.callers[i].until_ms <= now_ms && !incoming_link_receive(i)) incoming_link_drop(i, "said nothing");
        if (links.caller_count < before) continue;
        links_schedule_tick(links.callers[i++].until_ms);
    }
}
