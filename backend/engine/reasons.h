/* The reasons to fail a communicator. No function here waits. Driver only. */
#pragma once
#include "include/tutti.h"
#include <stdbool.h>

/* Checks, while waiting, for a reason to stop waiting. Returns OK or the failure. */
tutti_status comm_check(tutti_comm *comm);
/* Checks likewise, and fails a communicator that is to stop, although no operation is open. */
tutti_status comm_check_stop(tutti_comm *comm);
/* True if comm_check may find a reason. After this call the rank sees everything that its peers have done so far. */
bool comm_has_reason_to_fail(const tutti_comm *comm);
/* True if the status is that of a message which a peer cancelled because the group failed. The peer has reported that
   failure, and comm_check has adopted it. */
bool failure_came_from_peer(tutti_comm *comm, tutti_status status);
