/* Joining: from a list of members to ranks that can work together, and the way back. */
#pragma once
#include "backend/engine/comm.h"

/* What this rank tells the others of itself; from here on its process can be reached. */
tutti_status join_introduce(tutti_comm *comm, struct member *out);
/* Where it simulates to be, as rank `rank` of a job of `size`. */
tutti_status join_pretend(int rank, int size, struct member *out);
/* Where ranks of other hosts reach this process, if the group may have any: then it listens there. store_host: as in
   tutti_config. by_id: all are on one host, whatever it simulates. INVALID_ARGUMENT: TUTTI_TRANSPORT,
   TUTTI_SOCKET_IFNAME. */
tutti_status join_offer(const char *store_host, bool by_id, struct member *out);
/* The group's members are known: when it returns OK all have come, and operations can run. */
tutti_status join_members(tutti_comm *comm, int64_t deadline_ms);
/* Leaving, in two steps: first nobody is told of deaths any more; when the communicator's parts are gone, so is what
   they stood on. Both take what an unsuccessful joining has left. */
void join_unwatch(tutti_comm *comm);
void join_undo(struct membership *membership);
