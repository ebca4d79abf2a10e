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

/* One call of the core in a Work. */
struct Operation {
    mutable tutti_request request = TUTTI_REQUEST_INIT;
    Work *work = nullptr;
    /* request.algorithm points to this text. */
    std::string algorithm;
    /* The tag of the options block, or null. */
    const char *tag = nullptr;
    Footprint footprint;
    /* The id of the operation in the flight recorder, or 0. */
    uint64_t record = 0;
    /* Exists if a tensor of the footprint has a staging buffer. */
    std::shared_ptr<PendingCopy> pending_copy;
    /* Exists if the operation runs on a stream. Such an operation has no pending copy. */
    std::shared_ptr<StreamRun> run;
    /* Outcome and error text are valid once the Work is settled or `over` is true. */
    tutti_status outcome = TUTTI_IN_PROGRESS;
    std::string text;
    /* Once this is true, the operation and the settled Work stay unchanged. */
    std::atomic<bool> over{ false };
    /* Returns the text of this thread's last error in the core, with the tag. */
    std::string get_error() const;
    /* Records the end in the flight recorder, and gives the result to the checks of TUTTI_DEBUG. */
    void record_outcome();
    /* Stores the outcome and the error text, unpacks the results of a success, and records the end. */
    void store_outcome(tutti_status status, std::string error);
    /* Sets `over` and wakes the threads that wait for it. */
    void notify_waiters();
};

class Work final : public c10d::Work {
  public:
    /* `title` names the range that a profiler records, with the `inputs`. It is null without a profiler. `sequence`:
     * the number of the group's last collective, or of this one. */
    Work(c10::intrusive_ptr<Communicator> communicator, int rank, c10d::OpType type, const char *title,
        const Tensors &inputs, uint64_t sequence);
    ~Work() override;

    /* Adds an operation on the memory of the footprint. The operation's address stays the same. */
    Operation &add(Footprint footprint);
    /* The Work stays alive and unsettled while it is open. Each running operation opens it once, and so does a thread
     * that may add operations. The last close() settles the Work. */
    void open();
    void close();
    /* Closes a Work that a thread has opened for coalescing, and records the end of the coalesced call. */
    void end_coalescing();
    const Communicator &communicator() const { return *communicator_; }
    /* Returns a key of its own for completion hooks, for one call that this open Work collects. */
    uint64_t add_part_key();
    size_t count_operations() const { return (first_.work ? 1 : 0) + more_.size(); }
    /* Returns the outputs of the operations from index `first` on. Another thread may drop them meanwhile. */
    Tensors get_outputs(size_t first);
    /* Prepares an operation that is about to start and runs without its caller: sets the callback for its end, and
     * opens the Work until then. */
    void prepare_async(Operation &operation);
    /* Ends an operation whose blocking call has succeeded, and settles the Work. */
    void finish_blocking(Operation &operation);
    /* Ends an operation after prepare_async(), also one that could not start, and closes the Work. */
    void finish(Operation &operation, tutti_status status);
    /* Ends an operation that the core has refused after prepare_async(). The other operations of the Work are
     * unaffected. */
    void withdraw(Operation &operation);
    /* True if all operations of the Work run on streams. */
    bool is_on_streams() const { return has_streams_ && !has_host_; }
    /* Returns the device of a Work on streams. */
    c10::Device get_device() const { return first_.run->stream.device(); }
    /* Makes the current streams wait for operations on streams. */
    void block_current_streams() const;
    /* Drops the tensors of a Work on streams, so that their memory can be used again before the host sees the end of
     * the operations. The current stream waits for the operations, or is theirs. */
    void drop_tensors();
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
    Tensors result() override { return get_outputs(0); }
    void synchronize() override { wait(kNoTimeout); }
    bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
    /* The calling thread waits for operations that pass through the host. The stream waits for the copies to its
     * device, and for operations on streams. */
    void blockCurrentStream() override { wait(kNoTimeout); }
    void abort() override { communicator_->abort(); }
    FuturePointer getFuture() override;
    FuturePointer getFutureResult() override;
    float getDuration() const override;
    /* Returns the timeout of the operations, which is independent of a timeout of wait(). Overrides a virtual function
     * of torch 2.14. */
    std::chrono::milliseconds getTimeout() const { return timeout_; }
    void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
    /* The time that addEphemeralTimeout() adds to the timeouts of the operations. */
    std::chrono::milliseconds extension{ 0 };
    bool is_over() const { return settled_; }
    uint64_t getSequencenumber() const override { return sequence_; }
    /* Returns the number of the Work for completion hooks, which no other Work of this process has. Overrides a virtual
     * function of torch 2.15. */
    uint64_t getCompletionKey() const { return key_; }

    /* The numbers in the flight recorder, which all operations share, and the id of the record that ends a coalesced
     * call. */
    RecordedNumbers numbers;
    uint64_t end_record = 0;

    /* Completes futures that lack a thread, and drops the Works that are over. Only the program's own threads call it,
     * because it frees tensors. */
    static void reap();
    /* Calls reap(), but does nothing when the interpreter ends, because tensors can no longer be freed safely. */
    static void reap_unless_ending();

  private:
    friend class Futures;
    /* The core calls this when an operation is over. `context`: the Operation. */
    static void on_done(tutti_request *request, void *context);
    /* Marks the Work as over, records that, and calls the completion hooks. */
    void settle();
    /* Calls the completion hooks if all operations have succeeded. */
    void report_completion() const;
    /* Reports the end of an operation on a stream to the Streams of the communicator. */
    void report_end_of_run(const Operation &operation);
    /* True if an operation has failed and broken its group. */
    bool has_failed_group() const;
    float measured_ms() const { return std::chrono::duration<float, std::milli>(ended_ - begun_).count(); }
    /* Passes the Work's reference to itself on: to the threads of futures, or to the list of finished Works. */
    void retire();
    /* True if a caller has asked for a future. The caller holds the mutex. */
    bool has_future() const { return future_ || outcome_; }
    void complete_futures();
    /* Ensures that the Work ends without a waiter, and that a thread can complete its future. After block_futures(), or
     * if there is no such thread, it waits for the end instead. */
    void prepare_future();
    /* Returns the future, and makes it if it is null. A new future of a settled Work is complete. */
    FuturePointer find_or_make(FuturePointer &future, c10::function_ref<FuturePointer()> make);
    void wait_without_gil();
    /* Returns the mutex of the futures. A forked child has another one, see child_mutex. */
    std::mutex &state_mutex();
    /* Enqueues the copies of the results to their devices. */
    void deliver();
    /* Waits for the operation and throws its error. For an operation on a stream it waits on the host only if a timeout
     * is given or the group has failed. */
    void wait_for(Operation &operation, std::chrono::milliseconds timeout);
    template <typename Use> void for_each_operation(Use use) const;

    c10::intrusive_ptr<Communicator> communicator_;
    /* first_.work is null without any operation. */
    Operation first_;
    std::vector<std::unique_ptr<Operation>> more_;
    uint64_t sequence_;
    /* The keys for completion hooks: of the Work, and of its parts (add_part_key). */
    uint64_t key_;
    std::vector<uint64_t> part_keys_;
    /* The running operations and the threads that may add some. At 0 the Work settles. */
    std::atomic<int> open_{ 0 };
    /* Counts like open_, but is decremented only after the last access to the Work. At 0 retire() gives up the Work. */
    std::atomic<int> touched_{ 0 };
    std::atomic<bool> settled_{ false };
    /* The first operation that has failed, or null. */
    std::atomic<const Operation *> failed_{ nullptr };
    FuturePointer future_, outcome_;                    /* under mutex_ */
    bool future_taken_ = false, outcome_taken_ = false; /* under mutex_ */
    /* The times of start_clock() and of the end. begun_ is 0 if the duration is not measured. */
    std::chrono::steady_clock::time_point begun_, ended_;
    /* An operation has a staging buffer. */
    bool staged_ = false;
    /* An operation runs on a stream; an operation does not. */
    bool has_streams_ = false, has_host_ = false;
    bool blocking_futures_ = false;
    std::chrono::milliseconds timeout_{ 0 };
    /* The device that was current on the thread that called getFuture. */
    std::optional<c10::Device> device_;
    /* The next Work on the list of finished Works. */
    Work *next_ = nullptr;
};

/* One of the calls that the Work `whole` collects. It has a key of its own, and passes everything else to that Work. */
class WorkPart : public c10d::Work {
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
    void synchronize() override { wait(kNoTimeout); }
    bool wait(std::chrono::milliseconds timeout = kNoTimeout) override { return whole_->wait(timeout); }
    void blockCurrentStream() override { wait(kNoTimeout); }
    void abort() override { whole_->abort(); }
    FuturePointer getFuture() override { return whole_->getFuture(); }
    FuturePointer getFutureResult() override { return whole_->getFutureResult(); }
    float getDuration() const override { return whole_->getDuration(); }
    std::chrono::milliseconds getTimeout() const { return whole_->getTimeout(); }
    uint64_t getSequencenumber() const override { return whole_->getSequencenumber(); }

  protected:
    c10::intrusive_ptr<tutti::Work> whole_;

  private:
    uint64_t key_;
};

/* The handle of a Work on streams, for callers, or of one call that it collects. It has the outputs, because the Work
 * `whole` drops all tensors in the first wait, and stays until the host has seen the end of its operations. */
class StreamWork final : public WorkPart {
  public:
    StreamWork(c10::intrusive_ptr<tutti::Work> whole, uint64_t key, Tensors outputs)
        : WorkPart(std::move(whole), key), outputs_(std::move(outputs))
    {}
    Tensors result() override { return outputs_; }
    bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
    /* Returns a complete future, whose value the streams of its users await. */
    FuturePointer getFuture() override;

  private:
    Tensors outputs_;
    /* Protected by mutex_. */
    FuturePointer future_;
};

/* The copies of one operation's results from staging buffers to tensors on devices. The object holds no tensor, and
 * exists until the copies are over. A later operation on the same memory waits for these copies. So a caller may start
 * the later operation without a wait in between, also on another stream. */
class PendingCopy {
  public:
    explicit PendingCopy(Operation &operation);
    /* Enqueues the copies on the current streams, once the operation is over. A further call, on any thread, makes the
     * current streams wait for the copies. */
    void enqueue();
    /* True if the copies are over, or if the Work is gone and they can no longer be enqueued. */
    bool is_over();
    /* Makes wait_for_overlapping() on any thread consider the copies, until they are over. */
    static void register_pending(std::shared_ptr<PendingCopy> pending_copy);
    /* Waits for earlier operations whose results go to memory that `next` touches. The current streams wait for the
     * copies. */
    static void wait_for_overlapping(const Footprint &next);
    /* A forked child forgets its parent's copies. */
    static void reset_in_child();

  private:
    void wait_and_enqueue();
    std::mutex mutex_;
    /* enqueue() resets this reference to the operation's Work. */
    c10::weak_intrusive_ptr<Work> work_;
    Operation *operation_; /* owned by the Work */
    /* The memory that receives the results. */
    std::vector<Extent> written_;
    bool is_enqueued_ = false;
    /* One event for each device, after the copies. */
    std::vector<c10::Event> events_;
};

} // namespace tutti
