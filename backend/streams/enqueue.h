/* Enqueues operations on streams. Ranks enqueue the same operations in the same order; each rank chooses its streams
 * alone. */
#pragma once
#include "backend/streams/cut.h"

/* Enqueues all work of an operation on a stream of the site's device. It runs after the work that is on the stream, and
   after this rank's operation before. *number, from 1, names it in release.h. The host waits only if the parts are
   uneven and take more calls than the queue has room for. IN_PROGRESS: too many operations or calls of the driver are
   not done, nothing was enqueued, and the caller calls again later. Errors that are refusals have enqueued nothing, for
   example that the stream is captured or of another context; others fail the group. A rank alone may be refused for its
   stream. Then it calls again with another one, or fails the group. */
tutti_status stream_site_enqueue_operation(struct stream_site *site, const struct stream_operation *operation,
    CUstream stream, uint64_t *number);
