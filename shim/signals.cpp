/* The core calls signals_run_handlers() while it waits. An exception of a handler cannot pass through the core, so it
 * is kept until the core has returned an error. */
#include "shim/signals.hpp"
#include "include/tutti.h"
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <pybind11/pybind11.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

namespace tutti {

/* While it joins, a thread runs handlers at most once in this time. */
enum { INTERVAL_MS = 100 };
/* The exception that a signal handler has raised, or null. */
static thread_local std::exception_ptr raised;
static bool thread_is_main() { return syscall(SYS_gettid) == getpid(); }

/* Runs the handlers of signals that have come. Returns true if one has raised an exception. */
static bool signals_run_handlers()
{
    if (!Py_IsInitialized()) return false;
    pybind11::gil_scoped_acquire held;
    if (PyErr_CheckSignals() == 0) return false;
    raised = std::make_exception_ptr(pybind11::error_already_set());
    return true;
}
void signals_watch()
{
    if (thread_is_main()) tutti_set_interrupt_check(signals_run_handlers);
}
bool signals_have_raised() { return raised != nullptr; }
void signals_throw_raised()
{
    if (raised) std::rethrow_exception(std::exchange(raised, nullptr));
}
std::function<void()> signals_add_to_check(std::function<void()> check)
{
    if (!thread_is_main()) return check;
    return [check = std::move(check), last = std::chrono::steady_clock::now()]() mutable {
        if (check) check();
        auto now = std::chrono::steady_clock::now();
        if (now - last < std::chrono::milliseconds(INTERVAL_MS)) return;
        last = now;
        if (signals_run_handlers()) signals_throw_raised();
    };
}

/* ---- the end of the interpreter ---- */
static std::atomic<bool> exit_has_begun{ false };
static std::terminate_handler terminate_before = nullptr;
[[noreturn]] static void thread_sleep_forever()
{
    while (true) pause();
}
/* A thread may pass thread_stop_if_ended() just before the interpreter ends. Python then ends it within a destructor of
 * torch, and the unwinding arrives here, without an exception. */
[[noreturn]] static void thread_on_terminate()
{
    if (!thread_is_main() && !std::current_exception()) thread_sleep_forever();
    terminate_before();
    std::abort();
}
void interpreter_begin_exit()
{
    if (exit_has_begun.exchange(true)) return;
    terminate_before = std::set_terminate(thread_on_terminate);
}
/* A Python before 3.14 ends a thread that takes the GIL after the functions of atexit have run, by unwinding its stack.
 * The unwinding stops here, before it reaches destructors of torch, which end the process. */
void thread_stop_if_ended()
{
    if (!exit_has_begun.load(std::memory_order_relaxed) || thread_is_main() || PyGILState_Check()) return;
    try {
        if (Py_IsInitialized()) return PyGILState_Release(PyGILState_Ensure());
    } catch (...) {
        thread_sleep_forever();
    }
    thread_sleep_forever();
}

} // namespace tutti
