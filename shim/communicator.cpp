/* Errors and the end of a communicator. */
#include "shim/communicator.hpp"
#include <c10/util/Exception.h>
#include <chrono>
#include <map>
#include <pthread.h>
#include <thread>

namespace tutti {

static std::map<int, PyObject *> &error_classes()
{
    static auto *classes = new std::map<int, PyObject *>; /* outlives whatever the interpreter takes apart */
    return *classes;
}
void error_class_set(tutti_status status, PyObject *type) { error_classes()[status] = type; }
PyObject *error_class_of(tutti_status status)
{
    auto found = error_classes().find(status);
    return found == error_classes().end() ? PyExc_RuntimeError : found->second;
}
PyObject *Error::python_type() { return error_class_of(status); }
void fail(tutti_status status, const std::string &text) { throw Error(status, text); }
void fail_last(tutti_status status) { throw Error(status, tutti_get_last_error()); }

/* ---- processes ---- */
static unsigned forks;
[[maybe_unused]] static const int counting_forks = pthread_atfork(nullptr, nullptr, [] { forks++; });
unsigned process_number() { return forks; }
void Communicator::check_process() const
{
    if (inherited())
        fail(TUTTI_FORKED, "this group, and what was started on it, is of the parent process, from before a fork; a "
                           "child process must make its own, and cannot wait for what the parent has started");
}

/* ---- the end ---- */
void Communicator::abort()
{
    Visit visit(*this);
    if (visit && tutti_comm_abort(comm_) != TUTTI_OK) fail_last(TUTTI_FORKED);
}
void Communicator::close()
{
    constexpr int patience = 100, give_up = 20'000; /* times 0.1 ms */
    if (closed_.exchange(true) || inherited()) return; /* a child's copy: nothing in it is the child's */
    for (int n = 0; visitors_ > 0 && n < give_up; n++) {
        if (n == patience) tutti_comm_abort(comm_);
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    int rank = tutti_comm_user_rank(comm_);
    ends_unvisited_ = true; /* now it may be gone at any time */
    if (visitors_ == 0) end();
    else
        TORCH_WARN("tutti: rank ", rank, " has left a group, but 2 s later a thread is still in "
            "an operation of it; what the group holds is given back when that thread returns");
}
void Communicator::end()
{
    if (!ended_.exchange(true)) tutti_comm_destroy(comm_);
}

} // namespace tutti
