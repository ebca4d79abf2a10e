/* Joining, when the members are known: prove that they share this host, map the segment, watch the peers, agree on what
   the machine is like, connect the transport. Whatever fails on the way is undone by comm_destroy. */
#include "backend/comm/comm.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/settings.h"
#include "backend/join/mapping.h"
#include <stdio.h>

enum { CHECK_EVERY = 64 };

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
        bool doubt = comm_is_in_doubt(comm);            /* asked first: a rank may join and abort right after */
        if (atomic_load(&segment->controls[r].joined)) { r++; continue; }
        if (doubt) TRY(comm_check(comm));
        if (n % CHECK_EVERY == 0) TRY(mapping_check(comm->members, comm->size));
        if (clock_ms() > deadline_ms)
            return comm_fail(comm, TUTTI_TIMEOUT,
                "rank %d of %s was seen but has not joined in time: it is too slow, stopped or gone", r, comm->name);
        comm_pause(comm, n);
    }
    return TUTTI_OK;
}
static tutti_status map_segment(tutti_comm *comm, int64_t deadline_ms)
{
    TRY(mapping_acquire(comm->rank, comm->size, comm->members, comm->peers, deadline_ms, &comm->mapping));
    TRY(executor_init(&comm->executor, &comm->mapping->segment, comm->rank, 0, comm->size));
    int64_t streaming = settings_get()->streaming;
    comm->executor.stream = streaming == 0 ? NULL : stream_find();
    comm->executor.paced = streaming < 0;
    return TUTTI_OK;
}

/* ---- all of it ---- */
static tutti_status join(tutti_comm *comm, int64_t deadline_ms)
{
    TRY(connect_peers(comm, deadline_ms));
    TRY(map_segment(comm, deadline_ms));
    watch_peers(comm);
    figures_introduce(comm);
    TRY(await_joined(comm, deadline_ms));
    TRY(figures_agree(comm, deadline_ms));
    return messages_connect(comm);
}
tutti_status comm_join(tutti_comm *comm, int64_t deadline_ms)
{
    char detail[OPERATION_DETAIL_BYTES];
    tutti_status status = join(comm, deadline_ms);
    if (status == TUTTI_OK)
        LOG(INFO, "%s: rank %d of %d has joined", comm->name, comm->rank, comm->size);
    if (status == TUTTI_OK) return status;
    snprintf(detail, sizeof detail, "%.500s", status_detail());
    if (comm->mapping) return comm_fail(comm, status, "%s", detail);  /* the others must not wait for it */
    peers_give_up(comm->members[0].token);
    return status_repeat(status, detail);
}
