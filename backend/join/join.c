/* Joins the known members. This rank places them on hosts, connects to their processes, or holds links to those on
   other hosts, and maps the segments, which proves that ranks share a host. It watches the peers, publishes its cores,
   and makes the router. It waits for the ranks that share memory. The first rank of a host then waits for the other
   hosts. The ranks of a host agree on the machine parameters. comm_destroy cleans up after a failed join. */
#include "backend/join/join.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/base/random.h"
#include "backend/base/settings.h"
#include "backend/control/lifetime.h"
#include "backend/join/calibration.h"
#include "backend/join/contacts.h"
#include "backend/join/host_barrier.h"
#include "backend/join/hosts.h"
#include "backend/join/interface.h"
#include "backend/join/join_result.h"
#include "backend/join/mapping.h"
#include "backend/links/tls.h"
#include "backend/model/cost.h"
#include "backend/processes/secret.h"
#include "backend/transports/fabrics.h"
#include "backend/transports/shm/shm.h"
#include <stdio.h>
#include <stdlib.h>

/* NETWORK differs from the number of any host. After each slice a wait checks whether the join was cancelled or
   aborted. */
enum { CHECK_EVERY = 64, SLICE_MS = 50, NETWORK = -1 };
/* Bytes of one rank's slots, of which only the used ones take memory. With several hosts they serve two operations
   (execute/slots.c). */
enum { SLOT_BYTES = 16 << 20, NETWORK_SLOT_BYTES = 2 * STAGED_AT_MOST * BYTES_WITH_MESSAGES };

/* The watch of one rank's process. */
struct member_watch { struct peer_watch watch; tutti_comm *comm; int rank; };
/* The connections, watches and segments that a communicator holds. */
struct membership {
    /* peers_acquire was called. The watches are set. */
    bool acquired, watching;
    int size;
    /* The segments, which the ranks of this process share. */
    struct mapping *host, *network;
    struct member_watch watches[]; /* [size] */
};

/* ---- watching ---- */
/* Records that the process of a rank is lost. Runs on the watch thread. */
static void member_watch_on_lost(void *context)
{
    struct member_watch *watch = context;
    failure_record_lost_rank(watch->comm, watch->rank);
}
/* Watches the processes of all ranks, so that this rank learns of their deaths. */
static void membership_watch_peers(tutti_comm *comm)
{
    struct membership *m = comm->membership;
    for (int r = 0; r < m->size; r++) {
        struct member_watch *w = &m->watches[r];
        struct peer *peer = comm->group.peers[r];
        *w = (struct member_watch){
            .watch = { .peer = peer, .lost = member_watch_on_lost, .context = w }, .comm = comm, .rank = r
        };
        if (peer) peer_watch(&w->watch);
    }
    m->watching = true;
}
void join_unwatch_peers(tutti_comm *comm)
{
    struct membership *m = comm->membership;
    for (int r = 0; m && m->watching && r < m->size; r++)
        if (m->watches[r].watch.peer) peer_unwatch(&m->watches[r].watch);
}
void join_release_membership(struct membership *m)
{
    if (!m) return;
    mapping_release(m->host);
    mapping_release(m->network);
    if (m->acquired) peers_release();
    free(m);
}

/* ---- joining ---- */
tutti_status join_init_member(tutti_comm *comm, struct member *out)
{
    const struct group *group = &comm->group;
    struct membership *m = memory_alloc_zeroed(1, sizeof *m + (size_t)group->size * sizeof *m->watches);
    if (!m) return status_fail(TUTTI_NO_MEMORY, "no memory to watch %d members", group->size);
    m->size = group->size;
    comm->membership = m;
    *out = (struct member){ .timeout_ms = comm->timeout_ms, .size = (uint32_t)group->size, .build = TUTTI_SOURCES | 1 };
    snprintf(out->group, sizeof out->group, "%s", group->name);
    TRY(peers_acquire(&out->identity));
    m->acquired = true;
    return group->rank == 0 ? random_fill(out->token, sizeof out->token) : TUTTI_OK;
}
tutti_status join_simulate_host(int rank, int size, struct member *out)
{
    const char *text = settings_get()->hosts;
    int *hosts = memory_alloc_zeroed((size_t)size, sizeof *hosts);
    if (!hosts) return status_fail(TUTTI_NO_MEMORY, "no memory for the hosts of %d ranks", size);
    tutti_status status = hosts_parse_setting(text, size, hosts);
    out->host = hosts[rank];
    out->simulates = hosts_setting_number(text, size) & ~SIMULATES_LINKS;
    if (*text && transport_is_given()) out->simulates |= SIMULATES_LINKS;
    free(hosts);
    return status;
}
tutti_status join_offer_address(const char *store_host, bool by_id, struct member *out)
{
    TRY(transport_check());
    /* An error here reaches the other ranks as the reason why this rank cannot join. */
    TRY(secret_load());
    out->fabrics = (uint16_t)fabrics_parse_names(settings_get()->transport, NULL);
    out->encrypts = encryption_is_required();
    const char *host = store_host && *store_host ? store_host : NULL;
    bool may_have_hosts = !by_id && (host || *settings_get()->socket_ifname);
    if (out->size == 1 || (!may_have_hosts && !(out->simulates & SIMULATES_LINKS))) return TUTTI_OK;
    return member_offer_address(host, out);
}
/* Fails with `status` because this rank cannot reach `rank`. The reason is this thread's last error. */
static tutti_status join_fail_unreachable(const struct group *group, int rank, tutti_status status)
{
    const struct identity *other = &group->members[rank].identity;
    char why[STATUS_DETAIL_BYTES / 2];
    snprintf(why, sizeof why, "%.500s", status_detail());
    return status_fail(status, "rank %d of %s cannot reach rank %d (process %llu on %.40s): %s", group->rank,
        group->name, rank, (unsigned long long)other->pid, other->host, why);
}
/* Waits until this process is connected to that of a rank of this host. Checks meanwhile whether the join was cancelled
   or aborted. */
static tutti_status join_await_peer(const struct group *group, int rank, int64_t deadline_ms)
{
    for (;;) {
        int64_t slice_ms = clock_ms() + SLICE_MS;
        bool is_last_slice = slice_ms >= deadline_ms;
        tutti_status status = peer_await(group->peers[rank], is_last_slice ? deadline_ms : slice_ms);
        if (status == TUTTI_OK) return status;
        if (is_last_slice || status != TUTTI_TIMEOUT) return join_fail_unreachable(group, rank, status);
        TRY(shm_group_check_join(group));
    }
}
/* Connects to the process of a rank of this host, or holds the link to one of another host, without connecting it
   yet. */
static tutti_status join_connect_rank(tutti_comm *comm, int rank, int64_t deadline_ms)
{
    const struct group *group = &comm->group;
    const struct member *m = &group->members[rank];
    bool uses_link = group_uses_links(group) && !group_rank_is_here(group, rank);
    tutti_status status = uses_link ? link_acquire(&m->identity, &group->key, &m->contact, &group->peers[rank])
                                    : peer_acquire(&m->identity, &group->key, &group->peers[rank]);
    if (status != TUTTI_OK) return join_fail_unreachable(group, rank, status);
    return uses_link ? TUTTI_OK : join_await_peer(group, rank, deadline_ms);
}
/* Connects to the processes of all ranks of other processes (join_connect_rank). */
static tutti_status join_connect_peers(tutti_comm *comm, int64_t deadline_ms)
{
    for (int r = 0; r < comm->group.size; r++) {
        if (member_shares_process(&comm->group.members[r], &comm->group.members[comm->group.rank])) continue;
        TRY(join_connect_rank(comm, r, deadline_ms));
    }
    return TUTTI_OK;
}
/* Counts this rank as joined. The last rank of the segment wakes the others. */
static void join_announce_rank(const struct group *group, const struct segment *segment)
{
    struct join_counter *counter = segment->join_counter;
    atomic_store(&group_control_of_rank(group, group->rank)->joined, 1);
    if (atomic_fetch_add(&counter->joined, 1) + 1 < (uint32_t)segment->ranks) return;
    atomic_store(&counter->all_joined, 1);
    if (atomic_load(&counter->waiters)) word_wake(&counter->all_joined, true);
}
/* Fails because a rank that shares memory has not joined in time, and names the first such rank. */
static tutti_status join_fail_late_rank(tutti_comm *comm, const struct segment *segment)
{
    const struct group *group = &comm->group;
    int late = 0;
    while (late < segment->ranks - 1 && atomic_load(&segment_control(segment, late)->joined)) late++;
    return comm_fail(comm, TUTTI_TIMEOUT,
        "rank %d of %s began to join but did not finish in time: it is too slow, stopped or gone",
        group->network ? late : group_rank_at_index(group, late), group->name);
}
/* Announces that this rank has joined, and waits for the ranks that share memory: those of this host in a linked group,
   else all. A rank that waits sleeps: if a host has more ranks than cores, it would keep a core from a rank that still
   joins. */
static tutti_status join_await_ranks(tutti_comm *comm, int64_t deadline_ms)
{
    const struct group *group = &comm->group;
    const struct segment *segment = group->network ? group->network : group->segment;
    struct join_counter *counter = segment->join_counter;
    struct wait_set set = { .idle = true };
    wait_set_add(&set, &counter->all_joined, 0, &counter->waiters, true);
    join_announce_rank(group, segment);
    bool has_slept = true;
    for (int n = 0;; n++) {
        /* The alert is read first, because a rank may join and abort right after. */
        bool is_alerted = comm_poll_reason_to_fail(comm);
        if (atomic_load(&counter->joined) >= (uint32_t)segment->ranks) return TUTTI_OK;
        if (is_alerted) TRY(comm_fail_if_due(comm));
        if (has_slept || n % CHECK_EVERY == 0) TRY(shm_group_check_join(group));
        if (clock_ms() > deadline_ms) return join_fail_late_rank(comm, segment);
        has_slept = backoff_wait(&group->backoff, n, &set, clock_limit_sleep(SLICE_MS, deadline_ms));
    }
}
/* Sets the layout of the group (which ranks share a host), and checks the addresses of a linked group. */
static tutti_status join_place_ranks(tutti_comm *comm)
{
    struct layout *layout;
    struct group *group = &comm->group;
    TRY(hosts_create_layout(group, &layout));
    comm_set_layout(comm, layout);
    if (!group_uses_links(group)) return TUTTI_OK;
    const struct member *mine = &group->members[group->rank];
    interface_find_name(&mine->contact, group->interface);
    TRY(members_check_addresses(group));
    bool is_first_here = group_index_of_rank(group, group->rank) == 0;
    if (is_first_here && !mine->simulates && !*settings_get()->socket_ifname) interface_warn_if_slow(&mine->contact);
    return TUTTI_OK;
}
/* Maps the segment of this host's ranks. */
static tutti_status join_map_host(const struct group *group, int64_t deadline_ms, struct mapping **out)
{
    int ranks = layout_host_size(group->layout, group->host);
    struct shm_group shm_group = { group->layout->rank + group->layout->first[group->host], ranks, group->host };
    bool is_only_host = !group_has_several_hosts(group);
    size_t slots = is_only_host ? SLOT_BYTES : NETWORK_SLOT_BYTES;
    struct segment_shape shape = { ranks, group->size, slots, shm_pair_bytes(),
        is_only_host ? 0 : agreement_account_bytes() };
    return mapping_acquire(group, &shm_group, &shape, deadline_ms, out);
}
/* Maps the segment between simulated hosts, which has pairs for messages and bells. It has all ranks, host by host. */
static tutti_status join_map_network(const struct group *group, int64_t deadline_ms, struct mapping **out)
{
    if (!group_has_several_hosts(group) || group_uses_links(group)) return TUTTI_OK;
    struct shm_group shm_group = { group->layout->rank, group->size, NETWORK };
    struct segment_shape shape = { group->size, 0, 0, shm_pair_bytes(), 0 };
    return mapping_acquire(group, &shm_group, &shape, deadline_ms, out);
}
/* Maps the segments, and makes the communicator use them. */
static tutti_status join_map_segments(tutti_comm *comm, int64_t deadline_ms)
{
    struct membership *m = comm->membership;
    TRY(join_map_host(&comm->group, deadline_ms, &m->host));
    TRY(join_map_network(&comm->group, deadline_ms, &m->network));
    return comm_attach_segments(comm, &m->host->segment, m->network ? &m->network->segment : NULL);
}

/* Connects this host with the other hosts, waits for them, and sets *out to the link costs. The first rank of a host
   calls it. The other ranks wait for the parameters that follow, and report its error if it fails. */
static tutti_status join_await_hosts(tutti_comm *comm, int64_t deadline_ms, struct link_costs *out)
{
    TRY(hosts_connect_links(comm, deadline_ms));
    return host_barrier_wait(comm, deadline_ms, out);
}

/* ---- the whole join ---- */
/* Runs the steps of joining, in order, after the table of members is known. */
static tutti_status join_run_steps(tutti_comm *comm, int64_t deadline_ms)
{
    TRY(join_place_ranks(comm));
    TRY(join_connect_peers(comm, deadline_ms));
    TRY(join_map_segments(comm, deadline_ms));
    membership_watch_peers(comm);
    calibration_publish_rank(comm);
    TRY(messages_create_router(comm));
    TRY(join_await_ranks(comm, deadline_ms));
    struct link_costs link_costs = { 0 };
    if (!group_uses_links(&comm->group)) return calibration_agree_parameters(comm, &link_costs, deadline_ms);
    if (comm->executor.site.index == 0) TRY(join_await_hosts(comm, deadline_ms, &link_costs));
    return calibration_agree_parameters(comm, &link_costs, deadline_add_ms(deadline_ms, GRACE_MS));
}
tutti_status join_members(tutti_comm *comm, int64_t deadline_ms)
{
    char detail[OPERATION_DETAIL_BYTES];
    tutti_status status = join_run_steps(comm, deadline_ms);
    if (status == TUTTI_OK) {
        comm_list_mark_joined(comm);
        LOG(INFO, "%s: rank %d of %d has joined", comm->group.name, comm->group.rank, comm->group.size);
        return status;
    }
    snprintf(detail, sizeof detail, "%.500s", status_detail());
    bool reaches_others = comm->group.segment && (!group_has_several_hosts(&comm->group) || comm->agreement);
    mapping_record_failure(&comm->group, status, detail);
    /* The failure goes to the other ranks through shared memory or the agreement, so that they stop waiting. */
    if (reaches_others) return comm_fail(comm, status, "%s", detail);
    peers_abort_join(comm->group.members[0].token);
    return status_repeat(status, detail);
}
