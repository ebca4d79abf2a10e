/* Works. Invariant: an operation ends in a fixed order. It unpacks the lists, stores its outcome, and settles the Work
 * if it is the last operation. Then it wakes the waiters, which rely on these steps, and finally it lets go of the
 * Work. Results that pass through the host are copied to other devices once: by the first wait, by the thread that
 * completes the future, or by reap() for a dropped Work. An operation on a stream is awaited by events. */
#include "shim/work.hpp"
#include "shim/checks.hpp"
#include "shim/futures.hpp"
#include "shim/gil.hpp"
#include "shim/signals.hpp"
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pthread.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace tutti {

/* ---- the life of a work ---- */
/* The newest of the Works that reap() must drop. Their next_ links to the earlier ones. */
static std::atomic<Work *> finished{ nullptr };
/* In a forked child, this mutex replaces the mutexes of the parent's Works, which a missing thread may hold. */
static std::mutex *child_mutex = nullptr;

/* Returns a key for completion hooks that no other Work of this process has. */
static uint64_t key_take_next()
{
    static std::atomic<uint64_t> taken{ 0 };
    return taken.fetch_add(1, std::memory_order_relaxed) + 1;
}
Work::Work(c10::intrusive_ptr<Communicator> communicator, int rank, c10d::OpType type, const char *title,
    const Tensors &inputs, uint64_t sequence)
    : c10d::Work(rank, type, title, title ? std::make_optional(inputs) : std::nullopt),
      communicator_(std::move(communicator)), sequence_(sequence), key_(key_take_next())
{}
/* The core ends a failed operation before its stream comes to it. The memory of its tensors stays until then. */
Work::~Work()
{
    if (!has_streams_ || !failed_ || communicator_->is_inherited()) return;
    for_each_operation([](const Operation &operation) {
        if (!operation.footprint.run() || operation.outcome == TUTTI_OK || operation.request.refused) return;
        try {
            operation.footprint.record_stream();
        } catch (const std::exception &error) {
            TORCH_WARN("tutti: the memory of a failed operation may be used again too early: ", error_text(error));
        }
    });
}
template <typename Use> void Work::for_each_operation(Use use) const
{
    if (first_.work) use(first_);
    for (const auto &operation : more_) use(*operation);
}
Operation &Work::add(Footprint footprint)
{
    Operation *operation = &first_;
    if (operation->work) operation = more_.emplace_back(std::make_unique<Operation>()).get();
    operation->work = this;
    operation->footprint = std::move(footprint);
    operation->run = operation->footprint.run();
    (operation->run ? has_streams_ : has_host_) = true;
    if (operation->run) {
        operation->request.on_stream = true;
        operation->request.stream = stream_get_handle(operation->run->stream);
    } else if (operation->footprint.is_staged()) {
        staged_ = true;
        operation->pending_copy = std::make_shared<PendingCopy>(*operation);
    }
    return *operation;
}
uint64_t Work::add_part_key()
{
    part_keys_.push_back(key_take_next());
    return part_keys_.back();
}
void Work::open()
{
    open_++;
    /* retire() passes this reference on. */
    if (touched_++ == 0) c10::raw::intrusive_ptr::incref(this);
}
void Work::close()
{
    if (--open_ == 0) settle();
    if (--touched_ == 0) retire();
}
void Work::end_coalescing()
{
    if (numbers.taken) end_record = recorder::record_add_coalesced_end(numbers);
    close();
}
void Work::prepare_async(Operation &operation)
{
    operation.request.done = on_done;
    operation.request.context = &operation;
    if (operation.pending_copy) PendingCopy::register_pending(operation.pending_copy);
    open();
}
void Operation::store_outcome(tutti_status status, std::string error)
{
    if (status == TUTTI_OK && !run) footprint.unpack();
    text = std::move(error);
    outcome = status;
    if (record) record_outcome();
}
void Operation::notify_waiters()
{
    over.store(true, std::memory_order_release);
    over.notify_all();
}
void Work::finish(Operation &operation, tutti_status status)
{
    operation.store_outcome(status, status == TUTTI_OK ? "" : operation.get_error());
    const Operation *none = nullptr;
    if (status != TUTTI_OK) failed_.compare_exchange_strong(none, &operation);
    if (--open_ == 0) settle();
    operation.notify_waiters();
    if (operation.run) report_end_of_run(operation);
    /* This comes last: a waiter may drop its reference as soon as the Work is settled. */
    if (--touched_ == 0) retire();
}
void Work::report_end_of_run(const Operation &operation)
{
    std::optional<StreamFailure> failure;
    if (operation.outcome != TUTTI_OK && !operation.request.refused)
        failure.emplace(StreamFailure{ operation.outcome, operation.text, operation.record });
    communicator_->streams.report_end(*operation.run, failure ? &*failure : nullptr);
}
void Work::on_done(tutti_request *request, void *context)
{
    auto *operation = static_cast<Operation *>(context);
    operation->work->finish(*operation, tutti_test(request));
}
void Work::withdraw(Operation &operation)
{
    operation.footprint = Footprint();
    operation.pending_copy.reset();
    finish(operation, TUTTI_OK);
}
void Work::finish_blocking(Operation &operation)
{
    operation.store_outcome(TUTTI_OK, "");
    if (begun_.time_since_epoch().count()) ended_ = std::chrono::steady_clock::now();
    if (recordFunctionEndCallback_) recordFunctionEndCallback_();
    settled_ = true;
    report_completion();
    operation.notify_waiters();
    if (!operation.pending_copy) return;
    operation.pending_copy->enqueue();
    PendingCopy::register_pending(operation.pending_copy);
}
void Work::settle()
{
    if (begun_.time_since_epoch().count()) ended_ = std::chrono::steady_clock::now();
    if (recordFunctionEndCallback_) recordFunctionEndCallback_();
    if (end_record) {
        const Operation *failed = failed_;
        recorder::record_set_outcome(end_record, failed ? failed->outcome : TUTTI_OK, true, failed ? failed->text : "",
            0);
    }
    {
        std::lock_guard<std::mutex> lock(mutex_);
        settled_ = true;
    }
    report_completion();
}
/* Calls the completion hooks if all operations have succeeded. The Work is settled before, because torch's recorder may
 * ask it whether it is over if the recorder learns of the Work only after the hooks have run. */
void Work::report_completion() const
{
    const auto &hooks = communicator_->hooks;
    if (failed_ || !hooks || hooks->completion.empty()) return;
    std::optional<float> duration_ms;
    if (begun_.time_since_epoch().count()) duration_ms = measured_ms();
    hooks->completion.call("a completion hook", key_, duration_ms);
    for (uint64_t key : part_keys_) hooks->completion.call("a completion hook", key, duration_ms);
}
/* True if an operation has failed and broken its group. A refused call leaves the group as it was. */
bool Work::has_failed_group() const
{
    const Operation *failed = failed_;
    return failed && !failed->request.refused;
}
/* Gives up the Work's reference to itself: to the threads of futures if a future or abort hooks need one, otherwise to
 * the list of finished Works. */
void Work::retire()
{
    /* Abort hooks may take the GIL, so they run on a thread that completes futures, unless a waiter runs them first.
     * That thread also warns of a failure on a stream that no call has raised. */
    bool for_futures = has_failed_group() && (communicator_->has_abort_hooks() || has_streams_);
    {
        std::lock_guard<std::mutex> lock(mutex_);
        for_futures |= has_future();
    }
    if (for_futures) return Futures::push(this);
    next_ = finished.load();
    while (!finished.compare_exchange_weak(next_, this)) {}
}
void Work::reap()
{
    Futures::complete_queued();
    if (!finished.load(std::memory_order_relaxed)) return;
    for (Work *work = finished.exchange(nullptr); work;) {
        Work *next = work->next_;
        auto held = c10::intrusive_ptr<Work>::reclaim(work);
        try {
            if (held->staged_) held->deliver();
        } catch (const std::exception &error) {
            /* The error belongs to that Work, not to the caller. Waiters of that Work get it, too. */
            TORCH_WARN("tutti: the result of a finished operation could not be copied to its device: ",
                error_text(error));
        }
        work = next;
    }
}
void Work::reap_unless_ending()
{
    if (!Futures::is_stopped()) reap();
}

/* ---- results on other devices ---- */
void Work::deliver()
{
    for_each_operation([](const Operation &operation) {
        if (operation.pending_copy) operation.pending_copy->enqueue();
    });
}

/* ---- in a forked child ---- */
/* Replaces the locks and lists of Works in a forked child: the parent's other threads do not exist there, so their
 * locks stay locked and their tasks stay undone. */
static void work_reset_in_child()
{
    Futures::reset_in_child();
    PendingCopy::reset_in_child();
    /* The finished Works leak in the child, because their tensors belong to the parent. */
    finished = nullptr;
    child_mutex = new std::mutex;
}
[[maybe_unused]] static const int resetting_in_child = pthread_atfork(nullptr, nullptr, work_reset_in_child);
std::mutex &Work::state_mutex() { return communicator_->is_inherited() ? *child_mutex : mutex_; }

/* ---- what a holder asks ---- */
/* True if the operations and the copies of results to devices are over, so that a caller who polls can omit the
 * wait. */
bool Work::isCompleted()
{
    if (!settled_) communicator_->check_process();
    if (!settled_)
        for_each_operation([](const Operation &operation) {
            if (!operation.over) tutti_test(&operation.request);
        });
    if (!settled_ || !(staged_ || has_streams_)) return settled_;
    deliver();
    bool all_over = true;
    for_each_operation([&](const Operation &operation) {
        all_over = all_over && (!operation.pending_copy || operation.pending_copy->is_over());
        all_over = all_over && (!operation.run || operation.run->ended.query());
    });
    return all_over;
}
bool Work::isSuccess() const { return settled_ && !failed_; }
std::exception_ptr Work::exception() const
{
    const Operation *operation = failed_;
    if (!operation) return nullptr;
    return std::make_exception_ptr(Error(operation->outcome, operation->text));
}
int Work::sourceRank() const
{
    TORCH_CHECK(settled_, "the source rank of a receive is known when the receive is finished: wait for it first");
    return first_.request.source;
}
Tensors Work::get_outputs(size_t first)
{
    Tensors all;
    size_t index = 0;
    std::lock_guard<std::mutex> lock(state_mutex());
    for_each_operation([&](const Operation &operation) {
        if (index++ < first) return;
        const Tensors &some = operation.footprint.outputs;
        all.insert(all.end(), some.begin(), some.end());
    });
    return all;
}
float Work::getDuration() const
{
    TORCH_CHECK(begun_.time_since_epoch().count() && (!is_on_streams() || first_.run->measures),
        "the duration of this operation was not measured: call enable_collectives_timing() on its group before it");
    TORCH_CHECK(settled_, "the duration of an operation is known when it is finished: wait for it first");
    if (!is_on_streams()) return measured_ms();
    const StreamRun *first = nullptr, *last = nullptr;
    for_each_operation([&](const Operation &operation) {
        /* An operation that was refused in a batch has no end. */
        if (!operation.run->ended.was_marked_for_recording()) return;
        if (!first) first = operation.run.get();
        last = operation.run.get();
    });
    TORCH_CHECK(last, "the duration is unknown, because no operation has run");
    last->ended.synchronize();
    return static_cast<float>(first->began.elapsedTime(last->ended));
}
void Work::wait_for(Operation &operation, std::chrono::milliseconds timeout)
{
    std::optional<Communicator::Waiter> waiter;
    if (!operation.over.load(std::memory_order_acquire)) {
        communicator_->check_process();
        if (operation.run && timeout == kNoTimeout && !communicator_->has_failed()) return;
        if (operation.run) waiter.emplace(*communicator_);
        tutti_wait(&operation.request, timeout.count());
        /* The core's request is over, but finish() may still run on the progress thread. */
        operation.over.wait(false, std::memory_order_acquire);
    }
    /* The operation may have succeeded although the wait was interrupted. */
    if (operation.outcome == TUTTI_OK) return signals_throw_raised();
    communicator_->report_failure();
    recorder::record_report_broken_group(operation.record);
    if (communicator_->checks) communicator_->checks->report_after_failure(operation.outcome, operation.text);
    std::string place = recorder::record_get_place(operation.record);
    if (!place.empty()) place = c10::str(" (this rank started it at ", place, ")");
    error_throw(operation.outcome, operation.text + place);
}
bool Work::wait(std::chrono::milliseconds timeout)
{
    if (c10d::allow_inflight_collective_as_graph_input())
        c10d::unregister_work(c10::intrusive_ptr<c10d::Work>::reclaim_copy(this));
    if (!settled_ || failed_) {
        if (first_.work) wait_for(first_, timeout);
        for (auto &operation : more_) wait_for(*operation, timeout);
    }
    if (staged_) deliver();
    block_current_streams();
    drop_tensors();
    reap();
    thread_stop_if_ended();
    return true;
}

/* ---- operations on streams ---- */
void Work::block_current_streams() const
{
    if (!has_streams_) return;
    for_each_operation([](const Operation &operation) {
        if (operation.run) operation.run->block_current();
    });
}
/* The allocator uses memory again for the stream that was current when a program allocated it, which is usually the
 * caller's stream. If another stream waits, the memory stays until the operation's stream is ready. */
void Work::drop_tensors()
{
    if (!is_on_streams()) return;
    std::vector<Footprint> dropped;
    {
        std::lock_guard<std::mutex> lock(state_mutex());
        dropped.push_back(std::exchange(first_.footprint, Footprint()));
        for (auto &operation : more_) dropped.push_back(std::exchange(operation->footprint, Footprint()));
    }
    for (const Footprint &footprint : dropped)
        if (footprint.run() && !footprint.run()->is_waited_for_by_caller()) footprint.record_stream();
}
bool StreamWork::wait(std::chrono::milliseconds timeout)
{
    if (c10d::allow_inflight_collective_as_graph_input())
        c10d::unregister_work(c10::intrusive_ptr<c10d::Work>::reclaim_copy(this));
    return whole_->wait(timeout);
}
/* Callbacks of the future run at once, on the thread that adds them. */
FuturePointer StreamWork::getFuture()
{
    std::lock_guard<std::mutex> lock(mutex_);
    if (future_) return future_;
    c10::Device device = whole_->get_device();
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
        std::vector<c10::Device>{ device });
    /* The future records an event on the stream that is current, for the streams of its users. The stream of the
     * operation will not do, because it may have later work by now. Few programs use streams of high priority. */
    c10::StreamGuard guard(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, true));
    whole_->block_current_streams();
    if (std::exception_ptr problem = exception()) {
        future_->setError(problem);
        return future_;
    }
    /* The future finds the device by the storages. A rank without outputs (gather) has that of an empty tensor. */
    WithoutObservers unobserved;
    Tensors on_device = outputs_;
    if (on_device.empty()) on_device.push_back(at::empty({ 0 }, at::TensorOptions().device(device)));
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
    for (const at::Tensor &tensor : on_device) storages.push_back(tensor.storage().getWeakStorageImpl());
    future_->markCompleted(c10::IValue(outputs_), std::move(storages));
    return future_;
}

/* ---- futures ---- */
/* Hands unfinished operations to the core's progress thread. */
void Work::detach() const
{
    if (!settled_)
        for_each_operation([](const Operation &operation) {
            if (!operation.over) tutti_detach(&operation.request);
        });
}
/* Waits until all operations are over. Releases the GIL, because other ranks may be threads of this process and need it
 * before they make their call. */
void Work::wait_without_gil()
{
    GilRelease release;
    detach();
    for_each_operation([](const Operation &operation) { operation.over.wait(false); });
}
/* Ensures that the Work ends without a waiter, and that a thread can complete its future; or waits for the end. */
void Work::prepare_future()
{
    if (settled_) return;
    communicator_->check_process();
    blocking_futures_ || !Futures::ensure_thread() ? wait_without_gil() : detach();
}
FuturePointer Work::find_or_make(FuturePointer &future, c10::function_ref<FuturePointer()> make)
{
    prepare_future();
    std::unique_lock<std::mutex> lock(state_mutex());
    if (future) return future;
    future = make();
    if (settled_) {
        lock.unlock();
        complete_futures();
    }
    return future;
}
FuturePointer Work::getFuture()
{
    return find_or_make(future_, [&] {
        std::vector<c10::Device> devices;
        for_each_operation([&](const Operation &operation) {
            for (c10::Device device : operation.footprint.devices())
                if (std::find(devices.begin(), devices.end(), device) == devices.end()) devices.push_back(device);
        });
        if (!devices.empty()) device_ = c10::impl::VirtualGuardImpl(devices[0].type()).getDevice();
        return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
    });
}
FuturePointer Work::getFutureResult()
{
    return find_or_make(outcome_, [] { return c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get()); });
}
/* Returns the value of getFutureResult. `problem` is null after a success; `failed` is null if only a copy failed. */
static c10d::WorkResult work_result_from_error(const Operation *failed, const std::exception_ptr &problem)
{
    if (!problem) return c10d::WorkResult::SUCCESS;
    bool is_timeout = failed && failed->outcome == TUTTI_TIMEOUT;
    return is_timeout ? c10d::WorkResult::TIMEOUT : c10d::WorkResult::COMM_ERROR;
}
/* Calls complete_future(). An exception of a callback becomes a warning, because this thread has no caller that could
 * catch it. */
template <typename Complete> static void future_complete_catching(Complete complete_future)
{
    try {
        complete_future();
    } catch (const std::exception &error) {
        TORCH_WARN("tutti: a callback of a future has thrown: ", error_text(error));
    } catch (...) {
        TORCH_WARN("tutti: a callback of a future has thrown an object that is not a std::exception");
    }
}
/* Completes the futures of a Work that is over, each once. The thread takes them under the lock, but completes them
 * without it, because callbacks run meanwhile. */
void Work::complete_futures()
{
    FuturePointer future, outcome;
    /* Callbacks run on this thread and expect the device of the getFuture call. */
    c10::OptionalDeviceGuard device;
    {
        std::lock_guard<std::mutex> lock(state_mutex());
        if (device_) device.reset_device(*device_);
        if (future_ && !std::exchange(future_taken_, true)) future = future_;
        if (outcome_ && !std::exchange(outcome_taken_, true)) outcome = outcome_;
    }
    std::exception_ptr problem = exception();
    if (has_failed_group()) communicator_->run_abort_hooks();
    if (const Operation *failed = failed_) {
        if (has_streams_ && has_failed_group() && !future && !outcome) communicator_->warn_of_failure(failed->text);
        recorder::record_report_broken_group(failed->record);
    }
    try {
        if (staged_) deliver();
        block_current_streams();
    } catch (...) {
        /* A failed copy to a device becomes the future's error. */
        problem = std::current_exception();
    }
    if (outcome)
        future_complete_catching([&] {
            outcome->markCompleted(c10::IValue(static_cast<int64_t>(work_result_from_error(failed_, problem))));
        });
    if (future && problem) future_complete_catching([&] { future->setError(problem); });
    else if (future) future_complete_catching([&] { future->markCompleted(c10::IValue(result())); });
}

} // namespace tutti
