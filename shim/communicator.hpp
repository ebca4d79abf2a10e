/* The errors that reach Python with a class of torch_tutti.exceptions, and the communicator. A forked child cannot use
 * the communicators of its parent: a call that would wait raises ForkedError. */
#pragma once
#include "include/tutti.h"
#include "shim/hooks.hpp"
#include "shim/streams.hpp"
#include <atomic>
#include <c10/util/intrusive_ptr.h>
#include <string>
#include <torch/csrc/Exceptions.h>

namespace tutti {

/* ---- errors ---- */
/* Python sees this error as the class that torch_tutti.exceptions has for the status. */
struct Error : torch::PyTorchError {
    Error(tutti_status code, std::string text) : torch::PyTorchError(std::move(text)), status(code) {}
    /* Returns a borrowed reference to the class. The caller holds the GIL. */
    PyObject *python_type() override;
    tutti_status status;
};
/* Throws the exception of a signal handler instead, if that has ended the last wait of this thread. */
[[noreturn]] void error_throw(tutti_status status, const std::string &text);
/* Throws with the text of this thread's last error in the core. */
[[noreturn]] void error_throw_last(tutti_status status);
/* Returns the text of an exception, without the stack frames that torch's exceptions add, because naming them takes up
 * to a minute with torch's builds for CUDA. */
std::string error_text(const std::exception &error);

/* ---- the communicator ---- */
/* Returns 0 in the process that loaded the shim, and one more in a forked child than in its parent. */
unsigned process_count_forks();
/* Returns the number for a new group of this process: 1, 2, … */
uint64_t process_take_group_number();

class ResultChecks;
/* Holds a reference to the core's communicator. A group and its Works share this object, so each of them may call the
 * core at any time. After close(), calls of the core end with TUTTI_ABORTED. */
class Communicator final : public c10::intrusive_ptr_target {
  public:
    explicit Communicator(tutti_comm *comm);
    /* The number of the group in this process. The group sets it. */
    uint64_t group = 0;
    ~Communicator() override;
    tutti_comm *get() const { return comm_; }
    /* The hooks of the group. The group sets them; null before. */
    std::shared_ptr<const Hooks> hooks;
    /* The operations of CUDA tensors. */
    Streams streams;
    /* The checks of TUTTI_DEBUG, or null. They exist only while the flight recorder is on. */
    std::shared_ptr<ResultChecks> checks;
    /* Runs the abort hooks, once. */
    void run_abort_hooks();
    /* Returns the status of a call of the core, but OK for an operation that succeeded while a signal handler raised an
     * exception, which ended the wait. The caller throws that exception. */
    tutti_status get_outcome(tutti_status status) const;
    /* Every function that raises an error of a failed group calls this first. It runs the abort hooks. */
    void report_failure();
    /* Warns, once, that an operation on a stream has failed, unless a call has raised the error or is about to. */
    void warn_of_failure(const std::string &text);
    /* A thread waits on the host for an operation on a stream, and raises its error. */
    class Waiter {
      public:
        explicit Waiter(Communicator &communicator) : communicator_(communicator) { communicator_.waiters_++; }
        ~Waiter() { communicator_.waiters_--; }
        Waiter(const Waiter &) = delete;
        Waiter &operator=(const Waiter &) = delete;

      private:
        Communicator &communicator_;
    };
    /* True if the group is open and has abort hooks. */
    bool has_abort_hooks() const { return hooks && !hooks->abort.empty() && !closed_; }
    /* Leaves the group. Running operations end with AbortedError, and the threads that wait for them return. */
    void close();
    bool is_closed() const { return closed_; }
    bool has_failed() const { return tutti_comm_get_async_error(comm_) != TUTTI_OK; }
    /* Runs the abort hooks and fails the group on all ranks. Has no effect after close(). Throws ForkedError in a
     * forked child. */
    void abort();
    /* True in a forked child of the process that made the communicator. */
    bool is_inherited() const { return process_ != process_count_forks(); }
    /* Raises ForkedError if the communicator is inherited. */
    void check_process() const;

  private:
    tutti_comm *const comm_;
    /* The number of forks in the process that made the communicator. */
    const unsigned process_ = process_count_forks();
    std::atomic<bool> closed_{ false };
    /* The program knows of the failure, by an error or by the warning. */
    std::atomic<bool> is_failure_known_{ false };
    std::atomic<int> waiters_{ 0 };
    AbortReport abort_report_;
};

} // namespace tutti
