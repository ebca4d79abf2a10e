/* The reasons to fail a communicator. No function here waits, except as failure.h says. Driver only. */
#pragma once
#include "include/tutti.h"
#include <stdbool.h>

/* Looks for a reason to fail, and fails the communicator with it. Returns OK if it finds no reason, or while the
   hosts are still agreeing; otherwise the status of the failure. */
tutti_status comm_check_failure(tutti_comm *comm);
/* Does what comm_check_failure does. In addition it fails a communicator that must stop (failure_request_stop) although
   no operation is open. */
tutti_status comm_check_stop(tutti_comm *comm);
/* Returns true if comm_check_failure may find a reason. After this call the rank sees everything that its peers have
   done so far. */
bool comm_has_reason_to_fail(const tutti_comm *comm);
/* Returns true if `status` is the status of a message that a peer has cancelled because the group failed. This call has
   then adopted the failure that the peer has reported. */
bool failure_came_from_peer(tutti_comm *comm, tutti_status status);
