/* Who is on one host: an abstract Unix socket, whose name follows from a token and the key of a group, belongs to
 * whichever process claims it first; the others connect to it, and the first proves that it belongs to the group. So
 * it is shown, and not guessed from names, who can reach whom: another network namespace, another kernel and another
 * user are other hosts. */
#pragma once
#include "backend/processes/peers.h"

/* *out: a number of the process of this host that was first to claim that token, which may be this one: equal, it is
   the same process. Waits for its answer. `key` is the id of the group's key. SYSTEM, TIMEOUT. Between peers_acquire
   and peers_release. */
tutti_status host_claim(const unsigned char token[16], const struct key_id *key, int64_t deadline_ms,
    unsigned char out[16]);
/* All of the group have claimed. */
void host_unclaim(const unsigned char token[16]);
