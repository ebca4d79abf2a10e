/* What stands between an operation of the core and torch: the errors, the communicator that nobody may destroy while
 * a thread is inside it, and the Work a caller holds.
 *
 * A Work owns the requests of its operations and the tensors they use, and keeps itself alive until all of them are
 * over, whether or not anybody holds it. What tells it that an operation is over runs on the core's progress thread;
 * nothing there takes Python's GIL, frees a tensor or runs a user's callback: finished Works go on a list that the
 * next call of any thread empties, futures complete on threads of their own. */
#pragma once
#include "c_api/tutti.h"
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace tutti {

/* ---- errors ---- */
/* Reaches Python as the class that tutti_get_error_class names. */
struct Error : torch::PyTorchError {
    Error(tutti_status why, std::string text) : torch::PyTorchError(std::move(text)), status(why) {}
    PyObject *python_type() override;
    tutti_status status;
};
/* The class for a status; called once for each while the module is imported. Takes over the reference. */
void error_class_set(tutti_status status, PyObject *type);
[[noreturn]] void fail(tutti_status status, const std::string &text);
[[noreturn]] void fail_last(tutti_status status); /* with this thread's last error of the core */

/* ---- the communicator ---- */
class Communicator final : public c10::intrusive_ptr_target {
  public:
    explicit Communicator(tutti_comm *comm) : comm_(comm) {}
    ~Communicator() override { close(); }
    /* Destroys the communicator; what runs ends with AbortedError. A thread that still waits inside after a moment is
     * made to return. */
    void close();
    bool closed() const { return closed_; }

    /* While one exists and is true, the communicator exists. */
    class Visit {
      public:
        explicit Visit(Communicator &of) : of_(of) { of.visitors_++; }
        ~Visit() { of_.visitors_--; }
        Visit(const Visit &) = delete;
        Visit &operator=(const Visit &) = delete;
        explicit operator bool() const { return !of_.closed_; }
        tutti_comm *get() const { return of_.comm_; }
      private:
        Communicator &of_;
    };

  private:
    tutti_comm *const comm_;
    std::atomic<int> visitors_{ 0 };
    std::atomic<bool> closed_{ false };
};

/* ---- work ---- */
/* Bytes that move between a list of tensors and the one buffer the core works on. */
struct Part {
    void *to;
    const void *from;
    size_t bytes;
};

class Work;
struct Operation {
    tutti_request request{};
    Work *work = nullptr;
    std::vector<Part> unpack;                     /* done when the operation has succeeded */
    std::atomic<int> status{ TUTTI_IN_PROGRESS }; /* final only when all of this is */
    std::string text;                             /* why it failed */
    void finish(tutti_status how, std::string why);
};

class Work final : public c10d::Work {
  public:
    Work(c10::intrusive_ptr<Communicator> communicator, int rank, c10d::OpType type, const char *title,
        const std::vector<at::Tensor> &inputs, uint64_t sequence);

    /* A further operation of this Work; its address stays. */
    Operation &add();
    /* Tensors that must live until it is over; the outputs are the result. */
    void keep(std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs, std::vector<at::Tensor> temporaries);
    /* The Work is not over, and lives, while it is open: once for each operation that runs, and for whoever may still
     * add some. */
    void open();
    void close();
    void arm(Operation &operation);                                /* opens, and closes when the operation is over */
    void finish_blocking(Operation &operation);                    /* the call has returned, successfully */
    void finish_failed(Operation &operation, tutti_status status); /* an armed call was refused at once */

    bool isCompleted() override;
    bool isSuccess() const override;
    std::exception_ptr exception() const override;
    int sourceRank() const override;
    std::vector<at::Tensor> result() override { return outputs_; }
    void synchronize() override { wait(kNoTimeout); }
    bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
    void blockCurrentStream() override { wait(kNoTimeout); } /* on a CPU, the stream is the caller */
    void abort() override;
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
    uint64_t getSequencenumber() const override { return sequence_; }

    /* Drops the Works that are over. Call it where dropping a tensor is harmless: from a thread of the user. */
    static void reap();

  private:
    friend class Futures;
    static void on_done(tutti_request *request, void *context);
    void finish(Operation &operation, tutti_status status);
    void settle();
    void complete_future();
    void wait_for(Operation &operation, std::chrono::milliseconds timeout);

    c10::intrusive_ptr<Communicator> communicator_;
    Operation first_;
    std::vector<std::unique_ptr<Operation>> more_;
    std::vector<at::Tensor> kept_, outputs_;
    uint64_t sequence_;
    std::atomic<int> open_{ 0 };
    std::atomic<bool> settled_{ false };
    std::atomic<const Operation *> failed_{ nullptr }; /* the first that did */
    c10::intrusive_ptr<c10::ivalue::Future> future_;   /* under mutex_ */
    Work *next_ = nullptr;                             /* on the list of finished Works */
};

/* Stops completing futures: a callback must not run while the interpreter is being taken apart. */
void futures_quiesce();

} // namespace tutti
