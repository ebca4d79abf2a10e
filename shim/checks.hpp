/* The checks of TUTTI_DEBUG. After each collective on the host the ranks exchange checksums of the results that must be
 * equal on all ranks, and tell which rank's input of a reduction had the first NaN. The exchange has a communicator of
 * its own, so the numbers of the group's operations stay as they are without it.
 *
 * Invariants: each rank makes one exchange after each collective, blocking or not, so exchanges need no agreement. A
 * message has the checksums of the last results, because an asynchronous operation ends at another time on each rank.
 * All ranks judge the same messages, so they find the same: a blocking call raises it on all ranks at once. Later calls
 * get it at different places of the program, so they fail the group, and a failed call waits for what was found. */
#pragma once
#include "shim/footprint.hpp"
#include <array>
#include <condition_variable>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/profiler/combined_traceback.h>

namespace tutti {

/* Python sees this error as torch_tutti.exceptions.ResultError. */
struct ResultError : torch::PyTorchError {
    using torch::PyTorchError::PyTorchError;
    /* Returns a borrowed reference to the class. The caller holds the GIL. */
    PyObject *python_type() override;
};

using PythonStack = std::shared_ptr<torch::CapturedTraceback>;
enum class CheckMode { off, raise, warn };
/* Sets what the checks of the groups do that are made from now on. */
void check_mode_set(CheckMode mode);
CheckMode check_mode_get();

/* The message of a rank to the others in an exchange. Its bytes travel as they are. */
struct CheckMessage {
    /* The number of results whose checksums a message has. */
    static constexpr size_t kResults = 32;
    struct Result {
        /* The number of the operation, from 1. 0: no result. */
        uint64_t operation;
        /* 0: the result is not compared. */
        uint64_t checksum;
    };
    /* The result of an operation is at its number % kResults. */
    std::array<Result, kResults> results;
    /* The number of the first operation whose input has NaN, or 0, and a description of the place. */
    uint64_t nan_operation;
    std::array<char, 232> nan_place;
};

/* The knowledge of this rank about its results, and its findings. Any thread may use it. */
class CheckState {
  public:
    struct Finding {
        uint64_t operation = 0;
        std::string text;
    };
    /* Adds a call and returns its number. `result_tensors`: how many of its outputs are equal on all ranks. */
    uint64_t add_call(const char *name, size_t result_tensors, PythonStack stack);
    void take_back_call() { --count_; }
    /* Adds the checksum of the results of that call. */
    void add_result(uint64_t operation, const Footprint &footprint, bool has_label);
    /* Adds the first NaN of this rank. */
    void add_nan(uint64_t operation, const std::string &place);
    bool looks_for_nan();
    CheckMessage make_message();
    /* Compares the messages of all ranks, and keeps what it finds for take_finding(). */
    void judge(const std::vector<CheckMessage> &of_rank);
    /* Returns the oldest finding and removes it. The text is empty without one. */
    Finding take_finding();
    /* Count the exchanges that run. */
    void begin_exchange() { open_exchanges_++; }
    void end_exchange();
    /* Waits until there is a finding or no exchange runs, at most for a second. */
    void wait_for_finding();
    PythonStack find_stack(uint64_t operation);

  private:
    struct KnownCall {
        uint64_t operation = 0;
        size_t result_tensors = 0;
        const char *name = "";
        PythonStack stack;
    };
    void judge_nan(const std::vector<CheckMessage> &of_rank);
    void judge_result(size_t index, const std::vector<CheckMessage> &of_rank);
    KnownCall &call_at(uint64_t operation) { return calls_[operation % CheckMessage::kResults]; }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::atomic<uint64_t> count_{ 0 };
    std::atomic<int> open_exchanges_{ 0 };
    /* All below are under mutex_. */
    CheckMessage message_{};
    std::array<KnownCall, CheckMessage::kResults> calls_;
    /* The numbers of the results that have been compared last, at their places in a message. */
    std::array<uint64_t, CheckMessage::kResults> compared_{};
    bool nan_was_found_ = false;
    std::vector<Finding> findings_;
};

/* The checks of one group. */
class ResultChecks {
  public:
    /* `communicator`: one of the ranks of the group, for the exchanges only. */
    explicit ResultChecks(c10::intrusive_ptr<Communicator> communicator)
        : communicator_(std::move(communicator)), mode_(check_mode_get())
    {}
    /* A thread calls it before it starts a collective. Looks for NaN in the input of a reduction. Returns the number of
     * the operation. If an earlier exchange has found something, it fails `group` and raises that. */
    uint64_t begin(Communicator &group, c10d::OpType type, const Footprint &footprint, const PythonStack &stack);
    /* Undoes begin() for an operation that could not start. */
    void take_back() { state_->take_back_call(); }
    /* Any thread calls it when the operation has succeeded. */
    void add_result(uint64_t operation, const Footprint &footprint, bool has_label)
    {
        state_->add_result(operation, footprint, has_label);
    }
    /* Tells the other ranks what this one knows. If `blocking`, it waits for what they tell, and raises the error of
     * what was found; otherwise the next call of the group raises it. */
    void exchange(bool blocking);
    /* A call that has failed with `error` calls it. Raises the error of what was found before. If nothing was, it ends
     * the exchanges on all ranks. */
    void report_after_failure(tutti_status status, const std::string &error);
    /* Ends the exchanges. Warns of what no call has raised. */
    void close();

  private:
    struct Exchange;
    static void on_done(tutti_request *request, void *context);
    /* Returns the text of the oldest finding, with the line of this rank's call, or "". With CheckMode::warn it warns
     * of all findings and returns "". */
    std::string take_error();

    const c10::intrusive_ptr<Communicator> communicator_;
    const CheckMode mode_;
    const std::shared_ptr<CheckState> state_ = std::make_shared<CheckState>();
};

} // namespace tutti
