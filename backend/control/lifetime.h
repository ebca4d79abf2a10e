/* Starts and ends this process's connections to others. The first use starts the watch thread (watch.h), which runs all
 * connections. */
#pragma once
#include "backend/processes/peers.h"

/* Starts to listen and to watch at the first use. Each acquire pairs with a release. The last release says goodbye to
   all peers, stops the thread and closes everything. A forked child starts fresh: the parent's peers are dead in it,
   and releasing them has no effect. */
tutti_status peers_acquire(struct identity *out);
void peers_release(void);
/* Registers end(), which the last peers_release calls once before it closes connections. A process has at most one.
   Returns true if this is the first registration since the registry started. */
bool peers_set_at_end(void (*end)(void));
