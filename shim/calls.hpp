/* Counts the calls that run in a group. A change of the members refuses new calls and waits until the running calls
 * have returned, so each call sees one membership only. */
#pragma once
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <mutex>
#include <string>

namespace tutti {

class Calls {
  public:
    /* From now on each new call throws AbortedError with the text "<call>: <why>". */
    void refuse(std::string why);
    /* Lets new calls in again. */
    void allow() { count_.fetch_and(~kRefused); }
    /* Waits until no call runs. Returns false at the deadline. `check` runs again and again, and its exception ends the
     * wait. The caller has refused new calls, holds no GIL, and is in no call itself. */
    bool wait_until_none(std::chrono::steady_clock::time_point deadline, const std::function<void()> &check) const;
    /* True if the caller runs inside of a call, for example in a hook that the call runs. */
    bool is_this_thread_inside() const;

  private:
    friend class CallGuard;
    static constexpr unsigned kRefused = 1, kOne = 2;
    /* Counts the call named `call`, or throws AbortedError if calls are refused. leave() uncounts it. */
    void enter(const char *call);
    void leave() { count_.fetch_sub(kOne); }
    /* kOne for each call that runs, plus kRefused while new calls are refused. */
    std::atomic<unsigned> count_{ 0 };
    /* The newest of texts_. A refused call reads it without a lock, also in a forked child. */
    std::atomic<const std::string *> why_{ nullptr };
    /* All texts of refuse(). They stay, because a call may still read an earlier one. */
    std::mutex texts_mutex_;
    std::deque<std::string> texts_;
};

/* Counts a call from its entry to its return, on one thread. The constructor throws AbortedError if calls are
 * refused. */
class CallGuard {
  public:
    /* `call`: the name of the call, for the error. */
    CallGuard(Calls &calls, const char *call);
    ~CallGuard();
    CallGuard(const CallGuard &) = delete;
    CallGuard &operator=(const CallGuard &) = delete;

  private:
    friend class Calls;
    Calls &calls_;
    /* The call of this thread, in any group, that encloses this one, or null. */
    const CallGuard *outer_;
};

} // namespace tutti
