/* The other processes that this one is connected to. peer_release, peer_is_gone, the aborted joins and the watches are
 * for every peer, also one of another host (links/links.h). The rest is for processes of this host.
 *
 * All groups of this process share one Unix-socket connection to each process of this host, so the number of
 * descriptors does not grow with the groups. A connection carries the descriptors of segments, and its end shows that
 * the peer is gone. One watch thread polls all connections. Both ends check the other's user and a proof of a shared
 * group's key (handshake.h); the name of a socket grants no access. A working connection is half of the proof that both
 * processes are on one host. The token in the segment is the other half. */
#pragma once
#include "backend/host/reading.h"
#include "backend/processes/keys.h"

/* A process, as it introduces itself to others. The size is fixed and there is no padding. */
struct identity {
    /* Random bytes that name the process and its socket. They are not secret. */
    unsigned char nonce[16];
    /* Both are used only in errors and logs. */
    uint64_t pid;
    char host[40];
};
/* Another process, on this host or another. */
struct peer;
/* Sets *out to the peer of that process of this host. Pair with peer_release. Never waits or connects. Both processes
   may call it at once and for several groups: they share one connection. The other process need not call it. `key` is
   the id of a shared group's key (keys.h). */
tutti_status peer_acquire(const struct identity *other, const struct key_id *key, struct peer **out);
/* Waits until the connection is open, and connects it if needed. SYSTEM: the process cannot be reached, and the text
   says why. It has ended, or it is on another host, in another network namespace, or of another user. TIMEOUT: the
   process exists but has not answered; the caller may wait again. */
tutti_status peer_await(struct peer *peer, int64_t deadline_ms);
/* Does peer_await without an error text. Returns 0, -ETIMEDOUT if it may be tried again, or another -errno. */
int peer_try_await(struct peer *peer, int64_t deadline_ms);
/* Ends one use of a peer. NULL is allowed. */
void peer_release(struct peer *peer);
/* Returns true if the process has died or has called its last peers_release, or if the connection failed. */
bool peer_is_gone(const struct peer *peer);
/* Returns the address of this process's nonce, which other processes read to verify the process (host/reading.h). */
uint64_t peers_nonce_address(void);
/* Returns how to read the memory of a process of this host, which has reported the address of its nonce. */
struct read_source peer_memory_source(const struct peer *peer, uint64_t nonce_at);
/* Sends a file descriptor to that process, which finds it under `token`. With -1 its wait ends with an error.
   PEER_LOST; TIMEOUT if the process does not read. */
tutti_status peer_send_descriptor(struct peer *peer, const unsigned char token[16], int descriptor);
/* Does peer_send_descriptor without waiting and without an error text. Returns 0, -EAGAIN if it may be tried again, or
   another -errno. */
int peer_try_send_descriptor(struct peer *peer, const unsigned char token[16], int descriptor);
/* Waits for the file descriptor that any process sent under `token`, and sets *out to it. The caller closes it. TIMEOUT
   sets no error text, because the caller may wait on. SYSTEM: a packet without a descriptor has arrived, because its
   sender could not send it or this process had no room for it; or the token is refused. */
tutti_status peers_await_descriptor(const unsigned char token[16], int64_t deadline_ms, int *out);
/* Closes the descriptor that was sent under `token`, and one that arrives later, because no rank needs it any more. A
   rank that waits for it gets an error. Only the latest 16 such tokens are recorded. */
void peers_refuse_descriptor(const unsigned char token[16]);

/* Notifies all connected processes, and those that connect later, that a rank of this process could not join the group
   with that token. A notice that was received earlier for the same group takes precedence. */
void peers_abort_join(const unsigned char token[16]);
/* Returns true if a process could not join the group, and sets *out to the first one. Only the latest 16 such groups
   are recorded. */
bool peers_join_is_aborted(const unsigned char token[16], struct identity *out);

/* Calls lost(context) once on the watch thread when the process behind `peer` is gone (peer_is_gone), or soon if it
   already is. The group itself knows whether the process left in good order. After peer_unwatch returns, lost() does
   not run. lost() may call peer_unwatch. */
struct peer_watch {
    struct peer *peer;
    void (*lost)(void *context);
    void *context;
    struct peer_watch *next;
    /* lost() was called. */
    bool called;
};
/* Starts the watch. `watch` must stay valid until peer_unwatch. */
void peer_watch(struct peer_watch *watch);
/* Ends the watch, and waits while lost() runs on another thread. */
void peer_unwatch(struct peer_watch *watch);
/* Calls the lost() of one watch whose peer is gone. Returns false if every such watch was called. For the watch thread,
   with registry.lock held, which is released during the call. */
bool peers_call_due_watch(void);
