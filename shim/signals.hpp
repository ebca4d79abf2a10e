/* Runs Python's signal handlers while the main thread waits for other ranks, so that Ctrl-C ends the wait. Also keeps
 * threads from returning to an interpreter that has ended. */
#pragma once
#include <functional>

namespace tutti {

/* Makes the core run Python's signal handlers while this thread waits. It has no effect on any but the main thread,
 * because only that one runs handlers. */
void signals_watch();
/* Throws the exception that a signal handler has raised in the last wait of this thread, if there is one. The core has
 * then failed the group. */
void signals_throw_raised();
/* Returns a check for communicator_join(), which also runs `check` (empty: none): it runs signal handlers a few times a
 * second and throws their exception. Returns `check` itself in a thread that runs no handlers. */
std::function<void()> signals_add_to_check(std::function<void()> check);

/* Makes thread_stop_if_ending() stop threads, because the interpreter ends. */
void threads_begin_ending();
/* Stops a daemon thread for good if the interpreter ends: the thread would end within a destructor of torch that takes
 * the GIL, which aborts the process. Threads that hold the GIL, and the main thread, go on. */
void thread_stop_if_ending();

} // namespace tutti
