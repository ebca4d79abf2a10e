/* Joining, when the members are known: prove that they share this host, map the segment, watch the peers, find out how
   slots are best written, connect the transport. Whatever fails on the way is undone by comm_destroy. */
#include "backend/comm.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/settings.h"
#include "backend/host/probe.h"
#include "backend/mapping.h"
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
/* How slots are best written is the host's business: ranks 0 and 1 try it out, once per process of a rank 0, and the
   others are told. */
enum { STREAMING_UNKNOWN, STREAMING_OFF, STREAMING_ON, STREAMING_PROBED };
static struct probe_side probe_side_of(const struct segment *segment, int rank)
{
    return (struct probe_side){ &segment->controls[rank].probe, segment_slots(segment, rank) };
}
static tutti_status probe_slots(tutti_comm *comm, _Atomic uint32_t *verdict)
{
    static _Atomic uint32_t known;
    const struct segment *segment = comm_segment(comm);
    int64_t asked = settings_get()->streaming;
    if (asked >= 0) atomic_store(&known, asked ? STREAMING_ON : STREAMING_OFF);
    if (comm->rank == 0) atomic_store(verdict, atomic_load(&known) ? atomic_load(&known) : STREAMING_PROBED);
    if (atomic_load(verdict) != STREAMING_PROBED) return TUTTI_OK;
    TRY(segment_reserve(segment, segment_slots(segment, comm->rank), PROBE_BYTES, "staging slots"));
    struct probe_side mine = probe_side_of(segment, comm->rank), other = probe_side_of(segment, 1 - comm->rank);
    enum probe_result result = probe_streaming(mine, other, stream_find());
    uint32_t found = result == PROBE_BETTER ? STREAMING_ON : STREAMING_OFF;
    if (comm->rank == 0 && result != PROBE_GAVE_UP) atomic_store(&known, found);
    if (comm->rank == 0) atomic_store(verdict, found);
    return TUTTI_OK;
}
static tutti_status await_verdict(tutti_comm *comm, _Atomic uint32_t *verdict, bool probes, int64_t deadline_ms)
{
    for (int n = 0;; n++) {
        uint32_t now = atomic_load(verdict);
        if (now == STREAMING_OFF || now == STREAMING_ON || (probes && now == STREAMING_PROBED)) return TUTTI_OK;
        TRY(comm_check(comm));
        if (clock_ms() > deadline_ms)
            return comm_fail(comm, TUTTI_TIMEOUT, "rank 0 of %s is too slow, stopped or gone", comm->name);
        comm_pause(comm, n);
    }
}
static tutti_status choose_stores(tutti_comm *comm, int64_t deadline_ms)
{
    _Atomic uint32_t *verdict = &comm_segment(comm)->controls[0].streaming;
    if (comm->size == 1 || !stream_find()) return TUTTI_OK;
    if (comm->rank == 1) TRY(await_verdict(comm, verdict, true, deadline_ms));
    if (comm->rank <= 1) TRY(probe_slots(comm, verdict));
    TRY(await_verdict(comm, verdict, false, deadline_ms));
    comm->executor.stream = atomic_load(verdict) == STREAMING_ON ? stream_find() : NULL;
    return TUTTI_OK;
}
static tutti_status map_segment(tutti_comm *comm, int64_t deadline_ms)
{
    TRY(mapping_acquire(comm->rank, comm->size, comm->members, comm->peers, deadline_ms, &comm->mapping));
    TRY(executor_init(&comm->executor, &comm->mapping->segment, comm->rank, 0, comm->size));
    comm->executor.tile_target = (size_t)(settings_get()->tile_bytes >= 4096 ? settings_get()->tile_bytes : 4096);
    return TUTTI_OK;
}

/* ---- messages ---- */
static void ring_bell(void *context, int rank)
{
    struct control *c = &((const struct segment *)context)->controls[rank];
    atomic_fetch_add(&c->bell, 1);
    if (atomic_load(&c->bell_waiters)) word_wake(&c->bell, true);
}
static unsigned char *pair_at(void *context, int from, int to) { return segment_pair(context, from, to); }
static tutti_status reserve(void *context, void *at, size_t bytes)
{
    return segment_reserve(context, at, bytes, "message buffers");
}
static tutti_status connect_transport(tutti_comm *comm)
{
    struct shm_ground ground = { .context = &comm->mapping->segment, .pair = pair_at, .reserve = reserve, .ring =
        ring_bell,
                                 .stream = comm->executor.stream };
    TRY(shm_connect(&ground, comm->rank, comm->size, &comm->transport));
    comm->executor.transport = comm->transport;
    return TUTTI_OK;
}

/* ---- all of it ---- */
static tutti_status join(tutti_comm *comm, int64_t deadline_ms)
{
    TRY(connect_peers(comm, deadline_ms));
    TRY(map_segment(comm, deadline_ms));
    watch_peers(comm);
    TRY(await_joined(comm, deadline_ms));
    TRY(choose_stores(comm, deadline_ms));
    return connect_transport(comm);
}
tutti_status comm_join(tutti_comm *comm, int64_t deadline_ms)
{
    char detail[OPERATION_DETAIL_BYTES];
    tutti_status status = join(comm, deadline_ms);
    if (status == TUTTI_OK)
        LOG(INFO, "%s: rank %d of %d has joined%s", comm->name, comm->rank, comm->size,
            comm->executor.stream ? "; large slots are written around the cache" : "");
    if (status == TUTTI_OK || !comm->mapping) return status;
    snprintf(detail, sizeof detail, "%.500s", status_detail());
    return comm_fail(comm, status, "%s", detail);       /* the others must not wait for it */
}
