/* Enqueues operations on streams. Ranks enqueue the same operations in the same order; each rank chooses its streams
 * alone. */
#pragma once
#include "backend/streams/cut.h"

/* Enqueues all work of an operation on a stream of the site's device. It runs after the work that is on the stream, and
   after this rank's operation before. *number, from 1, names it in release.h. The host does not wait. The stream must
   not be captured.
   IN_PROGRESS: too many operations run, nothing was enqueued, and the caller calls again later. Errors that are
   refusals have enqueued nothing; others fail the group. */
tutti_status stream_site_enqueue_operation(struct stream_site *site, const struct stream_operation *operation,
    CUstream stream, uint64_t *number);
