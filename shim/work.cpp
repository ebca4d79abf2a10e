/* Errors, communicators, Works and the threads that complete futures. The order in which an operation ends is the
 * invariant: unpack the lists, store the text, store the status; when the last one of a Work is over, note that it is
 * settled, wake its waiters, and only then let go of it. */
#include "shim/work.hpp"
#include <ATen/record_function.h>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <deque>
#include <map>
#include <pthread.h>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace tutti {

/* ---- errors ---- */
static std::map<int, PyObject *> &error_classes()
{
    static auto *classes = new std::map<int, PyObject *>; /* outlives whatever the interpreter takes apart */
    return *classes;
}
void error_class_set(tutti_status status, PyObject *type) { error_classes()[status] = type; }
PyObject *Error::python_type()
{
    auto found = error_classes().find(status);
    return found == error_classes().end() ? PyExc_RuntimeError : found->second;
}
void fail(tutti_status status, const std::string &text) { throw Error(status, text); }
void fail_last(tutti_status status) { throw Error(status, tutti_get_last_error()); }

/* ---- the communicator ---- */
void Communicator::close()
{
    constexpr int patience = 100, give_up = 20'000; /* times 0.1 ms */
    if (closed_.exchange(true)) return;
    for (int n = 0; visitors_ > 0; n++) {
        if (n == patience) tutti_comm_abort(comm_);
        if (n == give_up) return; /* a forked child's copy of a busy one: nobody will ever leave */
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    tutti_comm_destroy(comm_);
}

/* ---- completing futures ---- */
/* A callback may block on another future, so while futures wait there is always a thread that is not inside a
 * callback. */
class Futures {
  public:
    static void push(Work *work); /* takes over a reference */
    static void quiesce();
  private:
    struct Queue {
        std::mutex mutex;
        std::condition_variable arrived, left;
        std::deque<Work *> works;
        int idle = 0, busy = 0;
        bool stopped = false;
    };
    static Queue *&queue();
    static void ensure_idle(Queue *q);
    static void *serve(void *queue);
};
Futures::Queue *&Futures::queue()
{
    static Queue *q = [] {
        pthread_atfork(
            nullptr, nullptr, [] { queue() = new Queue; }); /* no thread survives in a child, nor does what they held */
        return new Queue;
    }();
    return q;
}
void Futures::ensure_idle(Queue *q)
{
    constexpr int most = 64;
    if (q->works.empty() || q->idle > 0 || q->busy >= most) return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the program's */
    pthread_t thread;
    if (pthread_create(&thread, nullptr, serve, q) == 0) {
        pthread_setname_np(thread, "tutti-futures");
        pthread_detach(thread);
        q->idle++;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}
void Futures::push(Work *work)
{
    Queue *q = queue();
    std::lock_guard<std::mutex> lock(q->mutex);
    if (q->stopped) return; /* leaked: at exit there is no safe moment to drop it */
    q->works.push_back(work);
    ensure_idle(q);
    q->arrived.notify_one();
}
void *Futures::serve(void *queue)
{
    auto *q = static_cast<Queue *>(queue);
    std::unique_lock<std::mutex> lock(q->mutex);
    for (;;) {
        q->arrived.wait(lock, [q] { return !q->works.empty() && !q->stopped; });
        auto work = c10::intrusive_ptr<Work>::reclaim(q->works.front());
        q->works.pop_front();
        q->idle--;
        q->busy++;
        ensure_idle(q);
        lock.unlock();
        work->complete_future();
        work.reset();
        lock.lock();
        q->busy--;
        q->idle++;
        q->left.notify_all();
    }
}
void Futures::quiesce()
{
    Queue *q = queue();
    std::unique_lock<std::mutex> lock(q->mutex);
    q->stopped = true;
    q->left.wait_for(lock, std::chrono::seconds(2), [q] { return q->busy == 0; });
}
void futures_quiesce() { Futures::quiesce(); }

/* ---- the life of a work ---- */
static std::atomic<Work *> finished{ nullptr };

Work::Work(c10::intrusive_ptr<Communicator> communicator, int rank, c10d::OpType type, const char *title,
    const std::vector<at::Tensor> &inputs, uint64_t sequence)
    : c10d::Work(rank, type, at::hasCallbacks() ? title : nullptr,
          at::hasCallbacks() ? std::make_optional(inputs) : std::nullopt),
      communicator_(std::move(communicator)), sequence_(sequence)
{}
Operation &Work::add()
{
    Operation *operation = &first_;
    if (operation->work) operation = more_.emplace_back(std::make_unique<Operation>()).get();
    operation->work = this;
    return *operation;
}
static void append(std::vector<at::Tensor> &to, std::vector<at::Tensor> tensors)
{
    if (to.empty()) to = std::move(tensors);
    else to.insert(to.end(), tensors.begin(), tensors.end());
}
void Work::keep(std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs, std::vector<at::Tensor> temporaries)
{
    append(kept_, std::move(inputs));
    append(kept_, std::move(temporaries));
    append(outputs_, std::move(outputs));
}
void Work::open()
{
    if (open_++ == 0) c10::raw::intrusive_ptr::incref(this); /* given back by settle */
}
void Work::close()
{
    if (--open_ == 0) settle();
}
void Work::arm(Operation &operation)
{
    operation.request.done = on_done;
    operation.request.context = &operation;
    open();
}
void Operation::finish(tutti_status how, std::string why)
{
    if (how == TUTTI_OK)
        for (const Part &part : unpack) std::memcpy(part.to, part.from, part.bytes);
    text = std::move(why);
    status.store(how, std::memory_order_release);
    status.notify_all();
}
void Work::finish(Operation &operation, tutti_status status)
{
    operation.finish(status, status == TUTTI_OK ? "" : tutti_get_last_error());
    const Operation *none = nullptr;
    if (status != TUTTI_OK) failed_.compare_exchange_strong(none, &operation);
    close();
}
void Work::on_done(tutti_request *request, void *context)
{
    auto *operation = static_cast<Operation *>(context);
    operation->work->finish(*operation, tutti_test(request));
}
void Work::finish_failed(Operation &operation, tutti_status status)
{
    if (operation.status.load() == TUTTI_IN_PROGRESS) finish(operation, status);
}
void Work::finish_blocking(Operation &operation)
{
    operation.finish(TUTTI_OK, "");
    if (recordFunctionEndCallback_) recordFunctionEndCallback_();
    settled_ = true;
}
void Work::settle()
{
    if (recordFunctionEndCallback_) recordFunctionEndCallback_();
    bool asked;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        settled_ = true;
        asked = future_.defined();
    }
    if (asked) return Futures::push(this);
    next_ = finished.load();
    while (!finished.compare_exchange_weak(next_, this)) {}
}
void Work::reap()
{
    if (!finished.load(std::memory_order_relaxed)) return;
    for (Work *work = finished.exchange(nullptr); work;) {
        Work *next = work->next_;
        c10::intrusive_ptr<Work>::reclaim(work).reset();
        work = next;
    }
}

/* ---- what a holder asks ---- */
bool Work::isCompleted() { return settled_; }
bool Work::isSuccess() const { return settled_ && !failed_; }
std::exception_ptr Work::exception() const
{
    const Operation *operation = failed_;
    if (!operation) return nullptr;
    return std::make_exception_ptr(Error(static_cast<tutti_status>(operation->status.load()), operation->text));
}
int Work::sourceRank() const
{
    TORCH_CHECK(settled_, "the source rank of a receive is known when it is over: wait for it first");
    return first_.request.source;
}
void Work::wait_for(Operation &operation, std::chrono::milliseconds timeout)
{
    if (operation.status.load(std::memory_order_acquire) == TUTTI_IN_PROGRESS) {
        if (Communicator::Visit visit(*communicator_); visit) tutti_wait(&operation.request, timeout.count());
        operation.status.wait(TUTTI_IN_PROGRESS); /* over for the core is not yet over for us: see on_done */
    }
    auto status = static_cast<tutti_status>(operation.status.load(std::memory_order_acquire));
    if (status != TUTTI_OK) fail(status, operation.text);
}
bool Work::wait(std::chrono::milliseconds timeout)
{
    if (c10d::allow_inflight_collective_as_graph_input())
        c10d::unregister_work(c10::intrusive_ptr<c10d::Work>::reclaim_copy(this));
    if (!settled_ || failed_) {
        if (first_.work) wait_for(first_, timeout);
        for (auto &operation : more_) wait_for(*operation, timeout);
    }
    reap();
    return true;
}
void Work::abort()
{
    if (Communicator::Visit visit(*communicator_); visit) tutti_comm_abort(visit.get());
}

/* ---- futures ---- */
c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture()
{
    std::unique_lock<std::mutex> lock(mutex_);
    if (future_) return future_;
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    if (settled_) {
        lock.unlock();
        complete_future();
    }
    return future_;
}
void Work::complete_future()
{
    if (failed_) future_->setError(exception());
    else future_->markCompleted(c10::IValue(outputs_));
}

} // namespace tutti
