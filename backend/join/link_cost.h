/* What messages between hosts cost, as all hosts of a group go by it. */
#pragma once
#include "backend/engine/comm.h"

struct link_costs { struct link_cost by[NETWORKS_AT_MOST]; }; /* by each network of the router; 0: not known */
/* What is known of them: a short message goes by the network of the shortest, a long one by that of the most bytes. */
void link_costs_publish(const struct link_costs *link_costs, struct machine *parameters);
/* By the first rank of each host of a linked group, when all have joined: those of two neighbouring hosts measure
   together, a few milliseconds for each network, unless their processes have done it before. Zero where there is nobody
   to measure with. Fails the group as hosts_meet does. */
tutti_status link_costs_measure(tutti_comm *comm, int64_t deadline_ms, struct link_costs *out);
