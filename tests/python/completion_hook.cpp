/* Counts the calls of a completion hook. Torch 2.15 lets only C++ register one. Python must have imported torch before
 * it imports this module. */
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/utils/pybind.h>
#include <vector>

namespace py = pybind11;

static std::mutex mutex;
/* The duration that each call has reported, in milliseconds, or -1. */
static std::vector<float> durations_ms;

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module)
{
    module.def("watch", [](const c10::intrusive_ptr<c10d::ProcessGroup> &group, int64_t id) {
        group->registerCompletionHook(id, [](const c10d::CompletionHookArgs &arguments) {
            std::lock_guard<std::mutex> lock(mutex);
            durations_ms.push_back(arguments.duration_ms.value_or(-1));
        });
    });
    module.def("unwatch",
        [](const c10::intrusive_ptr<c10d::ProcessGroup> &group, int64_t id) { group->unregisterCompletionHook(id); });
    module.def("durations_ms", [] {
        std::lock_guard<std::mutex> lock(mutex);
        return durations_ms;
    });
}
