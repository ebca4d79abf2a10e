/* Exchanges the cores of a host's ranks, and gives them the same machine parameters, while a group joins. The
   parameters depend on the distance of the cores, which the hypervisor or the system may have changed since the last
   group. So the first rank of the host first exchanges pings with one rank on each of the other cores, a few
   microseconds with each, and takes the known parameters of the largest distance. If there are no known ones, it
   measures them on its own core and the core of the farthest rank. The others answer the pings and wait for the
   parameters. All waits have a limit. */
#include "backend/join/calibration.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/pause.h"
#include "backend/base/settings.h"
#include "backend/join/shm_group.h"
#include "kernels/stream.h"
#include <sched.h>
#include <string.h>

/* PINGING_NS allows for ranks that sleep up to 1 ms while they wait to join. */
enum { PINGS = 8, SETS = 5, PINGING_NS = 4000000 };
/* The pauses before a thread that answers pings yields, the polls between two looks at the time, the yields before it
   sleeps, and the longest sleep of a thread that answers none. */
enum { PAUSES = 1000, POLLS = 64, AWAKE = 10000, SLICE_MS = 50 };
/* The parameters that the first rank of a host publishes. */
struct parameters { struct machine machine; struct link_costs link_costs; };
_Static_assert(sizeof(struct parameters) <= PARAMETERS_BYTES, "the segment has room for the parameters");

/* Returns true on the first rank of a host. */
static bool comm_is_host_leader(const tutti_comm *comm) { return comm->executor.site.index == 0; }

/* ---- cores ---- */
void calibration_publish_rank(const tutti_comm *comm)
{
    cpu_set_t set;
    struct join_info *own = segment_join_info(comm->group.segment, group_index_of_rank(&comm->group, comm->group.rank));
    atomic_store(&own->core, wait_core());
    own->nonce_at = peers_nonce_address();
    own->admits = fence_register_process();
    /* The call fails on machines with more cores than the set holds. Then the ranks report no cores. */
    if (sched_getaffinity(0, sizeof set, &set) != 0) return;
    for (size_t core = 0; core < CORE_WORDS * 64 && core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &set)) own->cores[core / 64] |= (uint64_t)1 << core % 64;
}
/* Counts the cores on which any rank of the host may run. */
static int host_count_cores(const tutti_comm *comm)
{
    const struct segment *segment = comm->group.segment;
    int count = 0;
    for (int word = 0; word < CORE_WORDS; word++) {
        uint64_t cores = 0;
        for (int peer = 0; peer < segment->ranks; peer++) cores |= segment_join_info(segment, peer)->cores[word];
        count += __builtin_popcountll(cores);
    }
    return count ? count : segment->ranks;
}

/* Returns true if every rank lets others put fences into its threads. */
static bool host_all_admit_fences(const tutti_comm *comm)
{
    const struct segment *segment = comm->group.segment;
    bool all_admit = true;
    for (int peer = 0; peer < segment->ranks; peer++) all_admit &= segment_join_info(segment, peer)->admits == 1;
    return all_admit;
}

/* ---- the ping ---- */
/* Answers a ping of the first rank by incrementing it, and returns true; returns false if no ping has arrived. A ping
   is odd on its way to this rank, and even when it is back. */
static bool join_info_answer_ping(struct join_info *mine)
{
    uint32_t ping = atomic_load_explicit(&mine->ping, memory_order_acquire);
    if (ping % 2 == 0) return false;
    atomic_store_explicit(&mine->answer_core, wait_core(), memory_order_relaxed);
    atomic_store_explicit(&mine->ping, ping + 1, memory_order_release);
    return true;
}
/* Waits until the other rank's ping has the value `ping`. Returns false if it has not by `until_ns`. */
static bool join_info_await_ping(struct join_info *other, uint32_t ping, int64_t until_ns)
{
    for (int n = 1; atomic_load_explicit(&other->ping, memory_order_acquire) != ping; n++) {
        if (n < PAUSES) cpu_pause_briefly();
        else sched_yield();
        if (n % POLLS == 0 && clock_ns() > until_ns) return false;
    }
    return true;
}
/* Returns the one-way time of a cache line to the other rank in ns: the shortest of SETS means, because a disturbance
   only adds time. Returns 0 if no ping comes back from another core before `until_ns`. */
static double join_info_measure_line(struct join_info *other, int64_t until_ns)
{
    double best = 0;
    uint32_t ping = atomic_load(&other->ping);
    for (int set = 0; set < SETS && ping % 2 == 0; set++) {
        int64_t begin = clock_ns();
        for (int k = 0; k < PINGS; k++, ping += 2) {
            atomic_store_explicit(&other->ping, ping + 1, memory_order_release);
            if (!join_info_await_ping(other, ping + 2, until_ns)) return best;
        }
        double line = (double)(clock_ns() - begin) / (2 * PINGS);
        bool is_other_core = atomic_load_explicit(&other->answer_core, memory_order_relaxed) != wait_core();
        if (is_other_core && (best <= 0 || line < best)) best = line;
    }
    return best;
}

/* ---- the first rank ---- */
/* The largest one-way time of a cache line from this rank's core in ns, or 0, and the two cores. */
struct farthest { double line; int cores[2]; };
/* Adds a core (as wait_core) to the set. Returns true if it was not in the set. Cores beyond the set share one
   word. */
static bool core_mark_seen(uint64_t seen[CORE_WORDS + 1], uint32_t core)
{
    uint64_t *word = &seen[core / 64 < CORE_WORDS ? core / 64 : CORE_WORDS], bit = (uint64_t)1 << core % 64;
    bool is_new = !(*word & bit);
    *word |= bit;
    return is_new;
}
/* Measures the time to one rank of every core of the host, and returns the largest. It begins with the last rank, which
   is likely the farthest, in case time runs out. */
static struct farthest host_measure_distance(const tutti_comm *comm)
{
    uint64_t seen[CORE_WORDS + 1] = { 0 };
    int64_t until = clock_ns() + PINGING_NS;
    struct farthest farthest = { 0 };
    core_mark_seen(seen, wait_core());
    for (int peer = comm->group.segment->ranks - 1; peer > 0 && clock_ns() < until; peer--) {
        struct join_info *other = segment_join_info(comm->group.segment, peer);
        if (!core_mark_seen(seen, atomic_load(&other->core))) continue;
        double line = join_info_measure_line(other, until);
        if (line > farthest.line)
            farthest = (struct farthest){ line, { (int)wait_core() - 1, (int)atomic_load(&other->answer_core) - 1 } };
    }
    return farthest;
}
/* Measures the distance again, and returns true if it is within one of `distance`. */
static bool cores_distance_is_unchanged(const tutti_comm *comm, int distance)
{
    int moved = distance_of_line_time(host_measure_distance(comm).line) - distance;
    return moved >= -1 && moved <= 1;
}
/* Measures the machine parameters on the farthest ranks' cores, or on any if the distance is unknown (0). Sets
   *may_keep to whether the result may be stored for later jobs. */
static struct machine parameters_measure(const tutti_comm *comm, const struct farthest *farthest, int distance,
    bool *may_keep)
{
    struct machine parameters;
    bool is_complete = machine_probe(stream_find(), distance ? farthest->cores : NULL, &parameters);
    *may_keep = is_complete && distance && cores_distance_is_unchanged(comm, distance);
    LOG(DEBUG, "%s: the machine was measured%s%s", comm->group.name, is_complete ? "" : " in part",
        *may_keep ? "" : "; later jobs measure again");
    return parameters;
}
/* The first rank of a host: finds or measures the machine parameters and publishes them in shared memory. */
static void parameters_publish(const tutti_comm *comm, const struct link_costs *link_costs)
{
    struct calibration_record *calibration_record = comm->group.segment->calibration_record;
    struct farthest farthest = host_measure_distance(comm);
    struct machine parameters;
    int distance = distance_of_line_time(farthest.line);
    bool may_keep = false, is_known = machine_find_parameters(distance, &parameters);
    if (!is_known) parameters = parameters_measure(comm, &farthest, distance, &may_keep);
    LOG(DEBUG, "%s: a cache line takes %.0f ns from the first rank of the host to the farthest", comm->group.name,
        farthest.line);
    struct parameters all = { parameters, *link_costs };
    machine_override_parameters(&all.machine, settings_get()->parameters);
    link_costs_publish(link_costs, &all.machine);
    calibration_record->distance = distance;
    memcpy(calibration_record->parameters, &all, sizeof all);
    atomic_store(&calibration_record->ready, 1);
    if (atomic_load(&calibration_record->waiters)) word_wake(&calibration_record->ready, true);
    /* The other ranks have their parameters by now, so they do not wait for a slow disk. */
    if (!is_known) machine_store_parameters(distance, &parameters, may_keep);
}

/* ---- the other ranks ---- */
/* Returns true if the parameters may still come although the communicator is alerted. With several hosts, a rank of
   another host may join and abort before this rank has its parameters. They still come unless the first rank of this
   host is gone. */
static bool parameters_may_still_come(const tutti_comm *comm)
{
    int first = group_rank_at_index(&comm->group, 0);
    const struct peer *peer = comm->group.peers[first];
    return comm->agreement && !comm_rank_has_left(comm, first) && !(peer && peer_is_gone(peer));
}
/* Returns true if the first rank of the host may ping this rank: it pings the last rank of each core
   (host_measure_distance). */
static bool comm_may_be_pinged(const tutti_comm *comm)
{
    const struct segment *segment = comm->group.segment;
    int mine = comm->executor.site.index, later = mine + 1;
    uint32_t core = atomic_load(&segment_join_info(segment, mine)->core);
    while (later < segment->ranks && atomic_load(&segment_join_info(segment, later)->core) != core) later++;
    return later == segment->ranks;
}
/* Waits until the first rank of this host has published the parameters, and answers its pings meanwhile. A rank that it
   does not ping sleeps until then. */
static tutti_status parameters_await_published(tutti_comm *comm, int64_t deadline_ms)
{
    const struct segment *segment = comm->group.segment;
    struct calibration_record *record = segment->calibration_record;
    const struct backoff awake = backoff_of_budget(PAUSES / 10, AWAKE);
    bool may_be_pinged = comm_may_be_pinged(comm), alerted = false;
    struct wait_set set = { .idle = true };
    if (!may_be_pinged) wait_set_add(&set, &record->ready, 0, &record->waiters, true);
    for (int n = 1; !atomic_load_explicit(&record->ready, memory_order_acquire); n++) {
        /* The first rank may publish and abort right after, so this check comes after the read of `ready`. */
        if (alerted) TRY(comm_fail_if_due(comm));
        if (join_info_answer_ping(segment_join_info(segment, comm->executor.site.index))) n = 1;
        int most_ms = may_be_pinged ? 1 : clock_limit_sleep(SLICE_MS, deadline_ms);
        bool has_slept = backoff_wait(may_be_pinged ? &awake : &comm->group.backoff, n, &set, most_ms);
        if (!has_slept && n % POLLS) continue;
        TRY(shm_group_check_cancelled(&comm->group));
        alerted = comm_poll_reason_to_fail(comm) && !parameters_may_still_come(comm);
        if (!alerted && clock_ms() > deadline_ms)
            return comm_fail(comm, TUTTI_TIMEOUT,
                "rank %d of %s has joined but did not publish the machine parameters in time: it is too slow, "
                "stopped or gone",
                group_rank_at_index(&comm->group, 0), comm->group.name);
    }
    return TUTTI_OK;
}

/* ---- all ranks ---- */
/* Reads the published parameters. They are checked again here, because they come from shared memory. */
static struct parameters parameters_read_published(const tutti_comm *comm)
{
    const struct calibration_record *calibration_record = comm->group.segment->calibration_record;
    struct parameters parameters;
    memcpy(&parameters, calibration_record->parameters, sizeof parameters);
    if (!machine_is_within_bounds(&parameters.machine)) return (struct parameters){ .machine = machine_typical() };
    if (comm_is_host_leader(comm)) return parameters;
    /* A single read, so that the value that is checked is the value that is used. */
    int distance = *(const volatile int32_t *)&calibration_record->distance;
    struct machine own = parameters.machine, typical = machine_typical();
    machine_copy_network_costs(&own, &typical);
    if (distance >= 0 && distance < DISTANCES) machine_store_parameters(distance, &own, false);
    return parameters;
}
/* Logs the networks that messages of several sizes take to other hosts. */
static void router_log_networks(const tutti_comm *comm)
{
    const struct router *router = comm->router;
    const char *by[4];
    uint64_t bytes = 64;
    for (int i = 0; i < 4; i++, bytes <<= 7)
        by[i] = router_network_name(router, router_cheapest_network(router, bytes));
    LOG(INFO, "%s: between hosts 64 bytes go by %s, 8 KiB by %s, 1 MiB by %s, 128 MiB by %s", comm->group.name, by[0],
        by[1], by[2], by[3]);
}
tutti_status calibration_agree_parameters(tutti_comm *comm, const struct link_costs *link_costs, int64_t deadline_ms)
{
    /* A rank that is alone on its host uses typical parameters. */
    struct parameters parameters = { machine_typical(), *link_costs };
    link_costs_publish(link_costs, &parameters.machine);
    if (comm->executor.site.ranks > 1) {
        if (comm_is_host_leader(comm)) parameters_publish(comm, link_costs);
        else TRY(parameters_await_published(comm, deadline_ms));
        parameters = parameters_read_published(comm);
    }
    comm_set_machine(comm, &parameters.machine, host_count_cores(comm), host_all_admit_fences(comm));
    router_set_link_costs(comm->router, parameters.link_costs.by);
    if (comm->group.rank == 0 && router_network_count(comm->router) > 1) router_log_networks(comm);
    return TUTTI_OK;
}
