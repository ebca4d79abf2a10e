/* The exchange of machine parameters between the ranks of a host. */
#pragma once
#include "backend/join/link_cost.h"

/* Publishes this rank's cores in the segment. Call it before this rank sets its `joined` flag. */
void calibration_introduce_rank(const tutti_comm *comm);
/* Makes all ranks of the host use the same parameters, when all have joined. The first rank of a host passes the link
   costs between hosts; zero means not measured. */
tutti_status calibration_agree_parameters(tutti_comm *comm, const struct link_costs *link_costs, int64_t deadline_ms);
