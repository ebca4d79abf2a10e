/* Exchanges the ranks' cores and the machine parameters of all ranks while a group joins. The parameters depend on the
   distance of the cores, which the hypervisor or the system may have changed since the last group. So the first rank of
   the host first exchanges pings with the others, a few microseconds with each, and takes the known parameters of that
   distance. If there are no known ones, it measures them on its own core and the core of the farthest rank. The others
   answer the pings and wait for the parameters. All waits have a limit. */
#include "backend/join/calibration.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/pause.h"
#include "backend/base/settings.h"
#include "kernels/stream.h"
#include <sched.h>
#include <string.h>

/* PINGING_NS allows for ranks that sleep up to 1 ms while they wait to join. */
enum { PINGS = 8, SETS = 5, PINGING_NS = 4000000 };
enum { PAUSES = 1000, POLLS = 64, AWAKE = 10000 };
struct parameters { struct machine machine; struct link_costs link_costs; };
_Static_assert(sizeof(struct parameters) <= PARAMETERS_BYTES, "the segment has room for the figures");

static bool is_first(const tutti_comm *comm) { return comm->executor.site.index == 0; }

/* ---- cores ---- */
void parameters_introduce(const tutti_comm *comm)
{
    cpu_set_t set;
    struct introduction *mine = segment_introduction(comm->group.segment, group_index(&comm->group, comm->group.rank));
    atomic_store(&mine->core, wait_core());
    mine->nonce_at = peers_nonce_at();
    mine->admits = fence_admit();
    /* The call fails on machines with more cores than the set holds. Then the ranks report no cores. */
    if (sched_getaffinity(0, sizeof set, &set) != 0) return;
    for (size_t core = 0; core < CORE_WORDS * 64 && core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &set)) mine->cores[core / 64] |= (uint64_t)1 << core % 64;
}
/* Counts the cores on which any rank of the host may run. */
static int count_cores(const tutti_comm *comm)
{
    const struct segment *s = comm->group.segment;
    int count = 0;
    for (int word = 0; word < CORE_WORDS; word++) {
        uint64_t cores = 0;
        for (int peer = 0; peer < s->ranks; peer++) cores |= segment_introduction(s, peer)->cores[word];
        count += __builtin_popcountll(cores);
    }
    return count ? count : s->ranks;
}

/* Returns true if every rank lets others put fences into its threads. */
static bool all_admit(const tutti_comm *comm)
{
    const struct segment *s = comm->group.segment;
    bool all = true;
    for (int peer = 0; peer < s->ranks; peer++) all &= segment_introduction(s, peer)->admits == 1;
    return all;
}

/* ---- the ping ---- */
/* A ping is odd on its way to the other rank, and even when it is back. */
static bool answer_ping(struct introduction *mine)
{
    uint32_t ping = atomic_load_explicit(&mine->ping, memory_order_acquire);
    if (ping % 2 == 0) return false;
    atomic_store_explicit(&mine->core, wait_core(), memory_order_relaxed);
    atomic_store_explicit(&mine->ping, ping + 1, memory_order_release);
    return true;
}
static bool await_ping(struct introduction *other, uint32_t ping, int64_t until_ns)
{
    for (int n = 1; atomic_load_explicit(&other->ping, memory_order_acquire) != ping; n++) {
        if (n < PAUSES) pause_briefly();
        else sched_yield();
        if (n % POLLS == 0 && clock_ns() > until_ns) return false;
    }
    return true;
}
/* Returns the shortest one-way time in ns, because a disturbance only adds time. Returns 0 if no ping comes back in
   time from another core. */
static double measure_line(struct introduction *other, int64_t until_ns)
{
    double best = 0;
    uint32_t ping = atomic_load(&other->ping);
    for (int set = 0; set < SETS && ping % 2 == 0; set++) {
        int64_t begin = clock_ns();
        for (int k = 0; k < PINGS; k++, ping += 2) {
            atomic_store_explicit(&other->ping, ping + 1, memory_order_release);
            if (!await_ping(other, ping + 2, until_ns)) return best;
        }
        double line = (double)(clock_ns() - begin) / (2 * PINGS);
        bool apart = atomic_load_explicit(&other->core, memory_order_relaxed) != wait_core();
        if (apart && (best <= 0 || line < best)) best = line;
    }
    return best;
}

/* ---- the first rank ---- */
struct farthest { double line; int cores[2]; };
static bool is_new(uint64_t seen[CORE_WORDS + 1], uint32_t core)
{
    uint64_t *word = &seen[core / 64 < CORE_WORDS ? core / 64 : CORE_WORDS], bit = (uint64_t)1 << core % 64;
    bool new = !(*word & bit);
    *word |= bit;
    return new;
}
/* Measures one rank of every core. It begins with the last rank, which is likely the farthest, in case time runs
   out. */
static struct farthest measure_distance(const tutti_comm *comm)
{
    uint64_t seen[CORE_WORDS + 1] = { 0 };
    int64_t until = clock_ns() + PINGING_NS;
    struct farthest far = { 0 };
    is_new(seen, wait_core());
    for (int peer = comm->group.segment->ranks - 1; peer > 0 && clock_ns() < until; peer--) {
        struct introduction *other = segment_introduction(comm->group.segment, peer);
        if (!is_new(seen, atomic_load(&other->core))) continue;
        double line = measure_line(other, until);
        if (line > far.line)
            far = (struct farthest){ line, { (int)wait_core() - 1, (int)atomic_load(&other->core) - 1 } };
    }
    return far;
}
static bool are_still_there(const tutti_comm *comm, int distance)
{
    int moved = machine_distance(measure_distance(comm).line) - distance;
    return moved >= -1 && moved <= 1;
}
static struct machine parameters_measure(const tutti_comm *comm, const struct farthest *far, int distance, bool *keep)
{
    struct machine parameters;
    bool complete = machine_probe(stream_find(), distance ? far->cores : NULL, &parameters);
    *keep = complete && distance && are_still_there(comm, distance);
    LOG(DEBUG, "%s: the machine was measured%s%s", comm->group.name, complete ? "" : " in part",
        *keep ? "" : "; later jobs measure again");
    return parameters;
}
static void parameters_publish(const tutti_comm *comm, const struct link_costs *link_costs)
{
    struct told *told = comm->group.segment->told;
    struct farthest far = measure_distance(comm);
    struct machine parameters;
    int distance = machine_distance(far.line);
    bool keep = false, known = machine_recall(distance, &parameters);
    if (!known) parameters = parameters_measure(comm, &far, distance, &keep);
    LOG(DEBUG, "%s: a cache line takes %.0f ns from rank 0 to the farthest rank", comm->group.name, far.line);
    struct parameters all = { parameters, *link_costs };
    machine_override(&all.machine, settings_get()->parameters);
    link_costs_publish(link_costs, &all.machine);
    told->distance = distance;
    memcpy(told->parameters, &all, sizeof all);
    atomic_store(&told->ready, 1);
    /* The other ranks have their parameters by now, so they do not wait for a slow disk. */
    if (!known) machine_learn(distance, &parameters, keep);
}

/* ---- the other ranks ---- */
/* Returns true if the parameters may still come although the communicator is alerted. With several hosts, a rank of
   another host may join and abort before this rank has its parameters. They still come unless the first rank of this
   host is gone. */
static bool may_come(const tutti_comm *comm)
{
    int first = group_rank(&comm->group, 0);
    const struct peer *peer = comm->group.peers[first];
    return comm->agreement && !comm_has_left(comm, first) && !(peer && peer_is_gone(peer));
}
static tutti_status await_word(tutti_comm *comm, int64_t deadline_ms)
{
    static const struct wait_set none;
    const struct backoff backoff = backoff_of(PAUSES / 10, AWAKE);
    const struct segment *segment = comm->group.segment;
    bool alerted = false;
    for (int n = 1; !atomic_load_explicit(&segment->told->ready, memory_order_acquire); n++) {
        /* The first rank may publish and abort right after, so this check comes after the read of `ready`. */
        if (alerted) TRY(comm_check(comm));
        if (answer_ping(segment_introduction(segment, comm->executor.site.index))) n = 1;
        backoff_wait(&backoff, n, &none, 1);
        if (n % POLLS) continue;
        alerted = comm_is_alerted(comm) && !may_come(comm);
        if (!alerted && clock_ms() > deadline_ms)
            return comm_fail(comm, TUTTI_TIMEOUT,
                "rank %d of %s has joined but did not publish the machine parameters in time: it is too slow, "
                "stopped or gone",
                group_rank(&comm->group, 0), comm->group.name);
    }
    return TUTTI_OK;
}

/* ---- all ranks ---- */
/* Reads the published parameters. They are checked again here, because they come from shared memory. */
static struct parameters parameters_told(const tutti_comm *comm)
{
    const struct told *told = comm->group.segment->told;
    struct parameters parameters;
    memcpy(&parameters, told->parameters, sizeof parameters);
    if (!machine_is_sane(&parameters.machine)) return (struct parameters){ .machine = machine_typical() };
    if (is_first(comm)) return parameters;
    /* A single read, so that the value that is checked is the value that is used. */
    int distance = *(const volatile int32_t *)&told->distance;
    struct machine own = parameters.machine, typical = machine_typical();
    machine_take_network(&own, &typical);
    if (distance >= 0 && distance < DISTANCES) machine_learn(distance, &own, false);
    return parameters;
}
/* Logs the networks that messages of several sizes take to other hosts. */
static void say_choice(const tutti_comm *comm)
{
    const struct router *r = comm->router;
    const char *by[4];
    uint64_t bytes = 64;
    for (int i = 0; i < 4; i++, bytes <<= 7) by[i] = router_network_name(r, router_network_for(r, bytes));
    LOG(INFO, "%s: between hosts 64 bytes go by %s, 8 KiB by %s, 1 MiB by %s, 128 MiB by %s", comm->group.name, by[0],
        by[1], by[2], by[3]);
}
tutti_status parameters_agree(tutti_comm *comm, const struct link_costs *link_costs, int64_t deadline_ms)
{
    /* A rank that is alone on its host uses typical parameters. */
    struct parameters parameters = { machine_typical(), *link_costs };
    link_costs_publish(link_costs, &parameters.machine);
    if (comm->executor.site.ranks > 1) {
        if (is_first(comm)) parameters_publish(comm, link_costs);
        else TRY(await_word(comm, deadline_ms));
        parameters = parameters_told(comm);
    }
    comm_tune(comm, &parameters.machine, count_cores(comm), all_admit(comm));
    router_take_link_costs(comm->router, parameters.link_costs.by);
    if (comm->group.rank == 0 && router_networks(comm->router) > 1) say_choice(comm);
    return TUTTI_OK;
}
