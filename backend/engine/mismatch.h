/* The failure of a communicator whose ranks make different calls. */
#pragma once
#include "include/tutti.h"

/* Fails the communicator because ranks make different calls, and describes the calls of two of them. Driver only. */
tutti_status comm_fail_mismatch(tutti_comm *comm);
