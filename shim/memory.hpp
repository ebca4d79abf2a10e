/* Tensors in memory that the ranks of a host can reach directly (tutti_mem_alloc): large collectives on them leave out
 * a copy, and give the same results. */
#pragma once
#include <ATen/core/Tensor.h>
#include <atomic>
#include <memory>
#include <vector>

namespace tutti {

/* Not cleared; can be resized, and stays there when it is. Throws MemoryError that names the bytes. */
at::Tensor shared_empty(at::IntArrayRef sizes, at::ScalarType type);
/* While a thread is inside one, every CPU tensor that it allocates lies there. Used with the GIL. */
class SharedBlock {
  public:
    void enter();
    void exit(); /* the last entry of this thread, or of another if this one has none */
  private:
    std::vector<std::shared_ptr<std::atomic<int>>> entered_; /* counts of threads */
};

} // namespace tutti
