/* Finds the processes of one host. An abstract Unix socket has a name that follows from a token and the key of a group.
 * The first process to take the name owns it. The others connect to it, and the owner proves that it belongs to the
 * group. So processes prove that they can reach each other, without trust in host names. Another network namespace,
 * kernel or user counts as another host. */
#pragma once
#include "backend/processes/peers.h"

/* Sets `out` to a number of the process that was elected: the first on this host that took the socket name of the
   token. That may be this process. Equal numbers mean one process. Waits for the elected process's answer. `key` is the
   id of the group's key. Call it between peers_acquire and peers_release. SYSTEM, TIMEOUT. */
tutti_status host_election_join(const unsigned char token[16], const struct key_id *key, int64_t deadline_ms,
    unsigned char out[16]);
/* The next two are for a rank that has joined the election and not left it. This one returns true if this process was
   elected. */
bool host_election_is_won(const unsigned char token[16]);
/* Asks the elected process, and returns true if it answers by that time. Otherwise it has ended or left the election,
   or is stopped or too busy. While the queue of its socket is full this asks again. */
bool host_election_poll_owner(const unsigned char token[16], int64_t deadline_ms);
/* Leaves the election, and releases the name if this process owns it. Call it when all processes of the group have
   joined the election, or the attempt to form the group has failed. */
void host_election_leave(const unsigned char token[16]);

/* ---- with registry.lock held ---- */
/* Accepts a connection on the listener of an election, and answers which process was elected. Returns false if the
   descriptor is not the listener of an election. */
bool host_elections_answer(int descriptor);
/* Frees all elections when this process has no users left. */
void host_elections_free_all(void);
/* Forgets the parent's elections in the child. */
void host_elections_after_fork(void);
