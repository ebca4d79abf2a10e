/* The queue of Works whose futures are due, and the threads that serve it. */
#include "shim/futures.hpp"
#include "shim/work.hpp"
#include <atomic>
#include <c10/util/Exception.h>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <pthread.h>
#include <utility>

namespace tutti {

/* True in a thread that runs callbacks of a queued Work. */
static thread_local bool in_callbacks = false;

struct Futures::Queue {
    std::mutex mutex;
    /* `arrived`: a Work was queued. `left`: a thread has returned from the callbacks of a Work. */
    std::condition_variable arrived, left;
    /* The queue owns one reference to each. */
    std::deque<Work *> works;
    /* The threads that wait for a Work, and those that may be in a callback. */
    int idle = 0, busy = 0;
    /* Works wait, and no thread could start for them. */
    std::atomic<bool> lacks_threads{ false };
    bool stopped = false;
};
Futures::Queue *&Futures::queue()
{
    static Queue *q = new Queue;
    return q;
}
void Futures::reset_in_child() { queue() = new Queue; }
int Futures::add_thread(Queue *q)
{
    /* The thread blocks all signals, so that the program's own threads get them. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    int error = pthread_create(&thread, nullptr, serve, q);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (error) return error;
    pthread_setname_np(thread, "tutti-futures");
    pthread_detach(thread);
    q->idle++;
    return 0;
}
bool Futures::ensure_idle(Queue *q)
{
    int error = q->idle ? 0 : add_thread(q);
    if (error) {
        TORCH_WARN_ONCE("tutti: cannot start another thread for callbacks of futures: pthread_create returned error ",
            error, " (limit on threads? see ulimit -u). Futures now complete in calls of the program's own threads");
    }
    q->lacks_threads = error && !q->works.empty();
    return !error;
}
void Futures::start_first_thread(const std::string &who)
{
    Queue *q = queue();
    std::lock_guard<std::mutex> lock(q->mutex);
    if (q->idle + q->busy) return;
    if (int error = add_thread(q))
        error_throw(TUTTI_SYSTEM,
            c10::str(who, ": cannot start the thread that completes futures: pthread_create returned error ", error,
                " (limit on threads? see ulimit -u)"));
}
void Futures::push(Work *work)
{
    Queue *q = queue();
    std::lock_guard<std::mutex> lock(q->mutex);
    /* At exit the Work leaks, because it can no longer be dropped safely. */
    if (q->stopped) return;
    q->works.push_back(work);
    ensure_idle(q);
    q->arrived.notify_one();
}
bool Futures::ensure_thread()
{
    Queue *q = queue();
    std::lock_guard<std::mutex> lock(q->mutex);
    if (q->stopped) return false;
    /* A thread that is in a callback may have returned by the time the Work ends. A callback must not count on that,
     * because the thread may be its own, or may wait for it. */
    return ensure_idle(q) || (q->busy && !in_callbacks);
}
void Futures::complete(Work &work)
{
    bool outer = std::exchange(in_callbacks, true);
    work.complete_futures();
    in_callbacks = outer;
}
c10::intrusive_ptr<Work> Futures::take(Queue *q)
{
    auto work = c10::intrusive_ptr<Work>::reclaim(q->works.front());
    q->works.pop_front();
    return work;
}
void Futures::complete_queued()
{
    Queue *q = queue();
    while (q->lacks_threads.load(std::memory_order_relaxed)) {
        std::unique_lock<std::mutex> lock(q->mutex);
        if (q->stopped || q->works.empty() || ensure_idle(q)) return;
        auto work = take(q);
        lock.unlock();
        complete(*work);
    }
}
/* Waits for a queued Work. The last idle thread waits indefinitely. Other idle threads are surplus and get false after
 * a second. */
bool Futures::await_work(Queue *q, std::unique_lock<std::mutex> &lock)
{
    constexpr auto surplus_wait = std::chrono::seconds(1);
    auto has_work = [q] { return !q->works.empty() && !q->stopped; };
    if (q->idle > 1 && !q->arrived.wait_for(lock, surplus_wait, has_work) && q->idle > 1) return false;
    q->arrived.wait(lock, has_work);
    return true;
}
void *Futures::serve(void *queue)
{
    auto *q = static_cast<Queue *>(queue);
    std::unique_lock<std::mutex> lock(q->mutex);
    while (await_work(q, lock)) {
        auto work = take(q);
        q->idle--;
        q->busy++;
        if (!q->works.empty()) ensure_idle(q);
        lock.unlock();
        complete(*work);
        work.reset();
        lock.lock();
        q->busy--;
        q->idle++;
        q->lacks_threads = false;
        q->left.notify_all();
    }
    q->idle--;
    return nullptr;
}
void Futures::quiesce()
{
    Queue *q = queue();
    std::unique_lock<std::mutex> lock(q->mutex);
    q->stopped = true;
    q->left.wait_for(lock, std::chrono::seconds(2), [q] { return q->busy == 0; });
}
bool Futures::is_stopped()
{
    Queue *q = queue();
    std::lock_guard<std::mutex> lock(q->mutex);
    return q->stopped;
}

} // namespace tutti
