/* Who is on one host: an abstract Unix socket named by a token all ranks of a group know belongs to whichever process
 * claims it first; the others connect to it. So it is shown, and not guessed from names, who can reach whom: another
 * network namespace, another kernel and another user are other hosts. */
#pragma once
#include "backend/processes/peers.h"

/* *out: the nonce of the process of this host that was first to claim that token; it may be this one. Waits for its
   answer. SYSTEM, TIMEOUT. Between peers_acquire and peers_release. */
tutti_status host_claim(const unsigned char token[16], int64_t deadline_ms, unsigned char out[16]);
/* All of the group have claimed. */
void host_unclaim(const unsigned char token[16]);
