/* Starts operations. An operation takes its options from the call and from the thread's `with options(...)` blocks. It
 * belongs to a Work of its own, or to the Work into which the thread coalesces its calls. A profiler may record it. */
#include "shim/checks.hpp"
#include "shim/gil.hpp"
#include "shim/process_group.hpp"
#include "shim/signals.hpp"
#include <ATen/record_function.h>
#include <algorithm>
#include <c10/util/Exception.h>
#include <set>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

namespace tutti {

/* ---- what this thread asks for ---- */
/* A block of options that has been entered and not left. */
struct OpenOptions {
    uint64_t block;
    CallOptions options;
};
/* The blocks that this thread has entered, in order. The last one is the innermost. */
static thread_local std::vector<OpenOptions> open_options;

void call_options_open_block(uint64_t block, CallOptions options)
{
    open_options.push_back({ block, std::move(options) });
}
bool call_options_close_block(uint64_t block)
{
    auto found = std::find_if(open_options.rbegin(), open_options.rend(),
        [block](const auto &open) { return open.block == block; });
    if (found == open_options.rend()) return false;
    open_options.erase(std::next(found).base());
    return true;
}

const char *text_keep(const std::string &text)
{
    if (text.empty()) return nullptr;
    static std::mutex mutex;
    static auto *kept = new std::set<std::string>;
    std::lock_guard<std::mutex> lock(mutex);
    return kept->insert(text).first->c_str();
}
/* Returns the name of a range in a profile: the title of the call, and the tag of the innermost block that has one.
 * Profilers keep only its address. */
static const char *call_get_range_name(const Call &call)
{
    auto open = std::find_if(open_options.rbegin(), open_options.rend(),
        [](const OpenOptions &one) { return one.options.tag != nullptr; });
    return open == open_options.rend() ? call.title : text_keep(c10::str(call.title, " (", open->options.tag, ")"));
}
/* Sets the operation's timeout: that of the call, else of the innermost block that has one. Sets its algorithm and
 * its tag likewise. Messages take no algorithm. */
static void operation_apply_options(Operation &operation, const Call &call)
{
    operation.request.timeout_ms = std::max<int64_t>(call.timeout.count(), 0);
    for (auto open = open_options.rbegin(); open != open_options.rend(); ++open) {
        if (!operation.request.timeout_ms)
            operation.request.timeout_ms = std::max<int64_t>(open->options.timeout.count(), 0);
        if (operation.algorithm.empty() && !c10d::isP2POp(call.type)) operation.algorithm = open->options.algorithm;
        if (!operation.tag) operation.tag = open->options.tag;
    }
    if (!operation.algorithm.empty()) operation.request.algorithm = operation.algorithm.c_str();
}

/* ---- coalescing ---- */
/* The Works into which this thread coalesces calls, usually none. A Work is found by the number of its group, which the
 * Work's communicator has. The address of the group would not do, because a newer group may have it by now. */
class OpenWorks {
  public:
    /* Opens the Work and adds it. */
    void add(c10::intrusive_ptr<Work> work)
    {
        drop_closed();
        work->open();
        works_.push_back(std::move(work));
    }
    /* Returns the Work of the group with this number, or null. */
    Work *find(uint64_t group) const
    {
        for (const auto &work : works_)
            if (work->communicator().group == group) return work.get();
        return nullptr;
    }
    /* Removes a Work for whose communicator `matches` is true, closes it and returns it, or returns null. */
    template <typename Matches> c10::intrusive_ptr<Work> take(Matches matches)
    {
        auto found =
            std::find_if(works_.begin(), works_.end(), [&](auto &work) { return matches(work->communicator()); });
        if (found == works_.end()) return nullptr;
        auto work = std::move(*found);
        works_.erase(found);
        work->end_coalescing();
        return work;
    }
    /* Closes the remaining Works when the thread ends. */
    ~OpenWorks()
    {
        while (take([](const Communicator &) { return true; })) {}
    }

  private:
    /* Drops the Works of closed groups, because no call may ever end their coalescing. */
    void drop_closed()
    {
        while (take([](const Communicator &one) { return one.is_closed(); })) {}
    }
    std::vector<c10::intrusive_ptr<Work>> works_;
};
static thread_local OpenWorks open_works;

Work *ProcessGroupTutti::open_work() const
{
    Work *work = open_works.find(number_);
    if (!work || &work->communicator() == communicator_.get()) return work;
    error_throw(TUTTI_ABORTED,
        "this group was reconfigured while this thread coalesced calls of it; end coalescing, "
        "and make the calls again");
}
c10::intrusive_ptr<Work> ProcessGroupTutti::take_work()
{
    return open_works.take([this](const Communicator &one) { return one.group == number_; });
}
/* Returns what the caller of operations gets: the Work, or a StreamWork. `first`: the index of the caller's first
 * operation. */
static WorkPointer work_get_handle(c10::intrusive_ptr<Work> work, size_t first = 0)
{
    if (!work->is_on_streams()) return work;
    return c10::make_intrusive<StreamWork>(work, work->getCompletionKey(), work->get_outputs(first));
}
WorkPointer ProcessGroupTutti::coalesce(const Call &call, const Tensors &inputs, c10::function_ref<void()> calls)
{
    if (Work *outer = open_work()) {
        size_t first = outer->count_operations();
        calls();
        return work_get_handle(c10::intrusive_ptr<Work>::reclaim_copy(outer), first);
    }
    open_works.add(make_work(call, inputs));
    try {
        calls();
    } catch (...) {
        take_work();
        throw;
    }
    WorkPointer work = work_get_handle(take_work());
    if (!call.async) work->wait(kNoTimeout);
    return work;
}
void ProcessGroupTutti::startCoalescing()
{
    CallGuard guard = enter("start_coalescing");
    /* An exception may have left a Work open. */
    take_work();
    open_works.add(make_work({ "tutti:coalesced", c10d::OpType::COALESCED, true, c10d::kUnsetTimeout }, {}));
}
WorkPointer ProcessGroupTutti::endCoalescing()
{
    auto work = take_work();
    CallGuard guard = enter("end_coalescing");
    if (!work) error_throw(TUTTI_INVALID_ARGUMENT, "end_coalescing without start_coalescing on this thread");
    if (&work->communicator() != communicator_.get())
        error_throw(TUTTI_ABORTED,
            "end_coalescing: this group was reconfigured since start_coalescing; make the calls again");
    return work_get_handle(std::move(work));
}
void ProcessGroupTutti::drop_coalescing() { take_work(); }

/* ---- recording ---- */
/* Returns the name of the call in the flight recorder: its title, and for a message the ranks, as in "tutti:send
 * 0->1". */
static std::string call_get_recorded_name(const Call &call, int rank)
{
    if (!c10d::isP2POp(call.type)) return call.title;
    std::string peer = call.peer == TUTTI_ANY_SOURCE ? "any" : std::to_string(call.peer);
    if (call.type == c10d::OpType::SEND) return c10::str(call.title, " ", rank, "->", peer);
    return c10::str(call.type == c10d::OpType::RECV ? call.title : "tutti:recv", " ", rank, "<-", peer);
}
void ProcessGroupTutti::record(Operation &operation, const Call &call, Work &work,
    std::shared_ptr<torch::CapturedTraceback> stack)
{
    Record record;
    record.group = *recorded_as_;
    record.name = call_get_recorded_name(call, getRank());
    record.is_message = c10d::isP2POp(call.type);
    record.is_part = open_work() == &work;
    /* An operation in place has only one list of tensors, which is recorded as both inputs and outputs. */
    const Footprint &touched = operation.footprint;
    record.inputs = RecordedTensors(touched.inputs.empty() ? touched.outputs : touched.inputs);
    record.outputs = RecordedTensors(touched.outputs.empty() ? touched.inputs : touched.outputs);
    record.tag = operation.tag ? operation.tag : "";
    record.timeout_ms = operation.request.timeout_ms ? operation.request.timeout_ms : options_->timeout.count();
    record.stack = std::move(stack);
    operation.record = recorder::record_add_operation(std::move(record), work.numbers);
}
void Operation::record_outcome()
{
    recorder::record_set_outcome(record, outcome, request.refused, text, request.source);
    const auto &checks = work->communicator().checks;
    if (checks && footprint.checked_as && outcome == TUTTI_OK)
        checks->add_result(footprint.checked_as, footprint, request.label != 0);
}
std::string Operation::get_error() const
{
    std::string error = tutti_get_last_error();
    return !tag ? error : c10::str(error, " (tag \"", tag, "\")");
}

/* ---- timeouts that are longer for some time ---- */
void ProcessGroupTutti::addEphemeralTimeout(const std::chrono::milliseconds &timeout)
{
    if (timeout.count() < 0)
        error_throw(TUTTI_INVALID_ARGUMENT, "add_ephemeral_timeout: the timeout is negative; it is added to others");
    std::lock_guard<std::mutex> lock(extensions_mutex_);
    extensions_.push_back({ timeout, std::nullopt });
    extended_ = true;
}
/* Drops extensions whose first Work is over, and returns the sum of the others. `work` becomes the first Work of new
 * ones. */
std::chrono::milliseconds ProcessGroupTutti::extend_timeout(const c10::intrusive_ptr<Work> &work)
{
    std::chrono::milliseconds sum{ 0 };
    if (!extended_.load(std::memory_order_relaxed)) return sum;
    std::lock_guard<std::mutex> lock(extensions_mutex_);
    std::erase_if(extensions_, [](const TimeoutExtension &extension) {
        if (!extension.first) return false;
        auto first = extension.first->lock();
        return !first || first->is_over();
    });
    for (TimeoutExtension &extension : extensions_) {
        sum += extension.timeout;
        if (!extension.first) extension.first.emplace(work);
    }
    extended_ = !extensions_.empty();
    return sum;
}

/* ---- starting ---- */
/* The turn of a thread that starts an operation on a stream: the stream waits for the operations before, and the inputs
 * are copied. The thread holds no GIL meanwhile, because the core may make it wait. */
class StreamTurn {
  public:
    StreamTurn(Streams &streams, const Footprint &footprint);

  private:
    GilRelease released_;
    std::unique_lock<std::mutex> lock_;
};
bool ProcessGroupTutti::needs_work() const
{
    return timing_ || at::hasCallbacks() || recorded_as_ || !open_options.empty() || open_work() || extended_
        || is_estimating();
}
c10::intrusive_ptr<Work> ProcessGroupTutti::make_work(const Call &call, const Tensors &inputs)
{
    uint64_t sequence = c10d::isP2POp(call.type) ? sequence_.load() : ++sequence_;
    const char *title = at::hasCallbacks() ? call_get_range_name(call) : nullptr;
    auto work = c10::make_intrusive<Work>(communicator_, getRank(), call.type, title, inputs, sequence);
    if (timing_.load(std::memory_order_relaxed) || !hooks_->completion.empty()) work->start_clock();
    if (options_->blocking_futures) work->block_futures();
    work->extension = extend_timeout(work);
    work->set_timeout(options_->timeout + work->extension);
    return work;
}
/* Takes back the flight recorder's numbers and, for a collective outside of coalescing, the group's sequence number. */
void ProcessGroupTutti::take_back_number(const Call &call, Work &work, const Operation &operation)
{
    if (operation.record) recorder::record_mark_refused(operation.record, work.numbers);
    if (!c10d::isP2POp(call.type) && open_work() != &work) --sequence_;
}
/* Makes a blocking call without a Work. Returns false, without any effect, if the group is closed. */
bool ProcessGroupTutti::run_directly(Start begin)
{
    Work::reap();
    if (communicator_->is_closed()) return false;
    tutti_request request = TUTTI_REQUEST_INIT;
    request.blocking = true;
    tutti_status status = communicator_->get_outcome(begin(communicator_->get(), &request));
    if (status != TUTTI_OK) {
        std::string text = tutti_get_last_error();
        if (!request.refused) communicator_->report_failure();
        error_throw(status, text);
    }
    ++sequence_;
    thread_stop_if_ended();
    signals_throw_raised();
    return true;
}
/* Returns true if the core runs such a call on streams; tutti_comm_open_cuda has the limits. */
static bool call_can_use_streams(c10d::OpType type, size_t ranks)
{
    using c10d::OpType;
    constexpr size_t most_summing_ranks = 16, most_uneven_ranks = 100;
    bool reduces = type == OpType::ALLREDUCE || type == OpType::REDUCE || type == OpType::REDUCE_SCATTER
        || type == OpType::_REDUCE_SCATTER_BASE;
    bool may_be_uneven = type == OpType::ALLTOALL || type == OpType::ALLTOALL_BASE || type == OpType::ALLGATHER;
    return ranks <= (reduces ? most_summing_ranks : may_be_uneven ? most_uneven_ranks : ranks);
}
Footprint ProcessGroupTutti::make_footprint_of_cuda(const Call &call, c10::Device device)
{
    if (!call_can_use_streams(call.type, size()) || is_estimating() || communicator_->is_closed())
        return Footprint(call.name());
    communicator_->check_process();
    device_check_not_capturing(call.name(), device);
    Streams &streams = communicator_->streams;
    if (!streams.open(*communicator_, call.name(), device)) return Footprint(call.name());
    return Footprint(call.name(), streams.make_run(call.async || open_work(), timing_));
}
void ProcessGroupTutti::prepare_tensors(Footprint &footprint)
{
    if (!footprint.run() && !footprint.is_staged()) return;
    PendingCopy::wait_for_overlapping(footprint);
    if (footprint.run()) return;
    communicator_->streams.block_current_for(footprint);
    footprint.fetch();
}
StreamTurn::StreamTurn(Streams &streams, const Footprint &footprint) : lock_(streams.lock_order())
{
    try {
        streams.begin(*footprint.run());
        footprint.fetch_on_stream();
    } catch (...) {
        footprint.record_stream();
        throw;
    }
}
WorkPointer ProcessGroupTutti::finish_on_stream(const Call &call, const c10::intrusive_ptr<Work> &work, uint64_t key,
    Operation &operation)
{
    operation.footprint.deliver_on_stream();
    communicator_->streams.end(operation.run, operation.footprint.extents());
    auto handle = c10::make_intrusive<StreamWork>(work, key, operation.footprint.outputs);
    if (!call.async && open_work() != work.get()) work->drop_tensors();
    return handle;
}
void ProcessGroupTutti::finish_streams(const char *call)
{
    Streams &streams = communicator_->streams;
    if (!streams.is_open() || communicator_->is_closed()) return;
    communicator_->check_process();
    device_check_not_capturing(call, streams.get_device());
    Communicator::Waiter waiter(*communicator_);
    streams.wait_on_host();
    auto failure = streams.find_failure();
    if (!failure) return;
    communicator_->report_failure();
    recorder::record_report_broken_group(failure->record);
    error_throw(failure->status, failure->text);
}
/* Makes the current stream wait for the part of a failed call that is on the operation's stream, because that may still
 * use the tensors. After an error of the device it may not; the caller gets that error by the core. */
static void run_end_after_failure(StreamRun &run)
{
    try {
        run.ended.record(run.stream);
        run.block_current();
    } catch (const c10::Error &error) {
        TORCH_WARN("tutti: a stream does not wait for a failed operation: ", error_text(error));
    }
}
/* Calls start_now(), which starts the collective, and has the checks look at the input and the result. */
static WorkPointer start_checked(Communicator &communicator, const Call &call, Footprint &footprint, bool blocking,
    const std::shared_ptr<torch::CapturedTraceback> &stack, c10::function_ref<WorkPointer()> start_now)
{
    const auto &checks = communicator.checks;
    footprint.checked_as = checks->begin(communicator, call.type, footprint, stack);
    WorkPointer work;
    try {
        work = start_now();
    } catch (...) {
        checks->take_back();
        throw;
    }
    checks->exchange(blocking);
    return work;
}
WorkPointer ProcessGroupTutti::start_in_recorder(const Call &call, Footprint footprint, Start begin)
{
    auto stack = recorder::python_stack_capture();
    auto start_now = [&] { return start_operation(call, std::move(footprint), begin, stack); };
    if (!communicator_->checks || footprint.run() || c10d::isP2POp(call.type)) return start_now();
    return start_checked(*communicator_, call, footprint, !call.async && !open_work(), stack, start_now);
}
/* Starts an operation and returns its Work, or its part of a coalesced Work. */
WorkPointer ProcessGroupTutti::start_operation(const Call &call, Footprint footprint, Start begin,
    std::shared_ptr<torch::CapturedTraceback> stack)
{
    Work::reap();
    if (communicator_->is_closed())
        error_throw(TUTTI_ABORTED, c10::str(call.name(), ": this group was shut down or destroyed; make a new one"));
    Work *coalesced = open_work();
    auto work = coalesced ? c10::intrusive_ptr<Work>::reclaim_copy(coalesced)
                          : make_work(call, footprint.inputs.empty() ? footprint.outputs : footprint.inputs);
    prepare_tensors(footprint);
    std::optional<StreamTurn> turn;
    if (footprint.run()) turn.emplace(communicator_->streams, footprint);
    Operation &operation = work->add(std::move(footprint));
    operation_apply_options(operation, call);
    int64_t &timeout_ms = operation.request.timeout_ms;
    if (work->extension.count())
        timeout_ms = (timeout_ms ? timeout_ms : options_->timeout.count()) + work->extension.count();
    if (timeout_ms) work->set_timeout(std::chrono::milliseconds(timeout_ms));
    if (recorded_as_) record(operation, call, *work, std::move(stack));
    bool blocking = !call.async && !coalesced && !operation.run;
    operation.request.blocking = blocking;
    /* Timing, profilers and the recorder need the time of the end, so the operation must not be deferred for them. */
    operation.request.on_demand = !blocking && !operation.run && !timing_ && !at::hasCallbacks() && !recorded_as_;
    if (!blocking) work->prepare_async(operation);
    tutti_status status = begin(communicator_->get(), &operation.request);
    if (blocking) status = communicator_->get_outcome(status);
    if (status == TUTTI_OK) {
        if (blocking) work->finish_blocking(operation);
        thread_stop_if_ended();
        if (blocking) signals_throw_raised();
        bool is_part = coalesced && !hooks_->completion.empty();
        uint64_t key = is_part ? work->add_part_key() : work->getCompletionKey();
        if (operation.run) return finish_on_stream(call, work, key, operation);
        if (is_part) return c10::make_intrusive<WorkPart>(work, key);
        return work;
    }
    std::string text = operation.get_error();
    if (operation.run && !operation.request.refused) run_end_after_failure(*operation.run);
    turn.reset();
    /* The end of the operation needs no warning, because this call raises its error. */
    Communicator::Waiter waiter(*communicator_);
    if (operation.request.refused) take_back_number(call, *work, operation);
    if (blocking) operation.store_outcome(status, text);
    else if (coalesced && operation.request.refused) work->withdraw(operation);
    else work->finish(operation, status);
    if (!operation.request.refused) communicator_->report_failure();
    recorder::record_report_broken_group(operation.record);
    if (communicator_->checks && !operation.request.refused) communicator_->checks->report_after_failure(status, text);
    error_throw(status, text);
}
static int64_t tensors_count_elements(const Tensors &tensors)
{
    int64_t sum = 0;
    for (const at::Tensor &tensor : tensors) sum += tensor.numel();
    return sum;
}
/* Torch 2.11 has no macro that takes async_op. */
#ifdef RECORD_PARAM_COMMS_DATA_WITH_ASYNC_OP
#define RECORD_CALL(async, ...) RECORD_PARAM_COMMS_DATA_WITH_ASYNC_OP(__VA_ARGS__, async)
#else
#define RECORD_CALL(async, ...) RECORD_PARAM_COMMS_DATA(__VA_ARGS__)
#endif
/* Starts an operation inside record_param_comms, the range with sizes, type and group that torch's tools look for. */
WorkPointer ProcessGroupTutti::start_recorded(const Call &call, Footprint footprint, Start begin)
{
    const Tensors &outputs = footprint.outputs, &inputs = footprint.inputs.empty() ? outputs : footprint.inputs;
    bool collective = !c10d::isP2POp(call.type);
    const auto &members = options_->global_ranks_in_group;
    int64_t first = members.empty() ? 0 : static_cast<int64_t>(members[0]);
    int64_t stride = members.size() < 2 ? 1 : static_cast<int64_t>(members[1]) - first;
    /* The stride is 0 if the members are not equally far apart. */
    for (size_t i = 2; i < members.size(); i++)
        if (static_cast<int64_t>(members[i] - members[i - 1]) != stride) stride = 0;
    RECORD_CALL(call.async, std::make_tuple(static_cast<int64_t>(sequence_ + collective), !collective),
        std::make_tuple(getGroupUid(), getGroupDesc()), inputs, outputs, getRank(), call.name(),
        tensors_count_elements(inputs), tensors_count_elements(outputs),
        inputs.empty() ? at::kByte : inputs[0].scalar_type(), std::vector<int64_t>(), std::vector<int64_t>(), first,
        stride, getSize());
    return start(call, std::move(footprint), begin);
}
WorkPointer ProcessGroupTutti::launch(const Call &call, Footprint footprint, Start begin)
{
    if (is_estimating()) return estimate(call, footprint);
    if (at::hasCallbacks()) return start_recorded(call, std::move(footprint), begin);
    return start(call, std::move(footprint), begin);
}

} // namespace tutti
