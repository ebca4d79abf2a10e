/* Calls that enqueue operations on CUDA streams. */
#pragma once
#include "backend/engine/stream_comm.h"

/* Enqueues an operation on a stream of the device for which its communicator is open. It waits while the device has too
   much work. After OK the operation is in *out, where it stays until it ends: the stream thread calls `done`. Errors
   that are refusals have enqueued nothing; others have failed the communicator, or will soon. Any thread. */
tutti_status stream_operation_run(const struct operation *prepared, void *stream, struct operation *out);
