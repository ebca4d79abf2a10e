/* Routes of control messages to ranks of other hosts, over existing links. The first process of a host is linked with
 * the first processes of the hosts 1, 2, 4 … ahead, and of those behind. A message goes to the first process of its own
 * host, from there host by host, and from the last host's first process to its rank. The first process is that of the
 * first rank whose process is not known to be gone. When it changes, O(log hosts) new links are made.
 *
 * Every step between hosts makes the distance smaller, whichever hosts are skipped. So a route has no loop, and at most
 * log2(hosts) steps between hosts, rounded up. A process without a usable step connects to the rank directly. So does a
 * rank after three messages without an answer, because a process on the route may be stopped. */
#pragma once
#include "backend/processes/peers.h"
#include <stdbool.h>

/* ---- hosts in a ring, without processes ---- */
/* Returns the least number of steps between two hosts of a ring of `hosts` hosts. */
int route_distance(int hosts, int from, int to);
/* Returns a limit of the distances in a ring of `hosts` hosts: log2(hosts), rounded up. */
int route_longest_distance(int hosts);
/* Returns the host to which a message from host `from` to host `to` is sent next, or -1. It is one of the hosts that
   are a power of two ahead of `from` or behind it, and for which `is_there` returns true: the nearest to `to`, if it is
   nearer than `from`. Calls `is_there` only for hosts other than `from`. */
int route_next_host(int hosts, int from, int to, bool (*is_there)(const void *context, int host), const void *context);

/* ---- for one rank of a communicator ---- */
/* The hosts of a communicator of `size` ranks. `hosts` is the number of hosts, `host` the index of this rank's host,
   and host_of[r] that of rank r's. */
struct route_map { int size, hosts, host; const int *host_of; };
struct routes;
/* Creates the routes of a rank, which its channel owns. `peers` is the array of channel_open and is copied; the caller
   holds the peers until routes_retire or routes_free. NO_MEMORY. */
tutti_status routes_create(const struct route_map *map, struct peer *const *peers, struct routes **out);

/* ---- with registry.lock held ---- */
/* Frees the routes. NULL is allowed. */
void routes_free(struct routes *routes);
/* Makes the routes of a closed channel use only connections that are open now, by weak references. */
void routes_retire(struct routes *routes);
/* Returns the peer to which a message for rank `to` is sent next, or NULL if that rank is in this process. `is_own` is
   true for a message of this rank, and false for one that it passes on. */
struct peer *routes_next_peer(const struct routes *routes, int to, bool is_own);
/* Returns true if both ranks exist and `to` is in another process. */
bool routes_can_forward(const struct routes *routes, int from, int to);
/* Returns the number of steps between hosts from this rank to rank `to`. */
int routes_steps_left(const struct routes *routes, int to);
/* Returns the most processes that may pass on a message. */
int routes_most_hops(const struct routes *routes);
/* Counts a message of this rank to rank `to`, which must answer it. */
void routes_expect_answer(struct routes *routes, int to);
/* Records a message from rank `from`. It counts as the answer to all messages that this rank has sent to it. */
void routes_record_received(struct routes *routes, int from);
