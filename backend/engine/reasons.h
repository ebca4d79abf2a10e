/* The reasons to fail a communicator. No function here waits, except as failure.h says. Driver only. */
#pragma once
#include "include/tutti.h"
#include <stdbool.h>

struct limit;
/* Starts the deadline in the first call, and moves it by the time that this process was stopped since the last one.
   Returns true if it has passed. The thread that checks an operation calls it at least every 20 ms. */
bool limit_poll_deadline(struct limit *limit);
/* Looks for a reason to fail, and fails the communicator with it, or proposes it to the other hosts. Returns OK if it
   finds no reason, or while the hosts are still agreeing; otherwise the status of the failure. */
tutti_status comm_fail_if_due(tutti_comm *comm);
/* Does what comm_fail_if_due does. In addition it fails a communicator that must stop (failure_request_stop) although
   no operation is open. */
tutti_status comm_fail_if_stopped(tutti_comm *comm);
/* Returns true if comm_fail_if_due may find a reason, and fails nothing. Its first call starts the deadline of each
   open operation, and the time for which an operation still waits after its peer has left. After it returns true, this
   rank sees everything that its peers did before the reason arose. */
bool comm_poll_reason_to_fail(const tutti_comm *comm);
/* Adopts the failure that a peer has reported, if `status`, the status of a message, shows that the peer has cancelled
   the message because the group failed. Returns true if the communicator has failed with it. */
bool failure_adopt_from_peer(tutti_comm *comm, tutti_status status);
