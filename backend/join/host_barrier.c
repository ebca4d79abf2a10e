/* A dissemination barrier of the hosts by messages (Hensgen, Finkel, Manber: Two algorithms for barrier
   synchronization, 1988). In round k a host sends to the host 2^k ahead and receives from the host 2^k behind. After
   log2(hosts) rounds, rounded up, all hosts have joined. One barrier runs over each network. Then the hosts measure,
   and a last barrier carries the results. These are the first messages over the network, so a network that does not
   pass them fails here and not in the first operation. */
#include "backend/join/host_barrier.h"
#include "backend/join/host_exchange.h"
#include "backend/join/link_cost.h"

/* Returns the first rank of the host `ahead` hosts after this one, in a ring; `ahead` may be negative. */
static int host_first_rank_ahead(const struct group *group, int64_t ahead)
{
    int hosts = group->layout->hosts;
    return layout_rank(group->layout, (int)((group->host + ahead + hosts) % hosts), 0);
}
/* Replaces each cost by the other host's if that is larger. */
static void link_cost_keep_larger(struct link_cost *mine, const struct link_cost *theirs)
{
    if (theirs->message_ns > mine->message_ns) mine->message_ns = theirs->message_ns;
    if (theirs->announced_ns > mine->announced_ns) mine->announced_ns = theirs->announced_ns;
    if (theirs->byte_ns > mine->byte_ns) mine->byte_ns = theirs->byte_ns;
}
/* Exchanges link costs between all hosts in log2(hosts) rounds. Afterwards *costs has the largest values of all
   hosts, and is equal on each. `number` is the number of the first message. */
static tutti_status link_costs_disseminate(tutti_comm *comm, uint64_t number, struct link_costs *costs,
    int64_t deadline_ms)
{
    const struct group *group = &comm->group;
    for (int64_t ahead = 1; ahead < group->layout->hosts; ahead *= 2, number++) {
        struct link_costs mine = *costs, theirs;
        const struct host_exchange round = {
            .number = number,
            .to = host_first_rank_ahead(group, ahead),
            .from = host_first_rank_ahead(group, -ahead),
            .sent = &mine,
            .received = &theirs,
            .bytes = sizeof mine,
        };
        TRY(host_exchange_run(comm, &round, deadline_ms));
        for (int k = 0; k < NETWORKS_AT_MOST; k++) link_cost_keep_larger(&costs->by[k], &theirs.by[k]);
    }
    return TUTTI_OK;
}
/* Waits for all hosts once over each network, so that each network is known to work. */
static tutti_status host_barrier_wait_each(tutti_comm *comm, int64_t deadline_ms)
{
    tutti_status status = TUTTI_OK;
    for (int k = 0; k < host_exchange_count_networks(comm) && status == TUTTI_OK; k++) {
        struct link_costs none = { 0 };
        router_use_network(comm->router, k);
        status = link_costs_disseminate(comm, HOST_EXCHANGE_JOINED + (uint64_t)k * HOST_EXCHANGE_OF_EACH, &none,
            deadline_ms);
    }
    router_use_network(comm->router, -1);
    return status;
}
tutti_status host_barrier_wait(tutti_comm *comm, int64_t deadline_ms, struct link_costs *out)
{
    TRY(host_barrier_wait_each(comm, deadline_ms));
    TRY(link_costs_measure(comm, deadline_ms, out));
    TRY(link_costs_disseminate(comm, HOST_EXCHANGE_COSTS, out, deadline_ms));
    /* The check starts from typical parameters, so that all hosts decide alike. */
    struct machine machine = machine_typical();
    link_costs_publish(out, &machine);
    if (!machine_is_within_bounds(&machine)) *out = (struct link_costs){ 0 };
    return TUTTI_OK;
}
