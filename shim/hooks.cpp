/* Adds, removes and calls hooks. */
#include "shim/hooks.hpp"
#include "shim/gil.hpp"
#include <c10/util/Exception.h>
#include <vector>

namespace tutti {

template <typename... Arguments> void HookTable<Arguments...>::put(int64_t id, HookPointer hook)
{
    std::lock_guard<std::mutex> lock(mutex_);
    /* The parameter takes over the earlier hook, and frees it after the lock. */
    hooks_[id].swap(hook);
    if (!hooks_[id]) hooks_.erase(id);
    empty_ = hooks_.empty();
}
template <typename... Arguments> void HookTable<Arguments...>::call(const char *what, Arguments... arguments) const
{
    std::vector<HookPointer> present;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        for (const auto &[id, hook] : hooks_) present.push_back(hook);
    }
    for (const HookPointer &hook : present) {
        try {
            (*hook)(arguments...);
        } catch (const std::exception &error) {
            TORCH_WARN("tutti: ", what, " has thrown: ", error_text(error));
        }
    }
}
template class HookTable<>;
template class HookTable<uint64_t, std::optional<float>>;

void AbortReport::run(const Hooks &hooks)
{
    /* The report whose hooks this thread is running, or null. */
    static thread_local const AbortReport *running_here = nullptr;
    State state = NOT_RUN;
    if (hooks.abort.empty() || running_here == this) return;
    if (state_.compare_exchange_strong(state, RUNNING)) {
        const AbortReport *outer = std::exchange(running_here, this);
        hooks.abort.call("an abort hook");
        running_here = outer;
        state_ = HAVE_RUN;
        state_.notify_all();
        return;
    }
    if (state == HAVE_RUN) return;
    /* The hooks may need the GIL. */
    GilRelease release;
    state_.wait(RUNNING);
}

} // namespace tutti
