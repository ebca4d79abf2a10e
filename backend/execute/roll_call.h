/* The roll call of the operation that begins: which ranks have arrived, and whether all agree. Part of the executor. */
#pragma once
#include "backend/execute/execute.h"

/* Sets run.fingerprint: a hash of the declaration with its sequence number, and of earlier one-sided operations. */
void executor_make_fingerprint(struct executor *executor);
/* True if all ranks that this one awaits have arrived (tracks.h) and agree. False: one has not arrived, the operation
   has failed on this host, or *status is set to MISMATCH because one has called something else. */
bool executor_poll_roll_call(struct executor *executor, tutti_status *status);
