/* Maps statuses to Python's exceptions, counts forks, and closes communicators. */
#include "shim/communicator.hpp"
#include "shim/checks.hpp"
#include "shim/gil.hpp"
#include "shim/signals.hpp"
#include <c10/util/Exception.h>
#include <pthread.h>
#include <pybind11/pybind11.h>

namespace tutti {

PyObject *Error::python_type()
{
    try {
        pybind11::dict classes = pybind11::module_::import("torch_tutti.exceptions").attr("_BY_STATUS");
        /* The dictionary keeps the class alive. */
        return pybind11::object(classes[pybind11::int_(static_cast<int>(status))]).ptr();
    } catch (const std::exception &) {
        /* A thread may raise an error while the interpreter shuts down, after the module has been cleared. */
        return PyExc_RuntimeError;
    }
}
void error_throw(tutti_status status, const std::string &text)
{
    thread_stop_if_ended();
    signals_throw_raised();
    throw Error(status, text);
}
void error_throw_last(tutti_status status) { error_throw(status, tutti_get_last_error()); }
std::string error_text(const std::exception &error)
{
    auto *of_torch = dynamic_cast<const c10::Error *>(&error);
    return of_torch ? of_torch->what_without_backtrace() : error.what();
}

/* ---- processes ---- */
/* The forks from the process that loaded the shim to this one. Each child adds its own. */
static unsigned forks;
[[maybe_unused]] static const int counting_forks = pthread_atfork(nullptr, nullptr, [] { forks++; });
unsigned process_count_forks() { return forks; }
uint64_t process_take_group_number()
{
    static std::atomic<uint64_t> groups{ 0 };
    return ++groups;
}
void Communicator::check_process() const
{
    if (is_inherited())
        error_throw(TUTTI_FORKED,
            "this group and its operations belong to the parent process, from before a fork; a child process must "
            "make its own group, and cannot wait for the parent's operations");
}

/* ---- the communicator ---- */
Communicator::Communicator(tutti_comm *comm) : comm_(comm) { tutti_comm_retain(comm); }
Communicator::~Communicator()
{
    close();
    tutti_comm_release(comm_);
}
void Communicator::run_abort_hooks()
{
    if (has_abort_hooks() && !is_inherited()) abort_report_.run(*hooks);
}
tutti_status Communicator::get_outcome(tutti_status status) const
{
    return status == TUTTI_ABORTED && signals_have_raised() && !has_failed() ? TUTTI_OK : status;
}
void Communicator::report_failure()
{
    is_failure_known_ = true;
    run_abort_hooks();
}
void Communicator::warn_of_failure(const std::string &text)
{
    if (waiters_ || is_failure_known_.exchange(true)) return;
    TORCH_WARN("tutti: an operation on a CUDA stream has failed, and no call has raised the error yet. The results of ",
        "this operation and of later ones are undefined: ", text);
}
void Communicator::abort()
{
    report_failure();
    if (!closed_ && tutti_comm_abort(comm_) != TUTTI_OK) error_throw_last(TUTTI_FORKED);
}
void Communicator::close()
{
    if (closed_.exchange(true)) return;
    if (checks) checks->close();
    /* With operations on streams, tutti_comm_destroy may wait for some seconds. */
    std::optional<GilRelease> released;
    if (streams.is_open() && Py_IsInitialized()) released.emplace();
    /* In a forked child, tutti_comm_destroy leaves the parent's group alone. */
    tutti_comm_destroy(comm_);
}

} // namespace tutti
