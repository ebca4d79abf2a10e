/* Counts the calls that run in a group. A group whose members change lets no new call in and waits until the running
 * calls are out, so each call sees one membership only. */
#pragma once
#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <string>

namespace tutti {

class Calls {
  public:
    /* From now on a call gets an AbortedError, "<call>: <why>". */
    void refuse(std::string why);
    void allow() { count_.fetch_and(~kRefused); }
    /* Waits until no call runs. Returns false at the deadline. The caller has refused calls, holds no GIL, and is in no
     * call itself. */
    bool wait_until_none(std::chrono::steady_clock::time_point deadline) const;
    /* True if this thread is in a call, and has called back from there. */
    bool has_this_thread() const;

  private:
    friend class CallGuard;
    static constexpr unsigned kRefused = 1, kOne = 2;
    void enter(const char *call);
    void leave() { count_.fetch_sub(kOne); }
    /* The number of calls that run, times kOne, and kRefused. */
    std::atomic<unsigned> count_{ 0 };
    /* The newest of the texts. A call reads it without a lock, also in a forked child. */
    std::atomic<const std::string *> why_{ nullptr };
    std::mutex texts_mutex_;
    std::deque<std::string> texts_;
};

/* One call, from its entry to its return, on one thread. The constructor throws the AbortedError. */
class CallGuard {
  public:
    CallGuard(Calls &calls, const char *call);
    ~CallGuard();
    CallGuard(const CallGuard &) = delete;
    CallGuard &operator=(const CallGuard &) = delete;

  private:
    friend class Calls;
    Calls &calls_;
    /* The call of this thread, of any group, that this one is inside of. */
    const CallGuard *outer_;
};

} // namespace tutti
