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
    /* Where the process listens, if known, and the local address of the latest connection attempt. */
    struct sock_address at, from;
    /* The stage of this process's connection attempt while CONNECTING. In HELLO_SENT it has sent its hello. */
    enum { IDLE, CALLING, CONNECTED, HELLO_SENT } stage;
    /* The time since when the link is wanted (0: not wanted), of the next attempt, and of this attempt's end. */
    int64_t since_ms, again_ms, until_ms;
    /* The time of the latest send while OPEN. */
    int64_t sent_ms;
    /* The number of threads in link_await. */
    int waiters;
    /* The -errno of the latest attempt or of the link's end, or 0. */
    int error;
    /* The number of attempts in a row that found no listener. */
    int refusals;
    /* The link was open at some time. Its socket takes no more bytes at present. */
    bool was_open, is_full;
    /* This process has ever asked for the other's process address. It is about to ask. */
    bool has_asked, wants_address;
    /* The other process has ever asked for this one's. It is still to be sent. */
    bool was_asked, owes_address;
    /* The frames, from when the link first opens. */
    struct frame_stream *stream;                        /* owned */
    /* The other's process address, or NULL until it arrives. */
    struct process_address *process_address;            /* owned */
};
/* An incoming connection that is not a link yet. */
struct incoming_link {
    int descriptor;
    int64_t until_ms;
    /* The caller has proved a shared group's key and was welcomed. */
    bool proved;
    struct sock_address from;
    struct handshake handshake;
};
enum { MOST_CALLERS = 128 };
/* The listener, the process address and the incoming connections of this process. */
struct links {
    int listener, caller_count;
    /* Where this process listens. The family is 0 if it does not listen. */
    struct sock_address at;
    struct process_address *process_address;            /* owned */
    /* The earliest time at which links_tick may have work. */
    int64_t due_ms;
    /* The oldest caller is first. */
    struct incoming_link callers[MOST_CALLERS];
};
extern struct links links;
/* Makes links_tick run at that time at the latest. */
void links_schedule_tick(int64_t at_ms);

/* ---- link.c ---- */
/* Finds a link that is CONNECTING or OPEN, or returns NULL. */
struct peer *link_find(const unsigned char nonce[16]);
/* Adds a link that is CONNECTING. Returns NULL without memory. */
struct peer *link_add(const struct identity *identity, const struct key_id *key);
/* Opens the link after the handshake on peer->descriptor. `called` means that the other process connected. Returns
   false if the link ended. */
bool link_open(struct peer *peer, const struct handshake *handshake, bool called);
/* Ends the link as LOST, with that -errno. */
void link_end(struct peer *peer, int error);
/* Makes the watch thread connect a link that has messages to send or waiters, unless it is open. */
void link_request_connect(struct peer *peer);
/* Sends what an OPEN link still owes, as far as the window has room. */
void link_send_owed(struct peer *peer);
/* Sends as much as the socket takes. Returns true if more remains. */
bool link_push(struct peer *peer);
/* Handles what has arrived on an OPEN link. The link may end. */
void link_receive(struct peer *peer);
/* Sends a heartbeat over an OPEN link if it is time. */
void link_tick_open(struct peer *peer, int64_t now_ms);

/* ---- connect.c: outgoing connections ---- */
/* Handles a ready socket. The link may end. */
void link_connect_on_ready(struct peer *peer);
/* Starts, retries or gives up a connection attempt. The link may end. */
void link_connect_tick(struct peer *peer, int64_t now_ms);
/* ---- accept.c: incoming connections ---- */
/* Handles a ready descriptor of an incoming connection. Returns false if the descriptor is not one of these. */
bool incoming_links_on_ready(int descriptor);
void incoming_links_tick(int64_t now_ms);
/* Returns true if that process was welcomed and its link is about to open. */
bool incoming_links_include(const unsigned char nonce[16]);
