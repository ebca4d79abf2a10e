/* The hooks of a group: functions of torch and of programs. The shim calls an abort hook when the group fails (from
 * torch 2.14 on), and a completion hook when an operation succeeds (from torch 2.15 on). */
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <torch/version.h>

#define TORCH_HAS_COMPLETION_HOOKS (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 15))

namespace tutti {

/* The hooks of one kind. The owner of a hook chooses its id. Any thread may call any method. */
template <typename... Arguments> class HookTable {
  public:
    using Hook = std::function<void(Arguments...)>;
    /* Adds a hook. It replaces an earlier hook of the same id. */
    void add(int64_t id, Hook hook) { put(id, std::make_shared<const Hook>(std::move(hook))); }
    /* Removes the hook of the id, if there is one. A call() on another thread may still be running the hook. */
    void remove(int64_t id) { put(id, nullptr); }
    bool empty() const { return empty_.load(std::memory_order_relaxed); }
    /* Calls the hooks in the order of their ids. An exception becomes a warning, which begins with `what`. */
    void call(const char *what, Arguments... arguments) const;

  private:
    using HookPointer = std::shared_ptr<const Hook>;
    /* Stores the hook under the id. Null removes the id. */
    void put(int64_t id, HookPointer hook);
    /* A thread that holds this lock copies, frees and calls no hook: a hook may need the GIL, which a thread that waits
     * for the lock may hold. */
    mutable std::mutex mutex_;
    std::map<int64_t, HookPointer> hooks_;
    std::atomic<bool> empty_{ true };
};

struct Hooks {
    HookTable<> abort;
    /* Arguments: the key of the Work, and its duration in milliseconds, if it was measured. */
    HookTable<uint64_t, std::optional<float>> completion;
};

/* Runs the abort hooks for one communicator, at most once. */
class AbortReport {
  public:
    /* Runs the abort hooks, or waits until another thread has run them, because a program may end once it knows of the
     * failure. A call from inside of such a hook returns at once. */
    void run(const Hooks &hooks);

  private:
    enum State { NOT_RUN, RUNNING, HAVE_RUN };
    std::atomic<State> state_{ NOT_RUN };
};

} // namespace tutti
