/* Prefetches follow from the uses so far, which are the same on all ranks. So all ranks start the same gathers in the
   same order. Each gather has its unit as label, and ranks that differ get an error before a byte moves.

   A unit whose use has ended stays until another is used. The next use may be its own, as the last unit of a forward
   pass is the first of the backward pass. Ranks may differ in which gradients come. So for the choice of the next
   gathers, a use in a backward pass ends when another unit is used, but its pages stay until its gradients have come.
   If the unit is gathered again before that, the gather writes the same bytes again.

   A gather needs a destination that peers can reach, or bytes are copied twice. That is a buffer of the pool. Its pages
   move to the unit's flat array, around those of this rank's slice, and back when the unit is freed. */
#include "zero/gather.h"
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "zero/topology.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { NAP_NS = 50000 };

static size_t gatherer_unit_bytes(const struct gatherer *gatherer, int unit)
{
    return partition_unit_bytes(gatherer->partition, unit);
}
/* Returns true for the number of a unit; false for all numbers if gatherer_init has failed early. */
static bool gatherer_has_unit(const struct gatherer *gatherer, int u)
{
    return gatherer->unit && u < gatherer->partition->units;
}

/* Returns the bytes of a slice of the unit. */
static size_t gatherer_slice_bytes(const struct gatherer *gatherer, int unit)
{
    return gatherer_unit_bytes(gatherer, unit) / (size_t)gatherer->partition->ranks;
}

/* ---- the pages of a unit ---- */
/* Moves the pages of the unit's buffer and slice to its flat array, or back. */
static tutti_status gatherer_move_pages(const struct gatherer *gatherer, int unit, bool back)
{
    const struct gathered_unit *gathered = &gatherer->unit[unit];
    size_t slice = gatherer_slice_bytes(gatherer, unit), before = slice * (size_t)gatherer->partition->rank;
    size_t after = before + slice, bytes[] = { before, slice, gatherer_unit_bytes(gatherer, unit) - after };
    char *flat = gathered->flat, *alias = gathered->buffer->alias, *memory = gathered->buffer->memory;
    char *at[] = { flat, flat + before, flat + after }, *from[] = { alias, gathered->slice, alias + after };
    char *shared[] = { memory, gathered->shared, memory + after };
    for (int i = 0; i < 3; i++)
        TRY(pages_move_range(shared[i], back ? at[i] : from[i], back ? from[i] : at[i], bytes[i]));
    return TUTTI_OK;
}
/* Gives the unit's flat array pages: those of a buffer, or new ones. */
static tutti_status gatherer_commit_unit(struct gatherer *gatherer, int unit, bool is_new)
{
    size_t bytes = gatherer_unit_bytes(gatherer, unit);
    gatherer->whole_bytes += bytes;
    if (gatherer->whole_bytes > gatherer->most_bytes) gatherer->most_bytes = gatherer->whole_bytes;
    if (is_new || !gatherer->moves_pages) return pages_commit_range(gatherer->unit[unit].flat, bytes);
    TRY(gather_pool_take(&gatherer->pool, bytes, gatherer->keeps_whole, &gatherer->unit[unit].buffer));
    return gatherer_move_pages(gatherer, unit, false);
}
/* Frees the pages of the unit's flat array, which then reads as NaN. */
static tutti_status gatherer_decommit_unit(struct gatherer *gatherer, int unit)
{
    struct gathered_unit *gathered = &gatherer->unit[unit];
    gatherer->whole_bytes -= gatherer_unit_bytes(gatherer, unit);
    if (gathered->buffer) {
        TRY(gatherer_move_pages(gatherer, unit, true));
        gather_pool_return(&gatherer->pool, gathered->buffer);
        gathered->buffer = NULL;
    }
    return pages_decommit_range(&gatherer->pages, gathered->flat, gatherer_unit_bytes(gatherer, unit));
}

/* ---- opening and closing a unit ---- */
/* Waits for the unit's gather, if one is in flight. */
static tutti_status gatherer_await_unit(struct gatherer *gatherer, int unit)
{
    struct gathered_unit *gathered = &gatherer->unit[unit];
    if (gathered->state != GATHERING) return TUTTI_OK;
    int64_t began_ns = clock_ns();
    tutti_status status = tutti_wait(&gathered->request, gatherer->timeout_ms);
    gatherer->waited_ns += (uint64_t)(clock_ns() - began_ns);
    if (status == TUTTI_OK) {
        trace_interval_await_end(&gathered->interval);
        gathered->state = WHOLE;
        return TUTTI_OK;
    }
    char why[STATUS_DETAIL_BYTES / 2];
    snprintf(why, sizeof why, "%s", status_detail());
    return status_fail(status,
        "zero: unit %d was not gathered; with sharded parameters all ranks must use the same units in the same "
        "order: %s",
        unit, why);
}
/* Starts the collective that brings the slices of all ranks into the unit's buffer, or into its flat array. */
static tutti_status gatherer_start_collective(struct gatherer *gatherer, int unit)
{
    const struct unit_partition *u = &gatherer->partition->unit[unit];
    struct gathered_unit *gathered = &gatherer->unit[unit];
    void *into = gathered->buffer ? gathered->buffer->memory : gathered->flat;
    if (!gathered->buffer)
        return tutti_all_gather(gathered->shared, into, u->slice, u->dtype, gatherer->comm, &gathered->request);
    for (int q = 0; q < gatherer->partition->ranks; q++) {
        gatherer->lengths[q] = q == gatherer->partition->rank ? 0 : u->slice;
        gatherer->places[q] = u->slice * (size_t)q;
    }
    return tutti_all_to_all_v(gathered->shared, gatherer->lengths, gatherer->starts, into, gatherer->lengths,
        gatherer->places, u->dtype, gatherer->comm, &gathered->request);
}
/* Starts to gather a unit. */
static tutti_status gatherer_start_unit(struct gatherer *gatherer, int unit)
{
    const struct unit_partition *u = &gatherer->partition->unit[unit];
    struct gathered_unit *gathered = &gatherer->unit[unit];
    /* A prefetch whose use did not happen may still be in flight. */
    TRY(gatherer_await_unit(gatherer, unit));
    if (gathered->state == CLOSED) TRY(gatherer_commit_unit(gatherer, unit, false));
    gathered->is_gathered = true;
    gathered->request = (tutti_request)TUTTI_REQUEST_INIT;
    gathered->request.label = (uint64_t)unit + 1;
    size_t bytes = u->slice * u->element * (size_t)(gatherer->partition->ranks - 1);
    trace_interval_begin(&gathered->interval, gatherer->trace, TUTTI_ZERO_GATHERED, unit, bytes);
    trace_interval_follow_request(&gathered->interval, &gathered->request);
    TRY(gatherer_start_collective(gatherer, unit));
    gathered->state = GATHERING;
    gatherer->moved_bytes += bytes;
    return TUTTI_OK;
}
/* Frees the pages of the unit's flat array; its slice stays. Reads then see NaN. */
static tutti_status gatherer_free_unit(struct gatherer *gatherer, int unit)
{
    struct gathered_unit *gathered = &gatherer->unit[unit];
    if (gathered->state == CLOSED) return TUTTI_OK;
    TRY(gatherer_await_unit(gatherer, unit));
    gathered->state = CLOSED;
    return gatherer_decommit_unit(gatherer, unit);
}
/* Forgets the unit's use and prefetch: the unit may be freed, and its next use starts a gather. */
static void gathered_unit_end_use(struct gathered_unit *gathered)
{
    gathered->is_gathered = gathered->has_ended = gathered->is_prefetched = false;
}
/* Ends all uses of all units, and frees the units. */
static tutti_status gatherer_free_units(struct gatherer *gatherer)
{
    for (int u = 0; u < gatherer->partition->units; u++) {
        gathered_unit_end_use(&gatherer->unit[u]);
        gatherer->unit[u].gradients_due = 0;
        TRY(gatherer_free_unit(gatherer, u));
    }
    return TUTTI_OK;
}

/* ---- uses ---- */
/* Returns true if `unit` is among the `count` predicted units. */
static bool gatherer_predicts_unit(const struct gatherer *gatherer, int count, int unit)
{
    for (int i = 0; i < count; i++)
        if (gatherer->predicted[i] == unit) return true;
    return false;
}
/* Frees finished units and stale prefetches, then starts the new prefetches. */
tutti_status gatherer_update_prefetches(struct gatherer *gatherer)
{
    int count = prefetcher_predict(&gatherer->prefetcher, gatherer->prefetch, gatherer->predicted);
    for (int u = 0; u < gatherer->partition->units && !gatherer->keeps_whole; u++) {
        struct gathered_unit *gathered = &gatherer->unit[u];
        if ((gathered->has_ended || gathered->is_prefetched) && !gatherer_predicts_unit(gatherer, count, u))
            gathered_unit_end_use(gathered);
        if (!gathered->is_gathered && !gathered->gradients_due) TRY(gatherer_free_unit(gatherer, u));
    }
    for (int i = 0; i < count; i++) {
        struct gathered_unit *gathered = &gatherer->unit[gatherer->predicted[i]];
        /* A gathered unit whose use has not ended is in use. */
        gathered->is_prefetched |= gathered->has_ended || !gathered->is_gathered;
        if (!gathered->is_gathered) TRY(gatherer_start_unit(gatherer, gatherer->predicted[i]));
    }
    return TUTTI_OK;
}
tutti_status gatherer_use_unit(struct gatherer *gatherer, int unit, bool backward)
{
    struct gathered_unit *gathered = &gatherer->unit[unit];
    bool is_new_use = gathered->is_prefetched || !gathered->is_gathered;
    if (!gathered->is_gathered) {
        gatherer->unforeseen++;
        TRY(gatherer_start_unit(gatherer, unit));
    }
    gathered->is_prefetched = gathered->has_ended = false;
    gathered->gradients_due = backward ? gatherer->partition->unit[unit].parameters : 0;
    if (is_new_use) {
        prefetcher_record(&gatherer->prefetcher, unit);
        TRY(gatherer_update_prefetches(gatherer));
    }
    gathered->has_ended = backward;
    return gatherer_await_unit(gatherer, unit);
}
void gatherer_release_unit(struct gatherer *gatherer, int unit)
{
    gatherer->unit[unit].has_ended = gatherer->unit[unit].is_gathered;
}
tutti_status gatherer_check_unit_whole(const struct gatherer *gatherer, int unit)
{
    /* A unit that waits for gradients may be in a second gather, which keeps its bytes. */
    if (gatherer->unit[unit].state == WHOLE || gatherer->unit[unit].gradients_due) return TUTTI_OK;
    return status_refuse(TUTTI_INVALID_ARGUMENT,
        "zero: a gradient of unit %d was computed while its parameters were not gathered: the program has not used "
        "the unit for this backward pass",
        unit);
}
void gatherer_count_gradient(struct gatherer *gatherer, int unit)
{
    gatherer->unit[unit].gradients_due -= gatherer->unit[unit].gradients_due > 0;
}
tutti_status gatherer_keep_units(struct gatherer *gatherer, bool kept)
{
    gatherer->keeps_whole = kept;
    if (!kept) return gatherer_update_prefetches(gatherer);
    for (int u = 0; u < gatherer->partition->units; u++)
        if (!gatherer->unit[u].is_gathered) {
            TRY(gatherer_start_unit(gatherer, u));
            /* The unit has no use, so it is freed when units are no longer kept. */
            gatherer->unit[u].has_ended = true;
        }
    for (int u = 0; u < gatherer->partition->units; u++) TRY(gatherer_await_unit(gatherer, u));
    return TUTTI_OK;
}
tutti_status gatherer_close_units(struct gatherer *gatherer)
{
    gatherer->keeps_whole = false;
    prefetcher_record(&gatherer->prefetcher, PREFETCH_STEP);
    TRY(gatherer_free_units(gatherer));
    gather_pool_end_step(&gatherer->pool);
    return TUTTI_OK;
}
tutti_status gatherer_scatter_values(struct gatherer *gatherer)
{
    for (int u = 0; u < gatherer->partition->units; u++) {
        const struct unit_partition *p = &gatherer->partition->unit[u];
        TRY(tutti_scatter(gatherer->unit[u].flat, gatherer->unit[u].slice, p->slice, p->dtype, 0, gatherer->comm,
            NULL));
    }
    /* The report leaves out the memory of the first values. */
    if (!gatherer->prefetcher.count) gatherer->most_bytes = 0;
    return gatherer_close_units(gatherer);
}

/* ---- forked children ---- */
static struct gatherer *gatherers;
static pthread_mutex_t gatherers_lock = PTHREAD_MUTEX_INITIALIZER;
static void gatherers_lock_before_fork(void) { pthread_mutex_lock(&gatherers_lock); }
static void gatherers_unlock_in_parent(void) { pthread_mutex_unlock(&gatherers_lock); }
/* A forked child has neither the buffers nor this rank's slices (memory_keep_out_of_children). Parameters that were
   gathered then read as NaN there, as if they were not, instead of as what the child allocates next. */
static void gatherers_fill_in_child(void)
{
    for (struct gatherer *gatherer = gatherers; gatherer; gatherer = gatherer->next) {
        for (int u = 0; gatherer_has_unit(gatherer, u); u++) {
            struct gathered_unit *gathered = &gatherer->unit[u];
            if (gathered->flat) pages_fill_holes(&gatherer->pages, gathered->flat, gatherer_unit_bytes(gatherer, u));
            if (gathered->slice != gathered->shared)
                pages_fill_holes(&gatherer->pages, gathered->slice, gatherer_slice_bytes(gatherer, u));
            if (gathered->buffer) gathered->buffer->alias = NULL;
        }
        for (struct gather_buffer *b = gatherer->pool.spare; b; b = b->next) b->alias = NULL;
    }
    pthread_mutex_unlock(&gatherers_lock);
}
static void gatherers_register_fork(void)
{
    pthread_atfork(gatherers_lock_before_fork, gatherers_unlock_in_parent, gatherers_fill_in_child);
}
static void gatherers_add(struct gatherer *gatherer)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, gatherers_register_fork);
    pthread_mutex_lock(&gatherers_lock);
    gatherer->next = gatherers;
    gatherers = gatherer;
    pthread_mutex_unlock(&gatherers_lock);
}
/* Removes the gatherer from the list, if it is there. */
static void gatherers_remove(const struct gatherer *gatherer)
{
    pthread_mutex_lock(&gatherers_lock);
    struct gatherer **link = &gatherers;
    while (*link && *link != gatherer) link = &(*link)->next;
    if (*link) *link = gatherer->next;
    pthread_mutex_unlock(&gatherers_lock);
}

/* ---- lifetime ---- */
/* Allocates the slice and the flat array of a unit, which begins whole. */
static tutti_status gatherer_init_unit(struct gatherer *gatherer, int unit)
{
    struct gathered_unit *gathered = &gatherer->unit[unit];
    size_t slice = gatherer_slice_bytes(gatherer, unit), before = slice * (size_t)gatherer->partition->rank;
    TRY(tutti_mem_alloc(&gathered->shared, size_larger(slice, gatherer->moves_pages ? WHOLE_PAGES_BYTES : 0)));
    TRY(pages_reserve_range(&gatherer->pages, gatherer_unit_bytes(gatherer, unit), &gathered->flat));
    gathered->slice = gathered->shared;
    if (gatherer->moves_pages)
        TRY(pages_alias_range(gathered->shared, slice, (char *)gathered->flat + before, &gathered->slice));
    TRY(gatherer_commit_unit(gatherer, unit, true));
    gathered->state = WHOLE;
    gathered->is_gathered = true;
    return TUTTI_OK;
}
/* Allocates the arrays for gathers into buffers. */
static tutti_status gatherer_init_lengths(struct gatherer *gatherer)
{
    size_t ranks = (size_t)gatherer->partition->ranks;
    gatherer->lengths = memory_alloc_zeroed(3 * ranks, sizeof *gatherer->lengths);
    if (!gatherer->lengths) return status_fail(TUTTI_NO_MEMORY, "zero: no memory to gather from %zu ranks", ranks);
    gatherer->starts = gatherer->lengths + ranks;
    gatherer->places = gatherer->starts + ranks;
    return TUTTI_OK;
}
/* Chooses how units are gathered: by moving pages if all ranks are on one host and can. Collective. Between hosts the
   networks register memory, and do not notice that pages move. */
static tutti_status gatherer_choose_way(struct gatherer *gatherer)
{
    struct topology topology;
    tutti_status status = topology_init(&topology, gatherer->comm);
    uint8_t can = topology.hosts == 1 && gatherer->partition->ranks > 1 && pages_can_move();
    topology_finish(&topology);
    TRY(status);
    TRY(tutti_all_reduce(&can, &can, 1, TUTTI_UINT8, TUTTI_MIN, gatherer->comm, NULL));
    gatherer->moves_pages = can;
    return can ? gatherer_init_lengths(gatherer) : TUTTI_OK;
}
tutti_status gatherer_init(struct gatherer *gatherer, const struct partition *partition, int prefetch,
    int64_t timeout_ms, tutti_comm *all, struct trace *trace)
{
    size_t largest = 0;
    *gatherer = (struct gatherer){
        .partition = partition, .prefetch = prefetch, .timeout_ms = timeout_ms, .keeps_whole = true
    };
    gatherer->pages.file = -1;
    gatherer->trace = trace;
    gatherer->unit = memory_alloc_zeroed((size_t)partition->units, sizeof *gatherer->unit);
    gatherer->predicted = memory_alloc_zeroed((size_t)prefetch + 1, sizeof *gatherer->predicted);
    if (!prefetcher_init(&gatherer->prefetcher, partition->units) || !gatherer->unit || !gatherer->predicted)
        return status_fail(TUTTI_NO_MEMORY, "zero: no memory to gather %d units", partition->units);
    for (int u = 0; u < partition->units; u++) largest = size_larger(largest, gatherer_unit_bytes(gatherer, u));
    TRY(pages_init(&gatherer->pages, largest));
    TRY(tutti_comm_split(all, 0, partition->rank, &gatherer->comm));
    TRY(gatherer_choose_way(gatherer));
    for (int u = 0; u < partition->units; u++) TRY(gatherer_init_unit(gatherer, u));
    if (gatherer->moves_pages) gatherers_add(gatherer);
    return TUTTI_OK;
}
void gatherer_await_until(struct gatherer *gatherer, int64_t until_ms)
{
    for (int u = 0; gatherer_has_unit(gatherer, u); u++)
        while (gatherer->unit[u].state == GATHERING && tutti_test(&gatherer->unit[u].request) == TUTTI_IN_PROGRESS
            && clock_ms() < until_ms)
            nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
}
void gatherer_finish(struct gatherer *gatherer)
{
    if (!gatherer->partition) return;
    gatherers_remove(gatherer);
    /* Gathers use the memory below until this has ended them. */
    tutti_comm_destroy(gatherer->comm);
    for (int u = 0; gatherer_has_unit(gatherer, u); u++) {
        struct gathered_unit *gathered = &gatherer->unit[u];
        pages_release_range(gathered->flat, gatherer_unit_bytes(gatherer, u));
        if (gathered->slice != gathered->shared)
            pages_release_range(gathered->slice, gatherer_slice_bytes(gatherer, u));
        tutti_mem_free(gathered->shared);
        gather_buffer_free(gathered->buffer);
    }
    gather_pool_finish(&gatherer->pool);
    free(gatherer->lengths);
    pages_finish(&gatherer->pages);
    prefetcher_finish(&gatherer->prefetcher);
    free(gatherer->predicted);
    free(gatherer->unit);
}
