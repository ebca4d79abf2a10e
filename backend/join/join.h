/* Joining: from a list of members to ranks that can work together, and the way back. */
#pragma once
#include "backend/engine/comm.h"

/* Fills in this rank's member record. From now on other processes can connect to this one. */
tutti_status join_init_member(tutti_comm *comm, struct member *out);
/* Sets the simulated host of rank `rank` of a job of `size` ranks, as TUTTI_HOSTS requests; host 0 without the
   setting. */
tutti_status join_simulate_host(int rank, int size, struct member *out);
/* Sets the networks and the address by which ranks of other hosts reach this process, and listens there, if the group
   may have several hosts. `store_host` is that of tutti_config. `by_id`: the ranks join by a unique id, so all
   are on one machine, which may simulate several hosts. INVALID_ARGUMENT: TUTTI_TRANSPORT, TUTTI_SOCKET_IFNAME. */
tutti_status join_offer_address(const char *store_host, bool by_id, struct member *out);
/* Joins the members that are now known. OK means that all have joined and operations can run. */
tutti_status join_members(tutti_comm *comm, int64_t deadline_ms);
/* Leaving has two steps. join_unwatch_peers stops the reports of deaths. join_release_membership releases segments and
   peers when the parts of the communicator that use them are gone. Both also clean up after a failed join. */
void join_unwatch_peers(tutti_comm *comm);
void join_release_membership(struct membership *membership);
