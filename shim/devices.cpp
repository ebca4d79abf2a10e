/* Copies of tensors on other devices. Torch's own copies and its generic device guards do the work, so no CUDA header
 * is needed. The contents pass through staging buffers on the host, which are pinned if the device supports that. An
 * operation on a stream has staging buffers on the device, and its stream makes all copies.
 *
 * Invariant without a stream: the operation reads a tensor after all earlier work of its stream, because fetch()
 * synchronizes the stream. Work that a stream gets after a wait runs after the result has arrived: the wait enqueues
 * the copy on that stream, or makes the stream wait for the event of a copy that another thread has enqueued. */
#include "shim/work.hpp"
#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/record_function.h>
#include <algorithm>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <cstring>

namespace tutti {

/* Adds the tensor's device to the list, unless it is the host or already there. */
static void devices_add_from_tensor(std::vector<c10::Device> &devices, const at::Tensor &tensor)
{
    c10::Device device = tensor.device();
    if (device.is_cpu() || std::find(devices.begin(), devices.end(), device) != devices.end()) return;
    devices.push_back(device);
}
/* True if host memory can be pinned for copies to and from the device. Torch pins memory for one kind of device only,
 * the accelerator of the process. */
static bool device_can_pin_memory(c10::Device device)
{
    static const std::optional<c10::DeviceType> kind = [] {
        std::optional<c10::DeviceType> found = at::getAccelerator();
        try {
            if (found) at::globalContext().getPinnedMemoryAllocator(found);
        } catch (const c10::Error &) {
            found.reset();
        }
        return found;
    }();
    return kind == device.type();
}
/* Returns false on older guards, which cannot detect a capture; there the device raises its own error. */
template <typename Guard> static bool guard_detects_capture(const Guard &guard, c10::Stream stream)
{
    if constexpr (requires { guard.isStreamCapturing(stream); }) return guard.isStreamCapturing(stream);
    else return false;
}
/* The caller checks before it pins memory, which a capture does not allow. */
void device_check_not_capturing(const char *call, c10::Device device)
{
    if (guard_detects_capture(c10::impl::VirtualGuardImpl(device.type()), device_get_current_stream(device)))
        error_throw(TUTTI_UNSUPPORTED,
            c10::str(call, ": a graph of ", device, " is being captured, and tutti's operations cannot be part of ",
                "one; make the call outside the capture"));
}

at::Tensor Footprint::make_staging_buffer(const at::Tensor &like, at::IntArrayRef sizes, at::ScalarType type)
{
    if (run_) {
        /* The memory belongs to the operation's stream, so the allocator may use it again right after the operation. */
        c10::StreamGuard guard(run_->stream);
        staging_buffers_.push_back(at::empty(sizes, at::TensorOptions().dtype(type).device(like.device())));
        return staging_buffers_.back();
    }
    bool staging = !like.device().is_cpu();
    if (staging) device_check_not_capturing(call_, like.device());
    bool pinned = staging && device_can_pin_memory(like.device());
    auto options = at::TensorOptions().dtype(type).device(at::kCPU).pinned_memory(pinned);
    staging_buffers_.push_back(at::empty(sizes, options));
    return staging_buffers_.back();
}
/* Copies inputs to their staging buffers. */
void Footprint::fetch()
{
    WithoutObservers unobserved;
    std::vector<c10::Device> involved = devices();
    for (const Copy &copy : fetches_) copy.to.copy_(copy.from, /*non_blocking=*/true);
    /* Devices that have only outputs count, too: the stream that will copy the result may not be the stream that used
     * the tensor last. */
    for (c10::Device device : involved) device_get_current_stream(device).synchronize();
}
void Footprint::fetch_on_stream() const
{
    if (fetches_.empty()) return;
    WithoutObservers unobserved;
    c10::StreamGuard guard(run_->stream);
    for (const Copy &copy : fetches_) copy.to.copy_(copy.from, /*non_blocking=*/true);
}
void Footprint::deliver_on_stream() const
{
    if (returns_.empty()) return;
    WithoutObservers unobserved;
    c10::StreamGuard guard(run_->stream);
    for (const Copy &copy : returns_) copy.to.copy_(copy.from, /*non_blocking=*/true);
    /* A Work without a waiter drops its tensors when the core's operation is over, which is before the copies. */
    if (!run_->is_on_callers_stream()) record_stream();
}
void Footprint::record_stream() const
{
    c10::impl::VirtualGuardImpl guard(run_->stream.device_type());
    for (const Tensors *tensors : { &inputs, &outputs })
        for (const at::Tensor &tensor : *tensors)
            if (tensor.numel()) guard.recordDataPtrOnStream(tensor.storage().data_ptr(), run_->stream);
}
/* Copies results to tensors on the host. No profiler sees these copies, because its callbacks may need the GIL. */
void Footprint::unpack() const
{
    for (const HostCopy &part : host_returns_) std::memcpy(part.to, part.from, part.bytes);
    if (returns_.empty()) return;
    WithoutObservers unobserved;
    at::DisableRecordFunctionGuard unrecorded;
    for (const Copy &copy : returns_)
        if (copy.to.device().is_cpu()) copy.to.copy_(copy.from);
}
/* Enqueues the copies of results to devices, and adds an event after them for each device to `events`. */
void Footprint::deliver(std::vector<c10::Event> &events) const
{
    WithoutObservers unobserved;
    std::vector<c10::Device> written;
    for (const Copy &copy : returns_) {
        if (copy.to.device().is_cpu()) continue;
        c10::Stream stream = device_get_current_stream(copy.to.device());
        /* The copy blocks if the buffer is unpinned, because the buffer may be freed right after this call. */
        copy.to.copy_(copy.from, /*non_blocking=*/device_can_pin_memory(stream.device()));
        /* The tensor may belong to another stream, so its memory must stay until this stream's copy ends. */
        c10::impl::VirtualGuardImpl(stream.device_type()).recordDataPtrOnStream(copy.to.storage().data_ptr(), stream);
        devices_add_from_tensor(written, copy.to);
    }
    for (c10::Device device : written) {
        events.emplace_back(device.type());
        events.back().record(device_get_current_stream(device));
    }
}
std::vector<c10::Device> Footprint::devices() const
{
    std::vector<c10::Device> found;
    for (const at::Tensor &tensor : inputs) devices_add_from_tensor(found, tensor);
    for (const at::Tensor &tensor : outputs) devices_add_from_tensor(found, tensor);
    return found;
}
std::vector<Extent> Footprint::written_by_copy() const
{
    std::vector<Extent> extents;
    for (const Copy &copy : returns_) extents.push_back(tensor_get_extent(copy.to));
    return extents;
}
/* True if a tensor overlaps one of the extents. */
static bool tensors_overlap_extents(const Tensors &tensors, const std::vector<Extent> &extents)
{
    return std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor &tensor) {
        Extent mine = tensor_get_extent(tensor);
        return std::any_of(extents.begin(), extents.end(),
            [&](const Extent &theirs) { return extents_overlap(mine, theirs); });
    });
}
bool Footprint::touches(const std::vector<Extent> &written) const
{
    return tensors_overlap_extents(inputs, written) || tensors_overlap_extents(outputs, written);
}
Extents Footprint::extents() const
{
    Extents all;
    for (const at::Tensor &tensor : inputs) all.read.push_back(tensor_get_extent(tensor));
    for (const at::Tensor &tensor : outputs)
        (is_written_ ? all.written : all.read).push_back(tensor_get_extent(tensor));
    return all;
}
bool Footprint::conflicts_with(const Extents &other) const
{
    return touches(other.written) || (is_written_ && tensors_overlap_extents(outputs, other.read));
}

/* ---- the copies of results ---- */
/* The registered copies, which may be unfinished. The list is never destroyed, because threads may outlive main(). */
struct PendingCopies {
    std::mutex mutex;
    std::vector<std::shared_ptr<PendingCopy>> copies;
};
static PendingCopies *&pending_copies_pointer()
{
    static auto *all = new PendingCopies;
    return all;
}
static PendingCopies &pending_copies_get() { return *pending_copies_pointer(); }
void PendingCopy::reset_in_child() { pending_copies_pointer() = new PendingCopies; }
PendingCopy::PendingCopy(Operation &operation)
    : work_(c10::intrusive_ptr<Work>::reclaim_copy(operation.work)), operation_(&operation),
      written_(operation.footprint.written_by_copy())
{}
/* Enqueues the copies of the results, or makes the current streams wait for copies that are already enqueued. */
void PendingCopy::enqueue()
{
    std::lock_guard<std::mutex> lock(mutex_);
    for (const c10::Event &event : events_)
        event.block(c10::impl::VirtualGuardImpl(event.device_type()).getStream(event.device()));
    if (is_enqueued_) return;
    if (operation_->outcome == TUTTI_OK) operation_->footprint.deliver(events_);
    /* After an exception of deliver(), the next call tries again and gets the exception, too. */
    is_enqueued_ = true;
    work_.reset();
}
bool PendingCopy::is_over()
{
    std::lock_guard<std::mutex> lock(mutex_);
    if (!is_enqueued_) return work_.expired();
    return std::all_of(events_.begin(), events_.end(), [](const auto &event) { return event.query(); });
}
/* Waits until the operation is over, and enqueues its copies unless that has happened. */
void PendingCopy::wait_and_enqueue()
{
    c10::intrusive_ptr<Work> alive;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!is_enqueued_) alive = work_.lock();
        /* enqueue() has failed, and the Work is gone. */
        if (!is_enqueued_ && !alive) return;
    }
    if (alive) {
        alive->detach();
        operation_->over.wait(false);
    }
    enqueue();
}
void PendingCopy::register_pending(std::shared_ptr<PendingCopy> pending_copy)
{
    std::lock_guard<std::mutex> lock(pending_copies_get().mutex);
    auto &copies = pending_copies_get().copies;
    copies.erase(std::remove_if(copies.begin(), copies.end(), [](const auto &one) { return one->is_over(); }),
        copies.end());
    copies.push_back(std::move(pending_copy));
}
void PendingCopy::wait_for_overlapping(const Footprint &next)
{
    std::vector<std::shared_ptr<PendingCopy>> earlier;
    {
        std::lock_guard<std::mutex> lock(pending_copies_get().mutex);
        for (const auto &pending_copy : pending_copies_get().copies)
            if (next.touches(pending_copy->written_)) earlier.push_back(pending_copy);
    }
    for (const auto &pending_copy : earlier) pending_copy->wait_and_enqueue();
}

} // namespace tutti
