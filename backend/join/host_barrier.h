/* The host barrier: all hosts wait for each other, when the ranks of each have joined. */
#pragma once
#include "backend/engine/comm.h"

/* Waits until all ranks of all hosts have joined, and returns equal link costs on all hosts. The first rank of each
   host of a linked group calls it when the ranks of its host have joined. An error fails the group. TIMEOUT names two
   ranks and what to check. */
struct link_costs;
tutti_status host_barrier_wait(tutti_comm *comm, int64_t deadline_ms, struct link_costs *out);
/* Returns the number of networks that lead to other hosts, which is at least 1. */
int host_barrier_count_networks(const tutti_comm *comm);
/* The numbers of the messages between hosts while they join. */
enum {
    HOST_BARRIER_JOINED,
    HOST_BARRIER_OF_EACH = 64,
    HOST_BARRIER_COSTS = HOST_BARRIER_OF_EACH * NETWORKS_AT_MOST,
    HOST_BARRIER_MEASURES = 1024
};
/* Sends `bytes` bytes to rank `peer`, and receives as many from it, under that number. */
tutti_status host_barrier_exchange(tutti_comm *comm, uint64_t number, int peer, void *sent, void *received,
    size_t bytes, int64_t deadline_ms);
