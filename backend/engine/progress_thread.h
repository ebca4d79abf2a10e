/* The progress thread: one per process, from the first communicator to the last. It drives the communicators in its
 * list (progress_list.h) and sleeps on all their words at once. It keeps up to 8 idle communicators, each for a second
 * after its last work. */
#pragma once
#include "backend/base/status.h"

/* Counts a user of the progress thread, and starts the thread for the first one. progress_thread_release ends it after
   the last user. */
tutti_status progress_thread_acquire(void);
void progress_thread_release(void);
/* Forgets the thread and its users in the child of a fork, where the thread does not run. */
void progress_thread_reset_after_fork(void);
