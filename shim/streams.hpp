/* Operations on CUDA streams. A group runs the collectives of its CUDA tensors on streams if all ranks are on one host
 * and the core can open their devices (tutti_comm_open_cuda); otherwise these tensors pass through the host. All ranks
 * decide alike: by the kind of call, and by the answer of the core, which is the same on all ranks. */
#pragma once
#include "include/tutti.h"
#include <atomic>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
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
struct Extents {
    std::vector<Extent> read, written;
};

/* One operation on a stream. */
struct StreamRun {
    /* The stream of the operation, and the one that was current at the call. */
    c10::Stream stream, caller;
    /* The duration is measured, so `began` is recorded. */
    bool measures;
    /* Events before and after the operation. */
    c10::Event began, ended;
    StreamRun(c10::Stream on, c10::Stream from, bool is_measured);
    bool is_on_callers_stream() const { return stream == caller; }
    /* Makes the current stream of the device wait for the operation. */
    void block_current() const;
    /* True if the caller's stream is current on this thread, or is the stream of the operation. After block_current(),
     * its later work runs after the operation. */
    bool is_waited_for_by_caller() const;
};
/* Returns the stream that is current on this thread. */
c10::Stream device_get_current_stream(c10::Device device);
/* Returns the cudaStream_t of a stream. */
void *stream_get_handle(c10::Stream stream);

/* The streams of one communicator. A rank uses one device. */
class Streams {
  public:
    /* Returns true if operations with tensors of this device run on streams. The first call is collective over the
     * communicator. Throws if that fails the group. `call`: the name of the call, for errors. */
    bool open(Communicator &communicator, const char *call, c10::Device device);
    /* Returns a new operation, on the current stream of the caller or on the group's own stream. */
    std::shared_ptr<StreamRun> make_run(bool on_own_stream, bool measures);
    /* Orders the stream of the operation after the work of the caller's stream, and after the group's earlier
     * operations with the copies of their results. */
    void begin(StreamRun &run);
    /* Records the end of all work of the operation, which uses this memory. */
    void end(const std::shared_ptr<StreamRun> &run, Extents extents);
    /* Makes the current stream of the device wait for those operations that must be over before `next`, because one of
     * the two writes what the other uses. */
    void block_current_for(const Footprint &next);
    /* Waits on the host until the operations so far are over. Releases the GIL. */
    void wait_on_host();
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
    /* Protects the members below. Once the state is OPEN, own_ stays the same. */
    std::mutex mutex_;
    std::optional<c10::Stream> own_;
    /* Ordered by begin(); another record of it replaces the earlier one. */
    std::optional<c10::Event> called_;
    /* The last operation. */
    std::shared_ptr<StreamRun> last_;
    /* The operations that may not be over, in their order. */
    struct Running {
        std::shared_ptr<StreamRun> run;
        Extents extents;
    };
    std::deque<Running> running_;
};

} // namespace tutti
