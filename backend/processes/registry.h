/* The state that peers.c and views.c, which other folders call, share with watch.c, which runs the watch thread.
 * registry.lock protects everything here. No thread holds it while it waits. */
#pragma once
#include "backend/processes/channel.h"
#include "backend/processes/handshake.h"
#include <pthread.h>

enum { MOST_PENDING = 32, KEPT = 1024, KEPT_OPEN = 256, MOST_JOIN_ABORTS = 16, PROTOCOL = 9 };
/* DESCRIPTOR, WANTED and BLOCK travel only between processes of one host. HEARTBEAT, ADDRESS_REQUEST and ADDRESS travel
 * only over links. */
enum kind {
    DESCRIPTOR = 1,
    GOODBYE,
    WANTED,
    BLOCK,
    JOIN_ABORTED,
    CTRL_MSG,
    HEARTBEAT,
    ADDRESS_REQUEST,
    ADDRESS,
};
/* Packets follow the handshake. A control message follows a CTRL_MSG packet, a process address an ADDRESS packet. */
struct packet {
    char magic[8];
    uint32_t version, kind;
    unsigned char to[16], token[16];
    /* The sender. In a JOIN_ABORTED packet it is the process that could not join. */
    struct identity from;
};
/* One rank's end of a channel. */
struct channel_address { unsigned char token[16]; int32_t rank; };
/* A control message. Only the first `length` of its bytes are sent. */
struct ctrl_msg {
    struct channel_address to;
    int32_t from;
    uint16_t type;
    /* The number of processes that have passed it on, and bits of enum ctrl_msg_flag. */
    uint8_t hops, flags;
    uint32_t length;
    unsigned char bytes[CHANNEL_BYTES];
};
/* FINAL_MSG marks the final message of a rank. ANSWER marks a final message that a closed channel sends in reply. */
enum ctrl_msg_flag { FINAL_MSG = 1, ANSWER = 2, CTRL_MSG_FLAGS = 3 };
struct packet_and_ctrl_msg { struct packet packet; struct ctrl_msg msg; };
/* `via` is the nonce of the process that delivered the message, or of this process for its own messages. */
struct ctrl_entry { struct ctrl_entry *next; struct ctrl_msg msg; unsigned char via[16]; };
struct ctrl_queue { struct ctrl_entry *first, *last; int count; };
enum state { CONNECTING, OPEN, REFUSED, LEFT, LOST };
struct peer {
    struct identity identity;
    /* The id of the key that both processes prove to know. */
    struct key_id key;
    /* The link to a process of another host. It is NULL for a connection on this host. A process may have a peer of
     * each kind. */
    struct link *link;
    enum state state;
    /* The -errno of a failed handshake, or 0. */
    int error;
    /* The open socket, or -1. */
    int descriptor;
    /* True while CONNECTING if this process waits for the other one to connect. */
    bool expects_theirs;
    /* The handshake of this process's connection attempt while CONNECTING, else NULL. */
    struct handshake *handshake;
    /* `users` counts holders. `ways` counts routes of closed channels, which use it only while it is open. */
    int users, route_refs;
    struct peer_watch *watches;
    /* Views of blocks in the peer's arena. */
    struct view *views;
    /* Control messages that the socket has no room for at present. */
    struct ctrl_queue unsent;
    /* True if a JOIN_ABORTED packet found no room. All of them are sent again. */
    bool owes_join_aborts;
    struct peer *next;
};
/* A connection whose process has not yet proved that it shares a group with this one. */
struct pending_conn { int descriptor; int64_t until_ms; struct handshake handshake; };
/* A descriptor that arrived before a rank asked for it. It is -1 if this process had no room for it. */
struct early_descriptor { int descriptor; unsigned char token[16]; };
/* A group, by its token, and the process that could not join it. */
struct join_abort { unsigned char token[16]; struct identity by; };

struct registry {
    pthread_mutex_t lock;
    /* Signals a new state, a kept descriptor, or the end of a callback. */
    pthread_cond_t changed;
    int users;
    /* The function of peers_set_at_end, or NULL. */
    void (*at_end)(void);
    /* `stop` ends the watch thread. `stopping` is true during the last peers_release. With `out_of_descriptors` the
     * watch thread pauses before its next poll. */
    bool stop, stopping, out_of_descriptors;
    struct identity self;
    int listener, poller, waker;
    pthread_t thread;
    struct peer *peers;
    /* The oldest entry is first. */
    struct pending_conn pending[MOST_PENDING];
    /* The oldest entry is first. At most KEPT_OPEN entries have an open descriptor. */
    struct early_descriptor kept[KEPT];
    int pending_count, kept_count;
    /* A ring of the latest entries, and the number of all entries so far. */
    struct join_abort given_up[MOST_JOIN_ABORTS];
    unsigned given_up_count;
    /* The watch whose callback is running, or NULL. */
    const struct peer_watch *calling;
    /* The number of refused connections, and of descriptors that were closed unused. */
    uint64_t turned_away, dropped;
};
extern struct registry registry;

static inline bool peer_is_over(const struct peer *peer) { return peer->state == LEFT || peer->state == LOST; }
bool nonce_equal(const unsigned char a[16], const unsigned char b[16]);
/* Closes the descriptor unless it is -1, and sets it to -1. */
void descriptor_close(int *descriptor);

/* Waits until `changed` is signalled or the time has come. */
void registry_wait(int64_t until_ms);
/* Wakes the watch thread. */
void registry_wake(void);
/* Makes the watch thread poll the descriptor for reading. Returns 0 or -errno. */
int registry_poll_add(int descriptor);
/* Polls the descriptor for writing too, or only for reading again. */
void registry_poll_writing(int descriptor, bool on);
/* Removes the descriptor from the poll set and closes it. */
void registry_close_descriptor(int *descriptor);
struct packet registry_make_packet(const unsigned char to[16], enum kind kind);
/* Sends a packet over the connection or the link of a peer. `token` may be NULL. `gift` is a descriptor or -1, and must
   be -1 for a link. Returns 0 or -errno; -EAGAIN means that there is no room now. */
int peer_send_packet(struct peer *peer, enum kind kind, const unsigned char *token, int gift);
int peer_send_ctrl_msg(struct peer *peer, const struct ctrl_msg *msg);
/* Sets whether the watch thread calls peer_flush_queue when the connection has room again. */
void peer_set_await_room(struct peer *peer, bool on);
/* Starts the handshake of a connection attempt by this process. Returns 0 or -ENOMEM. */
int peer_begin_handshake(struct peer *peer, const char purpose[8]);
/* Checks a packet that was received. `bytes` leaves out the data behind the packet. */
bool packet_is_for_us(int bytes, const struct packet *packet);
bool ctrl_msg_is_for_us(int bytes, const struct packet_and_ctrl_msg *message);

/* Finds the peer of this host that is CONNECTING or OPEN, or returns NULL. */
struct peer *registry_find_peer(const unsigned char nonce[16]);
/* Adds a peer that is CONNECTING. Returns NULL without memory. */
struct peer *registry_add_peer(const struct identity *identity, const struct key_id *key);
/* Frees a peer that has no users and no socket. */
void registry_free_peer(struct peer *peer);
/* Takes out the descriptor that was sent under `token`. Returns false if it has not arrived. */
bool registry_take_early_descriptor(const unsigned char token[16], int *out);
struct pending_conn registry_take_pending_conn(int index);
/* Records the first process that gave up joining a group, and closes a descriptor that was kept for the group. Returns
   true for the first. */
bool registry_record_join_abort(const unsigned char token[16], const struct identity *by);
/* Returns the record of that group, or NULL. */
const struct join_abort *registry_find_join_abort(const unsigned char token[16]);
/* Sends a recorded JOIN_ABORTED to all peers that its sender does not reach. `heard_of` is the peer that sent it, or
   NULL for this process. A notice from this host goes only over links, because its sender reaches this host itself. */
void registry_forward_join_abort(const unsigned char token[16], const struct peer *heard_of);
/* Sends all recorded GIVEN_UPs, because the peer may be about to join one of those groups. */
void peer_send_join_aborts(struct peer *peer);

/* ---- views.c, for the watch thread ---- */
/* Sends a block of this process's arena to a peer that asked for it. */
void views_send_block(struct peer *peer, const unsigned char token[16]);
/* Handles a peer's answer. `gift` is a descriptor, which is taken over, or -1. */
void views_receive_block(struct peer *peer, const unsigned char token[16], int gift);
/* Unmaps all views of a peer. They have no holders. */
void views_free_all(struct peer *peer);

/* ---- channel.c, for the watch thread ---- */
/* Queues a control message that has arrived from `by`. */
void channels_receive(const struct ctrl_msg *msg, const struct peer *by);
/* Delivers queued messages. It releases the lock while it calls the receivers. */
void channels_deliver(void);
void channels_call_ticks(void);
/* Returns the time until the next tick in ms, or -1 if no channel ticks. */
int channels_poll_timeout_ms(void);
/* Sends waiting control messages as far as the socket has room. */
void peer_flush_queue(struct peer *peer);
void ctrl_queue_free(struct ctrl_queue *list);
/* Removes a peer that is about to be freed from the routes of closed channels. */
void channels_remove_peer(const struct peer *peer);
/* Frees closed channels and queues. No channel is open. */
void channels_free_all(void);
/* Forgets the parent's channels in the child. */
void channels_after_fork(void);

/* ---- host_election.c, for the watch thread ---- */
/* Answers a process that asks who claimed a token first. Returns false if the descriptor is not a claim's listener. */
bool host_elections_answer(int descriptor);
/* Frees all claims when this process has no users left. */
void host_elections_free_all(void);
/* Forgets the parent's claims in the child. */
void host_elections_after_fork(void);

/* ---- link.c and accept.c, for the watch thread and peers.c ---- */
/* Handles a link whose socket is ready. The link may end. */
void link_on_ready(struct peer *peer);
/* Handles a ready descriptor of an incoming connection. Returns false if the descriptor is not one of these. */
bool incoming_links_on_ready(int descriptor);
void links_tick(void);
/* Returns the time until links_tick has work in ms, or -1 for no limit. */
int links_poll_timeout_ms(void);
/* Sends a packet and the data behind it. Returns 0 or -errno. */
int link_send_packet(struct peer *peer, const struct packet *packet, size_t bytes);
/* Makes the watch thread connect a link that has messages to send or waiters, unless it is open. */
void link_request_connect(struct peer *peer);
/* Sends as much as the socket takes. Returns true if more remains. */
bool link_push(struct peer *peer);
void link_free(struct peer *peer);
/* Closes the listener and all incoming connections. No link is held. */
void links_close(void);
void links_after_fork(void);

/* ---- watch.c ---- */
/* Runs the watch thread. */
void *registry_run_thread(void *unused);
/* Closes a refused connection, and logs the reason for the first one. */
void registry_refuse_connection(int descriptor, const char *why);
void peer_open(struct peer *peer);
/* Ends the connection, and frees the peer if it has no users. */
void peer_end(struct peer *peer, enum state state);
void peer_handle_join_abort(struct peer *peer, const struct packet *packet);
