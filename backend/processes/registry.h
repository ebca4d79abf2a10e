/* The state of this process that all connections share. registry.lock protects everything here, and every function
 * expects the lock. No thread holds it while it waits. */
#pragma once
#include "backend/processes/handshake.h"
#include "backend/processes/peer.h"
#include <pthread.h>

enum { MOST_PENDING = 32, KEPT = 1024, KEPT_OPEN = 256, MOST_JOIN_ABORTS = 16 };
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
    /* Control messages to deliver or to pass on. */
    struct ctrl_queue incoming;
    /* The oldest entry is first. */
    struct pending_conn pending[MOST_PENDING];
    /* The oldest entry is first. At most KEPT_OPEN entries have an open descriptor. */
    struct early_descriptor kept[KEPT];
    int pending_count, kept_count;
    /* A ring of the latest aborted joins, and the number of all so far. */
    struct join_abort join_aborts[MOST_JOIN_ABORTS];
    unsigned join_abort_count;
    /* The watch whose callback is running, or NULL. */
    const struct peer_watch *calling;
    /* The number of refused connections, and of descriptors that were closed unused. */
    uint64_t turned_away, dropped;
};
extern struct registry registry;

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
/* Closes a refused connection, and logs the reason for the first one. */
void registry_refuse_connection(int descriptor, const char *why);

/* Finds the peer of this host that is CONNECTING or OPEN, or returns NULL. */
struct peer *registry_find_peer(const unsigned char nonce[16]);
/* Adds a peer of that kind that is CONNECTING. Returns NULL without memory. */
struct peer *registry_add_peer(const struct identity *identity, const struct key_id *key, const struct peer_ops *ops);
/* Takes the peer out of the list. */
void registry_remove_peer(const struct peer *peer);
/* Keeps a descriptor, which is -1 if this process had no room for it, until a rank asks for it. */
void registry_keep_early_descriptor(const unsigned char token[16], int descriptor);
/* Takes out the descriptor that was sent under `token`. Returns false if it has not arrived. */
bool registry_take_early_descriptor(const unsigned char token[16], int *out);
struct pending_conn registry_take_pending_conn(int index);
/* Records the first process that could not join a group, and closes a descriptor that was kept for the group. Returns
   true for the first. */
bool registry_record_join_abort(const unsigned char token[16], const struct identity *by);
/* Returns the record of that group, or NULL. */
const struct join_abort *registry_find_join_abort(const unsigned char token[16]);
