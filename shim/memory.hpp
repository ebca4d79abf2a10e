/* Tensors in memory that the other ranks of a host can map (tutti_mem_alloc). Large collectives on such tensors skip a
 * copy and give the same results. */
#pragma once
#include <ATen/core/Tensor.h>
#include <atomic>
#include <memory>
#include <vector>

namespace tutti {

/* Returns an uninitialized tensor that stays in shared memory when it is resized. MemoryError names the bytes. */
at::Tensor shared_tensor_allocate(at::IntArrayRef sizes, at::ScalarType type);
/* A block `with torch_tutti.shared_tensors()`. Each CPU tensor that a thread allocates between enter() and exit() is in
 * shared memory. The caller holds the GIL. */
class SharedBlock {
  public:
    void enter();
    /* Ends the last entry of this thread, or of another thread if this one has none. Without any entry it does
     * nothing. */
    void exit();
  private:
    /* For each entry that has not ended, the number of open blocks of the thread that entered. */
    std::vector<std::shared_ptr<std::atomic<int>>> entered_;
};

} // namespace tutti
