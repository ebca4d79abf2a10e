/* Incoming connections from other hosts, until each becomes a link. Anyone can connect to the port, so most of them may
 * be of strangers. Their list has a bounded number of places, and each connection a bounded time. A connection whose
 * caller has proved its key keeps its place until the caller confirms or PROVED_MS pass, because the caller opens its
 * end of the link as soon as it is welcomed. Among the others, the network with the most connections loses its oldest
 * when the list is full. So callers of one network leave room for callers of others. */
#include "backend/base/clock.h"
#include "backend/links/link.h"
#include "backend/links/sock_address.h"
#include "backend/links/tcp.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* The time for a hello, the time from a proof to the confirmation, and the most connections accepted in a row. */
enum { HELLO_MS = 2000, PROVED_MS = 10000, ACCEPTED_AT_ONCE = 64 };

/* Removes the incoming connection with that index from the list into *out, and returns `out`. */
static struct incoming_link *incoming_link_take(int index, struct incoming_link *out)
{
    *out = links.incoming[index];
    size_t later_count = (size_t)(--links.incoming_count - index);
    memmove(&links.incoming[index], &links.incoming[index + 1], later_count * sizeof *links.incoming);
    return out;
}
/* Removes and closes an incoming connection. `why` is the reason for the log, or NULL if the caller did no wrong. */
static void incoming_link_drop(int index, const char *why)
{
    char text[160], address[SOCK_ADDRESS_TEXT_BYTES];
    struct incoming_link incoming;
    incoming_link_take(index, &incoming);
    /* A close with unread bytes could cut off the answer. */
    tcp_drain(incoming.descriptor);
    snprintf(text, sizeof text, "came from %s and %s", sock_address_print(&incoming.from, address), why ? why : "");
    if (why) registry_refuse_connection(incoming.descriptor, text);
    else registry_close_descriptor(&incoming.descriptor);
}
bool incoming_links_include(const unsigned char nonce[16])
{
    for (int i = 0; i < links.incoming_count; i++)
        if (links.incoming[i].proved && nonce_equal(links.incoming[i].handshake.hello.from.nonce, nonce)) return true;
    return false;
}

/* ---- the handshake ---- */
/* Returns the link to that process that is CONNECTING or OPEN, after it has read what the link received; or NULL. */
static struct peer *link_find_alive(const unsigned char nonce[16])
{
    struct peer *peer = link_find(nonce);
    /* The old link may have ended unnoticed, and this caller wants the next one. */
    if (peer && peer->state == OPEN) link_receive(peer);
    return link_find(nonce);
}
/* Decides which connection stays if this process and the caller with that nonce connect to each other. First it reads
   what their open link has received, which may end the link. Returns true if the caller's connection is superfluous:
   their link is open, or this process has the smaller nonce and has sent the hello of its own attempt (connect.c). If
   this process has the smaller nonce and keeps the caller's connection, this call ends its own attempt. */
static bool incoming_link_resolve_collision(const unsigned char nonce[16])
{
    struct peer *peer = link_find_alive(nonce);
    if (!peer || memcmp(registry.self.nonce, nonce, 16) > 0) return peer && peer->state == OPEN;
    if (peer->state == OPEN || peer->link->stage == HELLO_SENT) return true;
    /* This process's attempt may never succeed, and the caller's connection has succeeded. */
    registry_close_descriptor(&peer->descriptor);
    peer->link->stage = IDLE;
    return false;
}
/* Answers a valid hello: welcomes the caller, or drops its connection if it is superfluous. */
static void incoming_link_answer_hello(int index)
{
    struct incoming_link *incoming = &links.incoming[index];
    const unsigned char *from = incoming->handshake.hello.from.nonce;
    if (nonce_equal(from, registry.self.nonce)) incoming_link_drop(index, NULL);
    else if (incoming_link_resolve_collision(from)) {
        handshake_send_answer(&incoming->handshake, HANDSHAKE_SUPERFLUOUS, 0, incoming->descriptor);
        incoming_link_drop(index, NULL);
    } else if (handshake_send_answer(&incoming->handshake, HANDSHAKE_WELCOME, 0, incoming->descriptor) != 0)
        incoming_link_drop(index, NULL);
    else {
        incoming->proved = true;
        incoming->until_ms = clock_ms() + PROVED_MS;
    }
}
/* Opens the link of a caller that has confirmed. */
static void incoming_link_open(int index)
{
    struct incoming_link incoming;
    const struct handshake_hello *hello = &links.incoming[index].handshake.hello;
    struct peer *peer = link_find_alive(hello->from.nonce);
    if (!peer) peer = link_add(&hello->from, &hello->key);
    if (!peer || peer->state == OPEN) { incoming_link_drop(index, NULL); return; }
    registry_close_descriptor(&peer->descriptor);
    peer->descriptor = incoming_link_take(index, &incoming)->descriptor;
    /* Messages may have arrived with the confirmation. */
    if (link_open(peer, &incoming.handshake, true)) link_receive(peer);
}
/* Handles the next message on an incoming connection, which may become a link or be dropped. Returns false if the
   message has not arrived. */
static bool incoming_link_receive(int index)
{
    struct incoming_link *incoming = &links.incoming[index];
    struct handshake *handshake = &incoming->handshake;
    int got = incoming->proved ? handshake_receive_confirm(handshake, incoming->descriptor)
                               : handshake_receive_hello(handshake, registry.self.nonce, incoming->descriptor);
    if (got == 0) return false;
    /* A caller closes its connection (-ECONNRESET) when the two processes keep another one. */
    if (got > 0 && incoming->proved) incoming_link_open(index);
    else if (got > 0) incoming_link_answer_hello(index);
    else if (got == -ECONNRESET) incoming_link_drop(index, NULL);
    else {
        handshake_send_refusal(handshake, got, incoming->descriptor);
        incoming_link_drop(index, handshake_refusal_text(handshake, got));
    }
    return true;
}

/* ---- accepting and dropping ---- */
/* Returns the index of the incoming connection to drop for another, or -1 if all have proved their key. */
static int incoming_links_find_superfluous(void)
{
    struct unproved list[MOST_INCOMING_LINKS];
    int index[MOST_INCOMING_LINKS], count = 0;
    for (int i = 0; i < links.incoming_count; i++) {
        const struct incoming_link *incoming = &links.incoming[i];
        if (incoming->proved) continue;
        list[count] = (struct unproved){ sock_address_network(&incoming->from), incoming->until_ms - HELLO_MS };
        index[count++] = i;
    }
    int found = unproved_find_superfluous(list, count);
    return found < 0 ? -1 : index[found];
}
/* Drops incoming connections until a place is free, if possible. Each is read before it is dropped, because its hello
   may have arrived while this process was stopped. */
static void incoming_links_make_room(void)
{
    for (int found; links.incoming_count == MOST_INCOMING_LINKS && (found = incoming_links_find_superfluous()) >= 0;)
        if (!incoming_link_receive(found)) incoming_link_drop(found, "sent nothing while many others connected");
}
/* Adds a connection that must prove its identity within HELLO_MS. */
static void incoming_link_add(int descriptor)
{
    struct incoming_link *incoming = &links.incoming[links.incoming_count++];
    *incoming = (struct incoming_link){
        .descriptor = descriptor, .until_ms = clock_ms() + HELLO_MS, .from = tcp_remote_address(descriptor)
    };
    links_schedule_tick(incoming->until_ms);
    if (handshake_send_opening(&incoming->handshake, handshake_of_links, descriptor) != 0)
        incoming_link_drop(links.incoming_count - 1, NULL);
}
/* Accepts waiting connections. If all places are taken, one unproved connection is closed. */
static void incoming_links_accept(void)
{
    for (int i = 0; i < ACCEPTED_AT_ONCE; i++) {
        int descriptor = tcp_accept(links.listener);
        if (descriptor < 0) { registry.out_of_descriptors |= descriptor != -EAGAIN; return; }
        if (links.incoming_count == MOST_INCOMING_LINKS) incoming_links_make_room();
        bool has_room = links.incoming_count < MOST_INCOMING_LINKS;
        if (!has_room || registry_poll_add(descriptor) != 0) registry_close_descriptor(&descriptor);
        else incoming_link_add(descriptor);
    }
}
bool incoming_links_on_ready(int descriptor)
{
    if (descriptor == links.listener) { incoming_links_accept(); return true; }
    for (int i = 0; i < links.incoming_count; i++)
        if (links.incoming[i].descriptor == descriptor) { incoming_link_receive(i); return true; }
    return false;
}
void incoming_links_tick(int64_t now_ms)
{
    for (int i = 0; i < links.incoming_count;) {
        int before = links.incoming_count;
        if (links.incoming[i].until_ms <= now_ms && !incoming_link_receive(i))
            incoming_link_drop(i, "did not finish the handshake in time");
        if (links.incoming_count < before) continue;
        links_schedule_tick(links.incoming[i++].until_ms);
    }
}
