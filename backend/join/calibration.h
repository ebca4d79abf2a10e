/* The exchange of machine parameters between the ranks of a host. */
#pragma once
#include "backend/join/link_cost.h"

void parameters_introduce(const tutti_comm *comm);         /* before this rank says that it has joined */
/* When all have. link_costs: between hosts, of the first rank of each; zero: not measured. */
tutti_status parameters_agree(tutti_comm *comm, const struct link_costs *link_costs, int64_t deadline_ms);
