/* Prefetches follow from the uses so far, which are the same on all ranks. So all ranks start the same gathers in the
   same order. Each gather has its unit as label, and ranks that differ get an error before a byte moves.

   A unit whose use has ended stays until another is used. The next use may be its own, as the last unit of a forward
   pass is the first of the backward pass. Ranks may differ in which gradients come. So for the choice of the next
   gathers, a use in a backward pass ends when another unit is used, but its pages stay until its gradients have come.
   If the unit is gathered again before that, the gather writes the same bytes again. */
#include "zero/gather.h"
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { NAP_NS = 50000 };

static size_t gatherer_unit_bytes(const struct gatherer *g, int unit) { return partition_bytes(g->partition, unit); }
static bool gatherer_has_unit(const struct gatherer *g, int u) { return g->unit && u < g->partition->units; }

/* ---- opening and closing a unit ---- */
static tutti_status gatherer_commit_unit(struct gatherer *g, int unit)
{
    TRY(pages_commit_range(g->unit[unit].flat, gatherer_unit_bytes(g, unit)));
    g->whole_bytes += gatherer_unit_bytes(g, unit);
    if (g->whole_bytes > g->most_bytes) g->most_bytes = g->whole_bytes;
    return TUTTI_OK;
}
static tutti_status gatherer_await_unit(struct gatherer *g, int unit)
{
    struct gathered_unit *w = &g->unit[unit];
    if (w->state != GATHERING) return TUTTI_OK;
    int64_t began_ns = clock_ns();
    tutti_status status = tutti_wait(&w->request, g->timeout_ms);
    g->waited_ns += (uint64_t)(clock_ns() - began_ns);
    if (status == TUTTI_OK) {
        trace_span_await_end(&w->span);
        w->state = WHOLE;
        return TUTTI_OK;
    }
    char why[STATUS_DETAIL_BYTES / 2];
    snprintf(why, sizeof why, "%s", status_detail());
    return status_fail(status,
        "zero: unit %d was not gathered; with sharded parameters all ranks must use the same units in the same "
        "order: %s",
        unit, why);
}
static tutti_status gatherer_start_unit(struct gatherer *g, int unit)
{
    const struct unit_partition *u = &g->partition->unit[unit];
    struct gathered_unit *w = &g->unit[unit];
    /* A prefetch whose use did not happen may still be in flight. */
    TRY(gatherer_await_unit(g, unit));
    if (w->state == CLOSED) TRY(gatherer_commit_unit(g, unit));
    w->here = true;
    w->request = (tutti_request)TUTTI_REQUEST_INIT;
    w->request.label = (uint64_t)unit + 1;
    size_t bytes = u->slice * u->element * (size_t)(g->partition->ranks - 1);
    trace_span_begin(&w->span, g->trace, TUTTI_ZERO_GATHERED, unit, bytes);
    trace_span_follow_request(&w->span, &w->request);
    TRY(tutti_all_gather(w->slice, w->flat, u->slice, u->dtype, g->comm, &w->request));
    w->state = GATHERING;
    g->moved_bytes += bytes;
    return TUTTI_OK;
}
static tutti_status gatherer_free_unit(struct gatherer *g, int unit)
{
    struct gathered_unit *w = &g->unit[unit];
    if (w->state == CLOSED) return TUTTI_OK;
    TRY(gatherer_await_unit(g, unit));
    w->state = CLOSED;
    g->whole_bytes -= gatherer_unit_bytes(g, unit);
    return pages_decommit_range(&g->pages, w->flat, gatherer_unit_bytes(g, unit));
}
static void gathered_unit_end_use(struct gathered_unit *w) { w->here = w->done = w->early = false; }
static tutti_status gatherer_free_units(struct gatherer *g)
{
    for (int u = 0; u < g->partition->units; u++) {
        gathered_unit_end_use(&g->unit[u]);
        g->unit[u].waits = 0;
        TRY(gatherer_free_unit(g, u));
    }
    return TUTTI_OK;
}

/* ---- uses ---- */
static bool gatherer_predicts_unit(const struct gatherer *g, int count, int unit)
{
    for (int i = 0; i < count; i++)
        if (g->predicted[i] == unit) return true;
    return false;
}
/* Frees finished units and stale prefetches, then starts the new prefetches. */
tutti_status gatherer_update_prefetches(struct gatherer *g)
{
    int count = prefetcher_predict(&g->prefetcher, g->prefetch, g->predicted);
    for (int u = 0; u < g->partition->units && !g->keeps; u++) {
        struct gathered_unit *w = &g->unit[u];
        if ((w->done || w->early) && !gatherer_predicts_unit(g, count, u)) gathered_unit_end_use(w);
        if (!w->here && !w->waits) TRY(gatherer_free_unit(g, u));
    }
    for (int i = 0; i < count; i++) {
        struct gathered_unit *w = &g->unit[g->predicted[i]];
        /* A unit that is here and not done is in use. */
        w->early |= w->done || !w->here;
        if (!w->here) TRY(gatherer_start_unit(g, g->predicted[i]));
    }
    return TUTTI_OK;
}
tutti_status gatherer_use(struct gatherer *g, int unit, bool backward)
{
    struct gathered_unit *w = &g->unit[unit];
    bool comes = w->early || !w->here;
    if (!w->here) {
        g->unforeseen++;
        TRY(gatherer_start_unit(g, unit));
    }
    w->early = w->done = false;
    w->waits = backward ? g->partition->unit[unit].parameters : 0;
    if (comes) {
        prefetcher_record(&g->prefetcher, unit);
        TRY(gatherer_update_prefetches(g));
    }
    w->done = backward;
    return gatherer_await_unit(g, unit);
}
void gatherer_release(struct gatherer *g, int unit) { g->unit[unit].done = g->unit[unit].here; }
tutti_status gatherer_check_unit_whole(const struct gatherer *g, int unit)
{
    /* A unit that waits for gradients may be in a second gather, which keeps its bytes. */
    if (g->unit[unit].state == WHOLE || g->unit[unit].waits) return TUTTI_OK;
    return status_refuse(TUTTI_INVALID_ARGUMENT,
        "zero: a gradient of unit %d was computed while its parameters were not gathered: the program has not used "
        "the unit for this backward pass",
        unit);
}
void gatherer_count_gradient(struct gatherer *g, int unit) { g->unit[unit].waits -= g->unit[unit].waits > 0; }
tutti_status gatherer_keep_units(struct gatherer *g, bool kept)
{
    g->keeps = kept;
    if (!kept) return gatherer_update_prefetches(g);
    for (int u = 0; u < g->partition->units; u++)
        if (!g->unit[u].here) {
            TRY(gatherer_start_unit(g, u));
            /* The unit has no use, so it is freed when units are no longer kept. */
            g->unit[u].done = true;
        }
    for (int u = 0; u < g->partition->units; u++) TRY(gatherer_await_unit(g, u));
    return TUTTI_OK;
}
tutti_status gatherer_begin_update(struct gatherer *g)
{
    g->keeps = false;
    prefetcher_record(&g->prefetcher, PREFETCH_STEP);
    return gatherer_free_units(g);
}
tutti_status gatherer_scatter_values(struct gatherer *g)
{
    for (int u = 0; u < g->partition->units; u++) {
        const struct unit_partition *p = &g->partition->unit[u];
        TRY(tutti_scatter(g->unit[u].flat, g->unit[u].slice, p->slice, p->dtype, 0, g->comm, NULL));
    }
    /* The report leaves out the memory of the first values. */
    if (!g->prefetcher.count) g->most_bytes = 0;
    return gatherer_begin_update(g);
}

/* ---- lifetime ---- */
static tutti_status gatherer_init_unit(struct gatherer *g, int unit)
{
    struct gathered_unit *w = &g->unit[unit];
    TRY(tutti_mem_alloc(&w->slice, gatherer_unit_bytes(g, unit) / (size_t)g->partition->ranks));
    TRY(pages_reserve_range(&g->pages, gatherer_unit_bytes(g, unit), &w->flat));
    TRY(gatherer_commit_unit(g, unit));
    w->state = WHOLE;
    w->here = true;
    return TUTTI_OK;
}
tutti_status gatherer_init(struct gatherer *g, const struct partition *partition, int prefetch, int64_t timeout_ms,
    tutti_comm *all, struct trace *trace)
{
    size_t largest = 0;
    *g = (struct gatherer){ .partition = partition, .prefetch = prefetch, .timeout_ms = timeout_ms, .keeps = true };
    g->pages.file = -1;
    g->trace = trace;
    g->unit = memory_alloc_zeroed((size_t)partition->units, sizeof *g->unit);
    g->predicted = memory_alloc_zeroed((size_t)prefetch + 1, sizeof *g->predicted);
    if (!prefetcher_init(&g->prefetcher, partition->units) || !g->unit || !g->predicted)
        return status_fail(TUTTI_NO_MEMORY, "zero: no memory to gather %d units", partition->units);
    for (int u = 0; u < partition->units; u++) largest = size_larger(largest, gatherer_unit_bytes(g, u));
    TRY(pages_init(&g->pages, largest));
    TRY(tutti_comm_split(all, 0, partition->rank, &g->comm));
    for (int u = 0; u < partition->units; u++) TRY(gatherer_init_unit(g, u));
    return TUTTI_OK;
}
void gatherer_await_until(struct gatherer *g, int64_t until_ms)
{
    for (int u = 0; gatherer_has_unit(g, u); u++)
        while (g->unit[u].state == GATHERING && tutti_test(&g->unit[u].request) == TUTTI_IN_PROGRESS
            && clock_ms() < until_ms)
            nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
}
void gatherer_finish(struct gatherer *g)
{
    if (!g->partition) return;
    /* Gathers use the memory below until this has ended them. */
    tutti_comm_destroy(g->comm);
    for (int u = 0; gatherer_has_unit(g, u); u++) {
        pages_release_range(g->unit[u].flat, gatherer_unit_bytes(g, u));
        tutti_mem_free(g->unit[u].slice);
    }
    pages_finish(&g->pages);
    prefetcher_finish(&g->prefetcher);
    free(g->predicted);
    free(g->unit);
}
