/* All hosts wait for each other, when the ranks of each have joined. */
#pragma once
#include "backend/engine/comm.h"

/* Called by the first rank of each host of a linked group, when all ranks of its host have joined. Returns OK when all
   ranks of all hosts have joined, with the same link costs on all of them. Fails the group: TIMEOUT names two ranks,
   and what to check. */
struct link_costs;
tutti_status hosts_meet(tutti_comm *comm, int64_t deadline_ms, struct link_costs *out);
int host_barrier_networks(const tutti_comm *comm);            /* that lead to other hosts: 1 or more */
/* A step of it: as many bytes to that rank as from it, under that number. */
enum {
    HOST_BARRIER_JOINED,
    HOST_BARRIER_OF_EACH = 64,
    HOST_BARRIER_COSTS = HOST_BARRIER_OF_EACH * NETWORKS_AT_MOST,
    HOST_BARRIER_MEASURES = 1024
};
tutti_status host_barrier_exchange(tutti_comm *comm, uint64_t number, int peer, void *says, void *hears, size_t bytes,
    int64_t deadline_ms);
