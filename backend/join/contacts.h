/* Ranks of several hosts: where a process listens, who can reach whom, and the links between hosts. */
#pragma once
#include "backend/engine/comm.h"

bool transport_is_given(void);                          /* TUTTI_TRANSPORT names one */
tutti_status transport_check(void); /* INVALID_ARGUMENT: the setting names none, with the nearest */
/* For `mine`, which says already what it simulates; see join_offer. */
tutti_status contact_offer(const char *store_host, struct member *mine);
/* Of a group that is linked: INVALID_ARGUMENT when a rank offers no address that those of other hosts can reach, on
   every rank alike. */
tutti_status contacts_check(const struct group *group);
/* "rank 3 (process 17 on node2, 10.0.0.2:4711)" */
enum { MEMBER_TEXT_BYTES = 192 };
const char *member_print(const struct group *group, int rank, char out[MEMBER_TEXT_BYTES]);
/* For the first rank of each host: the processes of the first ranks of hosts that lie 1, 2, 4 … hosts ahead are
   linked with this one, which looks meanwhile for reasons to fail. So every host is linked with O(log hosts) others
   each way, and all hear of a host that is gone; who needs more makes it then. */
tutti_status contacts_link(tutti_comm *comm, int64_t deadline_ms);
