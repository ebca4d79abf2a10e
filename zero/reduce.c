/* One thread calls, and sums run beside it. A unit's sum starts when its gradients are complete and the sums of all
   units before it in the order have started. So all ranks start the same sums in the same order. */
#include "zero/reduce.h"
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "kernels/reduce.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { USUAL_BUFFERS = 2, SPIN_NS = 50000000, NAP_NS = 50000 };
/* Ranks combine these flags together with `used`, behind it. */
enum { HAS_MORE, DROPS, TAKES, FLAGS };

static size_t reducer_unit_bytes(const struct reducer *reducer, int unit)
{
    return partition_bytes(reducer->partition, unit);
}
static size_t reducer_slice_bytes(const struct reducer *reducer, int unit)
{
    return reducer_unit_bytes(reducer, unit) / (size_t)reducer->partition->ranks;
}
static bool reducer_sums_in_place(const struct reducer *reducer) { return reducer->partition->slices == 1; }

/* ---- buffers ---- */
/* Takes an unused buffer of exactly this size, or returns NULL. */
static struct gradient_buffer *reducer_take_spare_buffer(struct reducer *reducer, size_t bytes)
{
    struct gradient_buffer **link = &reducer->spare;
    while (*link && (*link)->bytes != bytes) link = &(*link)->next;
    struct gradient_buffer *found = *link;
    if (found) *link = found->next;
    return found;
}
/* Counts the buffers of this size: unused ones, those that gather gradients, and those being sent. */
static int reducer_count_buffers(const struct reducer *reducer, size_t bytes)
{
    int count = 0;
    for (const struct gradient_buffer *b = reducer->spare; b; b = b->next) count += b->bytes == bytes;
    for (int u = 0; u < reducer->partition->units; u++) {
        const struct gathering_sum *gathering = &reducer->unit[u];
        count += (gathering->buffer && gathering->buffer->bytes == bytes)
            + (gathering->sent && gathering->sent->bytes == bytes);
    }
    return count;
}
static tutti_status reducer_allocate_buffer(struct reducer *reducer, size_t bytes, struct gradient_buffer **out)
{
    struct gradient_buffer *b = memory_alloc_zeroed(1, sizeof *b);
    if (!b) return status_fail(TUTTI_NO_MEMORY, "zero: no memory for a buffer of gradients");
    b->bytes = bytes;
    tutti_status status = tutti_mem_alloc(&b->memory, bytes);
    if (status != TUTTI_OK) {
        free(b);
        return status;
    }
    reducer->gradient_bytes += bytes;
    *out = b;
    return TUTTI_OK;
}
static void gradient_buffer_free(struct gradient_buffer *b)
{
    if (b) tutti_mem_free(b->memory);
    free(b);
}

/* Frees a buffer beyond the limit. reducer_ensure_unit_buffer makes such a buffer when a wait for a sum might not
   end. */
static void reducer_return_buffer(struct reducer *reducer, struct gradient_buffer *b)
{
    if (reducer_count_buffers(reducer, b->bytes) > reducer->buffers) {
        reducer->gradient_bytes -= b->bytes;
        gradient_buffer_free(b);
        return;
    }
    b->next = reducer->spare;
    reducer->spare = b;
}

/* ---- sums ---- */
/* Adds the sum of a second round to that of the first. A step has two rounds if gradients of a unit came after its sum
   had started. */
static void reducer_add_round(struct reducer *reducer, int unit)
{
    const struct unit_partition *u = &reducer->partition->unit[unit];
    struct gathering_sum *gathering = &reducer->unit[unit];
    const void *from[2] = { gathering->sum, gathering->more };
    if (gathering->rounds++ == 0) return;
    reduce_find(u->dtype, TUTTI_SUM)(&gathering->sum, 1, from, 2, u->slice, 1);
}
/* Returns the n-th oldest sum in flight. */
static struct gradient_sum *reducer_get_running_sum(struct reducer *reducer, int n)
{
    return &reducer->unit[reducer->flying[n]].running;
}
static void reducer_advance_sums(struct reducer *reducer)
{
    for (int n = 0; n < reducer->flying_count && sum_advance(&reducer->sums, reducer_get_running_sum(reducer, n)); n++)
        continue;
}
/* Waits for the n-th running sum, and returns or keeps its buffer. */
static tutti_status reducer_complete_sum(struct reducer *reducer, int n)
{
    int unit = reducer->flying[n];
    struct gathering_sum *gathering = &reducer->unit[unit];
    int64_t began_ns = clock_ns();
    TRY(sum_wait(&reducer->sums, &gathering->running));
    reducer->waited_ns += (uint64_t)(clock_ns() - began_ns);
    reducer->flying_count--;
    memmove(&reducer->flying[n], &reducer->flying[n + 1],
        (size_t)(reducer->flying_count - n) * sizeof *reducer->flying);
    reducer_add_round(reducer, unit);
    if (reducer_sums_in_place(reducer) && !gathering->kept) gathering->kept = gathering->sent;
    else reducer_return_buffer(reducer, gathering->sent);
    gathering->sent = NULL;
    return TUTTI_OK;
}
/* Returns true if the oldest sum ends within SPIN_NS. */
static bool reducer_oldest_ends_soon(struct reducer *reducer)
{
    int64_t began_ns = clock_ns();
    bool over;
    while (!(over = sum_is_over(reducer_get_running_sum(reducer, 0))) && clock_ns() < began_ns + SPIN_NS) {
        nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
        reducer_advance_sums(reducer);
    }
    reducer->waited_ns += (uint64_t)(clock_ns() - began_ns);
    return over;
}
/* Gives the unit a buffer for its gradients: an unused one, or a new one. If the limit of buffers is reached, first
   waits for the oldest sum, but only if that is about to end, since a rank must not wait for another. */
static tutti_status reducer_ensure_unit_buffer(struct reducer *reducer, int unit)
{
    size_t bytes = reducer_unit_bytes(reducer, unit);
    struct gradient_buffer **out = &reducer->unit[unit].buffer;
    while (!*out) {
        *out = reducer_take_spare_buffer(reducer, bytes);
        if (*out) return TUTTI_OK;
        bool waits = reducer->flying_count && reducer_count_buffers(reducer, bytes) >= reducer->buffers
            && reducer_oldest_ends_soon(reducer);
        TRY(waits ? reducer_complete_sum(reducer, 0) : reducer_allocate_buffer(reducer, bytes, out));
    }
    return TUTTI_OK;
}
/* Returns where the sum of this rank's slice goes: the first round into `sum`, the second into `more`. */
static tutti_status reducer_allocate_sum(struct reducer *reducer, int unit, void **out)
{
    struct gathering_sum *gathering = &reducer->unit[unit];
    void **place = gathering->rounds ? &gathering->more : &gathering->sum;
    if (reducer_sums_in_place(reducer)) *place = gathering->buffer->memory;
    else if (!*place) {
        TRY(tutti_mem_alloc(place, reducer_slice_bytes(reducer, unit)));
        reducer->gradient_bytes += reducer_slice_bytes(reducer, unit);
    }
    *out = *place;
    return TUTTI_OK;
}
/* Starts the sum of a unit's gradients. Its buffer now belongs to the sum, and the unit collects new gradients. */
static tutti_status reducer_start_sum(struct reducer *reducer, int unit)
{
    const struct unit_partition *u = &reducer->partition->unit[unit];
    struct gathering_sum *gathering = &reducer->unit[unit];
    void *into;
    TRY(reducer_allocate_sum(reducer, unit, &into));
    TRY(sum_start(&reducer->sums, &gathering->running, unit, gathering->buffer->memory, into));
    gathering->sent = gathering->buffer;
    gathering->buffer = NULL;
    gathering->ready = 0;
    gathering->complete = false;
    memset(reducer->presence + u->first_parameter, ABSENT, (size_t)u->parameters);
    gathering->started++;
    reducer->flying[reducer->flying_count++] = unit;
    reducer->begun++;
    reducer->sum_bytes += reducer_unit_bytes(reducer, unit);
    return TUTTI_OK;
}
static int reducer_next_unit(const struct reducer *reducer)
{
    return reducer->order.turn[reducer->begun % reducer->partition->units];
}
static tutti_status reducer_start_complete(struct reducer *reducer)
{
    while (reducer->begun < reducer->partition->units && reducer->unit[reducer_next_unit(reducer)].complete)
        TRY(reducer_start_sum(reducer, reducer_next_unit(reducer)));
    return TUTTI_OK;
}

/* ---- receiving gradients ---- */
tutti_status reducer_get_gradient_address(struct reducer *reducer, int parameter, void **out, bool *adds)
{
    const struct place_of_parameter *p = &reducer->partition->parameter[parameter];
    if (reducer->closed)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "zero: parameter %d has a new gradient, but the gradients of this step have been averaged: take the "
            "step first",
            parameter);
    reducer_advance_sums(reducer);
    TRY(reducer_ensure_unit_buffer(reducer, p->unit));
    *out = (char *)reducer->unit[p->unit].buffer->memory + p->offset * reducer->partition->unit[p->unit].element;
    *adds = reducer->presence[parameter] != ABSENT;
    /* While the caller adds to a ready gradient, its unit must not be summed. */
    if (reducer->presence[parameter] == READY) {
        reducer->presence[parameter] = HELD;
        reducer->unit[p->unit].ready--;
        reducer->unit[p->unit].complete = false;
    }
    reducer->asked[parameter] = 1;
    return TUTTI_OK;
}
tutti_status reducer_mark_ready(struct reducer *reducer, int parameter)
{
    int unit = reducer->partition->parameter[parameter].unit;
    struct gathering_sum *gathering = &reducer->unit[unit];
    if (!reducer->asked[parameter])
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "zero: parameter %d is ready, but the program did not ask where to write its gradient", parameter);
    reducer->asked[parameter] = 0;
    reducer->used[parameter] = 1;
    reducer->presence[parameter] = reducer->held ? HELD : READY;
    if (reducer->held || ++gathering->ready < reducer->partition->unit[unit].parameters || gathering->started)
        return TUTTI_OK;
    gathering->complete = true;
    trace_record(reducer->sums.trace, TUTTI_ZERO_READY, unit, trace_now(reducer->sums.trace), 0);
    sum_order_record(&reducer->order, unit);
    if (unit != reducer_next_unit(reducer)) reducer->late_units++;
    return reducer_start_complete(reducer);
}

/* ---- the end of a step ---- */
/* Sets the gradients that the program has not computed to zero. */
static tutti_status reducer_fill_absent_gradients(struct reducer *reducer, int unit)
{
    const struct unit_partition *u = &reducer->partition->unit[unit];
    TRY(reducer_ensure_unit_buffer(reducer, unit));
    for (int i = u->first_parameter; i < u->first_parameter + u->parameters; i++) {
        const struct place_of_parameter *p = &reducer->partition->parameter[i];
        char *at = (char *)reducer->unit[unit].buffer->memory + p->offset * u->element;
        if (reducer->presence[i] == ABSENT) memset(at, 0, p->count * u->element);
    }
    return TUTTI_OK;
}
static bool reducer_has_gradients(const struct reducer *reducer)
{
    for (int u = 0; u < reducer->partition->units; u++)
        if (reducer->unit[u].buffer) return true;
    return false;
}
static tutti_status reducer_complete_sums(struct reducer *reducer)
{
    while (reducer->flying_count) TRY(reducer_complete_sum(reducer, 0));
    return TUTTI_OK;
}
/* Starts the sums of all units that have not begun in this round (1 or 2), in the common order, and waits until all of
   them are sent. */
static tutti_status reducer_start_round(struct reducer *reducer, int round)
{
    while (reducer->begun < round * reducer->partition->units) {
        int unit = reducer_next_unit(reducer);
        if (!reducer->unit[unit].complete) TRY(reducer_fill_absent_gradients(reducer, unit));
        TRY(reducer_start_sum(reducer, unit));
    }
    for (int n = 0; n < reducer->flying_count; n++)
        TRY(sum_await_sent(&reducer->sums, reducer_get_running_sum(reducer, n)));
    return TUTTI_OK;
}
static tutti_status reducer_start_second_round(struct reducer *reducer)
{
    TRY(reducer_complete_sums(reducer));
    return reducer_start_round(reducer, 2);
}
/* Ends the step's gradients: starts the remaining sums, and exchanges which parameters any rank has used, whether a
   rank has gradients for a second round, and whether it drops or takes the sums. Collective. */
static tutti_status reducer_close_and_agree(struct reducer *reducer, bool drops)
{
    uint8_t *flags = &reducer->used[reducer->partition->parameters];
    if (reducer->closed) return TUTTI_OK;
    TRY(reducer_start_round(reducer, 1));
    flags[HAS_MORE] = reducer_has_gradients(reducer);
    flags[DROPS] = drops;
    flags[TAKES] = !drops;
    TRY(tutti_all_reduce(reducer->used, reducer->used, (size_t)reducer->partition->parameters + FLAGS, TUTTI_UINT8,
        TUTTI_MAX, reducer->control_comm, NULL));
    if (flags[DROPS] && flags[TAKES])
        return status_fail(TUTTI_MISMATCH, "zero: some ranks drop the gradients of this step, but others use them");
    if (flags[HAS_MORE]) TRY(reducer_start_second_round(reducer));
    reducer->closed = true;
    return TUTTI_OK;
}
tutti_status reducer_close_step(struct reducer *reducer) { return reducer_close_and_agree(reducer, false); }
tutti_status reducer_complete_unit(struct reducer *reducer, int unit)
{
    for (int n = 0; n < reducer->flying_count; n++)
        if (reducer->flying[n] == unit) return reducer_complete_sum(reducer, n);
    return TUTTI_OK;
}
tutti_status reducer_settle_sums(struct reducer *reducer)
{
    TRY(reducer_close_step(reducer));
    return reducer_complete_sums(reducer);
}
/* Makes the order that rank 0 has recorded in the first step the order of all ranks. */
static tutti_status reducer_learn_order(struct reducer *reducer)
{
    int *turn = reducer->order.turn;
    sum_order_finish_learning(&reducer->order);
    TRY(tutti_broadcast(turn, turn, (size_t)reducer->partition->units, TUTTI_INT32, 0, reducer->control_comm, NULL));
    priority_comms_assign_units(reducer->comms, reducer->partition, turn);
    return TUTTI_OK;
}
tutti_status reducer_begin_step(struct reducer *reducer)
{
    const struct place_of_parameter *p = reducer->partition->parameter;
    for (int i = 0; i < reducer->partition->parameters; i++)
        if (!reducer->used[i] && reducer->unit[p[i].unit].rounds)
            sums_return_to_residual(&reducer->sums, i, reducer->unit[p[i].unit].sum);
    for (int u = 0; u < reducer->partition->units; u++) {
        struct gathering_sum *gathering = &reducer->unit[u];
        gathering->started = gathering->rounds = 0;
        if (gathering->kept) reducer_return_buffer(reducer, gathering->kept);
        gathering->kept = NULL;
    }
    memset(reducer->used, 0, (size_t)reducer->partition->parameters + FLAGS);
    reducer->begun = 0;
    reducer->closed = false;
    return reducer->order.learns ? reducer_learn_order(reducer) : TUTTI_OK;
}
bool reducer_is_at_rest(const struct reducer *reducer)
{
    bool any = reducer->closed;
    for (int i = 0; i < reducer->partition->parameters; i++) any |= reducer->used[i];
    return !any;
}
tutti_status reducer_discard_gradients(struct reducer *reducer)
{
    if (reducer_is_at_rest(reducer)) return TUTTI_OK;
    TRY(reducer_close_and_agree(reducer, true));
    TRY(reducer_complete_sums(reducer));
    /* The residuals contain parts of the dropped gradients. */
    sums_clear_residuals(&reducer->sums);
    return reducer_begin_step(reducer);
}

/* ---- lifetime ---- */
tutti_status reducer_init(struct reducer *r, const struct partition *partition, const tutti_zero_config *config,
    struct priority_comms *comms, tutti_comm *control_comm, struct trace *trace)
{
    *r = (struct reducer){ .partition = partition, .comms = comms, .control_comm = control_comm };
    r->buffers = reducer_sums_in_place(r) ? INT_MAX : config->buffers ? config->buffers : USUAL_BUFFERS;
    r->unit = memory_alloc_zeroed((size_t)partition->units, sizeof *r->unit);
    r->flying = memory_alloc_zeroed((size_t)partition->units, sizeof *r->flying);
    r->presence = memory_alloc_zeroed((size_t)partition->parameters, 1);
    r->asked = memory_alloc_zeroed((size_t)partition->parameters, 1);
    r->used = memory_alloc_zeroed((size_t)partition->parameters + FLAGS, 1);
    bool fine =
        sum_order_init(&r->order, partition->units) && r->unit && r->flying && r->presence && r->asked && r->used;
    if (!fine)
        return status_fail(TUTTI_NO_MEMORY, "zero: no memory to sum the gradients of %d units", partition->units);
    priority_comms_assign_units(comms, partition, r->order.turn);
    return sums_init(&r->sums, partition, &config->compression, comms, trace);
}
void reducer_finish(struct reducer *reducer)
{
    /* Sums use the memory below until this has ended them. */
    sums_finish(&reducer->sums);
    for (int u = 0; reducer->unit && u < reducer->partition->units; u++) {
        sum_finish(&reducer->sums, &reducer->unit[u].running);
        gradient_buffer_free(reducer->unit[u].buffer);
        gradient_buffer_free(reducer->unit[u].sent);
        gradient_buffer_free(reducer->unit[u].kept);
        if (reducer_sums_in_place(reducer)) continue;
        tutti_mem_free(reducer->unit[u].sum);
        tutti_mem_free(reducer->unit[u].more);
    }
    for (struct gradient_buffer *b = reducer->spare, *next; b; b = next) {
        next = b->next;
        gradient_buffer_free(b);
    }
    sum_order_finish(&reducer->order);
    free(reducer->unit);
    free(reducer->flying);
    free(reducer->presence);
    free(reducer->asked);
    free(reducer->used);
}
