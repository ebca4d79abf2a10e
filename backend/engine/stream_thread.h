/* The stream thread: one per process, while a communicator is open for CUDA streams, or other ranks may still use the
 * slots of one that was destroyed. It ends operations on streams, passes failures between streams and communicators,
 * and frees what communicators leave behind. It never enqueues work. */
#pragma once
#include "backend/engine/stream_comm.h"

/* Adds a communicator's part to the thread's list, with a holder, and starts the thread if it does not run. */
tutti_status stream_thread_add(struct stream_comm *streams);
/* Wakes the thread, because an operation was enqueued or a state has changed. */
void stream_thread_wake(void);
/* Ends the operations of a communicator's part, within a few seconds, and detaches it from the communicator. Operations
   that are not done by then fail on all ranks. NULL is fine. */
void stream_thread_leave(struct stream_comm *streams);
/* Ends the opening of a communicator's part. Returns false if the communicator was destroyed meanwhile. */
bool stream_thread_finish_opening(struct stream_comm *streams);
/* Lets the thread free a part that was never opened. */
void stream_thread_discard(struct stream_comm *streams);
/* Forgets the thread and its list in the child of a fork, where the thread does not run. */
void stream_thread_reset_after_fork(void);
