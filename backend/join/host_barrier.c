/* A dissemination barrier of the hosts by messages (Hensgen, Finkel, Manber: Two algorithms for barrier
   synchronization, 1988). In round k a host sends to the host 2^k ahead and receives from the host 2^k behind. After
   log2(hosts) rounds, rounded up, all hosts have joined. Then the hosts measure, and a second barrier carries the
   results. These are the first messages over the network, so a network that does not pass them fails here and not in
   the first operation. */
#include "backend/join/host_barrier.h"
#include "backend/base/clock.h"
#include "backend/join/contacts.h"
#include "backend/join/link_cost.h"
#include "backend/join/mapping.h"

enum { CHECK_EVERY = 64 };
struct host_exchange {
    struct transfer sent, received;
    struct piece sent_piece, received_piece;
};
static int host_first_rank_ahead(const struct group *g, int64_t ahead)
{
    int hosts = g->layout->hosts;
    return layout_rank(g->layout, (int)((g->host + ahead + hosts) % hosts), 0);
}
static void host_exchange_begin(tutti_comm *comm, uint64_t number, struct host_exchange *s, int to, int from)
{
    const struct message_name name = { OPERATION_OF_JOIN, number };
    s->received = (struct transfer){ .name = name, .peer = from, .pieces = &s->received_piece, .piece_count = 1 };
    s->sent =
        (struct transfer){ .name = name, .peer = to, .is_send = true, .pieces = &s->sent_piece, .piece_count = 1 };
    router_post(comm->router, &s->received);
    router_post(comm->router, &s->sent);
}
/* Returns when the router no longer uses the transfer's memory. */
static void host_exchange_end_transfer(struct router *router, struct transfer *x)
{
    while (x->state == TRANSFER_POSTED && !router_cancel(router, x)) router_poll(router);
}

/* ---- errors ---- */
static tutti_status host_barrier_fail_late(tutti_comm *comm, const struct transfer *x)
{
    const struct group *g = &comm->group;
    char here[MEMBER_TEXT_BYTES], there[MEMBER_TEXT_BYTES];
    return comm_fail(comm, TUTTI_TIMEOUT,
        "%s of %s has a link with %s, but has not %s in time: either that host waits for one of its ranks or for "
        "another host, or messages do not get through (a firewall, or the wrong interface: see TUTTI_SOCKET_IFNAME)",
        member_print(g, g->rank, here), g->name, member_print(g, x->peer, there),
        x->is_send ? "reached it by messages" : "received its report that it has joined");
}
static tutti_status host_barrier_fail_message(tutti_comm *comm, const struct transfer *x)
{
    const struct group *g = &comm->group;
    const char *reason = comm->router->reason;
    char here[MEMBER_TEXT_BYTES], there[MEMBER_TEXT_BYTES];
    return comm_fail(comm, x->status, "%s of %s cannot exchange messages with %s: %.300s",
        member_print(g, g->rank, here), g->name, member_print(g, x->peer, there),
        *reason ? reason : status_message(x->status));
}

/* ---- waiting ---- */
static tutti_status host_barrier_await_transfer(tutti_comm *comm, const struct transfer *x, int64_t deadline_ms)
{
    for (int n = 0;; n++) {
        /* The alert is read first, because a rank may join and abort right after. */
        bool alerted = comm_has_reason_to_fail(comm);
        bool moved = router_poll(comm->router);
        if (x->state == TRANSFER_DONE) return TUTTI_OK;
        if (alerted) TRY(comm_check(comm));
        if (x->state == TRANSFER_FAILED && !comm_is_failing(comm)) return host_barrier_fail_message(comm, x);
        if (n % CHECK_EVERY == 0) TRY(shm_group_check_aborts(&comm->group));
        if (clock_ms() > deadline_ms) return host_barrier_fail_late(comm, x);
        if (moved) n = 0;
        else comm_back_off(comm, n);
    }
}
static tutti_status host_exchange_finish(tutti_comm *comm, struct host_exchange *s, int64_t deadline_ms)
{
    tutti_status status = host_barrier_await_transfer(comm, &s->received, deadline_ms);
    if (status == TUTTI_OK) status = host_barrier_await_transfer(comm, &s->sent, deadline_ms);
    host_exchange_end_transfer(comm->router, &s->received);
    host_exchange_end_transfer(comm->router, &s->sent);
    return status;
}
tutti_status host_barrier_exchange(tutti_comm *comm, uint64_t number, int peer, void *sent, void *received,
    size_t bytes, int64_t deadline_ms)
{
    struct host_exchange s = { .sent_piece = { sent, bytes, bytes }, .received_piece = { received, bytes, bytes } };
    host_exchange_begin(comm, number, &s, peer, peer);
    return host_exchange_finish(comm, &s, deadline_ms);
}

/* ---- all hosts ---- */
static void link_cost_keep_larger(struct link_cost *mine, const struct link_cost *theirs)
{
    if (theirs->message_ns > mine->message_ns) mine->message_ns = theirs->message_ns;
    if (theirs->announced_ns > mine->announced_ns) mine->announced_ns = theirs->announced_ns;
    if (theirs->byte_ns > mine->byte_ns) mine->byte_ns = theirs->byte_ns;
}
/* Afterwards every host has the largest values of all hosts. */
static tutti_status link_costs_disseminate(tutti_comm *comm, uint64_t number, struct link_costs *parameters,
    int64_t deadline_ms)
{
    const struct group *g = &comm->group;
    for (int64_t ahead = 1; ahead < g->layout->hosts; ahead *= 2, number++) {
        struct link_costs mine = *parameters, theirs;
        struct host_exchange s = { .sent_piece = { (void *)&mine, sizeof mine, sizeof mine },
            .received_piece = { (void *)&theirs, sizeof theirs, sizeof theirs } };
        host_exchange_begin(comm, number, &s, host_first_rank_ahead(g, ahead), host_first_rank_ahead(g, -ahead));
        TRY(host_exchange_finish(comm, &s, deadline_ms));
        for (int k = 0; k < NETWORKS_AT_MOST; k++) link_cost_keep_larger(&parameters->by[k], &theirs.by[k]);
    }
    return TUTTI_OK;
}
/* A transport that tests put in the place of a network counts as one. */
int host_barrier_count_networks(const tutti_comm *comm)
{
    int count = router_network_count(comm->router);
    return count ? count : 1;
}
static tutti_status host_barrier_wait_each(tutti_comm *comm, int64_t deadline_ms)
{
    tutti_status status = TUTTI_OK;
    for (int k = 0; k < host_barrier_count_networks(comm) && status == TUTTI_OK; k++) {
        struct link_costs none = { 0 };
        router_use_network(comm->router, k);
        status =
            link_costs_disseminate(comm, HOST_BARRIER_JOINED + (uint64_t)k * HOST_BARRIER_OF_EACH, &none, deadline_ms);
    }
    router_use_network(comm->router, -1);
    return status;
}
tutti_status host_barrier_wait(tutti_comm *comm, int64_t deadline_ms, struct link_costs *out)
{
    TRY(host_barrier_wait_each(comm, deadline_ms));
    TRY(link_costs_measure(comm, deadline_ms, out));
    TRY(link_costs_disseminate(comm, HOST_BARRIER_COSTS, out, deadline_ms));
    /* The check starts from typical parameters, so that all hosts decide alike. */
    struct machine all = machine_typical();
    link_costs_publish(out, &all);
    if (!machine_is_within_bounds(&all)) *out = (struct link_costs){ 0 };
    return TUTTI_OK;
}
