/* The fast path of repeated calls. Programs repeat small operations with the same buffers. Once a kind of call has
 * settled, it needs no more choices, tuner or look-ups. The next equal call reuses the checks and the bindings of the
 * last one. It becomes an operation only if a peer is late. */
#pragma once
#include "backend/engine/launch.h"

/* Runs a blocking call without options. True: *out is its result. False: the caller runs it as an ordinary call. */
bool fast_path_run(tutti_comm *comm, struct call *call, const void *input, void *output, tutti_status *out);
