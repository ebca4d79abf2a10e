/* The errors that reach Python with a class of ours, and the communicator. In a forked child the communicators of the
 * parent are of no use: whatever would wait there raises. */
#pragma once
#include "include/tutti.h"
#include <atomic>
#include <c10/util/intrusive_ptr.h>
#include <string>
#include <torch/csrc/Exceptions.h>

namespace tutti {

/* ---- errors ---- */
/* Reaches Python as the class that torch_tutti.exceptions has for the status. */
struct Error : torch::PyTorchError {
    Error(tutti_status why, std::string text) : torch::PyTorchError(std::move(text)), status(why) {}
    PyObject *python_type() override;
    tutti_status status;
};
/* The class for a status; called once for each while the module is imported. Takes over the reference. */
void error_class_set(tutti_status status, PyObject *type);
PyObject *error_class_of(tutti_status status); /* borrowed */
[[noreturn]] void fail(tutti_status status, const std::string &text);
[[noreturn]] void fail_last(tutti_status status); /* with this thread's last error of the core */

/* ---- the communicator ---- */
unsigned process_number(); /* another one in a forked child */

/* Holds the core's, for whoever holds this: a group and its Works. So any of them may call the core with it at any
 * time, also after it was closed; then calls end with ABORTED. */
class Communicator final : public c10::intrusive_ptr_target {
  public:
    explicit Communicator(tutti_comm *comm);
    ~Communicator() override;
    tutti_comm *get() const { return comm_; }
    /* Leaves the group; what runs ends with AbortedError, and threads that wait for it return. */
    void close();
    bool closed() const { return closed_; }
    void abort();
    /* By a forked child, from the process that made it. */
    bool inherited() const { return process_ != process_number(); }
    void check_process() const; /* raises ForkedError if it is */

  private:
    tutti_comm *const comm_;
    const unsigned process_ = process_number();
    std::atomic<bool> closed_{ false };
};

} // namespace tutti
