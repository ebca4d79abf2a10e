/* Joins a group through torch's store. */
#include "shim/join.hpp"
#include "shim/checks.hpp"
#include "shim/process_group.hpp"
#include "shim/signals.hpp"
#include <algorithm>
#include <atomic>
#include <c10/util/Exception.h>
#include <cstdlib>
#include <cstring>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

namespace tutti {

/* ---- the store ---- */
/* The context of the core's store functions, and of its question whether the join is cancelled. */
struct StoreBridge {
    c10::intrusive_ptr<c10d::Store> store;
    /* The text of the last exception of the store, empty without one. A timeout is forgotten when a later call
     * succeeds. */
    std::string problem;
    bool is_late = false;
    /* The last exception was an error of the network, so the store's process has probably ended. */
    bool is_lost = false;
    /* The check of communicator_join(), and its exception or null. */
    std::function<void()> check;
    std::exception_ptr ended;
    StoreBridge(c10::intrusive_ptr<c10d::Store> used, std::function<void()> caller_check)
        : store(std::move(used)), check(std::move(caller_check))
    {}
};

/* Returns the status of use(store). An exception of the store becomes TUTTI_TIMEOUT or TUTTI_SYSTEM, and its text is
 * kept in the StoreBridge `context`. */
template <typename Use> static tutti_status store_call_catching(void *context, Use use)
{
    auto *bridge = static_cast<StoreBridge *>(context);
    try {
        tutti_status status = use(*bridge->store);
        if (status == TUTTI_OK && std::exchange(bridge->is_late, false)) bridge->problem.clear();
        return status;
    } catch (const std::exception &e) {
        /* Stores throw different exceptions when a key is late, so the text decides. */
        bridge->problem = error_text(e);
        bridge->is_lost = dynamic_cast<const c10::DistNetworkError *>(&e);
        bridge->is_late = bridge->problem.find("imeout") != std::string::npos
            || bridge->problem.find("imed out") != std::string::npos;
        return bridge->is_late ? TUTTI_TIMEOUT : TUTTI_SYSTEM;
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
/* Reads a key for tutti_store.get. A negative timeout leaves the wait to the store. */
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
    StoreBridge unreported(bridge->store, {});
    return store_call_catching(&unreported,
        [&](c10d::Store &store) { return store.deleteKey(key) ? TUTTI_OK : TUTTI_SYSTEM; });
}
/* Runs the check, and keeps what it throws, which ends the join; later calls run nothing. Returns true if it has ended
 * the join. */
static bool store_bridge_poll_cancelled(void *context)
{
    auto *bridge = static_cast<StoreBridge *>(context);
    try {
        if (!bridge->ended) bridge->check();
    } catch (...) {
        bridge->ended = std::current_exception();
    }
    return bridge->ended != nullptr;
}
/* True if all `ranks` of the job are on this host, according to the variables that torchrun sets. A program may join
 * the ranks of several torchrun starts to a larger job, so WORLD_SIZE must also equal the size of the job. */
static bool job_is_on_one_host(int ranks)
{
    const char *on_host = std::getenv("LOCAL_WORLD_SIZE"), *of_job = std::getenv("WORLD_SIZE");
    return on_host && of_job && std::strcmp(on_host, of_job) == 0 && of_job == std::to_string(ranks);
}
/* Returns the TCP store inside of prefixes, or null for another store. */
static c10::intrusive_ptr<c10d::TCPStore> store_find_tcp(c10::intrusive_ptr<c10d::Store> store)
{
    while (auto *prefixed = dynamic_cast<c10d::PrefixStore *>(store.get())) store = prefixed->getUnderlyingStore();
    auto *tcp = dynamic_cast<c10d::TCPStore *>(store.get());
    return tcp ? c10::intrusive_ptr<c10d::TCPStore>::reclaim_copy(tcp) : nullptr;
}
/* Returns the text of a join's error if the process of the store has ended or is out of reach. */
static std::string store_format_loss(const c10::intrusive_ptr<c10d::Store> &store, int rank, const std::string &group)
{
    auto tcp = store_find_tcp(store);
    std::string at = tcp ? c10::str(" at ", tcp->getHost(), ":", tcp->getPort()) : "";
    return c10::str("rank ", rank, " cannot join group ", group, ": the process that holds the store", at,
        " (rank 0, unless the launcher holds it) has ended or cannot be reached; read the last lines of its output");
}
/* Returns the host of a TCP store. The text is empty for other stores, for a loopback name, and if all `ranks` of the
 * job are on one host. */
static std::string store_get_host(const c10::intrusive_ptr<c10d::Store> &store, int ranks)
{
    auto tcp = store_find_tcp(store);
    if (!tcp || job_is_on_one_host(ranks)) return "";
    const std::string &host = tcp->getHost();
    return host == "localhost" || host == "127.0.0.1" || host == "::1" ? "" : host;
}
/* The size of the last group of all ranks that this process has joined, or 0. */
static std::atomic<int> job_size{ 0 };
/* Returns the size of the job that contains the group of `size` ranks. A group of all ranks is the job, and a merged
 * group is a job of its own, which also contains its parts. Returns 0 if there is no such job, or if a member, such
 * as a late worker of a parameter server, has no rank in it. */
static int options_find_job_size(const Options &options, int size)
{
    /* Torch gives no members for the group of all ranks. */
    const auto &members = options.global_ranks_in_group;
    if (members.empty()) return size;
    const int found = options.merged_size ? options.merged_size : job_size.load();
    bool is_inside =
        std::all_of(members.begin(), members.end(), [found](uint64_t member) { return member < uint64_t(found); });
    return is_inside ? found : 0;
}
/* Sets in `config` the size of the job, this rank's number in it, and the group's members. `members` are ranks of the
 * job, or empty for a group of all ranks. The core takes a group without a job and without members for all ranks of a
 * new job, which a merged group is not. */
static void config_set_job(const Options &options, const std::vector<int> &members, int job_ranks, tutti_config &config)
{
    bool is_listed = static_cast<int>(members.size()) == config.size;
    if (is_listed || options.merged_size) config.job_size = job_ranks;
    if (config.job_size) config.job_rank = is_listed ? members[static_cast<size_t>(config.rank)] : config.rank;
    if (is_listed && !options.is_alone) config.members = members.data();
    config.is_reconfigurable = members.empty();
}
/* Joins the group and returns the core's communicator. Throws the core's error, with the store's error in its text, or
 * the exception of the check. */
static tutti_comm *comm_join_through_store(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
    const std::string &group, const Options &options, std::chrono::milliseconds timeout,
    const std::function<void()> &check)
{
    StoreBridge bridge(store, signals_add_to_check(check));
    tutti_config config = TUTTI_CONFIG_INIT;
    config.rank = rank;
    config.size = size;
    config.store = { &bridge, store_bridge_put, store_bridge_get };
    config.store_remove = store_bridge_remove;
    std::string name = "group " + group;
    config.name = group.empty() ? nullptr : name.c_str();
    config.algorithm = options.algorithm.empty() ? nullptr : options.algorithm.c_str();
    config.timeout_ms = std::max<int64_t>(timeout.count(), 0);
    const auto &global_ranks = options.global_ranks_in_group;
    const std::vector<int> members(global_ranks.begin(), global_ranks.end());
    const int job = options_find_job_size(options, size);
    config_set_job(options, members, job, config);
    /* Some ranks of a merged group may be of another start of torchrun. */
    std::string store_host = store_get_host(store, options.merged_size ? 0 : job);
    config.store_host = store_host.empty() ? nullptr : store_host.c_str();
    config.is_cancelled = bridge.check ? store_bridge_poll_cancelled : nullptr;
    tutti_comm *comm = nullptr;
    tutti_status status = tutti_comm_init(&comm, &config);
    if (status == TUTTI_OK && members.empty() && !options.merged_size) job_size = size;
    if (status == TUTTI_OK) return comm;
    if (bridge.ended) std::rethrow_exception(bridge.ended);
    std::string text = bridge.is_lost ? store_format_loss(store, rank, group) : tutti_get_last_error();
    if (!bridge.problem.empty())
        text += " (the store said: " + bridge.problem.substr(0, bridge.problem.find('\n')) + ")";
    error_throw(status, text);
}
c10::intrusive_ptr<Communicator> communicator_join(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
    const std::string &group, const Options &options, std::chrono::milliseconds timeout,
    const std::function<void()> &check)
{
    signals_watch();
    auto communicator =
        c10::make_intrusive<Communicator>(comm_join_through_store(store, rank, size, group, options, timeout, check));
    bool is_set =
        timeout == options.timeout || tutti_comm_set_timeout(communicator->get(), options.timeout.count()) == TUTTI_OK;
    if (!is_set) error_throw_last(TUTTI_INVALID_ARGUMENT);
    if (check_mode_get() != CheckMode::off) {
        auto own_keys = c10::make_intrusive<c10d::PrefixStore>("checks", store);
        tutti_comm *comm = comm_join_through_store(own_keys, rank, size, group + " (checks)", options, timeout, check);
        communicator->checks = std::make_shared<ResultChecks>(c10::make_intrusive<Communicator>(comm));
    }
    return communicator;
}
void options_check_algorithms(const Options &options)
{
    if (options.algorithm.empty()) return;
    tutti_config config = TUTTI_CONFIG_INIT;
    config.size = config.job_size = 1;
    config.algorithm = options.algorithm.c_str();
    tutti_comm *comm = nullptr;
    if (tutti_status status = tutti_comm_init(&comm, &config); status != TUTTI_OK) error_throw_last(status);
    tutti_comm_destroy(comm);
}

} // namespace tutti
