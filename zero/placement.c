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

/* A wait polls PAUSES times with a pause, then until YIELDS times with a yield, then with sleeps of NAP_NS. Each
   CHECK_POLLS polls it checks for errors of other ranks and the timeout. */
enum { PAUSES = 200, YIELDS = 2000, NAP_NS = 50000, CHECK_POLLS = 64 };
enum { HALF_AN_HOUR_MS = 30 * 60 * 1000 };

/* Waits after the n-th poll without result: a pause, then a yield, then a short sleep. */
static void poll_back_off(int n)
{
    if (n < PAUSES) cpu_pause_briefly();
    else if (n < YIELDS) sched_yield();
    else nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
}

/* ---- lifetime ---- */
/* Records the place of each rank. Refuses SHARED if hosts have different numbers of ranks. */
static tutti_status placement_init_topology(struct zero_placement *placement)
{
    const struct topology *topology = &placement->places;
    TRY(topology_init(&placement->places, placement->comms->all[0]));
    placement->lengths = memory_alloc_zeroed((size_t)topology->hosts, sizeof *placement->lengths);
    placement->offsets = memory_alloc_zeroed((size_t)topology->hosts, sizeof *placement->offsets);
    if (!placement->lengths || !placement->offsets)
        return status_fail(TUTTI_NO_MEMORY, "zero: no memory for %d hosts", topology->hosts);
    if (placement->kind == TUTTI_ZERO_SHARED && !topology->even)
        return status_refuse(TUTTI_UNSUPPORTED,
            "zero: parameters that the ranks of a host share need the same number of ranks on each host; here %d "
            "ranks are on %d hosts, and %d on the largest. Start the same number on each, or keep parameters "
            "replicated",
            topology->ranks, topology->hosts, topology->largest);
    return TUTTI_OK;
}
/* Allocates the flat array of a unit, which the ranks of a host share if the placement is SHARED. */
static tutti_status placement_allocate_unit(struct zero_placement *placement, int unit)
{
    struct placed_unit *placed = &placement->placed[unit];
    size_t bytes = partition_unit_bytes(placement->partition, unit);
    placed->placement = placement;
    if (placement->kind == TUTTI_ZERO_SHARED) {
        placed->versions_here = placement->versions + (size_t)unit * (size_t)placement->places.local_ranks;
        return tutti_mem_alloc_common(&placed->flat, bytes, placement->comms->all[0]);
    }
    return tutti_mem_alloc(&placed->flat, bytes);
}
tutti_status placement_init(struct zero_placement *placement, const struct partition *partition,
    const tutti_zero_config *config, struct priority_comms *comms, tutti_comm *control_comm, struct trace *trace)
{
    tutti_comm *all = comms->all[0];
    *placement = (struct zero_placement){
        .kind = config->placement, .partition = partition, .comms = comms, .control_comm = control_comm, .trace = trace
    };
    placement->timeout_ms = config->timeout_ms > 0 ? config->timeout_ms : HALF_AN_HOUR_MS;
    if (placement->kind == TUTTI_ZERO_SHARDED)
        return gatherer_init(&placement->gatherer, partition, config->prefetch, placement->timeout_ms, all, trace);
    TRY(placement_init_topology(placement));
    placement->placed = memory_alloc_zeroed((size_t)partition->units, sizeof *placement->placed);
    if (!placement->placed) return status_fail(TUTTI_NO_MEMORY, "zero: no memory for %d units", partition->units);
    if (placement->kind == TUTTI_ZERO_SHARED) {
        size_t words = (size_t)partition->units * (size_t)placement->places.local_ranks;
        TRY(tutti_mem_alloc_common((void **)&placement->versions, words * sizeof *placement->versions, all));
        const struct topology *topology = &placement->places;
        if (topology->hosts > 1) TRY(priority_comms_split_across(comms, topology->index, topology->host));
    }
    for (int u = 0; u < partition->units; u++) TRY(placement_allocate_unit(placement, u));
    return TUTTI_OK;
}
void placement_abort_comms(struct zero_placement *placement)
{
    if (placement->gatherer.comm) tutti_comm_abort(placement->gatherer.comm);
}
void placement_finish(struct zero_placement *placement)
{
    gatherer_finish(&placement->gatherer);
    for (int u = 0; placement->placed && u < placement->partition->units; u++)
        tutti_mem_free(placement->placed[u].flat);
    tutti_mem_free(placement->versions);
    free(placement->placed);
    topology_finish(&placement->places);
    free(placement->lengths);
    free(placement->offsets);
}
tutti_status placement_keep_units(struct zero_placement *placement, uint64_t steps, bool kept)
{
    if (placement->kind == TUTTI_ZERO_SHARDED) return gatherer_keep_units(&placement->gatherer, kept);
    for (int u = 0; u < placement->partition->units && kept; u++) TRY(placement_await_unit(placement, u, steps));
    return TUTTI_OK;
}
tutti_status placement_claim_units(struct zero_placement *placement, uint64_t steps)
{
    TRY(placement_keep_units(placement, steps, true));
    return tutti_barrier(placement->control_comm, NULL);
}
void placement_await_until(struct zero_placement *placement, int64_t until_ms)
{
    gatherer_await_until(&placement->gatherer, until_ms);
    for (int u = 0; placement->placed && u < placement->partition->units; u++)
        while (placement->placed[u].gathers && tutti_test(&placement->placed[u].gathering) == TUTTI_IN_PROGRESS
            && clock_ms() < until_ms)
            poll_back_off(YIELDS);
}
tutti_status placement_broadcast_values(struct zero_placement *placement)
{
    if (placement->kind == TUTTI_ZERO_SHARDED) return gatherer_scatter_values(&placement->gatherer);
    tutti_comm *comm = placement->kind == TUTTI_ZERO_SHARED ? placement->comms->across[0] : placement->comms->all[0];
    /* Rank 0 has index 0 on its host, so the ranks of index 0 broadcast between hosts. */
    bool first = placement->places.index == 0;
    bool joins = comm && (placement->kind != TUTTI_ZERO_SHARED || first);
    for (int u = 0; joins && u < placement->partition->units; u++)
        TRY(tutti_broadcast(placement->placed[u].flat, placement->placed[u].flat, placement->partition->unit[u].count,
            placement->partition->unit[u].dtype, 0, comm, NULL));
    return tutti_barrier(placement->control_comm, NULL);
}
void *placement_get_slice(const struct zero_placement *placement, int unit)
{
    const struct unit_partition *u = &placement->partition->unit[unit];
    if (placement->kind == TUTTI_ZERO_SHARDED) return placement->gatherer.unit[unit].slice;
    return (char *)placement->placed[unit].flat
        + u->slice * u->element * (size_t)partition_find_slice(placement->partition, placement->partition->rank);
}
uint64_t placement_count_copy_ranks(const struct zero_placement *placement)
{
    if (placement->kind == TUTTI_ZERO_SHARDED) return (uint64_t)placement->partition->ranks;
    return placement->kind == TUTTI_ZERO_SHARED ? (uint64_t)placement->places.local_ranks : 1;
}
void *placement_get_flat(const struct zero_placement *placement, int unit)
{
    return placement->kind == TUTTI_ZERO_SHARDED ? placement->gatherer.unit[unit].flat : placement->placed[unit].flat;
}

/* ---- publishing ---- */
/* Shows the ranks of this host that this rank's slice has the version placed->steps. */
static void placed_unit_publish_version(struct placed_unit *placed)
{
    atomic_store_explicit(&placed->versions_here[placed->placement->places.index].steps, placed->steps,
        memory_order_release);
}
/* Publishes the version of this rank's slice when its gather between hosts has succeeded. After a failure it publishes
   nothing: this rank gets the error in placement_await_gather, and the other ranks of the host find a failed
   communicator or reach the timeout in placement_await_versions. Runs on the thread that finishes the gather. */
static void placed_unit_on_gathered(tutti_request *request, void *context)
{
    struct placed_unit *placed = context;
    bool fine = tutti_test(request) == TUTTI_OK;
    /* The interval ends first, because this rank's caller may begin it again as soon as it sees the version. */
    trace_interval_end(&placed->interval);
    if (fine) placed_unit_publish_version(placed);
}
/* Starts to exchange updated slices between hosts (SHARED): this rank sends its slice to the ranks of its index on
   other hosts, and receives theirs into the shared array. */
static tutti_status placed_unit_gather_across(struct zero_placement *placement, struct placed_unit *placed,
    const struct unit_partition *unit, tutti_comm *comm)
{
    for (int host = 0; host < placement->places.hosts; host++) {
        placement->lengths[host] = unit->slice;
        placement->offsets[host] =
            unit->slice * (size_t)topology_rank_at(&placement->places, host, placement->places.index);
    }
    void *mine = (char *)placed->flat + unit->slice * unit->element * (size_t)placement->partition->rank;
    placed->gathering = (tutti_request)TUTTI_REQUEST_INIT;
    placed->gathering.done = placed_unit_on_gathered;
    placed->gathering.context = placed;
    placement->moved_bytes += unit->slice * unit->element * (size_t)(placement->places.hosts - 1);
    return tutti_all_gather_v(mine, placed->flat, placement->lengths, placement->offsets, unit->dtype, comm,
        &placed->gathering);
}
/* Starts to send this rank's updated slice to all ranks, and to receive their slices (REPLICATED). */
static tutti_status placed_unit_gather_all(struct zero_placement *placement, struct placed_unit *placed,
    const struct unit_partition *unit, tutti_comm *comm)
{
    void *mine = (char *)placed->flat + unit->slice * unit->element * (size_t)placement->partition->rank;
    placed->gathering = (tutti_request)TUTTI_REQUEST_INIT;
    trace_interval_follow_request(&placed->interval, &placed->gathering);
    placement->moved_bytes += unit->slice * unit->element * (size_t)(placement->partition->ranks - 1);
    return tutti_all_gather(mine, placed->flat, unit->slice, unit->dtype, comm, &placed->gathering);
}
tutti_status placement_publish_slice(struct zero_placement *placement, int unit, uint64_t steps)
{
    if (placement->kind == TUTTI_ZERO_SHARDED || placement->kind == TUTTI_ZERO_WHOLE) return TUTTI_OK;
    struct placed_unit *placed = &placement->placed[unit];
    const struct unit_partition *u = &placement->partition->unit[unit];
    placed->steps = steps;
    if (placement->kind == TUTTI_ZERO_SHARED && placement->places.hosts == 1) {
        placed_unit_publish_version(placed);
        return TUTTI_OK;
    }
    size_t others =
        (size_t)(placement->kind == TUTTI_ZERO_SHARED ? placement->places.hosts : placement->partition->ranks) - 1;
    trace_interval_begin(&placed->interval, placement->trace, TUTTI_ZERO_GATHERED, unit,
        u->slice * u->element * others);
    TRY(placement->kind == TUTTI_ZERO_SHARED
            ? placed_unit_gather_across(placement, placed, u, priority_comms_get_across(placement->comms, unit))
            : placed_unit_gather_all(placement, placed, u, priority_comms_get_all(placement->comms, unit)));
    placed->gathers = true;
    return TUTTI_OK;
}

/* ---- waiting ---- */
/* Returns the index of a rank on this host that has published an older version than `steps`, or -1. */
static int placed_unit_find_late_rank(const struct zero_placement *placement, const struct placed_unit *placed,
    uint64_t steps)
{
    for (int i = 0; i < placement->places.local_ranks; i++)
        if (atomic_load_explicit(&placed->versions_here[i].steps, memory_order_acquire) < steps) return i;
    return -1;
}
/* Waits until all ranks of this host have published the version `steps` of their slices of the unit. */
static tutti_status placement_await_versions(struct zero_placement *placement, int unit, uint64_t steps)
{
    int64_t deadline_ms = clock_deadline(placement->timeout_ms);
    for (int n = 0, late; (late = placed_unit_find_late_rank(placement, &placement->placed[unit], steps)) >= 0; n++) {
        poll_back_off(n);
        if (n % CHECK_POLLS) continue;
        TRY(tutti_comm_get_async_error(placement->control_comm));
        if (placement->comms->across[0]) TRY(tutti_comm_get_async_error(placement->comms->across[0]));
        if (clock_ms() > deadline_ms)
            return status_fail(TUTTI_TIMEOUT,
                "zero: rank %d has not updated its slice of unit %d within %lld ms; is it stopped?",
                topology_rank_at(&placement->places, placement->places.host, late), unit,
                (long long)placement->timeout_ms);
    }
    return TUTTI_OK;
}
/* Waits until the unit's gather has ended: the slices of other ranks have arrived. */
static tutti_status placement_await_gather(struct zero_placement *placement, int unit)
{
    tutti_status status = tutti_wait(&placement->placed[unit].gathering, placement->timeout_ms);
    if (status != TUTTI_OK && placement->comms->across[0]) {
        char why[STATUS_DETAIL_BYTES / 2];
        snprintf(why, sizeof why, "%s", status_detail());
        return status_fail(status,
            "zero: unit %d was not received from the other hosts; a rank in the following text is a host: %s", unit,
            why);
    }
    placement->placed[unit].gathers = false;
    trace_interval_await_end(&placement->placed[unit].interval);
    return status;
}
tutti_status placement_await_unit(struct zero_placement *placement, int unit, uint64_t steps)
{
    /* Other ranks read a SHARDED slice only through a gather in which this rank takes part. */
    if (placement->kind == TUTTI_ZERO_SHARDED) return TUTTI_OK;
    struct placed_unit *placed = &placement->placed[unit];
    bool shared = placement->kind == TUTTI_ZERO_SHARED;
    if (!placed->gathers && (!shared || placed_unit_find_late_rank(placement, placed, steps) < 0)) return TUTTI_OK;
    int64_t began_ns = clock_ns();
    tutti_status status = placed->gathers ? placement_await_gather(placement, unit) : TUTTI_OK;
    if (status == TUTTI_OK && shared) status = placement_await_versions(placement, unit, steps);
    placement->waited_ns += (uint64_t)(clock_ns() - began_ns);
    return status;
}
tutti_status placement_use_unit(struct zero_placement *placement, int unit, uint64_t steps, bool backward)
{
    return placement->kind == TUTTI_ZERO_SHARDED ? gatherer_use_unit(&placement->gatherer, unit, backward)
                                                 : placement_await_unit(placement, unit, steps);
}
tutti_status placement_claim_pieces(struct zero_placement *placement, uint64_t steps)
{
    if (placement->kind != TUTTI_ZERO_SHARDED) return placement_claim_units(placement, steps);
    TRY(gatherer_close_units(&placement->gatherer));
    return tutti_barrier(placement->control_comm, NULL);
}
/* Only SHARDED units have whole arrays beside the slices. The others are updated in their whole arrays. */
tutti_status placement_close_units(struct zero_placement *placement)
{
    return placement->kind == TUTTI_ZERO_SHARDED ? gatherer_close_units(&placement->gatherer) : TUTTI_OK;
}
tutti_status placement_update_prefetches(struct zero_placement *placement)
{
    return placement->kind == TUTTI_ZERO_SHARDED ? gatherer_update_prefetches(&placement->gatherer) : TUTTI_OK;
}
