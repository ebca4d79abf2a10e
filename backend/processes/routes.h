/* Ways of control messages to ranks of other hosts over the links that there are anyway: of each host the first process
 * is linked with those of the hosts 1, 2, 4 … ahead, and so with those behind. A message goes to the first process of
 * its own host, from there host by host, and from the first process of the last one to its rank. The first process is
 * that of the first rank whose process is not known to be gone; when that changes, O(log hosts) links are made.
 *
 * Every step from host to host makes the distance smaller, whoever takes it and whatever hosts are passed by: so a
 * route has no loop, and no more than log2(hosts) steps between hosts. Who knows of no step that is left goes straight
 * to the rank, and so does who has had no answer for long: somebody on the way may be stopped. */
#pragma once
#include "backend/processes/peers.h"
#include <stdbool.h>

/* ---- hosts in a ring, without processes ---- */
/* How many steps there are from one to the other. */
int route_distance(int hosts, int from, int to);
/* The largest distance. */
int route_longest(int hosts);
/* The best next host, of those with `is_there`, which is asked for others than `from`; -1: none. */
int route_step(int hosts, int from, int to, bool (*is_there)(const void *context, int host), const void *context);

/* ---- of one rank of a communicator ---- */
struct route_map { int size, hosts, host; const int *host_of; };       /* host: mine. host_of: [size] */
struct routes;
/* peers: of channel_open; copied, and the caller holds them until routes_retire or routes_free. NO_MEMORY. */
tutti_status routes_create(const struct route_map *map, struct peer *const *peers, struct routes **out);

/* ---- with registry.lock held ---- */
void routes_free(struct routes *routes);                /* NULL is fine */
/* From now on it uses connections that are open now, and holds none: who forgets one takes it out before. */
void routes_retire(struct routes *routes);
void routes_lose(struct routes *routes, const struct peer *peer);
/* mine: of a message of this rank, and not one to pass on. NULL: `to` is of this process. */
struct peer *routes_next(const struct routes *routes, int to, bool mine);
bool routes_may_pass(const struct routes *routes, int from, int to);   /* both exist, and `to` is of another process */
int routes_left(const struct routes *routes, int to);   /* steps from host to host */
int routes_most_hops(const struct routes *routes);      /* of a message, from process to process */
void routes_record_sent(struct routes *routes, int to);   /* something that is answered, or said again */
void routes_record_received(struct routes *routes, int from);
