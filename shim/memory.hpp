/* Tensors in memory that the ranks of a host can reach directly (tutti_mem_alloc): large collectives on them leave out
 * a copy, and give the same results. */
#pragma once
#include <ATen/core/Tensor.h>

namespace tutti {

/* Not cleared; can be resized, and stays there when it is. Throws MemoryError that names the bytes. */
at::Tensor shared_empty(at::IntArrayRef sizes, at::ScalarType type);
/* Until as many ends as begins: every CPU tensor that this thread allocates lies there. */
void sharing_begin();
void sharing_end();

} // namespace tutti
