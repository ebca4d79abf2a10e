/* Steps that read peers' private tensors in place, by the kernel (single copy). Part of the executor. */
#pragma once
#include "backend/execute/execute.h"

enum { READ_BLOCK_LEAST = 4 << 10 };
/* Returns the bytes that a program needs to sum tensors of up to `peers` peers. It fetches them in blocks that stay in
   the cache. */
static inline size_t fetch_buffer_bytes(size_t peers)
{
    return peers * READ_BLOCK_LEAST > READ_BLOCK ? peers * READ_BLOCK_LEAST : READ_BLOCK;
}
/* Performs a work step on one piece, whose addresses are in launch.program->piece. False: a peer could not be read, and
   run.failed_read has the peer and the error. */
bool fetch_compute_step(struct executor *executor, const struct step *step, const struct part *part);
/* Returns the status of an operation in which run.failed_read has failed, and clears the error. IN_PROGRESS: the peer
   may have died, which the watch thread will report. */
tutti_status fetch_handle_failure(struct executor *executor);
