/* An emulated accelerator, "sim", for tests without a GPU. It has two devices. Their streams are threads that run the
 * tasks of a queue, slowly on purpose. A mistake that gives wrong results on a GPU must give wrong results here, too:
 *
 *  - Device memory holds every byte changed by XOR, so code that reads or writes it without a copy gets wrong values.
 *  - A copy runs on its stream and keeps no tensor alive, so memory that is freed too early is overwritten. A copy to
 *    the device takes 3 ms; a copy to the host is not delayed.
 *  - Both allocators use freed memory again as CUDA's do: at once, unless a recorded stream has tasks left to run.
 *  - Host memory that is not pinned is copied before the call returns.
 *
 * All operations except copies run on the CPU, through blocking copies. */
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <condition_variable>
#include <deque>
#include <map>
#include <pybind11/pybind11.h>
#include <thread>
#include <torch/library.h>

namespace sim {

constexpr c10::DeviceType type = c10::DeviceType::PrivateUse1;
/* The streams of each device; stream 0 is the default one. */
constexpr int device_count = 2, stream_count = 16;
constexpr uint8_t disguise = 0xA5;
constexpr auto delay = std::chrono::milliseconds(3);
static std::atomic<bool> failing{ false };
static thread_local bool capturing = false;

/* ---- streams ---- */
class Queue {
  public:
    /* A ticket has passed when the queue has finished this number of tasks. */
    using Ticket = uint64_t;
    Ticket push(std::function<void()> task)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (pushed_ == 0) std::thread([this] { serve(); }).detach();
        tasks_.push_back(std::move(task));
        changed_.notify_all();
        return ++pushed_;
    }
    Ticket last()
    {
        std::lock_guard<std::mutex> lock(mutex_);
        return pushed_;
    }
    bool passed(Ticket ticket)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        return over_ >= ticket;
    }
    void wait(Ticket ticket)
    {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return over_ >= ticket; });
    }
    void follow(Queue *other, Ticket ticket)
    {
        if (other != this) push([=] { other->wait(ticket); });
    }

  private:
    void serve()
    {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            changed_.wait(lock, [this] { return !tasks_.empty(); });
            std::function<void()> task = std::move(tasks_.front());
            tasks_.pop_front();
            lock.unlock();
            task();
            task = nullptr;
            lock.lock();
            over_++;
            changed_.notify_all();
        }
    }
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> tasks_;
    Ticket pushed_ = 0, over_ = 0;
};
static Queue *queue_of(const c10::Stream &stream)
{
    /* The queues are never freed, because their threads outlive main. */
    static auto *queues = new std::array<Queue, device_count * stream_count>;
    return &queues->at(static_cast<size_t>(stream.device_index() * stream_count + stream.id()));
}
static thread_local c10::DeviceIndex current_device = 0;
static thread_local std::array<c10::StreamId, device_count> current_streams{};
static c10::Device resolved(c10::Device device)
{
    return { type, device.has_index() ? device.index() : current_device };
}
static c10::Stream stream_of(c10::Device device, c10::StreamId id)
{
    return c10::Stream(c10::Stream::UNSAFE, resolved(device), id);
}
static c10::Stream current_stream(c10::Device device)
{
    return stream_of(device, current_streams.at(static_cast<size_t>(resolved(device).index())));
}

/* ---- memory ---- */
struct Block {
    char *data;
    size_t bytes;
    /* The device and the stream of the memory; device -1: pinned memory of the host. */
    std::pair<int, c10::StreamId> home;
    /* Tickets that must pass before the block is used again. */
    std::map<Queue *, Queue::Ticket> users;
    /* Queues that become users when the block is freed. */
    std::vector<Queue *> recorded;
    bool free = false;
    bool passed() const
    {
        return std::all_of(users.begin(), users.end(), [](const auto &u) { return u.first->passed(u.second); });
    }
};
class Memory {
  public:
    void *take(size_t bytes, std::pair<int, c10::StreamId> home)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        for (auto &[end, block] : blocks_)
            if (block.free && block.home == home && block.bytes == bytes && block.passed()) {
                block.free = false;
                block.users.clear();
                return block.data;
            }
        char *data = static_cast<char *>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
        blocks_[data + bytes] = { data, bytes, home, {}, {} };
        return data;
    }
    void give_back(void *data)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        Block *block = find(data);
        for (Queue *queue : block->recorded) block->users[queue] = queue->last();
        block->recorded.clear();
        block->free = true;
    }
    void record(const void *data, Queue *queue)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (Block *block = find(data)) block->recorded.push_back(queue);
    }
    void use(const void *data, Queue *queue, Queue::Ticket ticket)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (Block *block = find(data)) block->users[queue] = ticket;
    }
    bool contains(const void *data)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        return find(data);
    }

  private:
    Block *find(const void *data)
    {
        auto *at = static_cast<const char *>(data);
        /* The first block that ends behind `at`. */
        auto found = blocks_.upper_bound(at);
        return found != blocks_.end() && found->second.data <= at ? &found->second : nullptr;
    }
    std::mutex mutex_;
    /* The blocks by the addresses of their ends. */
    std::map<const char *, Block> blocks_;
};
static Memory &of_devices()
{
    static auto *memory = new Memory;
    return *memory;
}
static Memory &pinned()
{
    static auto *memory = new Memory;
    return *memory;
}
template <bool on_device> class Allocator final : public c10::Allocator {
  public:
    c10::DataPtr allocate(size_t bytes) override
    {
        c10::Device device = on_device ? c10::Device(type, current_device) : c10::Device(c10::kCPU);
        if (!bytes) return { nullptr, device };
        void *data = on_device ? of_devices().take(bytes, { current_device, current_stream(device).id() })
                               : pinned().take(bytes, { -1, 0 });
        return { data, data, raw_deleter(), device };
    }
    c10::DeleterFnPtr raw_deleter() const override
    {
        return [](void *data) { (on_device ? of_devices() : pinned()).give_back(data); };
    }
    void copy_data(void *to, const void *from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};
static Allocator<true> device_allocator;
static Allocator<false> pinned_allocator;
REGISTER_ALLOCATOR(type, &device_allocator)

/* ---- what torch asks of a device ---- */
struct Event {
    Queue *queue;
    Queue::Ticket ticket;
};
struct Guard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override { return sim::type; }
    c10::Device exchangeDevice(c10::Device to) const override
    {
        return { sim::type, std::exchange(current_device, resolved(to).index()) };
    }
    c10::Device getDevice() const override { return { sim::type, current_device }; }
    void setDevice(c10::Device to) const override { current_device = resolved(to).index(); }
    void uncheckedSetDevice(c10::Device to) const noexcept override { current_device = resolved(to).index(); }
    c10::DeviceIndex deviceCount() const noexcept override { return device_count; }
    void synchronizeDevice(const c10::DeviceIndex index) const override
    {
        for (c10::StreamId id = 0; id < stream_count; id++) synchronizeStream(stream_of({ sim::type, index }, id));
    }

    c10::Stream getStream(c10::Device device) const override { return current_stream(device); }
    c10::Stream getDefaultStream(c10::Device device) const override { return stream_of(device, 0); }
    c10::Stream getNewStream(c10::Device device, int = 0) const override
    {
        static std::atomic<int> next{ 0 };
        return stream_of(device, 1 + next++ % (stream_count - 1));
    }
    c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device); }
    c10::Stream exchangeStream(c10::Stream to) const override
    {
        auto &current = current_streams.at(static_cast<size_t>(to.device_index()));
        return stream_of(to.device(), std::exchange(current, to.id()));
    }
    bool queryStream(const c10::Stream &stream) const override
    {
        return queue_of(stream)->passed(queue_of(stream)->last());
    }
    void synchronizeStream(const c10::Stream &stream) const override
    {
        queue_of(stream)->wait(queue_of(stream)->last());
    }
    /* This overrides a function that only newer versions of torch have. */
    bool isStreamCapturing(const c10::Stream &) const { return capturing; }
    void recordDataPtrOnStream(const c10::DataPtr &data, const c10::Stream &stream) const override
    {
        of_devices().record(data.get(), queue_of(stream));
    }

    void record(void **event, const c10::Stream &stream, const c10::DeviceIndex, const c10::EventFlag) const override
    {
        if (!*event) *event = new Event;
        *static_cast<Event *>(*event) = { queue_of(stream), queue_of(stream)->last() };
    }
    void block(void *event, const c10::Stream &stream) const override
    {
        auto [queue, ticket] = *static_cast<Event *>(event);
        queue_of(stream)->follow(queue, ticket);
    }
    bool queryEvent(void *event) const override
    {
        auto [queue, ticket] = *static_cast<Event *>(event);
        return queue->passed(ticket);
    }
    void synchronizeEvent(void *event) const override
    {
        auto [queue, ticket] = *static_cast<Event *>(event);
        queue->wait(ticket);
    }
    void destroyEvent(void *event, const c10::DeviceIndex) const noexcept override
    {
        delete static_cast<Event *>(event);
    }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    c10::DeviceIndex deviceCount() const override { return device_count; }
    c10::DeviceIndex getCurrentDevice() const override { return current_device; }
    void setCurrentDevice(c10::DeviceIndex index) const override { current_device = index; }
    c10::DeviceIndex exchangeDevice(c10::DeviceIndex to) const override { return std::exchange(current_device, to); }
    c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex to) const override { return exchangeDevice(to); }
    c10::Allocator *getPinnedMemoryAllocator() const override { return &pinned_allocator; }
    bool isPinnedPtr(const void *data) const override { return pinned().contains(data); }
    void resizePrivateUse1Bytes(const c10::Storage &storage, size_t bytes) const override
    {
        storage.set_data_ptr(bytes ? device_allocator.allocate(bytes) : c10::DataPtr(nullptr, storage.device()));
        /* The old bytes are lost, so this is only for tensors that are written next. */
        storage.set_nbytes(bytes);
    }
};

/* ---- tensors ---- */
static at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format)
{
    c10::OptionalDeviceGuard there(device);
    return at::detail::empty_generic(sizes, &device_allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
        c10::dtype_or_default(dtype), format);
}
static at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>)
{
    c10::OptionalDeviceGuard there(device);
    return at::detail::empty_strided_generic(sizes, strides, &device_allocator,
        c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}
/* Returns the tensor's memory as integers on the host. Like a kernel on a GPU, it does not keep the tensor alive. */
static at::Tensor words_of(const at::Tensor &tensor)
{
    static const std::map<size_t, at::ScalarType> words{ { 1, at::kByte }, { 2, at::kShort }, { 4, at::kInt },
        { 8, at::kLong }, { 16, at::kComplexDouble } };
    return at::from_blob(const_cast<void *>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
        at::TensorOptions().dtype(words.at(tensor.element_size())));
}
static void copy_words(const at::Tensor &from, const at::Tensor &to, bool change_disguise)
{
    at::Tensor words = from.clone(at::MemoryFormat::Contiguous).reshape({ -1 });
    if (change_disguise) words.view(at::kByte).bitwise_xor_(disguise);
    to.copy_(words.view(to.sizes()));
}
/* Enqueues a copy between tensors of the same type and sizes, of which one or both are on a device. */
static void enqueue_copy(const at::Tensor &from, const at::Tensor &to, bool non_blocking)
{
    bool both = from.device().type() == to.device().type();
    const at::Tensor &host = from.is_cpu() ? from : to;
    bool is_pinned = !both && pinned().contains(host.const_data_ptr());
    Queue *queue = queue_of(current_stream(from.is_cpu() ? to.device() : from.device()));
    Queue *other = both ? queue_of(current_stream(to.device())) : queue;
    queue->follow(other, other->last());
    at::Tensor source = words_of(from);
    if (from.is_cpu() && !is_pinned) source = source.clone();
    Queue::Ticket ticket = queue->push([source, target = words_of(to), both, slow = !to.is_cpu()] {
        if (slow) std::this_thread::sleep_for(delay);
        copy_words(source, target, !both);
    });
    other->follow(queue, ticket);
    if (is_pinned) pinned().use(host.const_data_ptr(), queue, ticket);
    if (!both && (!non_blocking || (to.is_cpu() && !is_pinned))) queue->wait(ticket);
}
static at::Tensor copy_from(const at::Tensor &from, const at::Tensor &to, bool non_blocking)
{
    TORCH_CHECK(!failing, "sim: this device takes no copies");
    if (!to.numel()) return to;
    if (from.scalar_type() == to.scalar_type() && from.sizes() == to.sizes()) enqueue_copy(from, to, non_blocking);
    else if (to.is_cpu()) const_cast<at::Tensor &>(to).copy_(from.cpu());
    else enqueue_copy(from.cpu().to(to.scalar_type()).expand(to.sizes()).contiguous(), to, false);
    return to;
}
static at::Tensor copy_from_and_resize(const at::Tensor &from, const at::Tensor &to)
{
    at::native::resize_(to, from.sizes());
    return copy_from(from, to, false);
}
static at::Tensor reshape_alias(const at::Tensor &self, at::IntArrayRef sizes, at::IntArrayRef strides)
{
    return at::native::as_strided_tensorimpl(self, sizes, strides, self.storage_offset());
}
static at::Scalar local_scalar(const at::Tensor &self) { return self.cpu().item(); }
static void on_cpu(const c10::OperatorHandle &op, torch::jit::Stack *stack) { at::native::cpu_fallback(op, stack); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    library.impl("empty.memory_format", &empty);
    library.impl("empty_strided", &empty_strided);
    library.impl("_copy_from", &copy_from);
    library.impl("_copy_from_and_resize", &copy_from_and_resize);
    library.impl("_local_scalar_dense", &local_scalar);
    library.impl("as_strided", &at::native::as_strided_tensorimpl);
    library.impl("_reshape_alias", &reshape_alias);
    library.impl("view", &at::native::view);
    library.impl("view_as_real", &at::native::view_as_real);
    library.impl("resize_", &at::native::resize_);
    library.impl("set_.source_Tensor", &at::native::set_tensor_);
}

} // namespace sim

PYBIND11_MODULE(sim_device, module)
{
    static sim::Hooks hooks;
    at::RegisterPrivateUse1HooksInterface(&hooks);
    module.def("set_capturing", [](bool on) { sim::capturing = on; }, "This thread's streams report a capture.");
    module.def("set_failing", [](bool on) { sim::failing = on; }, "Copies raise RuntimeError.");
    module.def("current_device", [] { return sim::current_device; });
    module.def("set_device", [](int index) { sim::current_device = static_cast<c10::DeviceIndex>(index); });
}
