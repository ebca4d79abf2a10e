/* SHARED: a rank that has updated a slice publishes its version to its host by a release store. On several hosts the
   ranks of equal index gather their slices into the pages of their hosts, and publish the version after that.
   REPLICATED: all ranks gather, and each waits for its own gather. SHARDED: a rank gathers a unit when it uses it, so
   updates are not published. WHOLE: all ranks make the same update.

   A rank may overwrite a slice only when no rank reads it. Each step begins with a message from all ranks that they
   have reached it. Their earlier reads are then over, and later reads wait for the new version. */
#include "zero/placement.h"
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/pause.h"
#include "backend/base/status.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { PAUSES = 200, YIELDS = 2000, NAP_NS = 50000, LOOKS = 64 };
enum { HALF_AN_HOUR_MS = 30 * 60 * 1000 };

/* Pauses after the n-th poll that found the other rank late, longer each time. */
static void poll_back_off(int n)
{
    if (n < PAUSES) cpu_pause_briefly();
    else if (n < YIELDS) sched_yield();
    else nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
}

/* ---- lifetime ---- */
static tutti_status placement_init_topology(struct zero_placement *h)
{
    const struct topology *p = &h->places;
    TRY(topology_init(&h->places, h->comms->all[0]));
    h->lengths = memory_alloc_zeroed((size_t)p->hosts, sizeof *h->lengths);
    h->offsets = memory_alloc_zeroed((size_t)p->hosts, sizeof *h->offsets);
    if (!h->lengths || !h->offsets) return status_fail(TUTTI_NO_MEMORY, "zero: no memory for %d hosts", p->hosts);
    if (h->kind == TUTTI_ZERO_SHARED && !p->even)
        return status_refuse(TUTTI_UNSUPPORTED,
            "zero: parameters that the ranks of a host share need the same number of ranks on each host; here %d "
            "ranks are on %d hosts, and %d on the largest. Start the same number on each, or keep parameters "
            "replicated",
            p->ranks, p->hosts, p->largest);
    return TUTTI_OK;
}
static tutti_status placement_allocate_unit(struct zero_placement *h, int unit)
{
    struct placed_unit *placed = &h->placed[unit];
    size_t bytes = partition_bytes(h->partition, unit);
    placed->placement = h;
    if (h->kind == TUTTI_ZERO_SHARED) {
        placed->versions_here = h->versions + (size_t)unit * (size_t)h->places.here;
        return tutti_mem_alloc_common(&placed->flat, bytes, h->comms->all[0]);
    }
    return tutti_mem_alloc(&placed->flat, bytes);
}
tutti_status placement_init(struct zero_placement *h, const struct partition *partition, const tutti_zero_config *c,
    struct priority_comms *comms, tutti_comm *control_comm, struct trace *trace)
{
    tutti_comm *all = comms->all[0];
    *h = (struct zero_placement){
        .kind = c->placement, .partition = partition, .comms = comms, .control_comm = control_comm, .trace = trace
    };
    h->timeout_ms = c->timeout_ms > 0 ? c->timeout_ms : HALF_AN_HOUR_MS;
    if (h->kind == TUTTI_ZERO_SHARDED)
        return gatherer_init(&h->gatherer, partition, c->prefetch, h->timeout_ms, all, trace);
    TRY(placement_init_topology(h));
    h->placed = memory_alloc_zeroed((size_t)partition->units, sizeof *h->placed);
    if (!h->placed) return status_fail(TUTTI_NO_MEMORY, "zero: no memory for %d units", partition->units);
    if (h->kind == TUTTI_ZERO_SHARED) {
        size_t words = (size_t)partition->units * (size_t)h->places.here;
        TRY(tutti_mem_alloc_common((void **)&h->versions, words * sizeof *h->versions, all));
        const struct topology *p = &h->places;
        if (p->hosts > 1) TRY(priority_comms_split_across(comms, p->index, p->host));
    }
    for (int u = 0; u < partition->units; u++) TRY(placement_allocate_unit(h, u));
    return TUTTI_OK;
}
void placement_abort_comms(struct zero_placement *h)
{
    if (h->gatherer.comm) tutti_comm_abort(h->gatherer.comm);
}
void placement_finish(struct zero_placement *h)
{
    gatherer_finish(&h->gatherer);
    for (int u = 0; h->placed && u < h->partition->units; u++) tutti_mem_free(h->placed[u].flat);
    tutti_mem_free(h->versions);
    free(h->placed);
    topology_finish(&h->places);
    free(h->lengths);
    free(h->offsets);
}
tutti_status placement_keep_units(struct zero_placement *h, uint64_t steps, bool kept)
{
    if (h->kind == TUTTI_ZERO_SHARDED) return gatherer_keep_units(&h->gatherer, kept);
    for (int u = 0; u < h->partition->units && kept; u++) TRY(placement_await(h, u, steps));
    return TUTTI_OK;
}
tutti_status placement_claim_units(struct zero_placement *h, uint64_t steps)
{
    TRY(placement_keep_units(h, steps, true));
    return tutti_barrier(h->control_comm, NULL);
}
void placement_await_until(struct zero_placement *h, int64_t until_ms)
{
    gatherer_await_until(&h->gatherer, until_ms);
    for (int u = 0; h->placed && u < h->partition->units; u++)
        while (h->placed[u].gathers && tutti_test(&h->placed[u].gathering) == TUTTI_IN_PROGRESS
            && clock_ms() < until_ms)
            poll_back_off(YIELDS);
}
tutti_status placement_broadcast_values(struct zero_placement *h)
{
    if (h->kind == TUTTI_ZERO_SHARDED) return gatherer_scatter_values(&h->gatherer);
    tutti_comm *comm = h->kind == TUTTI_ZERO_SHARED ? h->comms->across[0] : h->comms->all[0];
    /* Rank 0 has index 0 on its host, so the ranks of index 0 broadcast between hosts. */
    bool first = h->places.index == 0;
    bool joins = comm && (h->kind != TUTTI_ZERO_SHARED || first);
    for (int u = 0; joins && u < h->partition->units; u++)
        TRY(tutti_broadcast(h->placed[u].flat, h->placed[u].flat, h->partition->unit[u].count,
            h->partition->unit[u].dtype, 0, comm, NULL));
    return tutti_barrier(h->control_comm, NULL);
}
void *placement_slice(const struct zero_placement *h, int unit)
{
    const struct unit_partition *u = &h->partition->unit[unit];
    if (h->kind == TUTTI_ZERO_SHARDED) return h->gatherer.unit[unit].slice;
    return (char *)h->placed[unit].flat
        + u->slice * u->element * (size_t)partition_slice(h->partition, h->partition->rank);
}
uint64_t placement_count_copy_ranks(const struct zero_placement *h)
{
    if (h->kind == TUTTI_ZERO_SHARDED) return (uint64_t)h->partition->ranks;
    return h->kind == TUTTI_ZERO_SHARED ? (uint64_t)h->places.here : 1;
}
void *placement_flat(const struct zero_placement *h, int unit)
{
    return h->kind == TUTTI_ZERO_SHARDED ? h->gatherer.unit[unit].flat : h->placed[unit].flat;
}

/* ---- publishing ---- */
static void placed_unit_publish_version(struct placed_unit *placed)
{
    atomic_store_explicit(&placed->versions_here[placed->placement->places.index].steps, placed->steps,
        memory_order_release);
}
/* Runs on the thread that finishes the gather. */
static void placed_unit_on_gathered(tutti_request *request, void *context)
{
    struct placed_unit *placed = context;
    bool fine = tutti_test(request) == TUTTI_OK;
    /* The span ends before the version is published, because a reader of the version may start the span again. */
    trace_span_end(&placed->span);
    if (fine) placed_unit_publish_version(placed);
}
static tutti_status placed_unit_gather_across(struct zero_placement *h, struct placed_unit *placed,
    const struct unit_partition *u, tutti_comm *comm)
{
    for (int host = 0; host < h->places.hosts; host++) {
        h->lengths[host] = u->slice;
        h->offsets[host] = u->slice * (size_t)topology_rank(&h->places, host, h->places.index);
    }
    void *mine = (char *)placed->flat + u->slice * u->element * (size_t)h->partition->rank;
    placed->gathering = (tutti_request)TUTTI_REQUEST_INIT;
    placed->gathering.done = placed_unit_on_gathered;
    placed->gathering.context = placed;
    h->moved_bytes += u->slice * u->element * (size_t)(h->places.hosts - 1);
    return tutti_all_gather_v(mine, placed->flat, h->lengths, h->offsets, u->dtype, comm, &placed->gathering);
}
static tutti_status placed_unit_gather_all(struct zero_placement *h, struct placed_unit *placed,
    const struct unit_partition *u, tutti_comm *comm)
{
    void *mine = (char *)placed->flat + u->slice * u->element * (size_t)h->partition->rank;
    placed->gathering = (tutti_request)TUTTI_REQUEST_INIT;
    trace_span_follow_request(&placed->span, &placed->gathering);
    h->moved_bytes += u->slice * u->element * (size_t)(h->partition->ranks - 1);
    return tutti_all_gather(mine, placed->flat, u->slice, u->dtype, comm, &placed->gathering);
}
tutti_status placement_publish(struct zero_placement *h, int unit, uint64_t steps)
{
    if (h->kind == TUTTI_ZERO_SHARDED || h->kind == TUTTI_ZERO_WHOLE) return TUTTI_OK;
    struct placed_unit *placed = &h->placed[unit];
    const struct unit_partition *u = &h->partition->unit[unit];
    placed->steps = steps;
    if (h->kind == TUTTI_ZERO_SHARED && h->places.hosts == 1) {
        placed_unit_publish_version(placed);
        return TUTTI_OK;
    }
    size_t others = (size_t)(h->kind == TUTTI_ZERO_SHARED ? h->places.hosts : h->partition->ranks) - 1;
    trace_span_begin(&placed->span, h->trace, TUTTI_ZERO_GATHERED, unit, u->slice * u->element * others);
    TRY(h->kind == TUTTI_ZERO_SHARED ? placed_unit_gather_across(h, placed, u, priority_comms_across(h->comms, unit))
                                     : placed_unit_gather_all(h, placed, u, priority_comms_all(h->comms, unit)));
    placed->gathers = true;
    return TUTTI_OK;
}

/* ---- waiting ---- */
/* Returns the index of a rank on this host whose slice has had fewer steps, or -1. */
static int placed_unit_find_late_rank(const struct zero_placement *h, const struct placed_unit *placed, uint64_t steps)
{
    for (int i = 0; i < h->places.here; i++)
        if (atomic_load_explicit(&placed->versions_here[i].steps, memory_order_acquire) < steps) return i;
    return -1;
}
static tutti_status placement_await_versions(struct zero_placement *h, int unit, uint64_t steps)
{
    int64_t deadline_ms = clock_deadline(h->timeout_ms);
    for (int n = 0, late; (late = placed_unit_find_late_rank(h, &h->placed[unit], steps)) >= 0; n++) {
        poll_back_off(n);
        if (n % LOOKS) continue;
        TRY(tutti_comm_get_async_error(h->control_comm));
        if (h->comms->across[0]) TRY(tutti_comm_get_async_error(h->comms->across[0]));
        if (clock_ms() > deadline_ms)
            return status_fail(TUTTI_TIMEOUT,
                "zero: rank %d has not updated its slice of unit %d within %lld ms; is it stopped?",
                topology_rank(&h->places, h->places.host, late), unit, (long long)h->timeout_ms);
    }
    return TUTTI_OK;
}
static tutti_status placement_await_gather(struct zero_placement *h, int unit)
{
    tutti_status status = tutti_wait(&h->placed[unit].gathering, h->timeout_ms);
    if (status != TUTTI_OK && h->comms->across[0]) {
        char why[STATUS_DETAIL_BYTES / 2];
        snprintf(why, sizeof why, "%s", status_detail());
        return status_fail(status,
            "zero: unit %d was not received from the other hosts; a rank in the following text is a host: %s", unit,
            why);
    }
    h->placed[unit].gathers = false;
    trace_span_await_end(&h->placed[unit].span);
    return status;
}
tutti_status placement_await(struct zero_placement *h, int unit, uint64_t steps)
{
    /* Only this rank reads its SHARDED slices. */
    if (h->kind == TUTTI_ZERO_SHARDED) return TUTTI_OK;
    struct placed_unit *placed = &h->placed[unit];
    bool shared = h->kind == TUTTI_ZERO_SHARED;
    if (!placed->gathers && (!shared || placed_unit_find_late_rank(h, placed, steps) < 0)) return TUTTI_OK;
    int64_t began_ns = clock_ns();
    tutti_status status = placed->gathers ? placement_await_gather(h, unit) : TUTTI_OK;
    if (status == TUTTI_OK && shared) status = placement_await_versions(h, unit, steps);
    h->waited_ns += (uint64_t)(clock_ns() - began_ns);
    return status;
}
tutti_status placement_use(struct zero_placement *h, int unit, uint64_t steps, bool backward)
{
    return h->kind == TUTTI_ZERO_SHARDED ? gatherer_use(&h->gatherer, unit, backward) : placement_await(h, unit, steps);
}
tutti_status placement_claim_pieces(struct zero_placement *h, uint64_t steps)
{
    if (h->kind != TUTTI_ZERO_SHARDED) return placement_claim_units(h, steps);
    TRY(gatherer_begin_update(&h->gatherer));
    return tutti_barrier(h->control_comm, NULL);
}
tutti_status placement_begin_update(struct zero_placement *h)
{
    return h->kind == TUTTI_ZERO_SHARDED ? gatherer_begin_update(&h->gatherer) : TUTTI_OK;
}
tutti_status placement_end_update(struct zero_placement *h)
{
    return h->kind == TUTTI_ZERO_SHARDED ? gatherer_update_prefetches(&h->gatherer) : TUTTI_OK;
}
