/* The other processes of this host: one Unix-socket connection for each, shared by all groups of this process, so
 * descriptors are O(peers) however many groups there are. The connections carry file descriptors of segments, and
 * their end is how a death is noticed: one watch thread polls them all. Both ends check the other's user, and that
 * it knows the key of a group of both (handshake.h); names of sockets open nothing. That the connection works at all
 * is the first half of the proof that both are on one host (the segment's nonce is the second). */
#pragma once
#include "backend/host/reading.h"
#include "backend/processes/keys.h"

struct identity {                                       /* of a process; tells the others; fixed size, no padding */
    unsigned char nonce[16]; /* random; names its socket; equal: the same process; no secret */
    uint64_t pid;                                       /* for messages only */
    char host[40];                                      /* host name, for messages only */
};
/* Starts listening and watching when first used; every acquire is paired with a release, the last of which says goodbye
   to all peers, stops the thread and closes everything. After fork the child starts anew; what it inherited of its
   parent's peers is dead, and releasing it does nothing. */
tutti_status peers_acquire(struct identity *out);
void peers_release(void);
/* Calls end() once, in the last peers_release, before connections are closed. true: nothing was asked for before, of
   this life of the registry. One for a process is enough. */
bool peers_at_end(void (*end)(void));

struct peer;                                            /* another process of this host */
/* The connection to that process, made when there is none; pair with peer_release. Both sides may call it at the same
   time, for several groups: there is one connection, and the two see the same one. The other side need not call it.
   `key` is the id of the key of a group of both (keys.h).
   SYSTEM: not reachable, so it has ended, or is on another host (or in another network namespace, or of another user):
   the text says which. TIMEOUT: it is there but does not answer. */
tutti_status peer_connect(const struct identity *other, const struct key_id *key, int64_t deadline_ms,
    struct peer **out);
void peer_release(struct peer *peer);
/* It has died or has called its last peers_release. */
bool peer_is_gone(const struct peer *peer);
/* Where the nonce of this process lies in its memory, for those who read that: reading.h; and how to read a process of
   this host, which says that its own lies there. */
uint64_t peers_nonce_at(void);
struct source peer_source(const struct peer *peer, uint64_t nonce_at);
/* Hands a descriptor to that process; it finds it under `token`. PEER_LOST; TIMEOUT when it does not read. */
tutti_status peer_send_descriptor(struct peer *peer, const unsigned char token[16], int descriptor);
/* Waits for the descriptor sent under `token` by anyone; TIMEOUT, of which nothing is said: the caller may wait on;
   SYSTEM when it was sent and this process has no room for it. The caller closes it. */
tutti_status peers_await_descriptor(const unsigned char token[16], int64_t deadline_ms, int *out);

/* Tells all processes that are connected, and those that come later, that a rank of this one could not join the group
   of that token, unless another process has told it that. */
void peers_give_up(const unsigned char token[16]);
/* A process has, and *out says which was the first; of the last 16 groups. */
bool peers_have_given_up(const unsigned char token[16], struct identity *out);

/* Calls lost(context) once, on the watch thread, when the process behind `peer` is gone (see peer_is_gone; whether a
   group had been left in good order before is for the group to know), at once if it already is. After peer_unwatch
   returns it is not, and will not be, running; it may itself call peer_unwatch. */
struct peer_watch {
    struct peer *peer;
    void (*lost)(void *context);
    void *context;
    struct peer_watch *next;
    bool called;
};
void peer_watch(struct peer_watch *watch);
void peer_unwatch(struct peer_watch *watch);
