/* Starts and ends this process's connections to others. The first use starts the watch thread (watch.h), which runs all
 * connections until the last use ends. */
#pragma once
#include "backend/processes/peers.h"

/* Sets *out to the identity of this process. The first use starts to listen and to watch. Each peers_acquire pairs with
   a peers_release. The last release stops the thread, sends GOODBYE to all peers and closes everything. A forked child
   starts fresh: the parent's peers are dead in it, and releasing them has no effect. */
tutti_status peers_acquire(struct identity *out);
void peers_release(void);
/* Registers a function that the last peers_release calls once before it closes connections. A process has at most one.
   Returns true if this is the first registration since the registry started. */
bool peers_set_at_end(void (*at_end)(void));
