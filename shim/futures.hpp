/* The threads that complete futures. A callback may block on another future, so one thread stays outside of callbacks
 * while futures wait. If all threads are busy, another one starts, and surplus threads end after a second. If no thread
 * can start, getFuture waits until the Work is over, and earlier futures complete in the next call of any thread. */
#pragma once
#include <c10/util/intrusive_ptr.h>
#include <mutex>
#include <string>

namespace tutti {

class Work;

class Futures {
  public:
    /* Starts a thread that completes futures, unless one exists. Fails if it cannot; the message begins with `who`. */
    static void begin(const std::string &who);
    /* Queues a Work and takes over a reference. */
    static void push(Work *work);
    /* True if a thread can complete one more future. It starts a thread if necessary. */
    static bool has_thread();
    /* Completes queued Works on the calling thread while no other thread can start. */
    static void complete_queued();
    static bool stopped();
    /* Stops the completion of futures, because a callback must not run while the interpreter shuts down. It waits up to
     * 2 s for callbacks that run. */
    static void quiesce();
    /* A forked child begins with a new queue, because the parent's threads do not exist there. */
    static void reset_in_child();

  private:
    struct Queue;
    static Queue *&queue();
    /* The caller of these four functions holds the lock. */
    static int add_thread(Queue *q);
    static bool ensure_idle(Queue *q);
    static bool await_work(Queue *q, std::unique_lock<std::mutex> &lock);
    static c10::intrusive_ptr<Work> take(Queue *q);
    static void *serve(void *queue);
};

} // namespace tutti
