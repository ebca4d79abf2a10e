/* Opens a communicator for CUDA, and orders the streams of its operations by events. Torch's generic guards do the
 * work, so no CUDA header is needed. */
#include "shim/streams.hpp"
#include "shim/communicator.hpp"
#include "shim/footprint.hpp"
#include "shim/gil.hpp"
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <cstdlib>
#include <cstring>

namespace tutti {

c10::Stream device_get_current_stream(c10::Device device)
{
    return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}
StreamRun::StreamRun(c10::Stream on, c10::Stream from, bool is_measured)
    : stream(on), caller(from), measures(is_measured), began(on.device_type(), c10::EventFlag::BACKEND_DEFAULT),
      ended(on.device_type(), measures ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT),
      process_(process_count_forks())
{}
/* In a forked child the event leaks, because the child cannot use the parent's devices. */
static void event_leak_in_child(c10::Event &event, unsigned process)
{
    if (process != process_count_forks()) static_cast<void>(new c10::Event(std::move(event)));
}
StreamRun::~StreamRun()
{
    event_leak_in_child(began, process_);
    event_leak_in_child(ended, process_);
}
void StreamRun::block_current() const
{
    c10::Stream current = device_get_current_stream(stream.device());
    if (current != stream) ended.block(current);
}
bool StreamRun::is_waited_for_by_caller() const
{
    return is_on_callers_stream() || device_get_current_stream(stream.device()) == caller;
}
void *stream_get_handle(c10::Stream stream)
{
    return c10::impl::VirtualGuardImpl(stream.device_type()).getStreamNativeHandle(stream);
}

/* Warns once in a process, because every group of it gets the same answer. TUTTI_CUDA=0 is a choice and needs no
 * warning. */
static void streams_warn_of_host(const std::string &why)
{
    const char *chosen = std::getenv("TUTTI_CUDA");
    if (chosen && !std::strcmp(chosen, "0")) return;
    TORCH_WARN_ONCE("tutti: CUDA tensors go through the host: ", why);
}
/* Opens the communicator. If a rank lacks memory for its slots, all ranks give the memory that torch has cached back to
 * the devices, and try again. All ranks get the same status. */
static tutti_status communicator_open_cuda(Communicator &communicator, c10::Device device)
{
    tutti_status status = tutti_comm_open_cuda(communicator.get(), device.index());
    if (status != TUTTI_NO_MEMORY || !tutti_last_error_is_refusal()) return status;
    try {
        at::getDeviceAllocator(device.type())->emptyCache();
    } catch (const std::exception &error) {
        TORCH_WARN("tutti: the memory that torch has cached on ", device, " could not be freed: ", error_text(error));
    }
    return tutti_comm_open_cuda(communicator.get(), device.index());
}
Streams::Streams() : process_(process_count_forks()) {}
Streams::~Streams()
{
    if (called_) event_leak_in_child(*called_, process_);
}
bool Streams::open(Communicator &communicator, const char *call, c10::Device device)
{
    if (state_ != State::UNDECIDED) return state_ == State::OPEN;
    GilRelease released;
    std::unique_lock<std::mutex> lock(opening_);
    if (state_ != State::UNDECIDED) return state_ == State::OPEN;
    tutti_status status = communicator_open_cuda(communicator, device);
    std::string text = tutti_get_last_error();
    if (status != TUTTI_OK && (status == TUTTI_FORKED || !tutti_last_error_is_refusal())) {
        lock.unlock();
        if (communicator.has_failed()) communicator.report_failure();
        error_throw(status, c10::str(call, ": ", text));
    }
    if (status != TUTTI_OK) streams_warn_of_host(text);
    std::lock_guard<std::mutex> keeping(mutex_);
    if (status == TUTTI_OK) make_own_stream(device);
    state_ = status == TUTTI_OK ? State::OPEN : State::HOST;
    return status == TUTTI_OK;
}
/* Makes the group's own stream, unless it exists on this device. The caller holds mutex_. */
void Streams::make_own_stream(c10::Device device)
{
    if (!own_ || own_->device() != device)
        own_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}
std::optional<c10::Stream> Streams::get_own_stream(c10::Device device)
{
    std::lock_guard<std::mutex> lock(mutex_);
    if (state_ == State::HOST) return std::nullopt;
    if (state_ == State::UNDECIDED) make_own_stream(device);
    return own_;
}
std::shared_ptr<StreamRun> Streams::make_run(bool on_own_stream, bool measures)
{
    c10::Stream caller = device_get_current_stream(own_->device());
    return std::make_shared<StreamRun>(on_own_stream ? *own_ : caller, caller, measures);
}
std::shared_ptr<StreamRun> Streams::find_last()
{
    if (state_ != State::OPEN) return nullptr;
    std::lock_guard<std::mutex> lock(mutex_);
    return last_;
}
void Streams::begin(StreamRun &run)
{
    while (!running_.empty() && running_.front().run->ended.query()) {
        std::shared_ptr<StreamRun> over = running_.front().run;
        std::lock_guard<std::mutex> lock(mutex_);
        running_.pop_front();
    }
    if (last_ && last_->stream != run.stream) last_->ended.block(run.stream);
    if (!run.is_on_callers_stream()) {
        if (!called_) called_.emplace(run.stream.device_type());
        called_->record(run.caller);
        called_->block(run.stream);
    }
    if (run.measures) run.began.record(run.stream);
}
void Streams::end(const std::shared_ptr<StreamRun> &run, Extents extents)
{
    run->ended.record(run->stream);
    std::lock_guard<std::mutex> lock(mutex_);
    last_ = run;
    running_.push_back({ run, std::move(extents) });
}
void Streams::block_current_for(const Footprint &next)
{
    if (state_ != State::OPEN) return;
    std::vector<std::shared_ptr<StreamRun>> earlier;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        for (const Running &one : running_)
            if (next.conflicts_with(one.extents)) earlier.push_back(one.run);
    }
    for (const auto &run : earlier) run->block_current();
}
/* The core's progress thread calls this. */
void Streams::report_end(StreamRun &run, const StreamFailure *failure)
{
    std::lock_guard<std::mutex> lock(mutex_);
    run.is_over = true;
    if (failure && !failure_) failure_ = *failure;
    over_.notify_all();
}
bool Streams::wait_on_host(std::optional<std::chrono::milliseconds> limit)
{
    auto last = find_last();
    if (!last) return true;
    GilRelease released;
    {
        std::unique_lock<std::mutex> lock(mutex_);
        auto is_over = [&] { return last->is_over; };
        if (!limit) over_.wait(lock, is_over);
        else if (!over_.wait_for(lock, *limit, is_over)) return false;
        /* After a failure the stream may not have come to the operation yet. */
        if (failure_) return true;
    }
    last->ended.synchronize();
    return true;
}
std::optional<StreamFailure> Streams::find_failure()
{
    std::lock_guard<std::mutex> lock(mutex_);
    return failure_;
}

} // namespace tutti
