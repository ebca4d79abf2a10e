/* The life of a group: a rank joins it through the store, splits it, merges it, and closes it. */
#include "shim/process_group.hpp"
#include "shim/memory.hpp"
#include <algorithm>
#include <atomic>
#include <c10/util/Exception.h>
#include <c10/util/hash.h>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace tutti {

/* ---- the store ---- */
struct StoreBridge {
    c10::intrusive_ptr<c10d::Store> store;
    std::string problem;
};

template <typename Use> static tutti_status store_call_catching(void *context, Use use)
{
    auto *bridge = static_cast<StoreBridge *>(context);
    try {
        return use(*bridge->store);
    } catch (const std::exception &e) {
        /* Stores throw different exceptions when a key is late, so the text decides. */
        bridge->problem = e.what();
        bool late = bridge->problem.find("imeout") != std::string::npos
            || bridge->problem.find("imed out") != std::string::npos;
        return late ? TUTTI_TIMEOUT : TUTTI_SYSTEM;
    }
}
static tutti_status store_bridge_put(void *context, const char *key, const void *value, size_t bytes)
{
    return store_call_catching(context, [&](c10d::Store &store) {
        auto *begin = static_cast<const uint8_t *>(value);
        store.set(key, std::vector<uint8_t>(begin, begin + bytes));
        return TUTTI_OK;
    });
}
static tutti_status store_bridge_get(void *context, const char *key, void *value, size_t capacity, size_t *bytes,
    int64_t timeout_ms)
{
    return store_call_catching(context, [&](c10d::Store &store) {
        if (timeout_ms == 0 && !store.check({ key })) return TUTTI_TIMEOUT;
        if (timeout_ms > 0) store.wait({ key }, std::chrono::milliseconds(timeout_ms));
        std::vector<uint8_t> found = store.get(key);
        if (found.size() > capacity) return TUTTI_NO_MEMORY;
        std::memcpy(value, found.data(), found.size());
        *bytes = found.size();
        return TUTTI_OK;
    });
}
static tutti_status store_bridge_remove(void *context, const char *key)
{
    auto *bridge = static_cast<StoreBridge *>(context);
    /* Some stores cannot delete keys, which is no problem to report. */
    StoreBridge apart{ bridge->store, "" };
    return store_call_catching(&apart,
        [&](c10d::Store &store) { return store.deleteKey(key) ? TUTTI_OK : TUTTI_SYSTEM; });
}
/* True if all ranks of the job are on this host, by the numbers that torchrun sets. A program may join the ranks of
 * several torchrun starts to a larger job, so WORLD_SIZE must also equal the size of the job. */
static bool job_is_on_one_host(int ranks)
{
    const char *here = std::getenv("LOCAL_WORLD_SIZE"), *all = std::getenv("WORLD_SIZE");
    return here && all && std::strcmp(here, all) == 0 && all == std::to_string(ranks);
}
/* Returns the host of a TCP store. The result is empty for other stores, for a loopback name, and if all ranks are on
 * one host. */
static std::string store_get_host(c10::intrusive_ptr<c10d::Store> store, int ranks)
{
    while (auto *prefixed = dynamic_cast<c10d::PrefixStore *>(store.get())) store = prefixed->getUnderlyingStore();
    auto *tcp = dynamic_cast<c10d::TCPStore *>(store.get());
    if (!tcp || job_is_on_one_host(ranks)) return "";
    const std::string &host = tcp->getHost();
    return host == "localhost" || host == "127.0.0.1" || host == "::1" ? "" : host;
}
/* The size of the last group of all ranks that this process has joined. */
static std::atomic<int> job_size{ 0 };
static tutti_comm *group_join_through_store(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
    const std::string &group, const Options &options)
{
    StoreBridge bridge{ store, "" };
    tutti_config config = TUTTI_CONFIG_INIT;
    config.rank = rank;
    config.size = size;
    config.store = { &bridge, store_bridge_put, store_bridge_get };
    config.store_remove = store_bridge_remove;
    std::string name = "group " + group;
    config.name = group.empty() ? nullptr : name.c_str();
    config.algorithm = options.algorithm.empty() ? nullptr : options.algorithm.c_str();
    config.timeout_ms = std::max<int64_t>(options.timeout.count(), 0);
    /* Torch gives no members for the group of all ranks. */
    const auto &members = options.global_ranks_in_group;
    if (members.empty()) job_size = size;
    std::string store_host = store_get_host(store, job_size);
    config.store_host = store_host.empty() ? nullptr : store_host.c_str();
    bool part = static_cast<int>(members.size()) == size && job_size > 0;
    config.job_size = part ? job_size.load() : 0;
    config.job_rank = part ? static_cast<int>(members[static_cast<size_t>(rank)]) : 0;
    const std::vector<int> compared(members.begin(), members.end());
    config.members = static_cast<int>(members.size()) == size && !options.is_alone ? compared.data() : nullptr;
    tutti_comm *comm = nullptr;
    tutti_status status = tutti_comm_init(&comm, &config);
    if (status == TUTTI_OK) return comm;
    std::string text = tutti_get_last_error();
    if (!bridge.problem.empty())
        text += " (the store said: " + bridge.problem.substr(0, bridge.problem.find('\n')) + ")";
    error_throw(status, text);
}

/* ---- construction and life ---- */
static c10::intrusive_ptr<Options> options_copy_with_timeout(const c10::intrusive_ptr<Options> &given,
    std::chrono::milliseconds timeout)
{
    auto options = given ? c10::make_intrusive<Options>(*given) : c10::make_intrusive<Options>();
    if (options->timeout == c10d::kUnsetTimeout) options->timeout = timeout;
    return options;
}
ProcessGroupTutti::ProcessGroupTutti(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
    std::chrono::milliseconds timeout, const std::string &group, const c10::intrusive_ptr<Options> &options)
    : c10d::Backend(rank, size), options_(options_copy_with_timeout(options, timeout)),
      communicator_(c10::make_intrusive<Communicator>(group_join_through_store(store, rank, size, group, *options_)))
{
    options_->group_name = group;
    /* If this throws, the other ranks, which have joined by now, see this rank leave. */
    futures_start_thread(c10::str("rank ", rank, " of group ", group));
    init();
    if (recorder::recording_is_on()) recorded_as_ = recorder::recorded_group_add(this, group, members());
}
ProcessGroupTutti::~ProcessGroupTutti()
{
    if (recorded_as_) recorder::recorded_group_mark_gone(*recorded_as_);
    communicator_->close();
    /* This may be the last call of the program, so it drops the finished Works. */
    Work::reap_unless_ending();
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
    bool closed = communicator_->closed();
    tutti_status status = closed ? TUTTI_OK : tutti_comm_set_timeout(communicator_->get(), timeout.count());
    if (status != TUTTI_OK) error_throw_last(status);
    options_->timeout = timeout;
}
uintptr_t ProcessGroupTutti::address() const
{
    communicator_->check_process();
    return reinterpret_cast<uintptr_t>(communicator_->get());
}
/* Torch splits and merges once for each device type with the same store, and all calls return the same group. */
BackendPointer ProcessGroupTutti::derived(const std::string &name, const c10::intrusive_ptr<c10d::Store> &store,
    c10::function_ref<BackendPointer()> make)
{
    communicator_->check_process();
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
BackendPointer ProcessGroupTutti::split(const c10::intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
    const c10::intrusive_ptr<c10d::Backend::Options> &options)
{
    auto mine = std::find(ranks.begin(), ranks.end(), getRank());
    if (mine == ranks.end()) return nullptr;
    auto chosen = c10::dynamic_intrusive_pointer_cast<Options>(options);
    auto its = c10::make_intrusive<Options>(chosen ? *chosen : *options_);
    its->global_ranks_in_group.clear();
    its->is_alone = ranks.size() == 1;
    for (int rank : ranks) its->global_ranks_in_group.push_back(members()[static_cast<size_t>(rank)]);
    return derived(options->group_name, store, [&]() -> BackendPointer {
        /* Other ranks may make a part of the same name at any time, so each list of ranks has keys of its own. */
        auto of_these = c10::make_intrusive<c10d::PrefixStore>(std::to_string(ranks[0]) + "-"
                + std::to_string(c10::hash<std::vector<int>>()(ranks)),
            store);
        return c10::make_intrusive<ProcessGroupTutti>(of_these, static_cast<int>(mine - ranks.begin()),
            static_cast<int>(ranks.size()), options->timeout, options->group_name, its);
    });
}
BackendPointer ProcessGroupTutti::merge(const c10::intrusive_ptr<c10d::Store> &store,
    const c10::intrusive_ptr<c10d::Backend::Options> &options, const int &rank, const int &size)
{
    auto its = c10::make_intrusive<Options>(*options_);
    its->global_ranks_in_group.clear();
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
    switch (tutti_comm_get_async_error(communicator_->get())) {
    case TUTTI_OK: return c10d::ErrorType::SUCCESS;
    case TUTTI_TIMEOUT: return c10d::ErrorType::TIMEOUT;
    case TUTTI_PEER_LOST: return c10d::ErrorType::REMOTE_ERROR;
    default: return c10d::ErrorType::COMM_ERROR;
    }
}
void ProcessGroupTutti::abort() { communicator_->abort(); }

} // namespace tutti
