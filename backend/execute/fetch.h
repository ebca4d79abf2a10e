/* Steps that take what peers have where it lies in their private memory: the kernel reads it. Part of the executor. */
#pragma once
#include "backend/execute/execute.h"

enum { READ_BLOCK_LEAST = 4 << 10 };
/* Room that a program needs to add up what up to so many peers have: it is fetched in blocks that stay in the cache. */
static inline size_t fetch_room(size_t peers)
{
    return peers * READ_BLOCK_LEAST > READ_BLOCK ? peers * READ_BLOCK_LEAST : READ_BLOCK;
}
/* As bind_compute, of one piece: launch.program->piece has its addresses. False: a peer cannot be read; the
   run's `unread` says which and why. */
bool fetch_compute(struct executor *x, const struct step *t, const struct part *part);
/* What becomes of an operation whose step could not be done: IN_PROGRESS while the peer may be gone, which the watch
   thread tells; else an error. */
tutti_status fetch_failed(struct executor *x);
