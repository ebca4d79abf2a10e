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

static size_t reducer_unit_bytes(const struct reducer *r, int unit) { return partition_bytes(r->partition, unit); }
static size_t reducer_slice_bytes(const struct reducer *r, int unit)
{
    return reducer_unit_bytes(r, unit) / (size_t)r->partition->ranks;
}
static bool reducer_sums_in_place(const struct reducer *r) { return r->partition->slices == 1; }

/* ---- buffers ---- */
static struct gradient_buffer *reducer_take_spare_buffer(struct reducer *r, size_t bytes)
{
    struct gradient_buffer **link = &r->spare;
    while (*link && (*link)->bytes != bytes) link = &(*link)->next;
    struct gradient_buffer *found = *link;
    if (found) *link = found->next;
    return found;
}
static int reducer_count_buffers(const struct reducer *r, size_t bytes)
{
    int count = 0;
    for (const struct gradient_buffer *b = r->spare; b; b = b->next) count += b->bytes == bytes;
    for (int u = 0; u < r->partition->units; u++) {
        const struct gathering_sum *g = &r->unit[u];
        count += (g->buffer && g->buffer->bytes == bytes) + (g->sent && g->sent->bytes == bytes);
    }
    return count;
}
static tutti_status reducer_allocate_buffer(struct reducer *r, size_t bytes, struct gradient_buffer **out)
{
    struct gradient_buffer *b = memory_alloc_zeroed(1, sizeof *b);
    if (!b) return status_fail(TUTTI_NO_MEMORY, "zero: no memory for a buffer of gradients");
    b->bytes = bytes;
    tutti_status status = tutti_mem_alloc(&b->memory, bytes);
    if (status != TUTTI_OK) {
        free(b);
        return status;
    }
    r->gradient_bytes += bytes;
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
static void reducer_return_buffer(struct reducer *r, struct gradient_buffer *b)
{
    if (reducer_count_buffers(r, b->bytes) > r->buffers) {
        r->gradient_bytes -= b->bytes;
        gradient_buffer_free(b);
        return;
    }
    b->next = r->spare;
    r->spare = b;
}

/* ---- sums ---- */
static void reducer_add_round(struct reducer *r, int unit)
{
    const struct unit_partition *u = &r->partition->unit[unit];
    struct gathering_sum *g = &r->unit[unit];
    const void *from[2] = { g->sum, g->more };
    if (g->rounds++ == 0) return;
    reduce_find(u->dtype, TUTTI_SUM)(&g->sum, 1, from, 2, u->slice, 1);
}
/* Returns the n-th oldest sum in flight. */
static struct gradient_sum *reducer_get_running_sum(struct reducer *r, int n) { return &r->unit[r->flying[n]].running; }
static void reducer_advance_sums(struct reducer *r)
{
    for (int n = 0; n < r->flying_count && sum_advance(&r->sums, reducer_get_running_sum(r, n)); n++) continue;
}
static tutti_status reducer_complete_sum(struct reducer *r, int n)
{
    int unit = r->flying[n];
    struct gathering_sum *g = &r->unit[unit];
    int64_t began_ns = clock_ns();
    TRY(sum_wait(&r->sums, &g->running));
    r->waited_ns += (uint64_t)(clock_ns() - began_ns);
    r->flying_count--;
    memmove(&r->flying[n], &r->flying[n + 1], (size_t)(r->flying_count - n) * sizeof *r->flying);
    reducer_add_round(r, unit);
    if (reducer_sums_in_place(r) && !g->kept) g->kept = g->sent;
    else reducer_return_buffer(r, g->sent);
    g->sent = NULL;
    return TUTTI_OK;
}
/* Returns true if the oldest sum ends within SPIN_NS. */
static bool reducer_oldest_ends_soon(struct reducer *r)
{
    int64_t began_ns = clock_ns();
    bool over;
    while (!(over = sum_is_over(reducer_get_running_sum(r, 0))) && clock_ns() < began_ns + SPIN_NS) {
        nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
        reducer_advance_sums(r);
    }
    r->waited_ns += (uint64_t)(clock_ns() - began_ns);
    return over;
}
static tutti_status reducer_ensure_unit_buffer(struct reducer *r, int unit)
{
    size_t bytes = reducer_unit_bytes(r, unit);
    struct gradient_buffer **out = &r->unit[unit].buffer;
    while (!*out) {
        *out = reducer_take_spare_buffer(r, bytes);
        if (*out) return TUTTI_OK;
        bool waits = r->flying_count && reducer_count_buffers(r, bytes) >= r->buffers && reducer_oldest_ends_soon(r);
        TRY(waits ? reducer_complete_sum(r, 0) : reducer_allocate_buffer(r, bytes, out));
    }
    return TUTTI_OK;
}
static tutti_status reducer_allocate_sum(struct reducer *r, int unit, void **out)
{
    struct gathering_sum *g = &r->unit[unit];
    void **place = g->rounds ? &g->more : &g->sum;
    if (reducer_sums_in_place(r)) *place = g->buffer->memory;
    else if (!*place) {
        TRY(tutti_mem_alloc(place, reducer_slice_bytes(r, unit)));
        r->gradient_bytes += reducer_slice_bytes(r, unit);
    }
    *out = *place;
    return TUTTI_OK;
}
static tutti_status reducer_start_sum(struct reducer *r, int unit)
{
    const struct unit_partition *u = &r->partition->unit[unit];
    struct gathering_sum *g = &r->unit[unit];
    void *into;
    TRY(reducer_allocate_sum(r, unit, &into));
    TRY(sum_start(&r->sums, &g->running, unit, g->buffer->memory, into));
    g->sent = g->buffer;
    g->buffer = NULL;
    g->ready = 0;
    g->complete = false;
    memset(r->presence + u->first_parameter, ABSENT, (size_t)u->parameters);
    g->started++;
    r->flying[r->flying_count++] = unit;
    r->begun++;
    r->sum_bytes += reducer_unit_bytes(r, unit);
    return TUTTI_OK;
}
static int reducer_next_unit(const struct reducer *r) { return r->order.turn[r->begun % r->partition->units]; }
static tutti_status reducer_start_complete(struct reducer *r)
{
    while (r->begun < r->partition->units && r->unit[reducer_next_unit(r)].complete)
        TRY(reducer_start_sum(r, reducer_next_unit(r)));
    return TUTTI_OK;
}

/* ---- receiving gradients ---- */
tutti_status reducer_get_gradient_address(struct reducer *r, int parameter, void **out, bool *adds)
{
    const struct place_of_parameter *p = &r->partition->parameter[parameter];
    if (r->closed)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "zero: parameter %d has a new gradient, but the gradients of this step have been averaged: take the "
            "step first",
            parameter);
    reducer_advance_sums(r);
    TRY(reducer_ensure_unit_buffer(r, p->unit));
    *out = (char *)r->unit[p->unit].buffer->memory + p->offset * r->partition->unit[p->unit].element;
    *adds = r->presence[parameter] != ABSENT;
    /* While the caller adds to a ready gradient, its unit must not be summed. */
    if (r->presence[parameter] == READY) {
        r->presence[parameter] = HELD;
        r->unit[p->unit].ready--;
        r->unit[p->unit].complete = false;
    }
    r->asked[parameter] = 1;
    return TUTTI_OK;
}
tutti_status reducer_mark_ready(struct reducer *r, int parameter)
{
    int unit = r->partition->parameter[parameter].unit;
    struct gathering_sum *g = &r->unit[unit];
    if (!r->asked[parameter])
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "zero: parameter %d is ready, but the program did not ask where to write its gradient", parameter);
    r->asked[parameter] = 0;
    r->used[parameter] = 1;
    r->presence[parameter] = r->held ? HELD : READY;
    if (r->held || ++g->ready < r->partition->unit[unit].parameters || g->started) return TUTTI_OK;
    g->complete = true;
    trace_record(r->sums.trace, TUTTI_ZERO_READY, unit, trace_now(r->sums.trace), 0);
    sum_order_record(&r->order, unit);
    if (unit != reducer_next_unit(r)) r->late_units++;
    return reducer_start_complete(r);
}

/* ---- the end of a step ---- */
static tutti_status reducer_fill_absent_gradients(struct reducer *r, int unit)
{
    const struct unit_partition *u = &r->partition->unit[unit];
    TRY(reducer_ensure_unit_buffer(r, unit));
    for (int i = u->first_parameter; i < u->first_parameter + u->parameters; i++) {
        const struct place_of_parameter *p = &r->partition->parameter[i];
        char *at = (char *)r->unit[unit].buffer->memory + p->offset * u->element;
        if (r->presence[i] == ABSENT) memset(at, 0, p->count * u->element);
    }
    return TUTTI_OK;
}
static bool reducer_has_gradients(const struct reducer *r)
{
    for (int u = 0; u < r->partition->units; u++)
        if (r->unit[u].buffer) return true;
    return false;
}
static tutti_status reducer_complete_sums(struct reducer *r)
{
    while (r->flying_count) TRY(reducer_complete_sum(r, 0));
    return TUTTI_OK;
}
static tutti_status reducer_start_round(struct reducer *r, int round)
{
    while (r->begun < round * r->partition->units) {
        int unit = reducer_next_unit(r);
        if (!r->unit[unit].complete) TRY(reducer_fill_absent_gradients(r, unit));
        TRY(reducer_start_sum(r, unit));
    }
    for (int n = 0; n < r->flying_count; n++) TRY(sum_await_sent(&r->sums, reducer_get_running_sum(r, n)));
    return TUTTI_OK;
}
static tutti_status reducer_start_second_round(struct reducer *r)
{
    TRY(reducer_complete_sums(r));
    return reducer_start_round(r, 2);
}
static tutti_status reducer_close_and_agree(struct reducer *r, bool drops)
{
    uint8_t *flags = &r->used[r->partition->parameters];
    if (r->closed) return TUTTI_OK;
    TRY(reducer_start_round(r, 1));
    flags[HAS_MORE] = reducer_has_gradients(r);
    flags[DROPS] = drops;
    flags[TAKES] = !drops;
    TRY(tutti_all_reduce(r->used, r->used, (size_t)r->partition->parameters + FLAGS, TUTTI_UINT8, TUTTI_MAX,
        r->control_comm, NULL));
    if (flags[DROPS] && flags[TAKES])
        return status_fail(TUTTI_MISMATCH, "zero: some ranks drop the gradients of this step, but others use them");
    if (flags[HAS_MORE]) TRY(reducer_start_second_round(r));
    r->closed = true;
    return TUTTI_OK;
}
tutti_status reducer_close_step(struct reducer *r) { return reducer_close_and_agree(r, false); }
tutti_status reducer_complete_unit(struct reducer *r, int unit)
{
    for (int n = 0; n < r->flying_count; n++)
        if (r->flying[n] == unit) return reducer_complete_sum(r, n);
    return TUTTI_OK;
}
tutti_status reducer_settle_sums(struct reducer *r)
{
    TRY(reducer_close_step(r));
    return reducer_complete_sums(r);
}
/* Makes the order that rank 0 has recorded in the first step the order of all ranks. */
static tutti_status reducer_learn_order(struct reducer *r)
{
    int *turn = r->order.turn;
    sum_order_finish_learning(&r->order);
    TRY(tutti_broadcast(turn, turn, (size_t)r->partition->units, TUTTI_INT32, 0, r->control_comm, NULL));
    priority_comms_assign_units(r->comms, r->partition, turn);
    return TUTTI_OK;
}
tutti_status reducer_begin_step(struct reducer *r)
{
    const struct place_of_parameter *p = r->partition->parameter;
    for (int i = 0; i < r->partition->parameters; i++)
        if (!r->used[i] && r->unit[p[i].unit].rounds) sums_return_to_residual(&r->sums, i, r->unit[p[i].unit].sum);
    for (int u = 0; u < r->partition->units; u++) {
        struct gathering_sum *g = &r->unit[u];
        g->started = g->rounds = 0;
        if (g->kept) reducer_return_buffer(r, g->kept);
        g->kept = NULL;
    }
    memset(r->used, 0, (size_t)r->partition->parameters + FLAGS);
    r->begun = 0;
    r->closed = false;
    return r->order.learns ? reducer_learn_order(r) : TUTTI_OK;
}
bool reducer_is_at_rest(const struct reducer *r)
{
    bool any = r->closed;
    for (int i = 0; i < r->partition->parameters; i++) any |= r->used[i];
    return !any;
}
tutti_status reducer_discard_gradients(struct reducer *r)
{
    if (reducer_is_at_rest(r)) return TUTTI_OK;
    TRY(reducer_close_and_agree(r, true));
    TRY(reducer_complete_sums(r));
    /* The residuals contain parts of the dropped gradients. */
    sums_clear_residuals(&r->sums);
    return reducer_begin_step(r);
}

/* ---- lifetime ---- */
tutti_status reducer_init(struct reducer *r, const struct partition *partition, const tutti_zero_config *c,
    struct priority_comms *comms, tutti_comm *control_comm, struct trace *trace)
{
    *r = (struct reducer){ .partition = partition, .comms = comms, .control_comm = control_comm };
    r->buffers = reducer_sums_in_place(r) ? INT_MAX : c->buffers ? c->buffers : USUAL_BUFFERS;
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
    return sums_init(&r->sums, partition, &c->compression, comms, trace);
}
void reducer_finish(struct reducer *r)
{
    /* Sums use the memory below until this has ended them. */
    sums_finish(&r->sums);
    for (int u = 0; r->unit && u < r->partition->units; u++) {
        sum_finish(&r->sums, &r->unit[u].running);
        gradient_buffer_free(r->unit[u].buffer);
        gradient_buffer_free(r->unit[u].sent);
        gradient_buffer_free(r->unit[u].kept);
        if (reducer_sums_in_place(r)) continue;
        tutti_mem_free(r->unit[u].sum);
        tutti_mem_free(r->unit[u].more);
    }
    for (struct gradient_buffer *b = r->spare, *next; b; b = next) {
        next = b->next;
        gradient_buffer_free(b);
    }
    sum_order_finish(&r->order);
    free(r->unit);
    free(r->flying);
    free(r->presence);
    free(r->asked);
    free(r->used);
}
