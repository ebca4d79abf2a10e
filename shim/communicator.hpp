/* The errors that reach Python with a class of torch_tutti, and the communicator. A forked child cannot use the
 * communicators of its parent: a call that would wait raises ForkedError. */
#pragma once
#include "include/tutti.h"
#include "shim/hooks.hpp"
#include <atomic>
#include <c10/util/intrusive_ptr.h>
#include <string>
#include <torch/csrc/Exceptions.h>

namespace tutti {

/* ---- errors ---- */
/* Python sees this error as the class that torch_tutti.exceptions has for the status. */
struct Error : torch::PyTorchError {
    Error(tutti_status why, std::string text) : torch::PyTorchError(std::move(text)), status(why) {}
    /* Returns a borrowed reference to the class. The caller holds the GIL. */
    PyObject *python_type() override;
    tutti_status status;
};
[[noreturn]] void error_throw(tutti_status status, const std::string &text);
/* Throws with the text of this thread's last error in the core. */
[[noreturn]] void error_throw_last(tutti_status status);

/* ---- the communicator ---- */
/* Returns the number of forks between the first process and this one. */
unsigned process_count_forks();
/* Returns 1, 2, … for the groups of this process. */
uint64_t process_number_group();

/* Holds a reference to the core's communicator. A group and its Works share this object, so each of them may call the
 * core at any time. After close(), calls of the core end with TUTTI_ABORTED. */
class Communicator final : public c10::intrusive_ptr_target {
  public:
    explicit Communicator(tutti_comm *comm);
    /* The number of its group in this process. The group sets it. */
    uint64_t group = 0;
    ~Communicator() override;
    tutti_comm *get() const { return comm_; }
    /* The hooks of the group, which sets them. */
    std::shared_ptr<const Hooks> hooks;
    /* Runs the abort hooks, once. Everything that raises an error of a failed group calls this first. */
    void report_failure();
    bool awaits_failure() const { return hooks && !hooks->abort.empty() && !closed_; }
    /* Leaves the group. Running operations end with AbortedError, and the threads that wait for them return. */
    void close();
    bool closed() const { return closed_; }
    void abort();
    /* True in a forked child of the process that made the communicator. */
    bool is_inherited() const { return process_ != process_count_forks(); }
    /* Raises ForkedError if the communicator is inherited. */
    void check_process() const;

  private:
    tutti_comm *const comm_;
    const unsigned process_ = process_count_forks();
    std::atomic<bool> closed_{ false };
    AbortReport abort_report_;
};

} // namespace tutti
