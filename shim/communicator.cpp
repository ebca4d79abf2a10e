/* Errors and the end of a communicator. */
#include "shim/communicator.hpp"
#include <chrono>
#include <map>
#include <thread>

namespace tutti {

static std::map<int, PyObject *> &error_classes()
{
    static auto *classes = new std::map<int, PyObject *>; /* outlives whatever the interpreter takes apart */
    return *classes;
}
void error_class_set(tutti_status status, PyObject *type) { error_classes()[status] = type; }
PyObject *Error::python_type()
{
    auto found = error_classes().find(status);
    return found == error_classes().end() ? PyExc_RuntimeError : found->second;
}
void fail(tutti_status status, const std::string &text) { throw Error(status, text); }
void fail_last(tutti_status status) { throw Error(status, tutti_get_last_error()); }

void Communicator::close()
{
    constexpr int patience = 100, give_up = 20'000; /* times 0.1 ms */
    if (closed_.exchange(true)) return;
    for (int n = 0; visitors_ > 0; n++) {
        if (n == patience) tutti_comm_abort(comm_);
        if (n == give_up) return; /* a forked child's copy of a busy one: nobody will ever leave */
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    tutti_comm_destroy(comm_);
}

} // namespace tutti
