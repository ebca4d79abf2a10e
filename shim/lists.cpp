/* The collectives on a list with one tensor for each rank. The core takes counts, and offsets from the list's lowest
 * address. The addresses differ between ranks, so all ranks make the same call with counts and offsets, even if all
 * counts are equal. gather and scatter take no offsets: the root packs its list unless the tensors are adjacent. */
#include "shim/process_group.hpp"
#include <c10/util/Exception.h>

namespace tutti {

static void check_for_each_rank(const char *call, const char *role, const Tensors &list, size_t ranks)
{
    if (list.size() != ranks)
        fail(TUTTI_INVALID_ARGUMENT, c10::str(call, ": ", list.size(), " ", role, "s are given for ", ranks, " ranks"));
}
static const Tensors &list_of(const char *call, const char *role, const TensorLists &lists, size_t ranks)
{
    if (lists.size() != 1)
        fail(TUTTI_INVALID_ARGUMENT, c10::str(call, ": takes one list of ", role, "s, not ", lists.size()));
    check_for_each_rank(call, role, lists[0], ranks);
    return lists[0];
}
static void check_no_list(const char *call, const char *role, const TensorLists &lists)
{
    if (!lists.empty())
        fail(TUTTI_INVALID_ARGUMENT, c10::str(call, ": ", role, "s are given on a rank that is not the root"));
}

/* ---- gathering ---- */
WorkPointer ProcessGroupTutti::allgather(TensorLists &outputs, Tensors &inputs, const c10d::AllgatherOptions &options)
{
    Call call{ "tutti:all_gather", c10d::OpType::ALLGATHER, options.asyncOp, options.timeout };
    Footprint footprint(call.name());
    Buffer in = footprint.input(only_tensor(call.name(), inputs));
    PartList out(footprint, "output", list_of(call.name(), "output", outputs, size()));
    out.keep_apart(in, getRank());
    out.written();
    return launch(call, std::move(footprint), [&](tutti_comm *comm, tutti_request *request) {
        return tutti_all_gather_v(in.data, out.data, out.counts.data(), out.offsets.data(), in.dtype, comm, request);
    });
}
WorkPointer ProcessGroupTutti::allgather_coalesced(TensorLists &outputs, Tensors &inputs,
    const c10d::AllgatherOptions &options)
{
    Call call{ "tutti:all_gather", c10d::OpType::ALLGATHER_COALESCED, options.asyncOp, options.timeout };
    if (outputs.size() != size())
        fail(TUTTI_INVALID_ARGUMENT,
            c10::str("all_gather_coalesced: ", outputs.size(), " output lists are given for ", size(), " ranks"));
    /* All tensors are checked before the first operation starts. */
    Footprint checked(call.name());
    for (const Tensors &of_rank : outputs) {
        check_lists("all_gather_coalesced", of_rank.size(), inputs.size());
        for (size_t i = 0; i < inputs.size(); i++) {
            Role here{ "output", i }, there{ "input", i };
            check_same_type(call.name(), checked.check(of_rank[i], here), here, checked.check(inputs[i], there), there);
        }
    }
    Batch batch(*this, call, inputs);
    for (size_t i = 0; i < inputs.size(); i++) {
        TensorLists out(1);
        for (const Tensors &of_rank : outputs) out[0].push_back(of_rank[i]);
        Tensors in{ inputs[i] };
        allgather(out, in, options);
    }
    return batch.finish();
}
WorkPointer ProcessGroupTutti::gather(TensorLists &outputs, Tensors &inputs, const c10d::GatherOptions &options)
{
    Call call{ "tutti:gather", c10d::OpType::GATHER, options.asyncOp, options.timeout };
    Footprint footprint(call.name());
    Buffer in = footprint.input(only_tensor(call.name(), inputs));
    int root = root_of(call, options.rootRank);
    char *received = nullptr;
    if (root != getRank()) check_no_list(call.name(), "output", outputs);
    else {
        PartList out(footprint, "output", list_of(call.name(), "output", outputs, size()));
        out.check_even();
        out.pack_unless_adjacent();
        out.keep_apart(in, root);
        out.written();
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
    Footprint footprint(call.name());
    Buffer out = footprint.output(only_tensor(call.name(), outputs));
    int root = root_of(call, options.rootRank);
    char *sent = nullptr;
    if (root != getRank()) check_no_list(call.name(), "input", inputs);
    else {
        PartList in(footprint, "input", list_of(call.name(), "input", inputs, size()));
        in.check_even();
        in.pack_unless_adjacent();
        in.keep_apart(out, root);
        in.read();
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
    const at::Tensor &output = only_tensor(call.name(), outputs);
    const Tensors &list = list_of(call.name(), "input", inputs, size());
    Footprint footprint(call.name());
    Buffer out = footprint.output(output);
    PartList in(footprint, "input", list);
    in.keep_apart(out, getRank());
    Reduction r = reduction_of(call.name(), options.reduceOp, out);
    in.read();
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
    Footprint footprint(call.name());
    check_for_each_rank(call.name(), "output", outputs, size());
    check_for_each_rank(call.name(), "input", inputs, size());
    PartList in(footprint, "input", inputs), out(footprint, "output", outputs);
    check_same_type(call.name(), out.parts[0], { "output", 0 }, in.parts[0], { "input", 0 });
    in.keep_apart(out);
    in.read();
    out.written();
    return launch(call, std::move(footprint), [&](tutti_comm *comm, tutti_request *request) {
        return tutti_all_to_all_v(in.data, in.counts.data(), in.offsets.data(), out.data, out.counts.data(),
            out.offsets.data(), in.parts[0].dtype, comm, request);
    });
}

} // namespace tutti
