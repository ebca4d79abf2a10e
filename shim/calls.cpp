/* The count of a group's running calls. A refused call is in the count until it has seen that it is refused. */
#include "shim/calls.hpp"
#include "shim/communicator.hpp"
#include <algorithm>
#include <c10/util/Exception.h>
#include <thread>

namespace tutti {

/* The innermost call of this thread, or null. */
static thread_local const CallGuard *innermost_call = nullptr;

CallGuard::CallGuard(Calls &calls, const char *call) : calls_(calls), outer_(innermost_call)
{
    calls_.enter(call);
    innermost_call = this;
}
CallGuard::~CallGuard()
{
    innermost_call = outer_;
    calls_.leave();
}
void Calls::enter(const char *call)
{
    if (!(count_.fetch_add(kOne) & kRefused)) return;
    leave();
    error_throw(TUTTI_ABORTED, c10::str(call, ": ", *why_.load()));
}
void Calls::refuse(std::string why)
{
    std::lock_guard<std::mutex> lock(texts_mutex_);
    why_ = &texts_.emplace_back(std::move(why));
    count_.fetch_or(kRefused);
}
/* Polls the count, with pauses of 20 us to 2 ms. */
bool Calls::wait_until_none(std::chrono::steady_clock::time_point deadline, const std::function<void()> &check) const
{
    constexpr std::chrono::microseconds longest_pause(2000);
    std::chrono::microseconds pause(20);
    while (count_.load() >= kOne) {
        check();
        if (std::chrono::steady_clock::now() >= deadline) return false;
        std::this_thread::sleep_for(pause);
        pause = std::min(pause * 2, longest_pause);
    }
    return true;
}
bool Calls::is_this_thread_inside() const
{
    for (const CallGuard *call = innermost_call; call; call = call->outer_)
        if (&call->calls_ == this) return true;
    return false;
}

} // namespace tutti
