/* The Work that a caller holds. It owns the requests and tensors of its operations, and keeps itself alive until all
 * operations are over, even if the caller drops it. An operation ends on the core's progress thread, where the Work
 * takes no GIL, frees no tensor and runs no callback. Instead, finished Works go on a list that the next call of any
 * thread empties, and futures complete on threads of their own. */
#pragma once
#include "shim/footprint.hpp"
#include "shim/recorder.hpp"
#include <c10/util/FunctionRef.h>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace tutti {

class Work;
class PendingCopy;
using FuturePointer = c10::intrusive_ptr<c10::ivalue::Future>;

struct Operation {
    mutable tutti_request request = TUTTI_REQUEST_INIT;
    Work *work = nullptr;
    /* request.algorithm points to this text. */
    std::string algorithm;
    Footprint footprint;
    /* The id of the operation in the flight recorder, or 0. */
    uint64_t record = 0;
    /* Exists if a tensor of the footprint is on a device. */
    std::shared_ptr<PendingCopy> pending_copy;
    /* Outcome and error text are valid once the Work is settled or `over` is true. */
    tutti_status outcome = TUTTI_IN_PROGRESS;
    std::string text;
    /* Once this is true, the operation and the settled Work stay unchanged. */
    std::atomic<bool> over{ false };
    void store_outcome(tutti_status how, std::string why);
    void notify_waiters();
};

class Work final : public c10d::Work {
  public:
    /* `title` names the range that a profiler records. It is null without a profiler. */
    Work(c10::intrusive_ptr<Communicator> communicator, int rank, c10d::OpType type, const char *title,
        const Tensors &inputs, uint64_t sequence);

    /* Adds an operation, whose address stays the same. */
    Operation &add(Footprint footprint);
    /* The Work stays alive and unsettled while it is open. Each running operation opens it once, and so does a thread
     * that may add operations. */
    void open();
    void close();
    /* Closes a Work that a thread has opened for coalescing, and records the end of the coalesced call. */
    void end_coalescing();
    const Communicator &communicator() const { return *communicator_; }
    /* Returns what stands for one call that this open Work collects: it has a key of its own for completion hooks. */
    c10::intrusive_ptr<c10d::Work> add_part();
    /* Opens the Work until the operation, which is about to start, is over. */
    void arm(Operation &operation);
    /* Ends an operation whose blocking call has succeeded. */
    void finish_blocking(Operation &operation);
    /* Ends an armed operation, or one whose call has failed at once, and closes the Work. */
    void finish(Operation &operation, tutti_status status);
    /* Ends an armed operation that the core has refused. The other operations of the Work are unaffected. */
    void withdraw(Operation &operation);
    /* Makes getFuture wait until the Work is over. */
    void block_futures() { blocking_futures_ = true; }
    /* Starts the clock for getDuration. */
    void start_clock() { begun_ = std::chrono::steady_clock::now(); }

    /* Hands the operations to the core's progress thread, so that they end without a waiting caller. */
    void detach() const;
    bool isCompleted() override;
    bool isSuccess() const override;
    std::exception_ptr exception() const override;
    int sourceRank() const override;
    Tensors result() override;
    void synchronize() override { wait(kNoTimeout); }
    bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
    /* The calling thread waits for the operations. The stream only waits for the copies to its device. */
    void blockCurrentStream() override { wait(kNoTimeout); }
    void abort() override { communicator_->abort(); }
    FuturePointer getFuture() override;
    FuturePointer getFutureResult() override;
    float getDuration() const override;
    /* Returns the timeout of the operations, without that of wait(). Overrides a virtual function of torch 2.14. */
    std::chrono::milliseconds getTimeout() const { return timeout_; }
    void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
    /* How much longer than asked the timeouts of the operations are. */
    std::chrono::milliseconds extension{ 0 };
    bool is_over() const { return settled_; }
    uint64_t getSequencenumber() const override { return sequence_; }
    /* Returns the number of the Work for completion hooks, which no other Work of this process has. Overrides a virtual
     * function of torch 2.15. */
    uint64_t getCompletionKey() const { return key_; }

    /* Numbers of the flight recorder that all operations share, and the id of the record that ends a coalesced call. */
    RecordedNumbers numbers;
    uint64_t end_record = 0;

    /* Drops the Works that are over. Only the program's own threads call it, because it frees tensors. */
    static void reap();
    /* Does nothing when the interpreter ends, because tensors can no longer be freed safely. */
    static void reap_unless_ending();

  private:
    friend class Futures;
    static void on_done(tutti_request *request, void *context);
    void settle();
    /* Calls the completion hooks if all operations have succeeded. */
    void report_completion() const;
    bool has_failed_group() const;
    float measured_ms() const { return std::chrono::duration<float, std::milli>(ended_ - begun_).count(); }
    void retire();
    bool asked() const { return future_ || outcome_; }
    void complete_futures();
    void prepare_future();
    /* Returns the future, and makes it if it is null. A new future of a settled Work is complete. */
    FuturePointer find_or_make(FuturePointer &future, c10::function_ref<FuturePointer()> make);
    void wait_without_gil();
    std::mutex &state_mutex();
    void deliver();
    void wait_for(Operation &operation, std::chrono::milliseconds timeout);
    template <typename Use> void for_each_operation(Use use) const;

    c10::intrusive_ptr<Communicator> communicator_;
    Operation first_;
    std::vector<std::unique_ptr<Operation>> more_;
    uint64_t sequence_, key_;
    std::vector<uint64_t> part_keys_;
    /* At 0 the Work settles. */
    std::atomic<int> open_{ 0 };
    /* Counts like open_, but down only after the last access to the Work. At 0 retire() gives up the Work. */
    std::atomic<int> touched_{ 0 };
    std::atomic<bool> settled_{ false };
    /* The first operation that has failed. */
    std::atomic<const Operation *> failed_{ nullptr };
    FuturePointer future_, outcome_;                    /* under mutex_ */
    bool future_taken_ = false, outcome_taken_ = false; /* under mutex_ */
    std::chrono::steady_clock::time_point begun_, ended_;
    bool staged_ = false, blocking_futures_ = false;
    std::chrono::milliseconds timeout_{ 0 };
    /* The device that was current on the thread that called getFuture. */
    std::optional<c10::Device> device_;
    /* The next Work on the list of finished Works. */
    Work *next_ = nullptr;
};

/* One of the calls that a Work collects. All but its key is the Work's. */
class WorkPart final : public c10d::Work {
  public:
    WorkPart(c10::intrusive_ptr<tutti::Work> whole, uint64_t key)
        : c10d::Work(-1, whole->retrieveOpType()), whole_(std::move(whole)), key_(key)
    {}
    uint64_t getCompletionKey() const { return key_; }
    bool isCompleted() override { return whole_->isCompleted(); }
    bool isSuccess() const override { return whole_->isSuccess(); }
    std::exception_ptr exception() const override { return whole_->exception(); }
    int sourceRank() const override { return whole_->sourceRank(); }
    Tensors result() override { return whole_->result(); }
    void synchronize() override { whole_->synchronize(); }
    bool wait(std::chrono::milliseconds timeout = kNoTimeout) override { return whole_->wait(timeout); }
    void blockCurrentStream() override { whole_->blockCurrentStream(); }
    void abort() override { whole_->abort(); }
    FuturePointer getFuture() override { return whole_->getFuture(); }
    FuturePointer getFutureResult() override { return whole_->getFutureResult(); }
    float getDuration() const override { return whole_->getDuration(); }
    std::chrono::milliseconds getTimeout() const { return whole_->getTimeout(); }
    uint64_t getSequencenumber() const override { return whole_->getSequencenumber(); }

  private:
    c10::intrusive_ptr<tutti::Work> whole_;
    uint64_t key_;
};

/* The copies of one operation's results to devices. The object holds no tensor, and exists until the copies are over. A
 * later operation on the same memory waits for them, so a caller may start it without a wait in between, and on another
 * stream. */
class PendingCopy {
  public:
    explicit PendingCopy(Operation &of);
    /* Enqueues the copies on the current streams, once the operation is over. A further call, on any thread, makes the
     * current streams wait for the copies. */
    void enqueue();
    /* True if the copies are over, or if the Work is gone and they can no longer be enqueued. */
    bool is_over();
    /* Registers the object for wait_for_overlapping() on any thread, until it has passed. */
    static void register_pending(std::shared_ptr<PendingCopy> pending_copy);
    /* Waits for earlier operations whose results go to memory that `next` touches. The current streams wait for the
     * copies. */
    static void wait_for_overlapping(const Footprint &next);
    /* A forked child forgets its parent's copies. */
    static void reset_in_child();

  private:
    void settle();
    std::mutex mutex_;
    /* enqueue() resets this reference. */
    c10::weak_intrusive_ptr<Work> work_;
    Operation *operation_; /* owned by the Work */
    std::vector<Extent> written_;
    bool brought_ = false;
    /* One event for each device, after the copies. */
    std::vector<c10::Event> events_;
};

} // namespace tutti
