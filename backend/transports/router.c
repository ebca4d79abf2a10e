/* Posting, cancelling and ending. A posted transfer has exactly one owner: the matching has receives that have met no
   message, the peer's transport has all other transfers. */
#include "backend/transports/router.h"
#include "backend/base/memory.h"
#include "backend/transports/pieces.h"
#include <stdio.h>
#include <stdlib.h>

/* ---- failing ---- */
void router_keep_reason(struct router *r)
{
    if (!r->reason[0]) snprintf(r->reason, sizeof r->reason, "%s", status_detail());
}
void router_fail(struct router *r, tutti_status status)
{
    router_keep_reason(r);
    if (r->failure) return;
    r->failure = status;
    r->polled = &r->failed;
}
void router_refuse_transfer(struct router *r, struct transfer *x, tutti_status status)
{
    router_keep_reason(r);
    transfer_fail(x, status, 0);
}
static void router_drop_peer(struct router *r, int rank, tutti_status status)
{
    const struct route *route = &r->routes[rank];
    matching_withdraw_all(&r->matching, rank);
    for (struct transfer *x; (x = matching_pop_receive(&r->matching, rank)) != NULL;) transfer_fail(x, status, 0);
    for (struct transport *t = route->transport; t; t = t->beside) t->operations->lose(t, route->member, status);
}
void router_lose_peer(struct router *r, int rank, tutti_status status)
{
    if (r->routes[rank].status) return;
    router_keep_reason(r);
    r->routes[rank].status = status;
    router_drop_peer(r, rank, status);
}
static bool failed_transport_poll(struct transport *t)
{
    (void)t;
    return true;
}
static const struct transport_operations failed = { .name = "failed", .poll = failed_transport_poll };
bool router_fail_transfers(struct router *r)
{
    r->polled = NULL;
    for (struct transfer *x; (x = matching_pop_receive(&r->matching, TRANSFER_ANY_PEER)) != NULL;)
        transfer_fail(x, r->failure, 0);
    for (int rank = 0; rank < r->size; rank++)
        if (!r->routes[rank].status) router_drop_peer(r, rank, r->failure);
    return true;
}

/* ---- several networks ---- */
/* Two networks may each have delivered every second message. Polling in rounds handles all of them in one call. */
__attribute__((noinline)) void router_poll_ahead(struct router *r)
{
    enum { ROUNDS = 1000 };
    for (int round = 0, before = -1; round < ROUNDS && r->ahead && r->ahead != before; round++) {
        before = r->ahead;
        router_poll_once(r);
    }
}
static double link_cost_predict_ns(const struct link_cost *c, uint64_t bytes)
{
    return (bytes <= EAGER_BYTES ? c->message_ns : c->announced_ns) + c->byte_ns * (double)bytes;
}
/* Chooses the connected network with the least expected time. If sends already wait on a network, the message waits
   behind them, because sends leave in the order of posting. */
__attribute__((noinline)) static struct transport *router_choose_network(struct router *r, const struct route *route,
    const struct transfer *x)
{
    struct transport *best = NULL, *only = NULL;
    double least = 0;
    int k = 0;
    for (struct transport *t = route->transport; t; t = t->beside, k++) {
        enum readiness readiness = t->operations->readiness(t, route->member);
        double ns = link_cost_predict_ns(&r->link_costs[k], x->wire);
        if (readiness == SENDS_WAIT) return t;
        if (k == r->only) only = t;
        if (readiness == UNCONNECTED || (best && ns >= least)) continue;
        best = t;
        least = ns;
    }
    return only ? only : best ? best : route->transport;
}
int router_network_count(const struct router *r)
{
    int count = 0;
    for (const struct transport *t = r->network; t; t = t->beside) count++;
    return count;
}
const char *router_network_name(const struct router *r, int network)
{
    const struct transport *t = r->network;
    for (int k = 0; t && k < network; k++) t = t->beside;
    return t ? t->network : "network";
}
void router_set_link_costs(struct router *r, const struct link_cost link_costs[NETWORKS_AT_MOST])
{
    for (int k = 0; k < NETWORKS_AT_MOST; k++) r->link_costs[k] = link_costs[k];
}
int router_cheapest_network(const struct router *r, uint64_t bytes)
{
    int best = 0;
    for (int k = 1; k < router_network_count(r); k++)
        if (link_cost_predict_ns(&r->link_costs[k], bytes) < link_cost_predict_ns(&r->link_costs[best], bytes))
            best = k;
    return best;
}
void router_use_network(struct router *r, int network) { r->only = network; }

/* ---- the contract ---- */
__attribute__((noinline)) static void router_receive_arrival(struct router *r, struct transfer *x, struct arrival *a)
{
    struct route *route = &r->routes[a->source];
    struct transport *t = a->by ? a->by : route->transport;
    if (a->announced) t->operations->accept(t, route->member, x, a);
    else {
        if (transfer_meet_message(x, a->source, a->bytes)) {
            pieces_scatter(x, a->data, (size_t)a->bytes);
            transfer_complete(x);
        }
        t->operations->release(t, route->member, a->bytes);
    }
    matching_arrival_free(&r->matching, a);
}
/* Rare paths are not inlined, so that the path of expected messages needs no stack space for them. */
__attribute__((noinline)) static void router_refuse_route(struct router *r, struct transfer *x)
{
    const struct route *route = &r->routes[x->peer];
    if (route->transport) transfer_fail(x, route->status, 0);
    else
        router_refuse_transfer(r, x,
            status_fail(route->status, "rank %d has no transport to rank %d", r->rank, x->peer));
}
__attribute__((noinline)) static void router_refuse_post(struct router *r, struct transfer *x)
{
    if (r->failure) transfer_fail(x, r->failure, 0);
    else router_refuse_transfer(r, x, status_fail(TUTTI_INVALID_ARGUMENT, "the pieces of a message exceed 2^64 bytes"));
}
static void router_post_receive(struct router *r, struct transfer *x)
{
    struct arrival *a = matching_post_receive(&r->matching, x);
    if (a) router_receive_arrival(r, x, a);
    else if (x->peer >= 0 && r->routes[x->peer].status) {
        matching_cancel_receive(&r->matching, x);
        router_refuse_route(r, x);
    }
}
static void router_post_send(struct router *r, struct transfer *x)
{
    const struct route *route = &r->routes[x->peer];
    if (route->status) { router_refuse_route(r, x); return; }
    struct transport *t = route->transport->beside ? router_choose_network(r, route, x) : route->transport;
    t->operations->send(t, route->member, x);
}
void router_post(struct router *r, struct transfer *x)
{
    x->state = TRANSFER_POSTED;
    x->source = -1;
    x->key = 0;
    if (r->failure || !pieces_start(x)) router_refuse_post(r, x);
    else if (x->is_send) router_post_send(r, x);
    else router_post_receive(r, x);
}
bool router_cancel(struct router *r, struct transfer *x)
{
    int rank = transfer_peer_rank(x);
    const struct route *route = rank >= 0 ? &r->routes[rank] : NULL;
    bool forgotten = !route;
    if (!route) matching_cancel_receive(&r->matching, x);
    for (struct transport *t = route ? route->transport : NULL; t && !forgotten; t = t->beside)
        forgotten = t->operations->cancel(t, route->member, x);
    if (forgotten) x->state = TRANSFER_IDLE;
    return forgotten;
}
bool router_arm(struct router *r)
{
    bool armed = r->polled != &r->failed;
    for (struct transport *t = r->polled; t && armed; t = t->next)
        if (t->operations->arm) armed = t->operations->arm(t);
    return armed;
}

/* ---- lifetime ---- */
tutti_status router_create(int rank, int size, uint64_t comm, struct bell bell, struct router **out)
{
    struct router *r = memory_alloc_aligned(sizeof *r);
    struct route *routes = memory_alloc_zeroed((size_t)size, sizeof *routes);
    if (!r || !routes) {
        free(r);
        free(routes);
        return status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for messages between %d ranks", rank, size);
    }
    r->rank = rank;
    r->size = size;
    r->comm = comm;
    r->bell = bell;
    r->only = -1;
    r->routes = routes;
    r->failed.operations = &failed;
    /* No transport leads to any rank yet. */
    for (int i = 0; i < size; i++) routes[i].status = TUTTI_UNSUPPORTED;
    *out = r;
    return TUTTI_OK;
}
void router_add_transport(struct router *r, struct transport *t, const int *ranks, int count)
{
    struct transport **at = &r->transports;
    while (*at) at = &(*at)->next;
    *at = t;
    if (!r->failure) r->polled = r->transports;
    for (int i = 0; i < count; i++) {
        struct route *route = &r->routes[ranks ? ranks[i] : i];
        if (!route->transport) *route = (struct route){ .transport = t, .member = i, .status = TUTTI_OK };
    }
}
void router_add_network(struct router *r, struct transport *t)
{
    struct transport **at = &r->network;
    while (*at) at = &(*at)->beside;
    *at = t;
    router_add_transport(r, t, NULL, r->size);
}
void router_destroy(struct router *r)
{
    if (!r) return;
    for (struct transport *t = r->transports, *next; t; t = next) {
        next = t->next;
        t->operations->destroy(t);
    }
    matching_finish(&r->matching);
    free(r->routes);
    free(r);
}
