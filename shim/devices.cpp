/* Tensors of other devices, through torch's own copies and its guards for any device, so that no header of CUDA is
 * needed. Their contents pass through room on the host, pinned where the device can use that.
 *
 * What a stream sees is the invariant: whatever it did with the tensors before the call is over before they are
 * read, because fetch() waits for it; whatever it does after a wait comes after the copy that wait enqueued on it, or
 * after that copy's event if somebody else's wait enqueued it. */
#include "shim/footprint.hpp"
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <algorithm>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <cstring>

namespace tutti {

static c10::Stream current_stream(c10::Device device)
{
    return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}
static void note_device(std::vector<c10::Device> &devices, const at::Tensor &tensor)
{
    c10::Device device = tensor.device();
    if (device.is_cpu() || std::find(devices.begin(), devices.end(), device) != devices.end()) return;
    devices.push_back(device);
}

at::Tensor Footprint::room(const at::Tensor &like, at::IntArrayRef sizes, at::ScalarType type)
{
    auto options = at::TensorOptions().dtype(type).device(at::kCPU).pinned_memory(like.is_cuda());
    rooms_.push_back(at::empty(sizes, options));
    return rooms_.back();
}
void Footprint::fetch()
{
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    std::vector<c10::Device> involved = devices();
    for (const Copy &copy : fetches_) {
        copy.to.copy_(copy.from, /*non_blocking=*/true);
        note_device(involved, copy.from);
    }
    for (c10::Device device : involved) current_stream(device).synchronize();
}
void Footprint::unpack() const
{
    for (const Part &part : parts_) std::memcpy(part.to, part.from, part.bytes);
}
void Footprint::deliver(std::vector<c10::Event> &events) const
{
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    for (const Copy &copy : returns_) {
        c10::Stream stream = current_stream(copy.to.device());
        copy.to.copy_(copy.from, /*non_blocking=*/true);
        c10::impl::VirtualGuardImpl(stream.device_type()).recordDataPtrOnStream(
            copy.to.storage().data_ptr(), stream); /* whoever allocated it may have done so for another stream */
    }
    for (c10::Device device : devices()) {
        events.emplace_back(device.type());
        events.back().record(current_stream(device));
    }
}
std::vector<c10::Device> Footprint::devices() const
{
    std::vector<c10::Device> found;
    for (const Copy &copy : returns_) note_device(found, copy.to);
    return found;
}
bool Footprint::writes_what(const Footprint &next) const
{
    auto among = [this](const at::Tensor &tensor) {
        return std::any_of(returns_.begin(), returns_.end(),
            [&](const Copy &copy) { return copy.to.is_alias_of(tensor); });
    };
    return std::any_of(next.inputs.begin(), next.inputs.end(), among) ||
           std::any_of(next.outputs.begin(), next.outputs.end(), among);
}

} // namespace tutti
