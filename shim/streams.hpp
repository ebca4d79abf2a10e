/* Operations on CUDA streams. A group runs the collectives of its CUDA tensors on streams if all ranks are on one host
 * and the core can open their devices (tutti_comm_open_cuda); otherwise these tensors pass through the host. All ranks
 * decide alike: by the kind of call, and by the answer of the core, which is the same on all ranks. */
#pragma once
#include "include/tutti.h"
#include <atomic>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace tutti {

class Communicator;
class Footprint;

/* The address range of a tensor on its device, from the first element to the last one. */
struct Extent {
    c10::Device device;
    const char *data;
    size_t bytes;
};
/* The memory that an operation only reads, and the memory that it writes. */
struct Extents { std::vector<Extent> read, written; };

/* One operation on a stream. */
struct StreamRun {
    /* The stream of the operation, and the one that was current at the call. */
    c10::Stream stream, caller;
    /* The duration is measured, so `began` is recorded. */
    bool measures;
    /* Events before and after the operation. */
    c10::Event began, ended;
    /* The core has reported the end. Protected by the mutex of the Streams. */
    bool is_over = false;
    StreamRun(c10::Stream on, c10::Stream from, bool is_measured);
    ~StreamRun();
    StreamRun(const StreamRun &) = delete;
    StreamRun &operator=(const StreamRun &) = delete;
    bool is_on_callers_stream() const { return stream == caller; }
    /* Makes the current stream of the device wait for the operation. */
    void block_current() const;
    /* True if the caller's stream is current on this thread, or is the stream of the operation. After block_current(),
     * its later work runs after the operation. */
    bool is_waited_for_by_caller() const;

  private:
    /* The number of forks in the process that made the events. */
    const unsigned process_;
};
/* Returns the stream that is current on this thread. */
c10::Stream device_get_current_stream(c10::Device device);
/* Returns the cudaStream_t of a stream. */
void *stream_get_handle(c10::Stream stream);

/* The first failure of an operation on a stream. */
struct StreamFailure {
    tutti_status status;
    std::string text;
    /* The id of the operation in the flight recorder, or 0. */
    uint64_t record;
};

/* The streams of one communicator. A rank uses one device. */
class Streams {
  public:
    Streams();
    ~Streams();
    /* Returns true if operations with tensors of this device run on streams. The first call is collective over the
     * communicator. Throws if that fails the group. `call`: the name of the call, for errors. */
    bool open(Communicator &communicator, const char *call, c10::Device device);
    bool is_open() const { return state_ == State::OPEN; }
    /* Returns the device of the group, which is open. */
    c10::Device get_device() const { return own_->device(); }
    /* Returns a new operation, on the current stream of the caller or on the group's own stream. */
    std::shared_ptr<StreamRun> make_run(bool on_own_stream, bool measures);
    /* A thread holds this lock from begin() to end(), so that operations reach their streams in the order in which the
     * core gets them. The holder may wait for the core, so a thread that wants the lock must not hold the GIL. */
    std::unique_lock<std::mutex> lock_order() { return std::unique_lock<std::mutex>(order_); }
    /* Orders the stream of the operation after the work of the caller's stream, and after the group's earlier
     * operations with the copies of their results. */
    void begin(StreamRun &run);
    /* Records the end of all work of the operation, which uses this memory. */
    void end(const std::shared_ptr<StreamRun> &run, Extents extents);
    /* Makes the current stream of the device wait for those operations that must be over before `next`, because one of
     * the two writes what the other uses. */
    void block_current_for(const Footprint &next);
    /* The core reports the end of an operation. `failure`: null after a success. */
    void report_end(StreamRun &run, const StreamFailure *failure);
    /* Waits on the host until the core has reported the ends of the operations so far. After a success it also waits
     * for the copies of their results. Returns false at the limit. Releases the GIL. */
    bool wait_on_host(std::optional<std::chrono::milliseconds> limit = std::nullopt);
    std::optional<StreamFailure> find_failure();
    /* Returns the stream of asynchronous operations, or nothing if operations pass through the host. `device` is used
     * if the group has no device yet. */
    std::optional<c10::Stream> get_own_stream(c10::Device device);

  private:
    enum class State { UNDECIDED, OPEN, HOST };
    void make_own_stream(c10::Device device);
    std::shared_ptr<StreamRun> find_last();
    std::atomic<State> state_{ State::UNDECIDED };
    /* Held by the thread that opens the communicator. */
    std::mutex opening_;
    std::mutex order_;
    /* Protects the members below. Once the state is OPEN, own_ stays the same. A holder makes no call that may wait,
     * because the core's progress thread takes this lock. called_, last_ and running_ change only under order_, too,
     * whose holder may read them without this lock. */
    std::mutex mutex_;
    std::optional<c10::Stream> own_;
    /* Ordered by begin(); another record of it replaces the earlier one. */
    std::optional<c10::Event> called_;
    /* The last operation. */
    std::shared_ptr<StreamRun> last_;
    std::optional<StreamFailure> failure_;
    /* An operation is over. */
    std::condition_variable over_;
    /* The operations that may not be over, in their order. */
    struct Running {
        std::shared_ptr<StreamRun> run;
        Extents extents;
    };
    std::deque<Running> running_;
    /* The number of forks in the process that made the communicator. */
    const unsigned process_;
};

} // namespace tutti
