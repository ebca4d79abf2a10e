/* The roll call of the operation that begins: which ranks have arrived, and whether all agree. Part of the executor. */
#pragma once
#include "backend/execute/execute.h"

/* Hashes the declaration, including its sequence number. */
void executor_make_fingerprint(struct executor *executor);
/* True if all ranks that this one awaits have arrived (tracks.h). *status is MISMATCH if one of them has called
   something else. */
bool executor_poll_roll_call(struct executor *executor, tutti_status *status);
