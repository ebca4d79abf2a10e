/* What messages between hosts cost, as all hosts of a group go by it. */
#pragma once
#include "backend/engine/comm.h"

struct crossing { double message_ns, announced_ns, byte_ns; };         /* 0: not known */
void crossing_tell(const struct crossing *crossing, struct machine *figures);     /* what is known of it */
/* By the first rank of each host of a linked group, when all have joined: those of two neighbouring hosts measure
   together, a few milliseconds, unless their processes have done it before. Zero where there is nobody to measure
   with. Fails the group as hosts_meet does. */
tutti_status crossing_measure(tutti_comm *comm, int64_t deadline_ms, struct crossing *out);
