/* Runs Python's signal handlers while the main thread waits for other ranks, so that Ctrl-C ends the wait. Also keeps
 * threads from returning to an interpreter that has ended. */
#pragma once
#include <functional>

namespace tutti {

/* Makes the core run Python's signal handlers while this thread waits. It has no effect on any but the main thread,
 * because only that one runs handlers. */
void signals_watch();
/* Returns true if a signal handler has raised an exception in the last wait of this thread, which has not been thrown.
 * The core has then failed the group, unless the operation ended while the handler ran. */
bool signals_have_raised();
/* Throws the exception that a signal handler has raised in the last wait of this thread, if there is one. */
void signals_throw_raised();
/* Returns a check for communicator_join(), which also runs `check` (empty: none): it runs signal handlers a few times a
 * second and throws their exception. Returns `check` itself in a thread that runs no handlers. */
std::function<void()> signals_add_to_check(std::function<void()> check);

/* Notes that the functions of atexit run. Threads go on until the last one has returned. */
void interpreter_begin_exit();
/* Every thread that comes back from a wait in the core calls this. It stops a daemon thread for good if the interpreter
 * has ended: the thread would end within a destructor of torch that takes the GIL, which aborts the process. During the
 * functions of atexit it takes the GIL for a moment, so the caller holds no lock of a thread that has the GIL. Threads
 * that hold the GIL, and the main thread, go on. */
void thread_stop_if_ended();

} // namespace tutti
