/* Joining, when the members are known: place them on hosts, connect to their processes, map the segments (which proves
   who shares a host), watch the peers, agree on what the machine is like, connect the transports. Whatever fails on the
   way is undone by comm_destroy. */
#include "backend/join/join.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/base/random.h"
#include "backend/base/settings.h"
#include "backend/join/bootstrap.h"
#include "backend/join/figures.h"
#include "backend/join/hosts.h"
#include "backend/join/mapping.h"
#include "backend/transports/shm/shm.h"
#include <stdio.h>
#include <stdlib.h>

enum { CHECK_EVERY = 64, NETWORK = -1 };                /* a number that no host has */
/* of one rank; only what is used becomes memory */
enum { SLOT_BYTES = 16 << 20, NETWORK_SLOT_BYTES = 64 << 20 };

struct member_watch { struct peer_watch watch; tutti_comm *comm; int rank; };
struct membership {
    bool acquired, watching;                            /* peers_acquire was called; watches are set */
    int size;
    struct mapping *host, *network;                     /* segments, shared by the ranks of this process */
    struct member_watch watches[];                      /* [size] */
};

/* ---- watching ---- */
static void peer_lost(void *context)                                    /* on the watch thread */
{
    struct member_watch *w = context;
    failure_note_lost(w->comm, w->rank);
}
static void watch_peers(tutti_comm *comm)
{
    struct membership *m = comm->membership;
    for (int r = 0; r < m->size; r++) {
        struct member_watch *w = &m->watches[r];
        struct peer *peer = comm->group.peers[r];
        *w = (struct member_watch){
            .watch = { .peer = peer, .lost = peer_lost, .context = w }, .comm = comm, .rank = r
        };
        if (peer) peer_watch(&w->watch);
    }
    m->watching = true;
}
void join_unwatch(tutti_comm *comm)
{
    struct membership *m = comm->membership;
    for (int r = 0; m && m->watching && r < m->size; r++)
        if (m->watches[r].watch.peer) peer_unwatch(&m->watches[r].watch);
}
void join_undo(struct membership *m)
{
    if (!m) return;
    mapping_release(m->host);
    mapping_release(m->network);
    if (m->acquired) peers_release();
    free(m);
}

/* ---- joining ---- */
tutti_status join_introduce(tutti_comm *comm, struct member *out)
{
    const struct group *g = &comm->group;
    struct membership *m = memory_zeroed(1, sizeof *m + (size_t)g->size * sizeof *m->watches);
    if (!m) return status_fail(TUTTI_NO_MEMORY, "no memory to watch %d members", g->size);
    m->size = g->size;
    comm->membership = m;
    *out = (struct member){ .timeout_ms = comm->timeout_ms, .size = (uint32_t)g->size, .build = TUTTI_SOURCES | 1 };
    snprintf(out->group, sizeof out->group, "%s", g->name);
    TRY(peers_acquire(&out->identity));
    m->acquired = true;
    return g->rank == 0 ? random_fill(out->token, sizeof out->token) : TUTTI_OK;
}
tutti_status join_pretend(int rank, int size, struct member *out)
{
    const char *text = settings_get()->hosts;
    int *hosts = memory_zeroed((size_t)size, sizeof *hosts);
    if (!hosts) return status_fail(TUTTI_NO_MEMORY, "no memory for the hosts of %d ranks", size);
    tutti_status status = hosts_parse(text, size, hosts);
    out->host = hosts[rank];
    out->pretends = hosts_number(text, size) & ~PRETENDS_LINKS;
    free(hosts);
    return status;
}
static tutti_status connect_peers(tutti_comm *comm, int64_t deadline_ms)
{
    for (int r = 0; r < comm->group.size; r++) {
        const struct identity *other = &comm->group.members[r].identity;
        if (member_shares_process(&comm->group.members[r], &comm->group.members[comm->group.rank])) continue;
        tutti_status status = peer_connect(other, deadline_ms, &comm->group.peers[r]);
        if (status == TUTTI_OK) continue;
        char detail[STATUS_DETAIL_BYTES / 2];
        snprintf(detail, sizeof detail, "%.500s", status_detail());
        return status_fail(status, "rank %d of %s cannot reach rank %d (process %llu on %.40s): %s", comm->group.rank,
            comm->group.name, r, (unsigned long long)other->pid, other->host, detail);
    }
    return TUTTI_OK;
}
static tutti_status await_joined(tutti_comm *comm, int64_t deadline_ms)
{
    const struct group *g = &comm->group;
    atomic_store(&group_contact(g, g->rank)->joined, 1);
    for (int r = 0, n = 0; r < g->size; n++) {
        bool alerted = comm_is_alerted(comm);          /* asked first: a rank may join and abort right after */
        if (atomic_load(&group_contact(g, r)->joined)) { r++; continue; }
        if (alerted) TRY(comm_check(comm));
        if (n % CHECK_EVERY == 0) TRY(mapping_check(g));
        if (clock_ms() > deadline_ms)
            return comm_fail(comm, TUTTI_TIMEOUT,
                "rank %d of %s was seen but has not joined in time: it is too slow, "
                "stopped or gone",
                r, g->name);
        comm_pause(comm, n);
    }
    return TUTTI_OK;
}
static tutti_status place_ranks(tutti_comm *comm)
{
    struct layout *layout;
    TRY(hosts_layout(&comm->group, &layout));
    comm_place(comm, layout);
    return TUTTI_OK;
}
static tutti_status map_host(const struct group *g, int64_t deadline_ms, struct mapping **out)
{
    int ranks = host_size(g->layout, g->host);
    struct sharers sharers = { g->layout->rank + g->layout->first[g->host], ranks, g->host };
    bool alone = g->layout->hosts == 1;
    size_t slots = alone ? SLOT_BYTES : NETWORK_SLOT_BYTES;
    struct segment_shape shape = { ranks, g->size, slots, shm_pair_bytes(), alone ? 0 : accord_account_bytes() };
    return mapping_acquire(g, &sharers, &shape, deadline_ms, out);
}
/* Between pretended hosts: pairs for messages, and bells. All ranks, host by host. */
static tutti_status map_network(const struct group *g, int64_t deadline_ms, struct mapping **out)
{
    if (g->layout->hosts == 1) return TUTTI_OK;
    struct sharers sharers = { g->layout->rank, g->size, NETWORK };
    struct segment_shape shape = { g->size, 0, 0, shm_pair_bytes(), 0 };
    return mapping_acquire(g, &sharers, &shape, deadline_ms, out);
}
static tutti_status map_segments(tutti_comm *comm, int64_t deadline_ms)
{
    struct membership *m = comm->membership;
    TRY(map_host(&comm->group, deadline_ms, &m->host));
    TRY(map_network(&comm->group, deadline_ms, &m->network));
    return comm_attach(comm, &m->host->segment, m->network ? &m->network->segment : NULL);
}

/* ---- all of it ---- */
static tutti_status join(tutti_comm *comm, int64_t deadline_ms)
{
    TRY(place_ranks(comm));
    TRY(connect_peers(comm, deadline_ms));
    TRY(map_segments(comm, deadline_ms));
    watch_peers(comm);
    figures_introduce(comm);
    TRY(await_joined(comm, deadline_ms));
    TRY(figures_agree(comm, deadline_ms));
    return messages_connect(comm);
}
tutti_status join_members(tutti_comm *comm, int64_t deadline_ms)
{
    char detail[OPERATION_DETAIL_BYTES];
    tutti_status status = join(comm, deadline_ms);
    if (status == TUTTI_OK)
        LOG(INFO, "%s: rank %d of %d has joined", comm->group.name, comm->group.rank, comm->group.size);
    if (status == TUTTI_OK) return status;
    snprintf(detail, sizeof detail, "%.500s", status_detail());
    bool tells = comm->group.segment && (!comm->group.network || comm->accord);
    if (tells) return comm_fail(comm, status, "%s", detail);           /* the others must not wait for it */
    peers_give_up(comm->group.members[0].token);
    return status_repeat(status, detail);
}
