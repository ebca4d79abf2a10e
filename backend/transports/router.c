/* Posting, cancelling and ending. A posted transfer has exactly one owner: the matching has receives that have met no
   message, the peer's transport has all other transfers. */
#include "backend/transports/router.h"
#include "backend/base/memory.h"
#include "backend/transports/pieces.h"
#include <stdio.h>
#include <stdlib.h>

/* ---- failing ---- */
void router_keep_reason(struct router *router)
{
    if (!router->reason[0]) snprintf(router->reason, sizeof router->reason, "%s", status_detail());
}
void router_fail(struct router *router, tutti_status status)
{
    router_keep_reason(router);
    if (router->failure) return;
    router->failure = status;
    router->polled = &router->failed_transport;
}
void router_fail_transfer(struct router *router, struct transfer *transfer, tutti_status status)
{
    router_keep_reason(router);
    transfer_fail(transfer, status);
}
/* Fails every transfer with `rank`, and drops the messages that it has announced. */
static void router_drop_peer(struct router *router, int rank, tutti_status status)
{
    const struct route *route = &router->routes[rank];
    matching_withdraw_all(&router->matching, rank);
    for (struct transfer *transfer; (transfer = matching_pop_receive(&router->matching, rank)) != NULL;)
        transfer_fail(transfer, status);
    for (struct transport *transport = route->transport; transport; transport = transport->next_network)
        transport->operations->lose(transport, route->member, status);
}
void router_lose_peer(struct router *router, int rank, tutti_status status)
{
    if (router->routes[rank].status) return;
    router_keep_reason(router);
    router->routes[rank].status = status;
    router_drop_peer(router, rank, status);
}
/* The poll of the only transport that a failed router polls. Returns true, so that router_poll fails all transfers. */
static bool failed_transport_poll(struct transport *transport)
{
    (void)transport;
    return true;
}
static const struct transport_operations failed_operations = { .name = "failed", .poll = failed_transport_poll };
bool router_fail_all_transfers(struct router *router)
{
    router->polled = NULL;
    for (struct transfer *transfer; (transfer = matching_pop_receive(&router->matching, TRANSFER_ANY_PEER)) != NULL;)
        transfer_fail(transfer, router->failure);
    for (int rank = 0; rank < router->size; rank++)
        if (!router->routes[rank].status) router_drop_peer(router, rank, router->failure);
    return true;
}

/* ---- several networks ---- */
/* Two networks may each have delivered every second message of a rank. Polling in rounds handles all of them in one
   call. */
__attribute__((noinline)) void router_poll_ahead(struct router *router)
{
    enum { ROUNDS = 1000 };
    for (int round = 0, before = -1; round < ROUNDS && router->ahead_count && router->ahead_count != before; round++) {
        before = router->ahead_count;
        router_poll_once(router);
    }
}
/* Returns the expected time of a message of `bytes` bytes by a network of this cost. */
static double link_cost_predict_ns(const struct link_cost *cost, uint64_t bytes)
{
    return (bytes <= EAGER_BYTES ? cost->message_ns : cost->announced_ns) + cost->byte_ns * (double)bytes;
}
/* Returns the network for a send: only_network if it is set, otherwise the connected one with the least expected time,
   or the first while no network is connected. A network that reports SENDS_WAIT takes precedence over all of these,
   because sends leave in the order of posting. */
__attribute__((noinline)) static struct transport *router_choose_network(struct router *router,
    const struct route *route, const struct transfer *transfer)
{
    struct transport *best = NULL, *only = NULL;
    double least_ns = 0;
    int k = 0;
    for (struct transport *transport = route->transport; transport; transport = transport->next_network, k++) {
        enum readiness readiness = transport->operations->readiness(transport, route->member);
        double ns = link_cost_predict_ns(&router->link_costs[k], transfer->wire);
        if (readiness == SENDS_WAIT) return transport;
        if (k == router->only_network) only = transport;
        if (readiness == UNCONNECTED || (best && ns >= least_ns)) continue;
        best = transport;
        least_ns = ns;
    }
    return only ? only : best ? best : route->transport;
}
int router_network_count(const struct router *router)
{
    int count = 0;
    for (const struct transport *transport = router->first_network; transport; transport = transport->next_network)
        count++;
    return count;
}
const char *router_network_name(const struct router *router, int network)
{
    const struct transport *transport = router->first_network;
    for (int k = 0; transport && k < network; k++) transport = transport->next_network;
    return transport ? transport->network_name : "network";
}
void router_set_link_costs(struct router *router, const struct link_cost link_costs[NETWORKS_AT_MOST])
{
    for (int k = 0; k < NETWORKS_AT_MOST; k++) router->link_costs[k] = link_costs[k];
}
int router_cheapest_network(const struct router *router, uint64_t bytes)
{
    int best = 0;
    for (int k = 1; k < router_network_count(router); k++)
        if (link_cost_predict_ns(&router->link_costs[k], bytes)
            < link_cost_predict_ns(&router->link_costs[best], bytes))
            best = k;
    return best;
}
void router_use_network(struct router *router, int network) { router->only_network = network; }

/* ---- the contract ---- */
/* Gives a kept message to the receive that has now been posted: copies its bytes, or lets its transport move them. */
__attribute__((noinline)) static void router_receive_arrival(struct router *router, struct transfer *transfer,
    struct arrival *arrival)
{
    struct route *route = &router->routes[arrival->source];
    struct transport *transport = arrival->transport ? arrival->transport : route->transport;
    if (arrival->is_announced) transport->operations->accept(transport, route->member, transfer, arrival);
    else {
        if (transfer_meet_message(transfer, arrival->source, arrival->name, arrival->bytes)) {
            pieces_scatter(transfer, arrival->data, (size_t)arrival->bytes);
            transfer_complete(transfer);
        }
        transport->operations->release(transport, route->member, arrival->bytes);
    }
    matching_arrival_free(&router->matching, arrival);
}
/* Fails a posted transfer because its peer is unreachable. Rare paths are not inlined, so that the path of expected
   messages needs no stack space for them. */
__attribute__((noinline)) static void router_fail_unreachable(struct router *router, struct transfer *transfer)
{
    const struct route *route = &router->routes[transfer->peer];
    if (route->transport) transfer_fail(transfer, route->status);
    else
        router_fail_transfer(router, transfer,
            status_fail(route->status, "rank %d has no transport to rank %d", router->rank, transfer->peer));
}
/* Fails a transfer that is being posted: the router has failed, or the pieces exceed 64 bits. */
__attribute__((noinline)) static void router_fail_post(struct router *router, struct transfer *transfer)
{
    if (router->failure) transfer_fail(transfer, router->failure);
    else
        router_fail_transfer(router, transfer,
            status_fail(TUTTI_INVALID_ARGUMENT, "the pieces of a message exceed 2^64 bytes"));
}
/* Posts a receive. If its message has arrived, the receive takes it; if its peer is unreachable, the receive fails. */
static void router_post_receive(struct router *router, struct transfer *transfer)
{
    struct arrival *arrival = matching_post_receive(&router->matching, transfer);
    if (arrival) router_receive_arrival(router, transfer, arrival);
    else if (transfer->peer >= 0 && router->routes[transfer->peer].status) {
        matching_cancel_receive(&router->matching, transfer);
        router_fail_unreachable(router, transfer);
    }
}
/* Sends by the transport that leads to the peer, or fails the send if the peer is unreachable. */
static void router_post_send(struct router *router, struct transfer *transfer)
{
    const struct route *route = &router->routes[transfer->peer];
    if (route->status) { router_fail_unreachable(router, transfer); return; }
    struct transport *transport =
        route->transport->next_network ? router_choose_network(router, route, transfer) : route->transport;
    transport->operations->send(transport, route->member, transfer);
}
void router_post(struct router *router, struct transfer *transfer)
{
    transfer->state = TRANSFER_POSTED;
    transfer->source = -1;
    transfer->key = 0;
    if (router->failure || !pieces_start(transfer)) router_fail_post(router, transfer);
    else if (transfer->is_send) router_post_send(router, transfer);
    else router_post_receive(router, transfer);
}
bool router_cancel(struct router *router, struct transfer *transfer)
{
    int rank = transfer_peer_rank(transfer);
    const struct route *route = rank >= 0 ? &router->routes[rank] : NULL;
    bool forgotten = !route;
    if (!route) matching_cancel_receive(&router->matching, transfer);
    for (struct transport *transport = route ? route->transport : NULL; transport && !forgotten;
        transport = transport->next_network)
        forgotten = transport->operations->cancel(transport, route->member, transfer);
    if (forgotten) transfer->state = TRANSFER_IDLE;
    return forgotten;
}
bool router_arm(struct router *router)
{
    bool armed = router->polled != &router->failed_transport;
    for (struct transport *transport = router->polled; transport && armed; transport = transport->next)
        if (transport->operations->arm) armed = transport->operations->arm(transport);
    return armed;
}

/* ---- lifetime ---- */
tutti_status router_create(int rank, int size, uint64_t comm, struct bell bell, struct router **out)
{
    struct router *router = memory_alloc_aligned(sizeof *router);
    struct route *routes = memory_alloc_zeroed((size_t)size, sizeof *routes);
    if (!router || !routes) {
        free(router);
        free(routes);
        return status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for messages between %d ranks", rank, size);
    }
    router->rank = rank;
    router->size = size;
    router->comm = comm;
    router->bell = bell;
    router->only_network = -1;
    router->routes = routes;
    router->failed_transport.operations = &failed_operations;
    /* No transport leads to any rank yet. */
    for (int i = 0; i < size; i++) routes[i].status = TUTTI_UNSUPPORTED;
    *out = router;
    return TUTTI_OK;
}
void router_add_transport(struct router *router, struct transport *transport, const int *ranks, int count)
{
    struct transport **at = &router->transports;
    while (*at) at = &(*at)->next;
    *at = transport;
    if (!router->failure) router->polled = router->transports;
    for (int i = 0; i < count; i++) {
        struct route *route = &router->routes[ranks ? ranks[i] : i];
        if (!route->transport) *route = (struct route){ .transport = transport, .member = i, .status = TUTTI_OK };
    }
}
void router_add_network(struct router *router, struct transport *transport)
{
    struct transport **at = &router->first_network;
    while (*at) at = &(*at)->next_network;
    *at = transport;
    router_add_transport(router, transport, NULL, router->size);
}
void router_destroy(struct router *router)
{
    if (!router) return;
    for (struct transport *transport = router->transports, *next; transport; transport = next) {
        next = transport->next;
        transport->operations->destroy(transport);
    }
    matching_finish(&router->matching);
    free(router->routes);
    free(router);
}
