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
/* Returns a copy of the options, or default options for null. `timeout` replaces an unset timeout. */
static c10::intrusive_ptr<Options> options_copy_with_timeout(const c10::intrusive_ptr<Options> &given,
    std::chrono::milliseconds timeout)
{
    auto options = given ? c10::make_intrusive<Options>(*given) : c10::make_intrusive<Options>();
    if (options->timeout == c10d::kUnsetTimeout) options->timeout = timeout;
    return options;
}
/* The error of a call before the first reconfigure. */
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
    /* Starts the thread that completes futures. If that throws, other ranks that have joined see this rank leave. */
    Futures::start_first_thread(c10::str("rank ", rank, " of group ", group));
    init();
    begin_recording();
}
ProcessGroupTutti::~ProcessGroupTutti() { release_resources(); }
/* Closes the communicator. Torch calls this instead of the destructor while weak references to the group exist, such as
 * those of a group to its parts. */
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
/* Returns the present communicator, or null before the first reconfigure. */
c10::intrusive_ptr<Communicator> ProcessGroupTutti::find_communicator() const
{
    /* A forked child takes no lock. */
    if (is_inherited()) return communicator_;
    std::lock_guard<std::mutex> lock(communicator_mutex_);
    return communicator_;
}
/* Ends a running change with the reason `why`, and returns the present communicator or null. The lock makes this come
 * before or after begin_membership(). */
c10::intrusive_ptr<Communicator> ProcessGroupTutti::interrupt_change(const char *why)
{
    std::unique_lock<std::mutex> lock(communicator_mutex_, std::defer_lock);
    /* A forked child takes no lock. */
    if (!is_inherited()) lock.lock();
    if (changing_) interrupted_ = why;
    return communicator_;
}
void ProcessGroupTutti::abort()
{
    if (auto communicator = interrupt_change("this group was aborted meanwhile")) communicator->abort();
}
/* Waits for the operations on streams before their group ends, because the program may use their results afterwards. A
 * rank that has not made their calls after the limit may never make them. */
static void communicator_finish_streams(Communicator &communicator)
{
    constexpr auto limit = std::chrono::seconds(10);
    try {
        bool over = communicator.streams.wait_on_host(limit);
        if (auto failure = communicator.streams.find_failure()) {
            communicator.warn_of_failure(failure->text);
            recorder::record_report_broken_group(failure->record);
        } else if (!over) {
            communicator.warn_of_failure(c10::str("their group is destroyed, and they are not over after ",
                limit.count(), " s; call torch.cuda.synchronize() or work.wait(timeout) before"));
        }
    } catch (const std::exception &error) {
        TORCH_WARN("tutti: operations on streams have failed before their group was destroyed: ", error_text(error));
    }
}
void ProcessGroupTutti::shutdown()
{
    shut_down_ = true;
    auto communicator = interrupt_change("this group was shut down or destroyed meanwhile");
    if (!communicator) return;
    if (!communicator->is_inherited() && !communicator->is_closed()) communicator_finish_streams(*communicator);
    communicator->close();
}
std::optional<c10::Stream> ProcessGroupTutti::stream(c10::Device device)
{
    CallGuard guard = enter("stream");
    return communicator_->streams.get_own_stream(device);
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
    c10::intrusive_ptr<Communicator> communicator = find_communicator();
    bool closed = !communicator || communicator->is_closed();
    tutti_status status = closed ? TUTTI_OK : tutti_comm_set_timeout(communicator->get(), timeout.count());
    std::string text = tutti_get_last_error();
    /* A program may set the timeout of a failed group for the time after its reconfigure. */
    if (status != TUTTI_OK && tutti_comm_get_async_error(communicator->get()) == TUTTI_OK) error_throw(status, text);
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
/* Returns the group that was made for this name and store, or else that of make(). Torch splits and merges once for
 * each device type with the same store, and all these calls return the same group. */
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
        if (auto existing = known->group.lock()) return existing;
    BackendPointer group = make();
    known->store = store;
    known->group = c10::weak_intrusive_ptr<c10d::Backend>(group);
    return group;
}
/* Returns a store with a connection of its own, because joining blocks the connection. Up to torch 2.14 `given` is such
 * a store. Later torch gives a split-off group the store of its parent, so it is cloned. */
static c10::intrusive_ptr<c10d::Store> store_get_own_connection(const c10::intrusive_ptr<c10d::Store> &given)
{
    return TORCH_HAS_COMPLETION_HOOKS ? given->clone() : given;
}
BackendPointer ProcessGroupTutti::split(const c10::intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
    const c10::intrusive_ptr<c10d::Backend::Options> &options)
{
    auto chosen = c10::dynamic_intrusive_pointer_cast<Options>(options);
    auto part_options = c10::make_intrusive<Options>(chosen ? *chosen : *options_);
    int rank;
    uint64_t changes;
    {
        CallGuard guard = enter("split");
        communicator_->check_process();
        rank = getRank();
        changes = member_->number();
        std::vector<uint64_t> all = members();
        part_options->global_ranks_in_group.clear();
        for (int one : ranks) part_options->global_ranks_in_group.push_back(all.at(static_cast<size_t>(one)));
        bool is_merged = options_->merged_size && options_->global_ranks_in_group.empty();
        part_options->merged_size = is_merged ? getSize() : options_->merged_size;
    }
    auto own_position = std::find(ranks.begin(), ranks.end(), rank);
    if (own_position == ranks.end()) return nullptr;
    part_options->is_alone = ranks.size() == 1;
    part_options->enable_reconfigure = false;
    return derived(options->group_name, store, [&]() -> BackendPointer {
        /* Other ranks may make a part of the same name at any time, so each list of ranks has its own keys. */
        auto part_store = c10::make_intrusive<c10d::PrefixStore>(std::to_string(ranks[0]) + "-"
                + std::to_string(c10::hash<std::vector<int>>()(ranks)),
            store_get_own_connection(store));
        auto part = c10::make_intrusive<ProcessGroupTutti>(part_store, static_cast<int>(own_position - ranks.begin()),
            static_cast<int>(ranks.size()), options->timeout, options->group_name, part_options);
        adopt_part(part, changes);
        return part;
    });
}
BackendPointer ProcessGroupTutti::merge(const c10::intrusive_ptr<c10d::Store> &store,
    const c10::intrusive_ptr<c10d::Backend::Options> &options, const int &rank, const int &size)
{
    auto merged_options = c10::make_intrusive<Options>(*options_);
    merged_options->global_ranks_in_group.clear();
    merged_options->enable_reconfigure = false;
    merged_options->merged_size = size;
    {
        CallGuard guard = enter("merge");
        communicator_->check_process();
    }
    return derived(options->group_name, store, [&]() -> BackendPointer {
        return c10::make_intrusive<ProcessGroupTutti>(store, rank, size, options->timeout, options->group_name,
            merged_options);
    });
}
at::Tensor ProcessGroupTutti::allocateTensor(long size, at::TensorOptions options)
{
    return options.device().is_cpu() ? shared_tensor_allocate({ size }, c10::typeMetaToScalarType(options.dtype()))
                                     : at::empty({ size }, options);
}
c10d::ErrorType ProcessGroupTutti::getError()
{
    c10::intrusive_ptr<Communicator> communicator = find_communicator();
    switch (communicator ? tutti_comm_get_async_error(communicator->get()) : TUTTI_OK) {
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
