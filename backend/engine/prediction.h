/* What a collective of a group would run as, and take, without running it. */
#pragma once
#include "backend/engine/comm.h"

/* On private tensors, `bytes` of one rank's larger buffer. asked: by the call; NULL: nothing is. Sets all but
   out->struct_size. Of any thread; waits for whoever drives. NO_MEMORY, INVALID_ARGUMENT as comm_allows; or why the
   group failed. */
tutti_status prediction_make(tutti_comm *comm, enum family family, const struct algorithm *asked, size_t bytes,
    tutti_prediction *out);
