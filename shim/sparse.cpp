/* The sum of sparse (COO) tensors. Every rank gathers the indices and values of all ranks, and adds them in rank order.
 * The sizes are known only after a first exchange, so even an asynchronous call returns when the sum is
 * finished. */
#include "shim/process_group.hpp"
#include <ATen/ATen.h>
#include <c10/util/Exception.h>

namespace tutti {

/* Returns [number of stored elements, sparse_dim, sizes...] as a tensor of int64. */
static at::Tensor sparse_get_shape(const at::Tensor &sparse)
{
    std::vector<int64_t> shape{ sparse._nnz(), sparse.sparse_dim() };
    shape.insert(shape.end(), sparse.sizes().begin(), sparse.sizes().end());
    return at::tensor(shape, at::kLong);
}
/* Gathers the tensors of all ranks and joins them along `dimension`, where rank q contributes counts[q]. */
static at::Tensor sparse_gather_rows(ProcessGroupTutti &group, const at::Tensor &mine, int64_t dimension,
    const std::vector<int64_t> &counts, const c10d::AllgatherOptions &options)
{
    TensorLists all(1);
    std::vector<int64_t> sizes = mine.sizes().vec();
    for (int64_t count : counts) {
        sizes[static_cast<size_t>(dimension)] = count;
        all[0].push_back(at::empty(sizes, mine.options()));
    }
    Tensors inputs{ mine.contiguous() };
    group.allgather(all, inputs, options);
    return at::cat(all[0], dimension);
}
/* Returns the number of stored elements of each rank. Fails if the ranks' shapes differ. */
static std::vector<int64_t> sparse_gather_counts(ProcessGroupTutti &group, const at::Tensor &sparse,
    const c10d::AllgatherOptions &options)
{
    at::Tensor mine = sparse_get_shape(sparse);
    at::Tensor all = at::empty({ group.getSize(), mine.numel() }, at::kLong);
    group._allgather_base(all, mine, options);
    std::vector<int64_t> counts;
    for (int64_t rank = 0; rank < all.size(0); rank++) {
        if (!all[rank].slice(0, 1).equal(mine.slice(0, 1)))
            error_throw(TUTTI_MISMATCH,
                c10::str("all_reduce: this rank's sparse tensor has sizes ", sparse.sizes(), ", rank ", rank,
                    "'s differ; they must be equal, and so must the sparse_dim"));
        counts.push_back(all[rank][0].item<int64_t>());
    }
    return counts;
}
WorkPointer ProcessGroupTutti::allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &options)
{
    Call call{ "tutti:all_reduce", c10d::OpType::_ALLREDUCE_SPARSE, false, options.timeout };
    CallGuard guard = enter(call.name());
    at::Tensor tensor = tensors_get_single(call.name(), tensors);
    if (!tensor.is_sparse()) return allreduce(tensors, options);
    if (options.reduceOp.op_ != c10d::ReduceOp::SUM)
        error_throw(TUTTI_UNSUPPORTED,
            "all_reduce: sparse tensors can only be summed; for another operation use tensor.to_dense()");
    if (is_estimating())
        error_throw(TUTTI_UNSUPPORTED,
            "all_reduce: time estimates do not cover sparse tensors, because the time depends on their contents");
    if (is_coalescing())
        error_throw(TUTTI_UNSUPPORTED, "all_reduce: sparse tensors cannot be summed while calls are coalesced");
    at::NoGradGuard no_grad;
    c10d::AllgatherOptions blocking;
    blocking.timeout = options.timeout;
    blocking.asyncOp = false;
    auto work = make_work(call, tensors);
    at::Tensor mine = tensor.coalesce();
    std::vector<int64_t> counts = sparse_gather_counts(*this, mine, blocking);
    at::Tensor indices = sparse_gather_rows(*this, mine.indices(), 1, counts, blocking);
    at::Tensor values = sparse_gather_rows(*this, mine.values(), 0, counts, blocking);
    /* Indices of a failed operation must not reach a sparse tensor. */
    finish_streams(call.name());
    tensor.copy_(at::sparse_coo_tensor(indices, values, tensor.sizes()).coalesce());
    Footprint footprint(call.name());
    footprint.outputs = tensors;
    work->finish_blocking(work->add(std::move(footprint)));
    return work;
}

} // namespace tutti
