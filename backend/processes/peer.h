/* One peer: another process that this one is connected to, on this host or over a link. The kind of a peer is its table
 * of operations (peer_ops): local_peer.c has the one of this host, links/link.c the one of links.
 *
 * The registry owns all peers, and registry.lock guards them; every function here expects the lock. A peer lives while
 * it has users, is open, or has messages to send. */
#pragma once
#include "backend/processes/ctrl_queue.h"

struct handshake;
struct link;
struct peer;
struct view;
/* REFUSED: the handshake failed. LEFT: the other process has sent GOODBYE. LOST: the connection ended without one. */
enum peer_state { CONNECTING, OPEN, REFUSED, LEFT, LOST };
/* The operations of both kinds of peers: those of this host and links. */
struct peer_ops {
    /* Sends a packet and the data behind it, `bytes` bytes together. `attached_fd` is a descriptor or -1. Returns 0 or
       -errno. -EAGAIN: there is no room now. -EOPNOTSUPP: this kind carries no descriptors. */
    int (*send)(struct peer *peer, const struct packet *packet, size_t bytes, int attached_fd);
    /* Makes the watch thread call peer_flush_queue when the connection has room again (`on`), or ends that. */
    void (*set_await_room)(struct peer *peer, bool on);
    /* Closes the socket so that the other process still receives what was sent. */
    void (*close)(struct peer *peer);
    /* Frees what only this kind of peer has. */
    void (*free)(struct peer *peer);
};
struct peer {
    const struct peer_ops *ops;
    struct identity identity;
    /* The id of the key that both processes prove to know. */
    struct key_id key;
    /* The link to a process of another host. It is NULL for a connection on this host. A process may have a peer of
     * each kind. */
    struct link *link;
    enum peer_state state;
    /* The -errno of a failed handshake, or 0. */
    int error;
    /* The open socket, or -1. */
    int descriptor;
    /* True while CONNECTING if this process waits for the other one to connect. */
    bool awaits_incoming;
    /* The handshake of this process's connection attempt while CONNECTING, else NULL. */
    struct handshake *handshake;
    /* The number of peer_acquire or link_acquire without a peer_release. */
    int users;
    /* References that do not keep the peer alive. */
    struct peer_weak_ref *weak_refs;
    struct peer_watch *watches;
    /* Views of blocks in the peer's arena. */
    struct view *views;
    /* Control messages that the socket has no room for at present. */
    struct ctrl_queue unsent;
    /* True if a JOIN_ABORTED packet found no room. All of them are sent again. */
    bool owes_join_aborts;
    /* The next peer of the registry, the pointer to this one (NULL: the registry does not have it), and the next peer
       of its index at the same place. */
    struct peer *next, **at, *next_at_place;
};
/* Returns true if the peer has left or is lost. */
static inline bool peer_is_over(const struct peer *peer) { return peer->state == LEFT || peer->state == LOST; }

/* ---- references ---- */
/* A reference to a peer without holding it. When the peer is freed, the reference points to peer_freed. */
struct peer_weak_ref { struct peer *peer; struct peer_weak_ref *next, **at; };
/* Stands for all peers that were freed. It is LOST and has no operations. */
extern struct peer peer_freed;
/* Makes an unused reference point to that peer. */
void peer_weak_ref_set(struct peer_weak_ref *ref, struct peer *peer);
/* Ends the reference, if it was set. */
void peer_weak_ref_clear(struct peer_weak_ref *ref);

/* ---- sending ---- */
/* Sends a packet of that kind without data. `token` is copied into the packet unless it is NULL. `attached_fd` is a
   descriptor or -1, and must be -1 for a link. Returns 0 or -errno; -EAGAIN means that there is no room now. */
int peer_send_packet(struct peer *peer, enum packet_kind kind, const unsigned char *token, int attached_fd);
/* Sends a control message, now or when there is room. Returns false if it is lost: the peer is gone, or memory is
   short. */
bool peer_post_ctrl_msg(struct peer *peer, const struct ctrl_msg *msg);
/* Sends waiting notices of aborted joins and control messages, as far as the socket has room. */
void peer_flush_queue(struct peer *peer);
/* Sends the recorded JOIN_ABORTED of the group with that token to all peers that its sender does not reach. `sender` is
   the peer that sent the notice, or NULL for this process. A notice from this host goes only over links, because its
   sender reaches this host itself. */
void peers_forward_join_abort(const unsigned char token[16], const struct peer *sender);

/* ---- receiving, on the watch thread ---- */
/* Queues a control message that has arrived from the peer. */
void peer_receive_ctrl_msg(const struct peer *peer, const struct ctrl_msg *msg);
/* Records and forwards a notice that has arrived from the peer. */
void peer_receive_join_abort(struct peer *peer, const struct packet *packet);

/* ---- lifetime ---- */
/* Prepares the handshake of a connection attempt by this process. Returns 0 or -ENOMEM. */
int peer_begin_handshake(struct peer *peer, const char purpose[8]);
/* Makes the peer OPEN after the handshake on its descriptor, and sends it all recorded notices of aborted joins. */
void peer_open(struct peer *peer);
/* Closes the connection and sets the final state. Frees the peer if it has no users. */
void peer_end(struct peer *peer, enum peer_state state);
/* Sends a goodbye, closes the connection and frees the peer, which has no users. */
void peer_close_with_goodbye(struct peer *peer);
