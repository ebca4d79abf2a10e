/* Joining, when the members are known: prove that they share this host, map the segment, watch the peers, find out how
   slots are best written, connect the transport. Whatever fails on the way is undone by comm_destroy. */
#include "backend/comm.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/settings.h"
#include "backend/pace.h"
#include "backend/mapping.h"
#include <sched.h>
#include <stdio.h>
#include <string.h>

/* ---- watching ---- */
static void peer_lost(void *context)                                    /* on the watch thread */
{
    struct member_watch *w = context;
    const struct segment *segment = comm_segment(w->comm);
    uint32_t nobody = 0;
    /* it had destroyed its communicator before */
    if (segment && atomic_load(&segment->controls[w->rank].departed)) return;
    atomic_compare_exchange_strong(&w->comm->lost, &nobody, (uint32_t)w->rank + 1);
    comm_knock(w->comm);
}
static void watch_peers(tutti_comm *comm)
{
    for (int r = 0; r < comm->size; r++) {
        struct member_watch *w = &comm->watches[r];
        *w = (struct member_watch){ .watch = { .peer = comm->peers[r], .lost = peer_lost, .context = w }, .comm = comm,
            .rank = r };
        if (comm->peers[r]) peer_watch(&w->watch);
    }
    comm->watching = true;
}

/* ---- joining ---- */
static tutti_status connect_peers(tutti_comm *comm, int64_t deadline_ms)
{
    for (int r = 0; r < comm->size; r++) {
        const struct identity *other = &comm->members[r].identity;
        if (member_shares_process(&comm->members[r], &comm->members[comm->rank])) continue;
        tutti_status status = peer_connect(other, deadline_ms, &comm->peers[r]);
        if (status == TUTTI_OK) continue;
        char detail[STATUS_DETAIL_BYTES / 2];
        snprintf(detail, sizeof detail, "%.500s", status_detail());
        return status_fail(status, "rank %d of %s cannot reach rank %d (process %llu on %.40s): %s", comm->rank,
            comm->name, r, (unsigned long long)other->pid, other->host, detail);
    }
    return TUTTI_OK;
}
static tutti_status await_joined(tutti_comm *comm, int64_t deadline_ms)
{
    const struct segment *segment = comm_segment(comm);
    atomic_store(&segment->controls[comm->rank].joined, 1);
    for (int r = 0, n = 0; r < comm->size; n++) {
        if (atomic_load(&segment->controls[r].joined)) { r++; continue; }
        TRY(comm_check(comm));
        if (clock_ms() > deadline_ms)
            return comm_fail(comm, TUTTI_TIMEOUT,
                "rank %d of %s was seen but has not joined in time: it is too slow, stopped or gone", r, comm->name);
        comm_pause(comm, n);
    }
    return TUTTI_OK;
}
static tutti_status map_segment(tutti_comm *comm, int64_t deadline_ms)
{
    struct machine figures = machine_typical();
    bool leads = comm->rank == 0 && comm->size > 1;     /* one rank alone has nothing to choose */
    if (leads) figures = machine_get(stream_find());    /* while the others wait for the segment */
    TRY(mapping_acquire(comm->rank, comm->size, comm->members, comm->peers, deadline_ms, &comm->mapping));
    TRY(executor_init(&comm->executor, &comm->mapping->segment, comm->rank, 0, comm->size));
    int64_t streaming = settings_get()->streaming;
    comm->executor.stream = streaming == 0 ? NULL : streaming > 0 ? stream_find() : pace_copy;
    comm->executor.stream_outputs = streaming == 0 ? NULL : stream_find();
    if (comm->rank == 0) memcpy(comm_segment(comm)->figures, &figures, sizeof figures);
    return TUTTI_OK;
}

/* ---- what the ranks tell each other of the machine ---- */
_Static_assert(sizeof(struct machine) <= FIGURES_BYTES, "the segment has room for the figures");

static void introduce_cores(const tutti_comm *comm)
{
    cpu_set_t set;
    struct introduction *mine = &comm_segment(comm)->introductions[comm->rank];
    if (sched_getaffinity(0, sizeof set, &set) != 0) return;           /* more cores than that: then nobody says */
    for (size_t core = 0; core < CORE_WORDS * 64 && core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &set)) mine->cores[core / 64] |= (uint64_t)1 << core % 64;
}
static int count_cores(const tutti_comm *comm)          /* where the ranks may run, all of them together */
{
    int count = 0;
    for (int word = 0; word < CORE_WORDS; word++) {
        uint64_t cores = 0;
        for (int r = 0; r < comm->size; r++) cores |= comm_segment(comm)->introductions[r].cores[word];
        count += __builtin_popcountll(cores);
    }
    return count ? count : comm->size;
}
enum { MOST_POLLS = 50 };                               /* nobody looks for failures meanwhile */
/* Rank 0's figures are those of the group. They were checked there; here once more, as for all that is shared. */
static void take_figures(tutti_comm *comm)
{
    struct machine figures;
    memcpy(&figures, comm_segment(comm)->figures, sizeof figures);
    if (!machine_is_sane(&figures)) figures = machine_typical();
    if (comm->size > 1) machine_adopt(&figures);
    comm->chooser = (struct chooser){ .layout = &comm->layout, .cache = comm->cache, .size = comm->size, .cores =
        count_cores(comm), .machine = figures };
    struct patience patience = price_patience(&figures);
    if (comm->size <= comm->chooser.cores) comm->ladder = ladder_of(patience.pauses, patience.yields);
    comm->executor.polls = comm->ladder.pauses / 10 < MOST_POLLS ? comm->ladder.pauses / 10 : MOST_POLLS;
    comm->executor.cache_bytes = (size_t)figures.last;
}

/* ---- all of it ---- */
static tutti_status join(tutti_comm *comm, int64_t deadline_ms)
{
    TRY(connect_peers(comm, deadline_ms));
    TRY(map_segment(comm, deadline_ms));
    watch_peers(comm);
    introduce_cores(comm);
    TRY(await_joined(comm, deadline_ms));
    take_figures(comm);
    return messages_connect(comm);
}
tutti_status comm_join(tutti_comm *comm, int64_t deadline_ms)
{
    char detail[OPERATION_DETAIL_BYTES];
    tutti_status status = join(comm, deadline_ms);
    if (status == TUTTI_OK)
        LOG(INFO, "%s: rank %d of %d has joined", comm->name, comm->rank, comm->size);
    if (status == TUTTI_OK || !comm->mapping) return status;
    snprintf(detail, sizeof detail, "%.500s", status_detail());
    return comm_fail(comm, status, "%s", detail);       /* the others must not wait for it */
}
