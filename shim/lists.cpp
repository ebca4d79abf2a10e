/* The collectives on a list with one tensor for each rank. The core takes counts, and offsets from the list's lowest
 * address. The addresses differ between ranks, so all ranks make the same call with counts and offsets, even if all
 * counts are equal. gather and scatter take no offsets: a rank packs its list unless the tensors are adjacent. */
#include "shim/process_group.hpp"

namespace tutti {

static void list_check_one_per_rank(const char *call, const char *role, const Tensors &list, size_t ranks)
{
    if (list.size() != ranks) call_refuse(call, list.size(), " ", role, "s are given for ", ranks, " ranks");
}
/* Returns the only list, which must have one tensor for each rank. */
static const Tensors &lists_get_single(const char *call, const char *role, const TensorLists &lists, size_t ranks)
{
    if (lists.size() != 1) call_refuse(call, "takes one list of ", role, "s, not ", lists.size());
    list_check_one_per_rank(call, role, lists[0], ranks);
    return lists[0];
}
/* Refuses lists on a rank that is not the root. */
static void lists_check_absent(const char *call, const char *role, const TensorLists &lists)
{
    if (!lists.empty()) call_refuse(call, role, "s are given on a rank that is not the root");
}

/* ---- gathering ---- */
WorkPointer ProcessGroupTutti::allgather(TensorLists &outputs, Tensors &inputs, const c10d::AllgatherOptions &options)
{
    Call call{ "tutti:all_gather", c10d::OpType::ALLGATHER, options.asyncOp, options.timeout };
    CallGuard guard = enter(call.name());
    const at::Tensor &input = tensors_get_single(call.name(), inputs);
    const Tensors &list = lists_get_single(call.name(), "output", outputs, size());
    Footprint footprint = make_footprint(call, input);
    Buffer in = footprint.input(input);
    PartList out(footprint, "output", list);
    out.pack_if_overlapping(in, getRank());
    out.add_outputs();
    return launch(call, std::move(footprint), [&](tutti_comm *comm, tutti_request *request) {
        return tutti_all_gather_v(in.data, out.data, out.counts.data(), out.offsets.data(), in.dtype, comm, request);
    });
}
WorkPointer ProcessGroupTutti::allgather_coalesced(TensorLists &outputs, Tensors &inputs,
    const c10d::AllgatherOptions &options)
{
    Call call{ "tutti:all_gather", c10d::OpType::ALLGATHER_COALESCED, options.asyncOp, options.timeout };
    CallGuard guard = enter(call.name());
    if (outputs.size() != size())
        call_refuse("all_gather_coalesced", outputs.size(), " output lists are given for ", size(), " ranks");
    /* All tensors are checked before the first operation starts. */
    for (const Tensors &of_rank : outputs)
        lists_check_equal_lengths("all_gather_coalesced", of_rank.size(), inputs.size());
    Footprint checked = make_checking_footprint(call, c10d::OpType::ALLGATHER, inputs);
    for (const Tensors &of_rank : outputs) {
        for (size_t i = 0; i < inputs.size(); i++) {
            Role output{ "output", i }, input{ "input", i };
            buffers_check_same_type(call.name(), checked.check_output(of_rank[i], output), output,
                checked.check(inputs[i], input), input);
        }
    }
    return coalesce(call, inputs, [&] {
        for (size_t i = 0; i < inputs.size(); i++) {
            TensorLists out(1);
            for (const Tensors &of_rank : outputs) out[0].push_back(of_rank[i]);
            Tensors in{ inputs[i] };
            allgather(out, in, options);
        }
    });
}
WorkPointer ProcessGroupTutti::gather(TensorLists &outputs, Tensors &inputs, const c10d::GatherOptions &options)
{
    Call call{ "tutti:gather", c10d::OpType::GATHER, options.asyncOp, options.timeout };
    CallGuard guard = enter(call.name());
    const at::Tensor &input = tensors_get_single(call.name(), inputs);
    Footprint footprint = make_footprint(call, input);
    Buffer in = footprint.input(input);
    int root = check_root(call, options.rootRank);
    char *received = nullptr;
    if (root != getRank()) lists_check_absent(call.name(), "output", outputs);
    else {
        PartList out(footprint, "output", lists_get_single(call.name(), "output", outputs, size()));
        out.check_even();
        out.pack_unless_adjacent();
        out.pack_if_overlapping(in, root);
        out.add_outputs();
        received = out.data;
    }
    return launch(call, std::move(footprint), [&](tutti_comm *comm, tutti_request *request) {
        return tutti_gather(in.data, received, in.count, in.dtype, root, comm, request);
    });
}

/* ---- scattering ---- */
WorkPointer ProcessGroupTutti::scatter(Tensors &outputs, TensorLists &inputs, const c10d::ScatterOptions &options)
{
    Call call{ "tutti:scatter", c10d::OpType::SCATTER, options.asyncOp, options.timeout };
    CallGuard guard = enter(call.name());
    const at::Tensor &output = tensors_get_single(call.name(), outputs);
    Footprint footprint = make_footprint(call, output);
    Buffer out = footprint.output(output);
    int root = check_root(call, options.rootRank);
    char *sent = nullptr;
    if (root != getRank()) lists_check_absent(call.name(), "input", inputs);
    else {
        PartList in(footprint, "input", lists_get_single(call.name(), "input", inputs, size()));
        in.check_even();
        in.pack_unless_adjacent();
        in.pack_if_overlapping(out, root);
        in.add_inputs();
        sent = in.data;
    }
    return launch(call, std::move(footprint), [&](tutti_comm *comm, tutti_request *request) {
        return tutti_scatter(sent, out.data, out.count, out.dtype, root, comm, request);
    });
}
WorkPointer ProcessGroupTutti::reduce_scatter(Tensors &outputs, TensorLists &inputs,
    const c10d::ReduceScatterOptions &options)
{
    Call call{ "tutti:reduce_scatter", c10d::OpType::REDUCE_SCATTER, options.asyncOp, options.timeout };
    CallGuard guard = enter(call.name());
    const at::Tensor &output = tensors_get_single(call.name(), outputs);
    const Tensors &list = lists_get_single(call.name(), "input", inputs, size());
    Footprint footprint = make_footprint(call, output);
    Buffer out = footprint.output(output);
    PartList in(footprint, "input", list);
    in.pack_if_overlapping(out, getRank());
    Reduction r = reduction_from_torch(call.name(), options.reduceOp, out);
    in.add_inputs();
    return launch(call, std::move(footprint), [&](tutti_comm *comm, tutti_request *request) {
        request->factor = r.factor;
        return tutti_reduce_scatter_v(in.data, in.counts.data(), in.offsets.data(), out.data, out.dtype, r.op, comm,
            request);
    });
}

/* ---- both ---- */
WorkPointer ProcessGroupTutti::alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &options)
{
    Call call{ "tutti:all_to_all", c10d::OpType::ALLTOALL, options.asyncOp, options.timeout };
    CallGuard guard = enter(call.name());
    list_check_one_per_rank(call.name(), "output", outputs, size());
    list_check_one_per_rank(call.name(), "input", inputs, size());
    Footprint footprint = make_footprint(call, inputs[0]);
    PartList in(footprint, "input", inputs), out(footprint, "output", outputs);
    buffers_check_same_type(call.name(), out.parts[0], { "output", 0 }, in.parts[0], { "input", 0 });
    in.pack_if_overlapping(out);
    in.add_inputs();
    out.add_outputs();
    return launch(call, std::move(footprint), [&](tutti_comm *comm, tutti_request *request) {
        return tutti_all_to_all_v(in.data, in.counts.data(), in.offsets.data(), out.data, out.counts.data(),
            out.offsets.data(), in.parts[0].dtype, comm, request);
    });
}

} // namespace tutti
