/* The state of processes on other hosts, which links.c, link.c, connect.c and accept.c share. Other folders include
 * links.h; control includes this file, too. registry.lock protects everything here, and no function waits. A peer owns
 * its link; `links` owns the listener and the incoming connections. A function that may end a link is marked, because a
 * peer without users is freed when its link ends. */
#pragma once
#include "backend/links/frame.h"
#include "backend/links/links.h"
#include "backend/processes/handshake.h"
#include "backend/processes/registry.h"

struct process_address { size_t bytes; unsigned char content[PROCESS_ADDRESS_BYTES]; };
struct link {
    /* Where the other process listens (family 0: unknown), and the local address of the latest connection. */
    struct sock_address at, from;
    /* The stage of this process's connection attempt while the peer is CONNECTING. IDLE: no attempt runs. In HELLO_SENT
       this process has sent its hello. */
    enum { IDLE, CONNECT_STARTED, CONNECTED, HELLO_SENT } stage;
    /* Since when messages or threads wait for the link (0: none wait), the earliest time of the next attempt, and the
       deadline of the running one. These and all other times here are those of clock_ms(). */
    int64_t wanted_since_ms, next_attempt_ms, until_ms;
    /* The time of the latest send while OPEN. */
    int64_t sent_ms;
    /* The number of threads in link_await. */
    int waiters;
    /* The -errno of the latest attempt or of the link's end, or 0. */
    int error;
    /* The number of attempts in a row that found no listener. */
    int refusals_in_a_row;
    /* `was_open`: the link was open at some time. `is_full`: its socket takes no more bytes at present. */
    bool was_open, is_full;
    /* `has_asked`: this process has requested the other's process address, or is about to. `wants_address`: the request
       is still to be sent. */
    bool has_asked, wants_address;
    /* `was_asked`: the other process has requested this one's address. `owes_address`: the answer is still to be
       sent. */
    bool was_asked, owes_address;
    /* The frames, from when the link first opens. */
    struct frame_stream *stream;                        /* owned */
    /* The other's process address, or NULL until it arrives. */
    struct process_address *process_address;            /* owned */
};
/* An incoming connection that is not a link yet. */
struct incoming_link {
    int descriptor;
    /* The time by which its next message must have arrived. */
    int64_t until_ms;
    /* The caller has proved a shared group's key and was welcomed. */
    bool proved;
    /* The address of the caller. */
    struct sock_address from;
    struct handshake handshake;
};
enum { MOST_INCOMING_LINKS = 128 };
/* The listener, the process address and the incoming connections of this process. */
struct links {
    int listener, incoming_count;
    /* Where this process listens. The family is 0 if it does not listen. */
    struct sock_address at;
    struct process_address *process_address;            /* owned */
    /* The earliest time at which links_tick may have work. */
    int64_t due_ms;
    /* The oldest connection is first. */
    struct incoming_link incoming[MOST_INCOMING_LINKS];
};
extern struct links links;
/* Makes links_tick run at that time at the latest. */
void links_schedule_tick(int64_t at_ms);

/* ---- link.c ---- */
/* Returns the link to the process with that nonce that is CONNECTING or OPEN, or NULL. */
struct peer *link_find(const unsigned char nonce[16]);
/* Adds a link to that process, which is CONNECTING. `key` is the id of a shared group's key. Returns NULL if memory is
   short. */
struct peer *link_add(const struct identity *identity, const struct key_id *key);
/* Opens the link after the handshake on peer->descriptor. `is_incoming` means that the other process connected. Returns
   false if the link ended. */
bool link_open(struct peer *peer, const struct handshake *handshake, bool is_incoming);
/* Ends the link as LOST, with a -errno as the reason. */
void link_end(struct peer *peer, int error);
/* Makes the watch thread connect a CONNECTING link that has messages to send or waiters. */
void link_request_connect(struct peer *peer);
/* Sends what an OPEN link still owes, as far as the window has room: an address, a request for one, queued messages, an
   acknowledgement. */
void link_send_owed(struct peer *peer);
/* Sends as much of an OPEN link's bytes as the socket takes, at the end of the registry, when the watch thread has
   stopped. Returns true if more remains. */
bool link_push(struct peer *peer);
/* Handles what has arrived on an OPEN link. The link may end. */
void link_receive(struct peer *peer);
/* Sends a heartbeat over an OPEN link if it is time, and schedules the next one. */
void link_tick_open(struct peer *peer, int64_t now_ms);

/* ---- connect.c: outgoing connections ---- */
/* Handles the ready socket of a connection attempt. The link may end. */
void link_connect_on_ready(struct peer *peer);
/* Starts, retries or gives up a connection attempt. The link may end. */
void link_connect_tick(struct peer *peer, int64_t now_ms);
/* ---- accept.c: incoming connections ---- */
/* Handles a ready descriptor: the listener's or an incoming connection's. Returns false if it is neither. */
bool incoming_links_on_ready(int descriptor);
/* Drops the incoming connections whose time is over, unless their next message has arrived. */
void incoming_links_tick(int64_t now_ms);
/* Returns true if an incoming connection of that process was welcomed and waits for its confirmation. */
bool incoming_links_include(const unsigned char nonce[16]);
