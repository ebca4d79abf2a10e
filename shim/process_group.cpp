/* The life of a group: a rank joins it through the store, splits it, merges it, and closes it. */
#include "shim/process_group.hpp"
#include "shim/futures.hpp"
#include "shim/join.hpp"
#include "shim/memory.hpp"
#include <algorithm>
#include <c10/util/Exception.h>
#include <c10/util/hash.h>
#include <numeric>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace tutti {

/* ---- construction and life ---- */
static c10::intrusive_ptr<Options> options_copy_with_timeout(const c10::intrusive_ptr<Options> &given,
    std::chrono::milliseconds timeout)
{
    auto options = given ? c10::make_intrusive<Options>(*given) : c10::make_intrusive<Options>();
    if (options->timeout == c10d::kUnsetTimeout) options->timeout = timeout;
    return options;
}
static const char kUnjoined[] =
    "this group was made with enable_reconfigure and has no members yet; call reconfigure first";
ProcessGroupTutti::ProcessGroupTutti(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
    std::chrono::milliseconds timeout, const std::string &group, const c10::intrusive_ptr<Options> &options)
    : c10d::Backend(rank, size), options_(options_copy_with_timeout(options, timeout)),
      member_(std::make_shared<Member>(store))
{
    options_->group_name = group;
    if (options_->enable_reconfigure) {
        options_check_algorithms(*options_);
        calls_.refuse(kUnjoined);
    } else {
        take_communicator(communicator_join(store, rank, size, group, *options_, options_->timeout));
    }
    /* If this throws, the other ranks, which have joined by now, see this rank leave. */
    Futures::begin(c10::str("rank ", rank, " of group ", group));
    init();
    begin_recording();
}
ProcessGroupTutti::~ProcessGroupTutti() { release_resources(); }
/* Torch calls this instead of the destructor while weak references exist, as another group has to its parts. */
void ProcessGroupTutti::release_resources()
{
    if (recorded_as_) recorder::recorded_group_mark_gone(*recorded_as_);
    recorded_as_.reset();
    if (communicator_) communicator_->close();
    communicator_.reset();
    kept_.clear();
    /* This may be the last call of the program, so it drops the finished Works. */
    Work::reap_unless_ending();
}
void ProcessGroupTutti::take_communicator(c10::intrusive_ptr<Communicator> communicator)
{
    communicator->group = number_;
    communicator->hooks = hooks_;
    communicator_ = std::move(communicator);
}
void ProcessGroupTutti::begin_recording()
{
    if (!communicator_ || !recorder::recording_is_on()) return;
    std::string name = membership_.empty() ? options_->group_name : options_->group_name + "/" + membership_;
    recorded_as_ = recorder::recorded_group_add(this, name, members());
}
c10::intrusive_ptr<Communicator> ProcessGroupTutti::find_communicator() const
{
    /* A forked child takes no lock. */
    if (is_inherited()) return communicator_;
    std::lock_guard<std::mutex> lock(communicator_mutex_);
    return communicator_;
}
void ProcessGroupTutti::abort()
{
    c10::intrusive_ptr<Communicator> present = find_communicator();
    if (changing_) interrupted_ = "this group was aborted meanwhile";
    if (present) present->abort();
}
void ProcessGroupTutti::shutdown()
{
    c10::intrusive_ptr<Communicator> present = find_communicator();
    shut_down_ = true;
    interrupted_ = "this group was shut down or destroyed meanwhile";
    if (present) present->close();
}
std::vector<uint64_t> ProcessGroupTutti::members() const
{
    std::vector<uint64_t> ranks = options_->global_ranks_in_group;
    if (ranks.size() == size()) return ranks;
    /* Torch gives no members for the group of all ranks. */
    ranks.resize(size());
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
}
void ProcessGroupTutti::setTimeout(std::chrono::milliseconds timeout)
{
    c10::intrusive_ptr<Communicator> present = find_communicator();
    bool closed = !present || present->closed();
    tutti_status status = closed ? TUTTI_OK : tutti_comm_set_timeout(present->get(), timeout.count());
    std::string text = tutti_get_last_error();
    /* A program may set the timeout of a failed group for the time after its reconfigure. */
    if (status != TUTTI_OK && tutti_comm_get_async_error(present->get()) == TUTTI_OK) error_throw(status, text);
    options_->timeout = timeout;
}
uintptr_t ProcessGroupTutti::address()
{
    CallGuard guard = enter("address");
    communicator_->check_process();
    std::lock_guard<std::mutex> lock(communicator_mutex_);
    address_given_ = true;
    return reinterpret_cast<uintptr_t>(communicator_->get());
}
/* Torch splits and merges once for each device type with the same store, and all calls return the same group. */
BackendPointer ProcessGroupTutti::derived(const std::string &name, const c10::intrusive_ptr<c10d::Store> &store,
    c10::function_ref<BackendPointer()> make)
{
    std::unique_lock<std::mutex> lock(derived_mutex_);
    std::erase_if(derived_, [](const auto &one) { return one.second.use_count() == 1 && one.second->group.expired(); });
    auto &entry = derived_[name];
    if (!entry) entry = std::make_shared<Derived>();
    std::shared_ptr<Derived> known = entry;
    lock.unlock();
    std::lock_guard<std::mutex> making(known->making);
    if (known->store == store)
        if (auto again = known->group.lock()) return again;
    BackendPointer group = make();
    known->store = store;
    known->group = c10::weak_intrusive_ptr<c10d::Backend>(group);
    return group;
}
/* Joining blocks in the store. Up to torch 2.14, torch gives a split-off group a store with a connection of its own;
 * later, it gives that of the parent. */
static c10::intrusive_ptr<c10d::Store> store_take_own(const c10::intrusive_ptr<c10d::Store> &given)
{
    return TORCH_HAS_COMPLETION_HOOKS ? given->clone() : given;
}
BackendPointer ProcessGroupTutti::split(const c10::intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
    const c10::intrusive_ptr<c10d::Backend::Options> &options)
{
    auto chosen = c10::dynamic_intrusive_pointer_cast<Options>(options);
    auto its = c10::make_intrusive<Options>(chosen ? *chosen : *options_);
    int rank;
    uint64_t at;
    {
        CallGuard guard = enter("split");
        communicator_->check_process();
        rank = getRank();
        at = member_->number();
        std::vector<uint64_t> all = members();
        its->global_ranks_in_group.clear();
        for (int one : ranks) its->global_ranks_in_group.push_back(all.at(static_cast<size_t>(one)));
    }
    auto mine = std::find(ranks.begin(), ranks.end(), rank);
    if (mine == ranks.end()) return nullptr;
    its->is_alone = ranks.size() == 1;
    its->enable_reconfigure = false;
    return derived(options->group_name, store, [&]() -> BackendPointer {
        /* Other ranks may make a part of the same name at any time, so each list of ranks has keys of its own. */
        auto of_these = c10::make_intrusive<c10d::PrefixStore>(std::to_string(ranks[0]) + "-"
                + std::to_string(c10::hash<std::vector<int>>()(ranks)),
            store_take_own(store));
        auto part = c10::make_intrusive<ProcessGroupTutti>(of_these, static_cast<int>(mine - ranks.begin()),
            static_cast<int>(ranks.size()), options->timeout, options->group_name, its);
        adopt_part(part, at);
        return part;
    });
}
BackendPointer ProcessGroupTutti::merge(const c10::intrusive_ptr<c10d::Store> &store,
    const c10::intrusive_ptr<c10d::Backend::Options> &options, const int &rank, const int &size)
{
    auto its = c10::make_intrusive<Options>(*options_);
    its->global_ranks_in_group.clear();
    its->enable_reconfigure = false;
    {
        CallGuard guard = enter("merge");
        communicator_->check_process();
    }
    return derived(options->group_name, store, [&]() -> BackendPointer {
        return c10::make_intrusive<ProcessGroupTutti>(store, rank, size, options->timeout, options->group_name, its);
    });
}
at::Tensor ProcessGroupTutti::allocateTensor(long size, at::TensorOptions options)
{
    return options.device().is_cpu() ? shared_tensor_allocate({ size }, c10::typeMetaToScalarType(options.dtype()))
                                     : at::empty({ size }, options);
}
c10d::ErrorType ProcessGroupTutti::getError()
{
    c10::intrusive_ptr<Communicator> present = find_communicator();
    switch (present ? tutti_comm_get_async_error(present->get()) : TUTTI_OK) {
    case TUTTI_OK: return c10d::ErrorType::SUCCESS;
    case TUTTI_TIMEOUT: return c10d::ErrorType::TIMEOUT;
    case TUTTI_PEER_LOST: return c10d::ErrorType::REMOTE_ERROR;
    default: return c10d::ErrorType::COMM_ERROR;
    }
}

/* ---- hooks ---- */
void ProcessGroupTutti::registerAbortHook(int64_t id, std::function<void()> hook)
{
    hooks_->abort.add(id, std::move(hook));
}
void ProcessGroupTutti::unregisterAbortHook(int64_t id) { hooks_->abort.remove(id); }
#if TORCH_HAS_COMPLETION_HOOKS
void ProcessGroupTutti::registerCompletionHook(int64_t id, c10d::CompletionHook hook)
{
    hooks_->completion.add(id,
        [hook = std::move(hook)](uint64_t key, std::optional<float> duration_ms) { hook({ key, duration_ms }); });
}
void ProcessGroupTutti::unregisterCompletionHook(int64_t id) { hooks_->completion.remove(id); }
#endif

} // namespace tutti
