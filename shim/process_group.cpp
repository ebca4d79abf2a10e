/* The methods of the backend. Each of them is: check, describe what is kept alive, call the core once. Lists go
 * through one buffer, which is where the tensors lie if they lie one after the other; what is even or uneven is
 * decided from what all ranks see alike, so that they make the same calls. */
#include "shim/process_group.hpp"
#include "shim/buffers.hpp"
#include <algorithm>
#include <c10/util/Exception.h>
#include <cstring>

namespace tutti {

/* ---- the store ---- */
struct StoreBridge {
    c10::intrusive_ptr<c10d::Store> store;
    std::string problem;
};

template <typename Use> static tutti_status with_store(void *context, Use use)
{
    auto *bridge = static_cast<StoreBridge *>(context);
    try {
        return use(*bridge->store);
    } catch (const std::exception &e) { /* stores differ in what they throw when a key does not come */
        bridge->problem = e.what();
        bool late = bridge->problem.find("imeout") != std::string::npos ||
                    bridge->problem.find("imed out") != std::string::npos;
        return late ? TUTTI_TIMEOUT : TUTTI_SYSTEM;
    }
}
static tutti_status store_put(void *context, const char *key, const void *value, size_t bytes)
{
    return with_store(context, [&](c10d::Store &store) {
        auto *begin = static_cast<const uint8_t *>(value);
        store.set(key, std::vector<uint8_t>(begin, begin + bytes));
        return TUTTI_OK;
    });
}
static tutti_status store_get(
    void *context, const char *key, void *value, size_t capacity, size_t *bytes, int64_t timeout_ms)
{
    return with_store(context, [&](c10d::Store &store) {
        store.wait({ key }, std::chrono::milliseconds(timeout_ms));
        std::vector<uint8_t> found = store.get(key);
        if (found.size() > capacity) return TUTTI_NO_MEMORY;
        std::memcpy(value, found.data(), found.size());
        *bytes = found.size();
        return TUTTI_OK;
    });
}
static tutti_comm *join(
    const c10::intrusive_ptr<c10d::Store> &store, int rank, int size, const std::string &group, const Options &options)
{
    StoreBridge bridge{ store, "" };
    tutti_config config{};
    config.rank = rank;
    config.size = size;
    config.store = { &bridge, store_put, store_get };
    config.name = group.empty() ? nullptr : group.c_str();
    config.algorithm = options.algorithm.empty() ? nullptr : options.algorithm.c_str();
    config.timeout_ms = std::max<int64_t>(options.timeout.count(), 0);
    tutti_comm *comm = nullptr;
    tutti_status status = tutti_comm_init(&comm, &config);
    if (status == TUTTI_OK) return comm;
    std::string text = tutti_get_last_error();
    if (!bridge.problem.empty())
        text += " (the store said: " + bridge.problem.substr(0, bridge.problem.find('\n')) + ")";
    fail(status, text);
}

/* ---- construction and life ---- */
static c10::intrusive_ptr<Options> settled_options(
    const c10::intrusive_ptr<Options> &given, std::chrono::milliseconds timeout)
{
    auto options = given ? c10::make_intrusive<Options>(*given) : c10::make_intrusive<Options>();
    if (options->timeout == c10d::kUnsetTimeout) options->timeout = timeout;
    return options;
}
ProcessGroupTutti::ProcessGroupTutti(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
    std::chrono::milliseconds timeout, const std::string &group, const c10::intrusive_ptr<Options> &options)
    : c10d::Backend(rank, size), options_(settled_options(options, timeout)),
      communicator_(c10::make_intrusive<Communicator>(join(store, rank, size, group, *options_)))
{
    options_->group_name = group;
    init();
}
void ProcessGroupTutti::setTimeout(std::chrono::milliseconds timeout)
{
    Communicator::Visit visit(*communicator_);
    tutti_status status = visit ? tutti_comm_set_timeout(visit.get(), timeout.count()) : TUTTI_OK;
    if (status != TUTTI_OK) fail_last(status);
    options_->timeout = timeout;
}
c10::intrusive_ptr<c10d::Backend> ProcessGroupTutti::split(const c10::intrusive_ptr<c10d::Store> &store,
    const std::vector<int> &ranks, const c10::intrusive_ptr<c10d::Backend::Options> &options)
{
    auto mine = std::find(ranks.begin(), ranks.end(), getRank());
    if (mine == ranks.end()) return nullptr;
    std::lock_guard<std::mutex> lock(splits_mutex_);
    auto known = splits_.find(options->group_name);
    if (known != splits_.end())
        if (auto again = known->second.lock()) return again;
    auto chosen = c10::dynamic_intrusive_pointer_cast<Options>(options);
    auto part = c10::make_intrusive<ProcessGroupTutti>(store, static_cast<int>(mine - ranks.begin()),
        static_cast<int>(ranks.size()), options->timeout, options->group_name, chosen ? chosen : options_);
    splits_.insert_or_assign(
        options->group_name, c10::weak_intrusive_ptr<c10d::Backend>(c10::intrusive_ptr<c10d::Backend>(part)));
    return part;
}
c10d::ErrorType ProcessGroupTutti::getError()
{
    Communicator::Visit visit(*communicator_);
    switch (visit ? tutti_comm_get_async_error(visit.get()) : TUTTI_ABORTED) {
    case TUTTI_OK: return c10d::ErrorType::SUCCESS;
    case TUTTI_TIMEOUT: return c10d::ErrorType::TIMEOUT;
    case TUTTI_PEER_LOST: return c10d::ErrorType::REMOTE_ERROR;
    default: return c10d::ErrorType::COMM_ERROR;
    }
}
void ProcessGroupTutti::abort()
{
    if (Communicator::Visit visit(*communicator_); visit) tutti_comm_abort(visit.get());
}

/* ---- launching ---- */
/* What each thread is coalescing; nearly always nothing. */
struct OpenBatch {
    const ProcessGroupTutti *group;
    c10::intrusive_ptr<Work> work;
};
static thread_local std::vector<OpenBatch> open_batches;

static Work *open_batch(const ProcessGroupTutti *group)
{
    for (const OpenBatch &batch : open_batches)
        if (batch.group == group) return batch.work.get();
    return nullptr;
}
static c10::intrusive_ptr<Work> take_batch(const ProcessGroupTutti *group)
{
    for (auto batch = open_batches.begin(); batch != open_batches.end(); ++batch) {
        if (batch->group != group) continue;
        auto work = std::move(batch->work);
        open_batches.erase(batch);
        work->close();
        return work;
    }
    return nullptr;
}
c10::intrusive_ptr<Work> ProcessGroupTutti::make_work(const Call &call, const Tensors &inputs)
{
    uint64_t sequence = c10d::isP2POp(call.type) ? sequence_.load() : ++sequence_;
    return c10::make_intrusive<Work>(communicator_, getRank(), call.type, call.title, inputs, sequence);
}
WorkPointer ProcessGroupTutti::launch(const Call &call, Footprint footprint, Start start)
{
    Work::reap();
    Communicator::Visit visit(*communicator_);
    if (!visit) fail(TUTTI_ABORTED, c10::str(call.name(), ": this group was shut down or destroyed; make a new one"));
    Work *batch = open_batch(this);
    auto work = batch ? c10::intrusive_ptr<Work>::reclaim_copy(batch)
                      : make_work(call, footprint.inputs.empty() ? footprint.outputs : footprint.inputs);
    Operation &operation = work->add();
    operation.request.timeout_ms = std::max<int64_t>(call.timeout.count(), 0);
    operation.unpack = std::move(footprint.unpack);
    work->keep(std::move(footprint.inputs), std::move(footprint.outputs), std::move(footprint.temporaries));
    if (!call.async && !batch) {
        operation.request.blocking = true;
        tutti_status status = start(visit.get(), &operation.request);
        if (status != TUTTI_OK) fail_last(status);
        work->finish_blocking(operation);
        return work;
    }
    work->arm(operation);
    tutti_status status = start(visit.get(), &operation.request);
    if (status == TUTTI_OK) return work;
    Error error(status, tutti_get_last_error());
    work->finish_failed(operation, status);
    throw error;
}

/* Several operations under one Work; part of an outer one if this thread is coalescing already. */
class ProcessGroupTutti::Batch {
  public:
    Batch(ProcessGroupTutti &group, const Call &call, const Tensors &inputs)
        : group_(group), call_(call), outer_(open_batch(&group))
    {
        if (outer_) return;
        auto work = group.make_work(call, inputs);
        work->open();
        open_batches.push_back({ &group, work });
    }
    ~Batch()
    {
        if (!outer_ && !over_) take_batch(&group_);
    }
    Batch(const Batch &) = delete;
    Batch &operator=(const Batch &) = delete;
    WorkPointer finish()
    {
        if (outer_) return WorkPointer::reclaim_copy(outer_);
        over_ = true;
        auto work = take_batch(&group_);
        if (!call_.async) work->wait(kNoTimeout);
        return work;
    }
  private:
    ProcessGroupTutti &group_;
    Call call_;
    Work *outer_;
    bool over_ = false;
};
void ProcessGroupTutti::startCoalescing()
{
    take_batch(this); /* one that an exception left open */
    auto work = make_work({ "tutti:coalesced", c10d::OpType::COALESCED, true, c10d::kUnsetTimeout }, {});
    work->open();
    open_batches.push_back({ this, work });
}
WorkPointer ProcessGroupTutti::endCoalescing()
{
    auto work = take_batch(this);
    if (!work) fail(TUTTI_INVALID_ARGUMENT, "end_coalescing without start_coalescing on this thread");
    return work;
}

/* ---- one tensor in place ---- */
WorkPointer ProcessGroupTutti::allreduce(Tensors &tensors, const c10d::AllreduceOptions &options)
{
    Call call{ "tutti:all_reduce", c10d::OpType::ALLREDUCE, options.asyncOp, options.timeout };
    Buffer b = buffer_of(call.name(), "input", only_tensor(call.name(), tensors));
    Reduction r = reduction_of(call.name(), options.reduceOp, b);
    return launch(call, { {}, tensors, {}, {} }, [&](tutti_comm *comm, tutti_request *request) {
        request->factor = r.factor;
        return tutti_all_reduce(b.data, b.data, b.count, b.dtype, r.op, comm, request);
    });
}
WorkPointer ProcessGroupTutti::allreduce_coalesced(Tensors &tensors, const c10d::AllreduceCoalescedOptions &options)
{
    Call call{ "tutti:all_reduce", c10d::OpType::ALLREDUCE_COALESCED, options.asyncOp, options.timeout };
    for (size_t i = 0; i < tensors.size(); i++) /* nothing starts if one is wrong */
        reduction_of(call.name(), options.reduceOp, buffer_of(call.name(), c10::str("input ", i), tensors[i]));
    Batch batch(*this, call, tensors);
    for (const at::Tensor &tensor : tensors) {
        Tensors one{ tensor };
        allreduce(one, options);
    }
    return batch.finish();
}
WorkPointer ProcessGroupTutti::broadcast(Tensors &tensors, const c10d::BroadcastOptions &options)
{
    Call call{ "tutti:broadcast", c10d::OpType::BROADCAST, options.asyncOp, options.timeout };
    Buffer b = buffer_of(call.name(), "input", only_tensor(call.name(), tensors));
    return launch(call, { {}, tensors, {}, {} }, [&](tutti_comm *comm, tutti_request *request) {
        return tutti_broadcast(b.data, b.data, b.count, b.dtype, static_cast<int>(options.rootRank), comm, request);
    });
}
WorkPointer ProcessGroupTutti::reduce(Tensors &tensors, const c10d::ReduceOptions &options)
{
    Call call{ "tutti:reduce", c10d::OpType::REDUCE, options.asyncOp, options.timeout };
    Buffer b = buffer_of(call.name(), "input", only_tensor(call.name(), tensors));
    Reduction r = reduction_of(call.name(), options.reduceOp, b);
    char *out = options.rootRank == getRank() ? b.data : nullptr; /* elsewhere the tensor stays as it is */
    return launch(call, { {}, tensors, {}, {} }, [&](tutti_comm *comm, tutti_request *request) {
        request->factor = r.factor;
        return tutti_reduce(b.data, out, b.count, b.dtype, r.op, static_cast<int>(options.rootRank), comm, request);
    });
}
WorkPointer ProcessGroupTutti::barrier(const c10d::BarrierOptions &options)
{
    Call call{ "tutti:barrier", c10d::OpType::BARRIER, options.asyncOp, options.timeout };
    return launch(call, {}, [](tutti_comm *comm, tutti_request *request) { return tutti_barrier(comm, request); });
}

/* ---- one tensor to one tensor ---- */
/* `whole` is the tensor of all ranks' parts. */
static void check_parts(
    const char *call, const Buffer &whole, const char *role, const Buffer &part, const char *part_role, size_t ranks)
{
    check_same_type(call, part, part_role, whole, role);
    if (whole.count != part.count * ranks)
        fail(TUTTI_INVALID_ARGUMENT,
            c10::str(call, ": the ", role, " has ", whole.count, " elements; it must have ", part.count * ranks,
                ", those of the ", part_role, " (", part.count, ") times the ranks (", ranks, ")"));
}
WorkPointer ProcessGroupTutti::_allgather_base(
    at::Tensor &output, at::Tensor &input, const c10d::AllgatherOptions &options)
{
    Call call{ "tutti:_all_gather_base", c10d::OpType::_ALLGATHER_BASE, options.asyncOp, options.timeout };
    Buffer in = buffer_of(call.name(), "input", input), out = buffer_of(call.name(), "output", output);
    check_parts(call.name(), out, "output", in, "input", size());
    return launch(call, { { input }, { output }, {}, {} }, [&](tutti_comm *comm, tutti_request *request) {
        return tutti_all_gather(in.data, out.data, in.count, in.dtype, comm, request);
    });
}
WorkPointer ProcessGroupTutti::_reduce_scatter_base(
    at::Tensor &output, at::Tensor &input, const c10d::ReduceScatterOptions &options)
{
    Call call{ "tutti:_reduce_scatter_base", c10d::OpType::_REDUCE_SCATTER_BASE, options.asyncOp, options.timeout };
    Buffer in = buffer_of(call.name(), "input", input), out = buffer_of(call.name(), "output", output);
    check_parts(call.name(), in, "input", out, "output", size());
    Reduction r = reduction_of(call.name(), options.reduceOp, in);
    return launch(call, { { input }, { output }, {}, {} }, [&](tutti_comm *comm, tutti_request *request) {
        request->factor = r.factor;
        return tutti_reduce_scatter(in.data, out.data, out.count, out.dtype, r.op, comm, request);
    });
}
static void check_lists(const char *call, size_t outputs, size_t inputs)
{
    if (outputs != inputs)
        fail(TUTTI_INVALID_ARGUMENT, c10::str(call, ": ", outputs, " outputs for ", inputs, " inputs"));
}
WorkPointer ProcessGroupTutti::allgather_into_tensor_coalesced(
    Tensors &outputs, Tensors &inputs, const c10d::AllgatherOptions &options)
{
    Call call{ "tutti:all_gather_into_tensor_coalesced", c10d::OpType::COALESCED, options.asyncOp, options.timeout };
    check_lists(call.name(), outputs.size(), inputs.size());
    for (size_t i = 0; i < inputs.size(); i++)
        check_parts(call.name(), buffer_of(call.name(), c10::str("output ", i), outputs[i]), "output",
            buffer_of(call.name(), c10::str("input ", i), inputs[i]), "input", size());
    Batch batch(*this, call, inputs);
    for (size_t i = 0; i < inputs.size(); i++) _allgather_base(outputs[i], inputs[i], options);
    return batch.finish();
}
WorkPointer ProcessGroupTutti::reduce_scatter_tensor_coalesced(
    Tensors &outputs, Tensors &inputs, const c10d::ReduceScatterOptions &options)
{
    Call call{ "tutti:reduce_scatter_tensor_coalesced", c10d::OpType::COALESCED, options.asyncOp, options.timeout };
    check_lists(call.name(), outputs.size(), inputs.size());
    for (size_t i = 0; i < inputs.size(); i++) {
        Buffer in = buffer_of(call.name(), c10::str("input ", i), inputs[i]);
        check_parts(
            call.name(), in, "input", buffer_of(call.name(), c10::str("output ", i), outputs[i]), "output", size());
        reduction_of(call.name(), options.reduceOp, in);
    }
    Batch batch(*this, call, inputs);
    for (size_t i = 0; i < inputs.size(); i++) _reduce_scatter_base(outputs[i], inputs[i], options);
    return batch.finish();
}

/* ---- lists of one tensor for each rank ---- */
static const Tensors &list_of(const char *call, const char *role, const TensorLists &lists, size_t ranks)
{
    if (lists.size() != 1)
        fail(TUTTI_INVALID_ARGUMENT, c10::str(call, ": takes one list of ", role, "s, not ", lists.size()));
    if (lists[0].size() != ranks)
        fail(TUTTI_INVALID_ARGUMENT,
            c10::str(call, ": ", lists[0].size(), " ", role, "s are given for ", ranks, " ranks"));
    return lists[0];
}
/* The list in one buffer that `mine`, the tensor beside it, overlaps nowhere but in this rank's own place. */
static Packed packed(const char *call, const char *role, const Tensors &list, const Buffer &mine, int rank)
{
    Packed all(call, role, list);
    check_same_type(call, mine, "tensor of this rank", all.parts[0], c10::str(role, " 0"));
    size_t at = all.offsets[static_cast<size_t>(rank)] * tutti_dtype_bytes(mine.dtype);
    if (overlap(all.data, all.bytes, mine.data, mine.bytes()) && mine.data != all.data + at) all.move();
    return all;
}
static void check_mine(const char *call, const char *role, const Packed &all, const Buffer &mine, int rank)
{
    size_t count = all.counts[static_cast<size_t>(rank)];
    if (count != mine.count)
        fail(TUTTI_INVALID_ARGUMENT, c10::str(call, ": this rank's tensor has ", mine.count, " elements, but ", role,
                                         " ", rank, ", its place in the list, has ", count));
}
static void check_even(const char *call, const char *role, const Packed &all)
{
    for (size_t q = 0; q < all.counts.size(); q++)
        if (all.counts[q] != all.counts[0])
            fail(TUTTI_INVALID_ARGUMENT, c10::str(call, ": ", role, " ", q, " has ", all.counts[q], " elements, but ",
                                             role, " 0 has ", all.counts[0]));
}
WorkPointer ProcessGroupTutti::allgather(TensorLists &outputs, Tensors &inputs, const c10d::AllgatherOptions &options)
{
    Call call{ "tutti:all_gather", c10d::OpType::ALLGATHER, options.asyncOp, options.timeout };
    Buffer in = buffer_of(call.name(), "input", only_tensor(call.name(), inputs));
    const Tensors &list = list_of(call.name(), "output", outputs, size());
    Packed out = packed(call.name(), "output", list, in, getRank());
    check_mine(call.name(), "output", out, in, getRank());
    std::vector<size_t> same(size(), in.count), begin(size(), 0);
    return launch(call, { inputs, list, { out.room }, out.unpack() }, [&](tutti_comm *comm, tutti_request *request) {
        if (out.even()) return tutti_all_gather(in.data, out.data, in.count, in.dtype, comm, request);
        return tutti_all_to_all_v(in.data, same.data(), begin.data(), out.data, out.counts.data(), out.offsets.data(),
            in.dtype, comm, request);
    });
}
WorkPointer ProcessGroupTutti::allgather_coalesced(
    TensorLists &outputs, Tensors &inputs, const c10d::AllgatherOptions &options)
{
    Call call{ "tutti:all_gather", c10d::OpType::ALLGATHER_COALESCED, options.asyncOp, options.timeout };
    if (outputs.size() != size())
        fail(TUTTI_INVALID_ARGUMENT,
            c10::str("all_gather_coalesced: ", outputs.size(), " output lists are given for ", size(), " ranks"));
    for (const Tensors &of_rank : outputs) check_lists("all_gather_coalesced", of_rank.size(), inputs.size());
    Batch batch(*this, call, inputs);
    for (size_t i = 0; i < inputs.size(); i++) {
        TensorLists out(1);
        for (const Tensors &of_rank : outputs) out[0].push_back(of_rank[i]);
        Tensors in{ inputs[i] };
        allgather(out, in, options);
    }
    return batch.finish();
}
WorkPointer ProcessGroupTutti::reduce_scatter_uneven(
    const Call &call, at::Tensor &output, const Tensors &inputs, const c10d::ReduceOp &op)
{
    Batch batch(*this, call, inputs);
    for (int root = 0; root < getSize(); root++) {
        const at::Tensor &input = inputs[static_cast<size_t>(root)];
        Buffer in = buffer_of(call.name(), "input", input), out = buffer_of(call.name(), "output", output);
        Reduction r = reduction_of(call.name(), op, in);
        launch(call, { { input }, { output }, {}, {} }, [&](tutti_comm *comm, tutti_request *request) {
            request->factor = r.factor;
            return tutti_reduce(
                in.data, root == getRank() ? out.data : nullptr, in.count, in.dtype, r.op, root, comm, request);
        });
    }
    return batch.finish();
}
WorkPointer ProcessGroupTutti::reduce_scatter(
    Tensors &outputs, TensorLists &inputs, const c10d::ReduceScatterOptions &options)
{
    Call call{ "tutti:reduce_scatter", c10d::OpType::REDUCE_SCATTER, options.asyncOp, options.timeout };
    Buffer out = buffer_of(call.name(), "output", only_tensor(call.name(), outputs));
    const Tensors &list = list_of(call.name(), "input", inputs, size());
    Packed in = packed(call.name(), "input", list, out, getRank());
    check_mine(call.name(), "input", in, out, getRank());
    Reduction r = reduction_of(call.name(), options.reduceOp, out);
    if (!in.even()) return reduce_scatter_uneven(call, outputs[0], list, options.reduceOp);
    in.load();
    return launch(call, { list, outputs, { in.room }, {} }, [&](tutti_comm *comm, tutti_request *request) {
        request->factor = r.factor;
        return tutti_reduce_scatter(in.data, out.data, out.count, out.dtype, r.op, comm, request);
    });
}
static void check_no_list(const char *call, const char *role, const TensorLists &lists)
{
    if (!lists.empty())
        fail(TUTTI_INVALID_ARGUMENT, c10::str(call, ": ", role, "s are given on a rank that is not the root"));
}
WorkPointer ProcessGroupTutti::gather(TensorLists &outputs, Tensors &inputs, const c10d::GatherOptions &options)
{
    Call call{ "tutti:gather", c10d::OpType::GATHER, options.asyncOp, options.timeout };
    Buffer in = buffer_of(call.name(), "input", only_tensor(call.name(), inputs));
    int root = static_cast<int>(options.rootRank);
    auto start = [&](char *out) {
        return [&in, root, out](tutti_comm *comm, tutti_request *request) {
            return tutti_gather(in.data, out, in.count, in.dtype, root, comm, request);
        };
    };
    if (root != getRank()) {
        check_no_list(call.name(), "output", outputs);
        return launch(call, { inputs, {}, {}, {} }, start(nullptr));
    }
    const Tensors &list = list_of(call.name(), "output", outputs, size());
    Packed out = packed(call.name(), "output", list, in, root);
    check_even(call.name(), "output", out);
    check_mine(call.name(), "output", out, in, root);
    return launch(call, { inputs, list, { out.room }, out.unpack() }, start(out.data));
}
WorkPointer ProcessGroupTutti::scatter(Tensors &outputs, TensorLists &inputs, const c10d::ScatterOptions &options)
{
    Call call{ "tutti:scatter", c10d::OpType::SCATTER, options.asyncOp, options.timeout };
    Buffer out = buffer_of(call.name(), "output", only_tensor(call.name(), outputs));
    int root = static_cast<int>(options.rootRank);
    auto start = [&](char *in) {
        return [&out, root, in](tutti_comm *comm, tutti_request *request) {
            return tutti_scatter(in, out.data, out.count, out.dtype, root, comm, request);
        };
    };
    if (root != getRank()) {
        check_no_list(call.name(), "input", inputs);
        return launch(call, { {}, outputs, {}, {} }, start(nullptr));
    }
    const Tensors &list = list_of(call.name(), "input", inputs, size());
    Packed in = packed(call.name(), "input", list, out, root);
    check_even(call.name(), "input", in);
    check_mine(call.name(), "input", in, out, root);
    in.load();
    return launch(call, { list, outputs, { in.room }, {} }, start(in.data));
}
WorkPointer ProcessGroupTutti::alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_splits,
    std::vector<int64_t> &input_splits, const c10d::AllToAllOptions &options)
{
    Call call{ "tutti:all_to_all", c10d::OpType::ALLTOALL_BASE, options.asyncOp, options.timeout };
    Buffer in = buffer_of(call.name(), "input", input), out = buffer_of(call.name(), "output", output);
    check_same_type(call.name(), out, "output", in, "input");
    std::vector<size_t> sent, sent_at, received, received_at;
    split_rows(call.name(), "input", input, in, input_splits, size(), sent, sent_at);
    split_rows(call.name(), "output", output, out, output_splits, size(), received, received_at);
    bool even = input_splits.empty() && output_splits.empty();
    if (even && in.count != out.count)
        fail(TUTTI_INVALID_ARGUMENT, c10::str(call.name(), ": the input has ", in.count, " elements and the output ",
                                         out.count, "; without split sizes they must be equal"));
    return launch(call, { { input }, { output }, {}, {} }, [&](tutti_comm *comm, tutti_request *request) {
        if (even) return tutti_all_to_all(in.data, out.data, sent[0], in.dtype, comm, request);
        return tutti_all_to_all_v(in.data, sent.data(), sent_at.data(), out.data, received.data(), received_at.data(),
            in.dtype, comm, request);
    });
}
WorkPointer ProcessGroupTutti::alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &options)
{
    Call call{ "tutti:all_to_all", c10d::OpType::ALLTOALL, options.asyncOp, options.timeout };
    list_of(call.name(), "output", { outputs }, size());
    list_of(call.name(), "input", { inputs }, size());
    Packed in(call.name(), "input", inputs), out(call.name(), "output", outputs);
    check_same_type(call.name(), out.parts[0], "output 0", in.parts[0], "input 0");
    if (overlap(in.data, in.bytes, out.data, out.bytes)) in.move();
    in.load();
    return launch(
        call, { inputs, outputs, { in.room, out.room }, out.unpack() }, [&](tutti_comm *comm, tutti_request *request) {
            return tutti_all_to_all_v(in.data, in.counts.data(), in.offsets.data(), out.data, out.counts.data(),
                out.offsets.data(), in.parts[0].dtype, comm, request);
        });
}

/* ---- point to point ---- */
WorkPointer ProcessGroupTutti::message(const Call &call, Tensors &tensors, int peer, int tag)
{
    bool sends = call.type == c10d::OpType::SEND;
    Buffer b = buffer_of(call.name(), sends ? "input" : "output", only_tensor(call.name(), tensors));
    if (tag < 0) fail(TUTTI_INVALID_ARGUMENT, c10::str(call.name(), ": tag ", tag, " is negative"));
    return launch(call, { {}, tensors, {}, {} }, [&](tutti_comm *comm, tutti_request *request) {
        if (sends) return tutti_send(b.data, b.count, b.dtype, peer, static_cast<uint32_t>(tag), comm, request);
        return tutti_recv(b.data, b.count, b.dtype, peer, static_cast<uint32_t>(tag), comm, request);
    });
}
WorkPointer ProcessGroupTutti::send(Tensors &tensors, int destination, int tag)
{
    return message({ "tutti:send", c10d::OpType::SEND, true, c10d::kUnsetTimeout }, tensors, destination, tag);
}
WorkPointer ProcessGroupTutti::recv(Tensors &tensors, int source, int tag)
{
    if (source < 0) fail(TUTTI_INVALID_ARGUMENT, c10::str("recv: source ", source, " is not a rank"));
    return message({ "tutti:recv", c10d::OpType::RECV, true, c10d::kUnsetTimeout }, tensors, source, tag);
}
WorkPointer ProcessGroupTutti::recvAnysource(Tensors &tensors, int tag)
{
    return message({ "tutti:recvAnySource", c10d::OpType::RECVANYSOURCE, true, c10d::kUnsetTimeout }, tensors,
        TUTTI_ANY_SOURCE, tag);
}

} // namespace tutti
