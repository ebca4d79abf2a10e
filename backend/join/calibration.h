/* The exchange of machine parameters between the ranks of a host. */
#pragma once
#include "backend/join/link_cost.h"

/* Publishes this rank's cores, and how others may read its memory and fence its threads, in the segment. Call it before
   this rank sets its `joined` flag. */
void calibration_publish_rank(const tutti_comm *comm);
/* Makes all ranks of the host use the same machine parameters and link costs, when all have joined. The first rank of a
   host passes the link costs between hosts, of which 0 means not measured; the other ranks get them from it. */
tutti_status calibration_agree_parameters(tutti_comm *comm, const struct link_costs *link_costs, int64_t deadline_ms);
