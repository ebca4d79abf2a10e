/* The errors that reach Python with a class of ours, and the communicator that nobody may destroy while a thread is
 * inside it. In a forked child the communicators of the parent are of no use: whatever would wait there raises. */
#pragma once
#include "c_api/tutti.h"
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

class Communicator final : public c10::intrusive_ptr_target {
  public:
    explicit Communicator(tutti_comm *comm) : comm_(comm) {}
    ~Communicator() override { close(); }
    /* Destroys the communicator; what runs ends with AbortedError. A thread that still waits inside after a moment is
     * made to return; if it does not, it is told of, and the communicator ends when the last one has left. */
    void close();
    void abort();
    /* By a forked child, from the process that made it. */
    bool inherited() const { return process_ != process_number(); }
    void check_process() const; /* raises ForkedError if it is */

    /* While one exists and is true, the communicator exists. */
    class Visit {
      public:
        explicit Visit(Communicator &of) : of_(of) { of.visitors_++; }
        ~Visit()
        {
            if (--of_.visitors_ == 0 && of_.ends_unvisited_) of_.end();
        }
        Visit(const Visit &) = delete;
        Visit &operator=(const Visit &) = delete;
        explicit operator bool() const { return !of_.closed_; }
        tutti_comm *get() const { return of_.comm_; }
      private:
        Communicator &of_;
    };

  private:
    void end(); /* once */
    tutti_comm *const comm_;
    const unsigned process_ = process_number();
    std::atomic<int> visitors_{ 0 };
    std::atomic<bool> closed_{ false }, ends_unvisited_{ false }, ended_{ false };
};

} // namespace tutti
