/* The collectives on one tensor in place, and from one tensor to another. A method checks its tensors, records which
 * memory the operation touches, and calls the core once. */
#include "shim/process_group.hpp"

namespace tutti {

/* ---- one tensor in place ---- */
WorkPointer ProcessGroupTutti::allreduce(Tensors &tensors, const c10d::AllreduceOptions &options)
{
    if (!tensors.empty() && tensors[0].is_sparse()) return allreduce_sparse(tensors, options);
    Call call{ "tutti:all_reduce", c10d::OpType::ALLREDUCE, options.asyncOp, options.timeout };
    CallGuard guard = enter(call.name());
    const at::Tensor &tensor = tensors_get_single(call.name(), tensors);
    Footprint footprint = make_footprint(call, tensor);
    FlatTensor flat(tensor, reduction_takes_label(options.reduceOp));
    Buffer b = footprint.update(flat.tensor());
    Reduction r = reduction_from_torch(call.name(), options.reduceOp, b);
    if (flat.label) footprint.outputs = tensors;
    return launch(call, std::move(footprint), [&](tutti_comm *comm, tutti_request *request) {
        request->factor = r.factor;
        request->label = flat.label;
        return tutti_all_reduce(b.data, b.data, b.count, b.dtype, r.op, comm, request);
    });
}
bool ProcessGroupTutti::allreduce_directly(const at::Tensor &tensor, const c10d::ReduceOp &op)
{
    bool is_plain = tensor.device().is_cpu() && !tensor.is_sparse() && !tensor.key_set().has(c10::DispatchKey::Python);
    if (!is_plain || !tensor.is_contiguous()) return false;
    CallGuard guard = enter("all_reduce");
    /* A completion hook gets the key of a Work. */
    if (needs_work() || !hooks_->completion.empty()) return false;
    Footprint footprint("all_reduce");
    Buffer b = footprint.check(tensor, { "input" });
    Reduction r = reduction_from_torch(footprint.call(), op, b);
    return run_directly([&](tutti_comm *comm, tutti_request *request) {
        request->factor = r.factor;
        return tutti_all_reduce(b.data, b.data, b.count, b.dtype, r.op, comm, request);
    });
}
WorkPointer ProcessGroupTutti::allreduce_coalesced(Tensors &tensors, const c10d::AllreduceCoalescedOptions &options)
{
    Call call{ "tutti:all_reduce", c10d::OpType::ALLREDUCE_COALESCED, options.asyncOp, options.timeout };
    CallGuard guard = enter(call.name());
    /* All tensors are checked before the first operation starts. The footprint stays empty. */
    Footprint footprint = make_checking_footprint(call, c10d::OpType::ALLREDUCE, tensors);
    for (size_t i = 0; i < tensors.size(); i++)
        reduction_from_torch(call.name(), options.reduceOp, footprint.check_output(tensors[i], { "input", i }));
    return coalesce(call, tensors, [&] {
        for (const at::Tensor &tensor : tensors) {
            Tensors one{ tensor };
            allreduce(one, options);
        }
    });
}
/* Returns torch's root, which has 64 bits, as an int. Refuses a root outside of the group. */
int ProcessGroupTutti::check_root(const Call &call, int64_t root) const
{
    if (root >= 0 && root < getSize()) return static_cast<int>(root);
    call_refuse(call.name(), "root ", root, " is not a rank of this group, which has ranks 0 to ", getSize() - 1);
}
WorkPointer ProcessGroupTutti::broadcast(Tensors &tensors, const c10d::BroadcastOptions &options)
{
    Call call{ "tutti:broadcast", c10d::OpType::BROADCAST, options.asyncOp, options.timeout };
    CallGuard guard = enter(call.name());
    int root = check_root(call, options.rootRank);
    const at::Tensor &tensor = tensors_get_single(call.name(), tensors);
    Footprint footprint = make_footprint(call, tensor);
    FlatTensor flat(tensor);
    Buffer b = root == getRank() ? footprint.input(flat.tensor()) : footprint.output(flat.tensor(), { "input" });
    /* The root, too, refuses a tensor whose elements share memory: the other ranks refuse theirs, and the root would
     * wait for them. */
    tensor_check_elements_apart(call.name(), { "input" }, flat.tensor());
    footprint.outputs = tensors;
    return launch(call, std::move(footprint), [&](tutti_comm *comm, tutti_request *request) {
        request->label = flat.label;
        return tutti_broadcast(b.data, b.data, b.count, b.dtype, root, comm, request);
    });
}
WorkPointer ProcessGroupTutti::reduce(Tensors &tensors, const c10d::ReduceOptions &options)
{
    Call call{ "tutti:reduce", c10d::OpType::REDUCE, options.asyncOp, options.timeout };
    CallGuard guard = enter(call.name());
    const at::Tensor &tensor = tensors_get_single(call.name(), tensors);
    Footprint footprint = make_footprint(call, tensor);
    FlatTensor flat(tensor, reduction_takes_label(options.reduceOp));
    int root = check_root(call, options.rootRank);
    bool receives = root == getRank();
    Buffer b = receives ? footprint.update(flat.tensor()) : footprint.input(flat.tensor());
    tensor_check_elements_apart(call.name(), { "input" }, flat.tensor());
    Reduction r = reduction_from_torch(call.name(), options.reduceOp, b);
    /* The tensors of the other ranks keep their contents. */
    char *out = receives ? b.data : nullptr;
    footprint.outputs = tensors;
    return launch(call, std::move(footprint), [&](tutti_comm *comm, tutti_request *request) {
        request->factor = r.factor;
        request->label = flat.label;
        return tutti_reduce(b.data, out, b.count, b.dtype, r.op, root, comm, request);
    });
}
WorkPointer ProcessGroupTutti::barrier(const c10d::BarrierOptions &options)
{
    Call call{ "tutti:barrier", c10d::OpType::BARRIER, options.asyncOp, options.timeout };
    CallGuard guard = enter(call.name());
    /* After a barrier of the host, the earlier operations on streams of all ranks are over, too. */
    if (!is_estimating()) finish_streams(call.name());
    return launch(call, Footprint(call.name()),
        [](tutti_comm *comm, tutti_request *request) { return tutti_barrier(comm, request); });
}

/* ---- one tensor to one tensor ---- */
/* Refuses two buffers unless `whole` has one part of the size of `part` for each rank. `part` must be this rank's part
 * of `whole`, or lie outside of `whole`. */
static void buffers_check_parts(const char *call, const Buffer &whole, const char *role, const Buffer &part,
    const char *part_role, int rank, size_t ranks)
{
    buffers_check_same_type(call, part, { part_role }, whole, { role });
    if (whole.count != part.count * ranks)
        call_refuse(call, "the ", role, " has ", whole.count, " elements; it must have ", part.count * ranks,
            ", those of the ", part_role, " (", part.count, ") times the ranks (", ranks, ")");
    if (part.data && ranges_overlap(whole.data, whole.bytes(), part.data, part.bytes())
        && part.data != whole.data + static_cast<size_t>(rank) * part.bytes())
        call_refuse(call, "the ", part_role, " overlaps the ", role, " in memory, but is not its part ", rank,
            ", this rank's place in it; use exactly that part, or a tensor of its own");
}
WorkPointer ProcessGroupTutti::_allgather_base(at::Tensor &output, at::Tensor &input,
    const c10d::AllgatherOptions &options)
{
    Call call{ "tutti:_all_gather_base", c10d::OpType::_ALLGATHER_BASE, options.asyncOp, options.timeout };
    CallGuard guard = enter(call.name());
    Footprint footprint = make_footprint(call, input);
    Buffer in = footprint.input(input), out = footprint.output(output);
    buffers_check_parts(call.name(), out, "output", in, "input", getRank(), size());
    return launch(call, std::move(footprint), [&](tutti_comm *comm, tutti_request *request) {
        return tutti_all_gather(in.data, out.data, in.count, in.dtype, comm, request);
    });
}
WorkPointer ProcessGroupTutti::gather_single(at::Tensor &output, at::Tensor &input, const c10d::GatherOptions &options)
{
    Call call{ "tutti:gather_single", c10d::OpType::GATHER, options.asyncOp, options.timeout };
    CallGuard guard = enter(call.name());
    int root = check_root(call, options.rootRank);
    Footprint footprint = make_footprint(call, input);
    Buffer in = footprint.input(input);
    char *received = nullptr;
    if (root == getRank()) {
        Buffer out = footprint.output(output);
        buffers_check_parts(call.name(), out, "output", in, "input", root, size());
        received = out.data;
    }
    return launch(call, std::move(footprint), [&](tutti_comm *comm, tutti_request *request) {
        return tutti_gather(in.data, received, in.count, in.dtype, root, comm, request);
    });
}
WorkPointer ProcessGroupTutti::_reduce_scatter_base(at::Tensor &output, at::Tensor &input,
    const c10d::ReduceScatterOptions &options)
{
    Call call{ "tutti:_reduce_scatter_base", c10d::OpType::_REDUCE_SCATTER_BASE, options.asyncOp, options.timeout };
    CallGuard guard = enter(call.name());
    Footprint footprint = make_footprint(call, input);
    Buffer in = footprint.input(input), out = footprint.output(output);
    buffers_check_parts(call.name(), in, "input", out, "output", getRank(), size());
    Reduction r = reduction_from_torch(call.name(), options.reduceOp, in);
    return launch(call, std::move(footprint), [&](tutti_comm *comm, tutti_request *request) {
        request->factor = r.factor;
        return tutti_reduce_scatter(in.data, out.data, out.count, out.dtype, r.op, comm, request);
    });
}
static void lists_check_equal_lengths(const char *call, size_t outputs, size_t inputs)
{
    if (outputs != inputs) call_refuse(call, outputs, " outputs for ", inputs, " inputs");
}
/* Refuses tensors that the core cannot use or whose devices differ, and calls check(output, input) for each pair. All
 * this happens before the first operation starts. `footprint` stays empty. */
template <typename Check>
static void coalesced_check_pairs(Footprint footprint, const Tensors &outputs, const Tensors &inputs, Check check)
{
    for (size_t i = 0; i < inputs.size(); i++) {
        Buffer out = footprint.check_output(outputs[i], { "output", i });
        check(out, footprint.check(inputs[i], { "input", i }));
    }
}
WorkPointer ProcessGroupTutti::allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
    const c10d::AllgatherOptions &options)
{
    Call call{ "tutti:all_gather_into_tensor_coalesced", c10d::OpType::COALESCED, options.asyncOp, options.timeout };
    CallGuard guard = enter(call.name());
    lists_check_equal_lengths(call.name(), outputs.size(), inputs.size());
    Footprint footprint = make_checking_footprint(call, c10d::OpType::_ALLGATHER_BASE, inputs);
    coalesced_check_pairs(std::move(footprint), outputs, inputs, [&](const Buffer &out, const Buffer &in) {
        buffers_check_parts(call.name(), out, "output", in, "input", getRank(), size());
    });
    return coalesce(call, inputs, [&] {
        for (size_t i = 0; i < inputs.size(); i++) _allgather_base(outputs[i], inputs[i], options);
    });
}
WorkPointer ProcessGroupTutti::reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
    const c10d::ReduceScatterOptions &options)
{
    Call call{ "tutti:reduce_scatter_tensor_coalesced", c10d::OpType::COALESCED, options.asyncOp, options.timeout };
    CallGuard guard = enter(call.name());
    lists_check_equal_lengths(call.name(), outputs.size(), inputs.size());
    Footprint footprint = make_checking_footprint(call, c10d::OpType::_REDUCE_SCATTER_BASE, inputs);
    coalesced_check_pairs(std::move(footprint), outputs, inputs, [&](const Buffer &out, const Buffer &in) {
        buffers_check_parts(call.name(), in, "input", out, "output", getRank(), size());
        reduction_from_torch(call.name(), options.reduceOp, in);
    });
    return coalesce(call, inputs, [&] {
        for (size_t i = 0; i < inputs.size(); i++) _reduce_scatter_base(outputs[i], inputs[i], options);
    });
}
WorkPointer ProcessGroupTutti::alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_splits,
    std::vector<int64_t> &input_splits, const c10d::AllToAllOptions &options)
{
    Call call{ "tutti:all_to_all", c10d::OpType::ALLTOALL_BASE, options.asyncOp, options.timeout };
    CallGuard guard = enter(call.name());
    Footprint footprint = make_footprint(call, input);
    Buffer in = footprint.input(input), out = footprint.output(output);
    buffers_check_same_type(call.name(), out, { "output" }, in, { "input" });
    std::vector<size_t> sent, sent_at, received, received_at;
    rows_split_among_ranks(call.name(), "input", input, in, input_splits, size(), sent, sent_at);
    rows_split_among_ranks(call.name(), "output", output, out, output_splits, size(), received, received_at);
    if (input_splits.empty() && output_splits.empty() && in.count != out.count)
        call_refuse(call.name(), "the input has ", in.count, " elements and the output ", out.count,
            "; without split sizes they must be equal");
    /* All ranks call the uneven variant, because one rank may give split sizes while another omits them. */
    return launch(call, std::move(footprint), [&](tutti_comm *comm, tutti_request *request) {
        return tutti_all_to_all_v(in.data, sent.data(), sent_at.data(), out.data, received.data(), received_at.data(),
            in.dtype, comm, request);
    });
}

} // namespace tutti
