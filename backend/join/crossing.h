/* What messages between hosts cost, as all hosts of a group go by it. */
#pragma once
#include "backend/engine/comm.h"

struct crossings { struct crossing by[NETWORKS_AT_MOST]; };            /* by each network of the router; 0: not known */
/* What is known of them: a short message goes by the network of the shortest, a long one by that of the most bytes. */
void crossings_tell(const struct crossings *crossings, struct machine *figures);
/* By the first rank of each host of a linked group, when all have joined: those of two neighbouring hosts measure
   together, a few milliseconds for each network, unless their processes have done it before. Zero where there is nobody
   to measure with. Fails the group as hosts_meet does. */
tutti_status crossings_measure(tutti_comm *comm, int64_t deadline_ms, struct crossings *out);
