/* The state of this process that all connections share. registry.lock protects everything here, and every function
 * expects the lock. No thread holds it while it waits. */
#pragma once
#include "backend/processes/handshake.h"
#include "backend/processes/peer.h"
#include <pthread.h>

enum { MOST_PENDING = 32, MOST_EARLY_FDS = 1024, MOST_OPEN_EARLY_FDS = 256, MOST_JOIN_ABORTS = 16, MOST_REFUSED = 16 };
/* A connection whose process has not yet proved that it shares a group with this one, and must do so by
   `until_ms`. */
struct pending_conn { int descriptor; int64_t until_ms; struct handshake handshake; };
/* A descriptor that arrived before a rank asked for it. It is -1 if this process had no room for it. */
struct early_descriptor { int descriptor; unsigned char token[16]; };
/* A ring of the tokens whose descriptors are closed when they arrive, and the number of all so far. */
struct refused_descriptors { unsigned char tokens[MOST_REFUSED][16]; unsigned count; };
/* The peers by their nonces. `places` has `count` peers at `room` places, a power of two: each place is a list. */
struct peer_index { struct peer **places; uint32_t room, count; };
/* The watch whose callback is running, or NULL. `are_due` is false if no peer that is over has a watch that was not
   called. */
struct watch_calls { const struct peer_watch *running; bool are_due; };
/* A group, by its token, and the process that could not join it. */
struct join_abort { unsigned char token[16]; struct identity by; };

struct registry {
    pthread_mutex_t lock;
    /* Signals a new state, a kept descriptor, or the end of a callback. */
    pthread_cond_t changed;
    /* The number of peers_acquire without a peers_release. */
    int users;
    /* The function of peers_set_at_end, or NULL. */
    void (*at_end)(void);
    /* `stop` ends the watch thread. `stopping` is true during the last peers_release. With `out_of_descriptors` the
     * watch thread pauses before its next poll. */
    bool stop, stopping, out_of_descriptors;
    /* This process. */
    struct identity self;
    /* The socket for processes of this host, the epoll set, and the eventfd that wakes the watch thread. */
    int listener, poller, waker;
    /* The watch thread. */
    pthread_t thread;
    struct peer *peers;
    struct peer_index index;
    /* Control messages to deliver or to pass on. */
    struct ctrl_queue incoming;
    /* Connections without a proof. The oldest is first. */
    struct pending_conn pending[MOST_PENDING];
    /* Descriptors that no rank has asked for. The oldest is first. At most MOST_OPEN_EARLY_FDS of them are open. */
    struct early_descriptor early[MOST_EARLY_FDS];
    int pending_count, early_count;
    struct refused_descriptors refused;
    /* A ring of the latest aborted joins, and the number of all so far. */
    struct join_abort join_aborts[MOST_JOIN_ABORTS];
    unsigned join_abort_count;
    struct watch_calls watch_calls;
    /* The number of refused connections, and of early descriptors that were closed for lack of room. */
    uint64_t refused_count, closed_early_count;
};
extern struct registry registry;

/* Returns true if two nonces, or two tokens, are equal. */
bool nonce_equal(const unsigned char a[16], const unsigned char b[16]);
/* Closes the descriptor unless it is -1, and sets it to -1. */
void descriptor_close(int *descriptor);

/* Waits until `changed` is signalled, or until that clock_ms(); INT64_MAX means without limit. Releases the lock
   meanwhile. */
void registry_wait(int64_t until_ms);
/* Wakes the watch thread. */
void registry_wake(void);
/* Makes the watch thread poll the descriptor for reading. Returns 0 or -errno. */
int registry_poll_add(int descriptor);
/* Makes the watch thread poll the descriptor for writing, too (`on`), or only for reading again. */
void registry_poll_writing(int descriptor, bool on);
/* Removes the descriptor from the poll set, closes it, and sets it to -1. Does nothing for -1. */
void registry_close_descriptor(int *descriptor);
/* Closes a refused connection (-1: already closed), and logs the reason for the first one. `why` follows the words "a
   connection that". */
void registry_refuse_connection(int descriptor, const char *why);

/* Returns the peer of this host (or the link, if `is_link`) with that nonce that is CONNECTING or OPEN, or NULL. */
struct peer *registry_find_kind(const unsigned char nonce[16], bool is_link);
/* Returns the peer of this host with that nonce that is CONNECTING or OPEN, or NULL. */
struct peer *registry_find_peer(const unsigned char nonce[16]);
/* Adds a peer of which all fields are set to the list and the index. Returns false if memory is short. */
bool registry_insert_peer(struct peer *peer);
/* Adds a peer that is CONNECTING, of the kind that `ops` gives. Returns NULL if memory is short. */
struct peer *registry_add_peer(const struct identity *identity, const struct key_id *key, const struct peer_ops *ops);
/* Removes the peer from the list and the index, if it is there, but does not free it. */
void registry_remove_peer(struct peer *peer);
/* Returns the peer with that socket, or NULL. Later searches find it soon. */
struct peer *registry_find_socket(int descriptor);
/* Forgets all peers in a forked child, which keeps their memory. */
void registry_forget_peers(void);
/* Keeps a descriptor until a rank asks for it, or closes it if it is refused or the join of its group was aborted. It
   is -1 if this process had no room for it. */
void registry_keep_early_descriptor(const unsigned char token[16], int descriptor);
/* Removes the descriptor that was sent under `token` from the list and sets *out to it. Returns false if it has not
   arrived. */
bool registry_take_early_descriptor(const unsigned char token[16], int *out);
/* Closes the descriptor that was sent under `token`, now if it has arrived, else when it arrives. */
void registry_refuse_early_descriptor(const unsigned char token[16]);
/* Returns true if that is recorded for `token`. */
bool registry_has_refused(const unsigned char token[16]);
/* Removes the pending connection with that index from the list and returns it. */
struct pending_conn registry_take_pending_conn(int index);
/* Records that the process `by` could not join a group, and closes a descriptor that was kept for the group. Returns
   false, without a change, if another process was recorded before. */
bool registry_record_join_abort(const unsigned char token[16], const struct identity *by);
/* Returns the record of that group, or NULL. */
const struct join_abort *registry_find_join_abort(const unsigned char token[16]);
