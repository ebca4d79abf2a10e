/* Predicts which algorithm a collective of a group would run, and its time, without running it. */
#pragma once
#include "backend/engine/comm.h"

/* Predicts a collective on private tensors. `bytes` is the larger buffer of one rank. `requested` is the call's
   algorithm, or NULL. Sets all fields but out->struct_size. Any thread; waits for the driver role. Returns NO_MEMORY,
   the INVALID_ARGUMENT of comm_check_algorithm, or the failure of the group. */
tutti_status prediction_make(tutti_comm *comm, enum collective collective, const struct algorithm *requested,
    size_t bytes, tutti_prediction *out);
