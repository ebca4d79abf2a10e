/* The threads that complete futures. A callback of a future may block on another future, so one thread stays outside of
 * callbacks while futures wait. If all threads are busy, another one starts, and surplus threads end after a second. If
 * no thread can start, earlier futures complete when a thread returns from its callback or in the next call of any
 * thread, and getFuture waits until the Work is over if no thread exists or a callback calls it. */
#pragma once
#include <c10/util/intrusive_ptr.h>
#include <mutex>
#include <string>

namespace tutti {

class Work;

class Futures {
  public:
    /* Starts a thread that completes futures, unless one exists. Throws SystemError, whose text begins with `who`, if
     * no thread can start. */
    static void start_first_thread(const std::string &who);
    /* Queues a Work, whose futures a thread then completes. The queue takes over one reference to the Work. */
    static void push(Work *work);
    /* Starts a thread unless one is idle. Returns false if no thread can complete one more future, because none
     * exists, or because all are in callbacks and the caller is one, too. */
    static bool ensure_thread();
    /* Completes the futures of queued Works on the calling thread, but only while no other thread can start. */
    static void complete_queued();
    /* True after quiesce(). */
    static bool is_stopped();
    /* Stops the completion of futures, because a callback must not run while the interpreter shuts down. Waits at most
     * 2 s for the callbacks that run. */
    static void quiesce();
    /* A forked child begins with a new queue, because the parent's threads do not exist there. */
    static void reset_in_child();

  private:
    struct Queue;
    static Queue *&queue();
    /* The caller of these functions holds the queue's lock, except of complete() and serve(). */
    /* Starts a thread. Returns 0, or the error of pthread_create. */
    static int add_thread(Queue *q);
    /* Starts a thread unless one is idle. Returns false if that is necessary and fails. */
    static bool ensure_idle(Queue *q);
    /* Completes the futures of a Work that was queued. The caller does not hold the lock. */
    static void complete(Work &work);
    /* Waits for a queued Work. Returns false if this thread is surplus and must end. */
    static bool await_work(Queue *q, std::unique_lock<std::mutex> &lock);
    /* Removes the first Work from the queue and returns it. */
    static c10::intrusive_ptr<Work> take(Queue *q);
    /* The function that a thread runs: it completes queued Works. */
    static void *serve(void *queue);
};

} // namespace tutti
