/* SHARED: a rank that has updated a slice publishes its version to its host by a release store. On several hosts the
   ranks of equal index gather their slices into the pages of their hosts, and publish the version after that.
   REPLICATED: all ranks gather, and each waits for its own gather. SHARDED: a rank gathers a unit when it uses it, so
   updates are not published. WHOLE: all ranks make the same update.

   A rank may overwrite a slice only when no rank reads it. Each step begins with a message from all ranks that they
   have reached it. Their earlier reads are then over, and later reads wait for the new version. */
#include "zero/home.h"
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
static void pause_for(int n)
{
    if (n < PAUSES) pause_briefly();
    else if (n < YIELDS) sched_yield();
    else nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
}

/* ---- lifetime ---- */
static tutti_status find_places(struct home *h)
{
    const struct places *p = &h->places;
    TRY(places_init(&h->places, h->lanes->all[0]));
    h->lengths = memory_zeroed((size_t)p->hosts, sizeof *h->lengths);
    h->offsets = memory_zeroed((size_t)p->hosts, sizeof *h->offsets);
    if (!h->lengths || !h->offsets) return status_fail(TUTTI_NO_MEMORY, "zero: no memory for %d hosts", p->hosts);
    if (h->kind == TUTTI_ZERO_SHARED && !p->even)
        return status_refuse(TUTTI_UNSUPPORTED,
            "zero: parameters that the ranks of a host share need the same number of ranks on each host; here %d "
            "ranks are on %d hosts, and %d on the largest. Start the same number on each, or keep parameters "
            "replicated",
            p->ranks, p->hosts, p->largest);
    return TUTTI_OK;
}
static tutti_status make_flat(struct home *h, int unit)
{
    struct placed_unit *placed = &h->placed[unit];
    size_t bytes = partition_bytes(h->partition, unit);
    placed->home = h;
    if (h->kind == TUTTI_ZERO_SHARED) {
        placed->said = h->versions + (size_t)unit * (size_t)h->places.here;
        return tutti_mem_alloc_common(&placed->flat, bytes, h->lanes->all[0]);
    }
    return tutti_mem_alloc(&placed->flat, bytes);
}
tutti_status home_init(struct home *h, const struct partition *partition, const tutti_zero_config *c,
    struct lanes *lanes, tutti_comm *word, struct trace *trace)
{
    tutti_comm *all = lanes->all[0];
    *h = (struct home){ .kind = c->home, .partition = partition, .lanes = lanes, .word = word, .trace = trace };
    h->timeout_ms = c->timeout_ms > 0 ? c->timeout_ms : HALF_AN_HOUR_MS;
    if (h->kind == TUTTI_ZERO_SHARDED)
        return gatherer_init(&h->gatherer, partition, c->prefetch, h->timeout_ms, all, trace);
    TRY(find_places(h));
    h->placed = memory_zeroed((size_t)partition->units, sizeof *h->placed);
    if (!h->placed) return status_fail(TUTTI_NO_MEMORY, "zero: no memory for %d units", partition->units);
    if (h->kind == TUTTI_ZERO_SHARED) {
        size_t words = (size_t)partition->units * (size_t)h->places.here;
        TRY(tutti_mem_alloc_common((void **)&h->versions, words * sizeof *h->versions, all));
        const struct places *p = &h->places;
        if (p->hosts > 1) TRY(lanes_reach_across(lanes, p->index, p->host));
    }
    for (int u = 0; u < partition->units; u++) TRY(make_flat(h, u));
    return TUTTI_OK;
}
void home_abandon(struct home *h)
{
    if (h->gatherer.comm) tutti_comm_abort(h->gatherer.comm);
}
void home_finish(struct home *h)
{
    gatherer_finish(&h->gatherer);
    for (int u = 0; h->placed && u < h->partition->units; u++) tutti_mem_free(h->placed[u].flat);
    tutti_mem_free(h->versions);
    free(h->placed);
    places_finish(&h->places);
    free(h->lengths);
    free(h->offsets);
}
tutti_status home_keep(struct home *h, uint64_t steps, bool kept)
{
    if (h->kind == TUTTI_ZERO_SHARDED) return gatherer_keep(&h->gatherer, kept);
    for (int u = 0; u < h->partition->units && kept; u++) TRY(home_await(h, u, steps));
    return TUTTI_OK;
}
tutti_status home_claim(struct home *h, uint64_t steps)
{
    TRY(home_keep(h, steps, true));
    return tutti_barrier(h->word, NULL);
}
void home_complete(struct home *h, int64_t until_ms)
{
    gatherer_complete(&h->gatherer, until_ms);
    for (int u = 0; h->placed && u < h->partition->units; u++)
        while (h->placed[u].gathers && tutti_test(&h->placed[u].gathering) == TUTTI_IN_PROGRESS
            && clock_ms() < until_ms)
            pause_for(YIELDS);
}
tutti_status home_begin(struct home *h)
{
    if (h->kind == TUTTI_ZERO_SHARDED) return gatherer_begin(&h->gatherer);
    tutti_comm *comm = h->kind == TUTTI_ZERO_SHARED ? h->lanes->across[0] : h->lanes->all[0];
    /* Rank 0 has index 0 on its host, so the ranks of index 0 broadcast between hosts. */
    bool first = h->places.index == 0;
    bool joins = comm && (h->kind != TUTTI_ZERO_SHARED || first);
    for (int u = 0; joins && u < h->partition->units; u++)
        TRY(tutti_broadcast(h->placed[u].flat, h->placed[u].flat, h->partition->unit[u].count,
            h->partition->unit[u].dtype, 0, comm, NULL));
    return tutti_barrier(h->word, NULL);
}
void *home_slice(const struct home *h, int unit)
{
    const struct unit_partition *u = &h->partition->unit[unit];
    if (h->kind == TUTTI_ZERO_SHARDED) return h->gatherer.unit[unit].slice;
    return (char *)h->placed[unit].flat
        + u->slice * u->element * (size_t)partition_slice(h->partition, h->partition->rank);
}
uint64_t home_shm_group(const struct home *h)
{
    if (h->kind == TUTTI_ZERO_SHARDED) return (uint64_t)h->partition->ranks;
    return h->kind == TUTTI_ZERO_SHARED ? (uint64_t)h->places.here : 1;
}
void *home_flat(const struct home *h, int unit)
{
    return h->kind == TUTTI_ZERO_SHARDED ? h->gatherer.unit[unit].flat : h->placed[unit].flat;
}

/* ---- publishing ---- */
static void version_publish(struct placed_unit *placed)
{
    atomic_store_explicit(&placed->said[placed->home->places.index].steps, placed->steps, memory_order_release);
}
/* Runs on the thread that finishes the gather. */
static void say_gathered(tutti_request *request, void *context)
{
    struct placed_unit *placed = context;
    bool fine = tutti_test(request) == TUTTI_OK;
    /* The span ends before the version is published, because a reader of the version may start the span again. */
    span_end(&placed->span);
    if (fine) version_publish(placed);
}
static tutti_status gather_across(struct home *h, struct placed_unit *placed, const struct unit_partition *u,
    tutti_comm *comm)
{
    for (int host = 0; host < h->places.hosts; host++) {
        h->lengths[host] = u->slice;
        h->offsets[host] = u->slice * (size_t)places_rank(&h->places, host, h->places.index);
    }
    void *mine = (char *)placed->flat + u->slice * u->element * (size_t)h->partition->rank;
    placed->gathering = (tutti_request)TUTTI_REQUEST_INIT;
    placed->gathering.done = say_gathered;
    placed->gathering.context = placed;
    h->moved_bytes += u->slice * u->element * (size_t)(h->places.hosts - 1);
    return tutti_all_gather_v(mine, placed->flat, h->lengths, h->offsets, u->dtype, comm, &placed->gathering);
}
static tutti_status unit_gather(struct home *h, struct placed_unit *placed, const struct unit_partition *u,
    tutti_comm *comm)
{
    void *mine = (char *)placed->flat + u->slice * u->element * (size_t)h->partition->rank;
    placed->gathering = (tutti_request)TUTTI_REQUEST_INIT;
    span_follow(&placed->span, &placed->gathering);
    h->moved_bytes += u->slice * u->element * (size_t)(h->partition->ranks - 1);
    return tutti_all_gather(mine, placed->flat, u->slice, u->dtype, comm, &placed->gathering);
}
tutti_status home_publish(struct home *h, int unit, uint64_t steps)
{
    if (h->kind == TUTTI_ZERO_SHARDED || h->kind == TUTTI_ZERO_WHOLE) return TUTTI_OK;
    struct placed_unit *placed = &h->placed[unit];
    const struct unit_partition *u = &h->partition->unit[unit];
    placed->steps = steps;
    if (h->kind == TUTTI_ZERO_SHARED && h->places.hosts == 1) {
        version_publish(placed);
        return TUTTI_OK;
    }
    size_t others = (size_t)(h->kind == TUTTI_ZERO_SHARED ? h->places.hosts : h->partition->ranks) - 1;
    span_begin(&placed->span, h->trace, TUTTI_ZERO_GATHERED, unit, u->slice * u->element * others);
    TRY(h->kind == TUTTI_ZERO_SHARED ? gather_across(h, placed, u, lanes_across(h->lanes, unit))
                                     : unit_gather(h, placed, u, lanes_all(h->lanes, unit)));
    placed->gathers = true;
    return TUTTI_OK;
}

/* ---- waiting ---- */
/* Returns the index of a rank on this host whose slice has had fewer steps, or -1. */
static int find_late(const struct home *h, const struct placed_unit *placed, uint64_t steps)
{
    for (int i = 0; i < h->places.here; i++)
        if (atomic_load_explicit(&placed->said[i].steps, memory_order_acquire) < steps) return i;
    return -1;
}
static tutti_status await_versions(struct home *h, int unit, uint64_t steps)
{
    int64_t deadline_ms = clock_deadline(h->timeout_ms);
    for (int n = 0, late; (late = find_late(h, &h->placed[unit], steps)) >= 0; n++) {
        pause_for(n);
        if (n % LOOKS) continue;
        TRY(tutti_comm_get_async_error(h->word));
        if (h->lanes->across[0]) TRY(tutti_comm_get_async_error(h->lanes->across[0]));
        if (clock_ms() > deadline_ms)
            return status_fail(TUTTI_TIMEOUT,
                "zero: rank %d has not updated its slice of unit %d within %lld ms; is it stopped?",
                places_rank(&h->places, h->places.host, late), unit, (long long)h->timeout_ms);
    }
    return TUTTI_OK;
}
static tutti_status await_gathering(struct home *h, int unit)
{
    tutti_status status = tutti_wait(&h->placed[unit].gathering, h->timeout_ms);
    if (status != TUTTI_OK && h->lanes->across[0]) {
        char why[STATUS_DETAIL_BYTES / 2];
        snprintf(why, sizeof why, "%s", status_detail());
        return status_fail(status,
            "zero: unit %d was not received from the other hosts; a rank in the following text is a host: %s", unit,
            why);
    }
    h->placed[unit].gathers = false;
    span_await(&h->placed[unit].span);
    return status;
}
tutti_status home_await(struct home *h, int unit, uint64_t steps)
{
    /* Only this rank reads its SHARDED slices. */
    if (h->kind == TUTTI_ZERO_SHARDED) return TUTTI_OK;
    struct placed_unit *placed = &h->placed[unit];
    bool shared = h->kind == TUTTI_ZERO_SHARED;
    if (!placed->gathers && (!shared || find_late(h, placed, steps) < 0)) return TUTTI_OK;
    int64_t began_ns = clock_ns();
    tutti_status status = placed->gathers ? await_gathering(h, unit) : TUTTI_OK;
    if (status == TUTTI_OK && shared) status = await_versions(h, unit, steps);
    h->waited_ns += (uint64_t)(clock_ns() - began_ns);
    return status;
}
tutti_status home_use(struct home *h, int unit, uint64_t steps, bool backward)
{
    return h->kind == TUTTI_ZERO_SHARDED ? gatherer_use(&h->gatherer, unit, backward) : home_await(h, unit, steps);
}
tutti_status home_claim_pieces(struct home *h, uint64_t steps)
{
    if (h->kind != TUTTI_ZERO_SHARDED) return home_claim(h, steps);
    TRY(gatherer_rest(&h->gatherer));
    return tutti_barrier(h->word, NULL);
}
tutti_status home_rest(struct home *h)
{
    return h->kind == TUTTI_ZERO_SHARDED ? gatherer_rest(&h->gatherer) : TUTTI_OK;
}
tutti_status home_go_on(struct home *h)
{
    return h->kind == TUTTI_ZERO_SHARDED ? gatherer_look(&h->gatherer) : TUTTI_OK;
}
