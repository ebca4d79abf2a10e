/* The fast path of repeated calls. Programs repeat small operations with the same buffers. Once a kind of call has
 * settled, it needs no more choices, tuner or look-ups. The next equal call reuses the checks and the bindings of the
 * last one. It becomes an operation only if a peer is late or the call fails. */
#pragma once
#include "backend/engine/launch.h"

/* Runs a blocking call without options, if it repeats the last one. Returns true with the result in *out. Returns false
   if the caller must run it as an ordinary call. Sets call->requested. */
bool fast_path_run(tutti_comm *comm, struct call *call, const void *input, void *output, tutti_status *out);
