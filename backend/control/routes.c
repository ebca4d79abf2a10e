/* A distance is the least number of powers of two that lead forwards, or backwards, to the other host. A step takes one
   power in the shorter direction, so each step reduces the distance by at least one, and a route ends. If the host at
   one power is missing, a route takes another power first, because the order of the powers does not matter. */
#include "backend/control/routes.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/processes/registry.h"
#include <stdlib.h>
#include <string.h>

/* After this many messages without an answer, messages to a rank take a direct link. */
enum { MOST_UNANSWERED = 3 };
struct routes {
    struct route_map map;
    /* `host_of` is the copy that map.host_of points to. `ranks` has all ranks sorted by host: those of host h lie from
       ranks[first[h]] to before ranks[first[h + 1]]. */
    int *host_of, *first, *ranks;
    /* Weak references from routes_retire on. Until then the caller of routes_create holds the peers. */
    struct peer_weak_ref *peers; /* [size] */
    /* The number of messages sent to each rank since the last one from it, at most MOST_UNANSWERED. */
    unsigned char *unanswered; /* [size] */
};

/* ---- hosts ---- */
/* Returns how many hosts `to` is ahead of `from` in the ring. */
static int route_hosts_ahead(int hosts, int from, int to) { return to >= from ? to - from : to - from + hosts; }
/* Returns the number of powers of two that add up to `number`: its set bits. */
static int route_count_powers(int number)
{
    int count = 0;
    for (; number; number &= number - 1) count++;
    return count;
}
int route_distance(int hosts, int from, int to)
{
    int ahead = route_hosts_ahead(hosts, from, to);
    int forward_steps = route_count_powers(ahead), backward_steps = ahead ? route_count_powers(hosts - ahead) : 0;
    return forward_steps < backward_steps ? forward_steps : backward_steps;
}
int route_longest_distance(int hosts)
{
    int steps = 0;
    for (int64_t reach = 1; reach < hosts; reach *= 2) steps++;
    return steps;
}
/* Tries the hosts at a power of two ahead and behind, the farthest first, and keeps the one nearest to `to`. */
int route_next_host(int hosts, int from, int to, bool (*is_there)(const void *context, int host), const void *context)
{
    int best = -1, least = route_distance(hosts, from, to);
    for (int k = 2 * route_longest_distance(hosts) - 1; k >= 0; k--) {
        int power = 1 << k / 2, next = (from + (k % 2 ? power : hosts - power)) % hosts;
        int left = route_distance(hosts, next, to);
        if (left >= least || !is_there(context, next)) continue;
        least = left;
        best = next;
    }
    return best;
}

/* ---- lifetime ---- */
/* Fills `first` and `ranks` from `host_of`, by a counting sort. */
static void routes_sort_by_host(struct routes *routes)
{
    for (int i = 0; i < routes->map.size; i++) routes->first[routes->host_of[i] + 1]++;
    for (int h = 0; h < routes->map.hosts; h++) routes->first[h + 1] += routes->first[h];
    for (int i = routes->map.size - 1; i >= 0; i--) routes->ranks[--routes->first[routes->host_of[i] + 1]] = i;
    /* The loop has turned first[h + 1] from the end of host h into its start, so the starts move down by one entry. */
    memmove(routes->first, routes->first + 1, (size_t)routes->map.hosts * sizeof *routes->first);
    routes->first[routes->map.hosts] = routes->map.size;
}
/* Frees the memory of routes, also of half-built ones. */
static void routes_free_all(struct routes *routes)
{
    free(routes->host_of);
    free(routes->first);
    free(routes->ranks);
    free(routes->peers);
    free(routes->unanswered);
    free(routes);
}
/* Allocates all arrays for map.size ranks. Returns false if memory is short. */
static bool routes_allocate(struct routes *routes)
{
    size_t size = (size_t)routes->map.size;
    routes->host_of = memory_alloc_zeroed(size, sizeof *routes->host_of);
    routes->first = memory_alloc_zeroed((size_t)routes->map.hosts + 1, sizeof *routes->first);
    routes->ranks = memory_alloc_zeroed(size, sizeof *routes->ranks);
    routes->peers = memory_alloc_zeroed(size, sizeof *routes->peers);
    routes->unanswered = memory_alloc_zeroed(size, sizeof *routes->unanswered);
    return routes->host_of && routes->first && routes->ranks && routes->peers && routes->unanswered;
}
tutti_status routes_create(const struct route_map *map, struct peer *const *peers, struct routes **out)
{
    struct routes *routes = memory_alloc_zeroed(1, sizeof *routes);
    if (routes) routes->map = *map;
    if (!routes || !routes_allocate(routes)) {
        if (routes) routes_free_all(routes);
        return status_fail(TUTTI_NO_MEMORY, "no memory for the routes to %d ranks", map->size);
    }
    memcpy(routes->host_of, map->host_of, (size_t)map->size * sizeof *routes->host_of);
    routes->map.host_of = routes->host_of;
    routes_sort_by_host(routes);
    for (int i = 0; i < map->size; i++) routes->peers[i].peer = peers[i];
    *out = routes;
    return TUTTI_OK;
}
void routes_free(struct routes *routes)
{
    if (!routes) return;
    for (int i = 0; i < routes->map.size; i++) peer_weak_ref_clear(&routes->peers[i]);
    routes_free_all(routes);
}
void routes_retire(struct routes *routes)
{
    for (int i = 0; i < routes->map.size; i++) {
        struct peer *peer = routes->peers[i].peer;
        if (peer && peer->state == OPEN) peer_weak_ref_set(&routes->peers[i], peer);
        else if (peer) routes->peers[i].peer = &peer_freed;
    }
}

/* ---- the next process on a route ---- */
/* Returns the first rank of that host whose process is not known to be gone, so that it can pass a message on, or
   -1. */
static int routes_forwarder_of_host(const struct routes *routes, int host)
{
    for (int i = routes->first[host]; i < routes->first[host + 1]; i++) {
        const struct peer *peer = routes->peers[routes->ranks[i]].peer;
        if (!peer || peer->state <= OPEN) return routes->ranks[i];
    }
    return -1;
}
/* Is the `is_there` of route_next_host: returns true if a rank of that host can pass a message on. */
static bool routes_has_forwarder(const void *context, int host) { return routes_forwarder_of_host(context, host) >= 0; }
/* Returns true if messages go directly to that rank: it is on this host, or its link is open or over, or messages wait
   for the link to open. */
static bool routes_is_direct(const struct routes *routes, int to)
{
    const struct peer *peer = routes->peers[to].peer;
    return peer != &peer_freed && (!peer->link || peer->state >= OPEN || peer->unsent.first);
}
/* Looks for the next process even if this process cannot reach the rank itself, because others may. It skips hosts
   whose first process is this one: its own host, and others only if hosts are simulated. */
struct peer *routes_next_peer(const struct routes *routes, int to, bool is_own)
{
    struct peer *receiver = routes->peers[to].peer;
    if (!receiver || routes_is_direct(routes, to) || (is_own && routes->unanswered[to] >= MOST_UNANSWERED))
        return receiver;
    for (int host = routes->map.host; host >= 0;) {
        int forwarder = routes_forwarder_of_host(routes, host);
        if (forwarder >= 0 && routes->peers[forwarder].peer) return routes->peers[forwarder].peer;
        if (host == routes->host_of[to]) break;
        host = route_next_host(routes->map.hosts, host, routes->host_of[to], routes_has_forwarder, routes);
    }
    return receiver;
}
bool routes_can_forward(const struct routes *routes, int from, int to)
{
    return from >= 0 && from < routes->map.size && to >= 0 && to < routes->map.size && routes->peers[to].peer;
}
int routes_steps_left(const struct routes *routes, int to)
{
    return route_distance(routes->map.hosts, routes->map.host, routes->host_of[to]);
}
/* Two more steps lead to the first process of this rank's host, and from the first process of the last host to the
   receiver. */
int routes_most_hops(const struct routes *routes) { return route_longest_distance(routes->map.hosts) + 2; }
void routes_expect_answer(struct routes *routes, int to)
{
    const struct peer *peer = routes->peers[to].peer;
    if (peer && peer->link && routes->unanswered[to] < MOST_UNANSWERED) routes->unanswered[to]++;
}
void routes_record_received(struct routes *routes, int from)
{
    if (from >= 0 && from < routes->map.size) routes->unanswered[from] = 0;
}
