/* Threads that close the slots of a communicator. Such calls of the driver may wait for all work of the device, also
 * for a stream that only the stream thread releases, so that thread cannot make them. */
#pragma once
#include "backend/engine/stream_comm.h"

/* Begins to close the slots of the peers. When that is done, the words say that this rank has disconnected. */
void stream_comm_start_disconnect(struct stream_comm *streams);
/* Begins to free everything, and drops the caller's holder when that is done. */
void stream_comm_start_close(struct stream_comm *streams);
