/* An allocator in front of torch's CPU allocator. It serves threads that ask for shared memory, and passes the requests
 * of all others on. It is installed at the first use and stays, because tensors keep a pointer to it. */
#include "shim/memory.hpp"
#include "shim/communicator.hpp"
#include <ATen/EmptyTensor.h>
#include <algorithm>
#include <c10/core/CPUAllocator.h>
#include <cstring>

namespace tutti {

/* Points to the number of blocks that this thread is inside. NULL before the first block and while the thread ends. */
static thread_local std::atomic<int> *open_blocks = nullptr;

static void shared_memory_free(void *memory) { tutti_mem_free(memory); }

class SharedAllocator : public c10::Allocator {
  public:
    c10::DataPtr allocate(size_t bytes) override
    {
        void *memory = nullptr;
        if (bytes && tutti_mem_alloc(&memory, bytes) != TUTTI_OK) error_throw(TUTTI_NO_MEMORY, tutti_get_last_error());
        return { memory, memory, &shared_memory_free, at::Device(at::kCPU) };
    }
    c10::DeleterFnPtr raw_deleter() const override { return &shared_memory_free; }
    void copy_data(void *to, const void *from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};
static SharedAllocator &shared_allocator_get()
{
    /* The allocator is never destroyed, because it must outlive all tensors. */
    static auto *allocator = new SharedAllocator;
    return *allocator;
}

/* Allocates shared memory for a thread inside of a block, and by torch's allocator for other threads. */
class ThreadsAllocator final : public c10::Allocator {
  public:
    explicit ThreadsAllocator(c10::Allocator *of_torch) : of_torch_(of_torch) {}
    c10::DataPtr allocate(size_t bytes) override
    {
        bool inside = open_blocks && open_blocks->load(std::memory_order_relaxed) > 0;
        return inside ? shared_allocator_get().allocate(bytes) : of_torch_->allocate(bytes);
    }
    c10::DeleterFnPtr raw_deleter() const override { return &release_either; }
    void copy_data(void *to, const void *from, size_t bytes) const override { of_torch_->copy_data(to, from, bytes); }
    static ThreadsAllocator &get_instance()
    {
        static auto *allocator = new ThreadsAllocator(c10::GetCPUAllocator());
        return *allocator;
    }

  private:
    /* Frees memory of either allocator. tutti_mem_free fails for memory that is not its own, which then belongs to
     * torch. Only the arena can tell, because some callers, such as oneDNN, allocate without a DataPtr. */
    static void release_either(void *memory)
    {
        if (tutti_mem_free(memory) != TUTTI_OK) get_instance().of_torch_->raw_deallocate(memory);
    }
    c10::Allocator *of_torch_;
};
/* One thread's number of open blocks. open_blocks points to it while the thread runs. */
struct ThreadsBlocks {
    std::shared_ptr<std::atomic<int>> count = std::make_shared<std::atomic<int>>(0);
    ThreadsBlocks() { open_blocks = count.get(); }
    ~ThreadsBlocks() { open_blocks = nullptr; }
};
void SharedBlock::enter()
{
    [[maybe_unused]] static const bool installed = (c10::SetCPUAllocator(&ThreadsAllocator::get_instance()), true);
    static thread_local ThreadsBlocks of_this_thread;
    entered_.push_back(of_this_thread.count);
    ++*of_this_thread.count;
}
void SharedBlock::exit()
{
    if (entered_.empty()) return;
    auto here =
        std::find_if(entered_.rbegin(), entered_.rend(), [](const auto &count) { return count.get() == open_blocks; });
    auto left = here == entered_.rend() ? std::prev(entered_.end()) : std::next(here).base();
    --**left;
    entered_.erase(left);
}

at::Tensor shared_tensor_allocate(at::IntArrayRef sizes, at::ScalarType type)
{
    return at::detail::empty_generic(sizes, &shared_allocator_get(), c10::DispatchKeySet(c10::DispatchKey::CPU), type,
        std::nullopt);
}

} // namespace tutti
