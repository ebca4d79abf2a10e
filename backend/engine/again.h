/* The last call once more. Programs repeat small operations: the very same call, with the same buffers. Once a kind of
 * call has settled, so that nothing is to be chosen, tried or looked at, the next one like it needs none of what leads
 * from arguments to an operation: what was checked and bound for the last one holds for it as well. It becomes an
 * operation only if a peer is late. */
#pragma once
#include "backend/engine/launch.h"

/* By a blocking call without options. False: it is to be run like any other; *out: how it ended. */
bool again_run(tutti_comm *comm, struct call *call, const void *input, void *output, tutti_status *out);
