/* The link costs of messages between hosts, which all hosts of a group share. */
#pragma once
#include "backend/engine/comm.h"

/* The costs for each network of the router. 0 means unknown. */
struct link_costs { struct link_cost by[NETWORKS_AT_MOST]; };
/* Writes the known costs into the machine parameters of messages. A short message has the cost of the network with the
   shortest message time. A long one has the cost of the network that is fastest for LARGE_BYTES (link_cost.c). */
void link_costs_publish(const struct link_costs *link_costs, struct machine *parameters);
/* Measures the link costs with a neighbouring host, for a few milliseconds on each network, unless the two processes
   have done so before. The first rank of each host of a linked group calls it when all have joined. The costs are zero
   without a neighbour. An error fails the group as in host_exchange_run. */
tutti_status link_costs_measure(tutti_comm *comm, int64_t deadline_ms, struct link_costs *out);
