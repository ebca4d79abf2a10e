/* One thread calls, and sums run beside it. A unit's sum starts when its gradients are complete and the sums of all
   units before it in the order have started. So all ranks start the same sums in the same order. */
#include "zero/reduce.h"
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "kernels/reduce.h"
#include "kernels/update.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A rank waits at most POLL_NS for a buffer, and sleeps NAP_NS between polls. */
enum { USUAL_BUFFERS = 2, POLL_NS = 50000000, NAP_NS = 50000 };
/* The flags that follow `used`. Ranks combine them by max: some rank has gradients for a second round; some rank drops
   the sums of the step; some rank uses them. */
enum { HAS_MORE, DROPS, USES, FLAGS };

static size_t reducer_unit_bytes(const struct reducer *reducer, int unit)
{
    return partition_unit_bytes(reducer->partition, unit);
}
/* Returns the bytes of a slice in the type of sums. */
static size_t reducer_slice_bytes(const struct reducer *reducer, int unit)
{
    return reducer->partition->unit[unit].slice * reducer->partition->unit[unit].sum_element;
}
/* Returns true if sums replace the gradients in their buffer, because all ranks have the same single slice (WHOLE). */
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
/* Counts the buffers of this size: unused ones, those that collect gradients, and those of sums in flight. */
static int reducer_count_buffers(const struct reducer *reducer, size_t bytes)
{
    int count = 0;
    for (const struct gradient_buffer *b = reducer->spare; b; b = b->next) count += b->bytes == bytes;
    for (int u = 0; u < reducer->partition->units; u++) {
        const struct unit_gradients *gradients = &reducer->unit[u];
        count += (gradients->buffer && gradients->buffer->bytes == bytes)
            + (gradients->sent && gradients->sent->bytes == bytes);
    }
    return count;
}
/* Counts memory for gradients that was allocated. */
static void reducer_count_memory(struct reducer *reducer, size_t bytes)
{
    reducer->gradient_bytes += bytes;
    if (reducer->gradient_bytes > reducer->most_gradient_bytes) reducer->most_gradient_bytes = reducer->gradient_bytes;
}
/* Sets *out to a new buffer of this size, which gradient_buffer_free frees. */
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
    reducer_count_memory(reducer, bytes);
    *out = b;
    return TUTTI_OK;
}
static void gradient_buffer_free(struct gradient_buffer *b)
{
    if (b) tutti_mem_free(b->memory);
    free(b);
}

/* Adds a buffer to the unused ones, or frees it if there are more than the limit. reducer_ensure_buffer exceeds the
   limit when a wait for a sum might not end. */
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
/* Counts a round of the unit, and adds the sum of a second round to the sum of the first. A step has two rounds if
   gradients of a unit came after its sum had started. */
static void reducer_add_round(struct reducer *reducer, int unit)
{
    const struct unit_partition *u = &reducer->partition->unit[unit];
    struct unit_gradients *gradients = &reducer->unit[unit];
    const void *from[2] = { gradients->sum, gradients->second_sum };
    if (gradients->rounds++ == 0) return;
    reduce_find(u->sum_dtype, TUTTI_SUM)(&gradients->sum, 1, from, 2, u->slice, 1);
}
/* Returns the n-th oldest sum in flight. */
static struct gradient_sum *reducer_get_running_sum(struct reducer *reducer, int n)
{
    return &reducer->unit[reducer->in_flight[n]].running;
}
/* Progresses the sums in flight, oldest first, as far as they need no wait. */
static void reducer_advance_sums(struct reducer *reducer)
{
    for (int n = 0; n < reducer->in_flight_count && sum_advance(&reducer->sums, reducer_get_running_sum(reducer, n));
        n++)
        continue;
}
/* Waits for the n-th oldest sum in flight, and gives its buffer back, or keeps it as the sum if sums are made in
   place. */
static tutti_status reducer_complete_sum(struct reducer *reducer, int n)
{
    int unit = reducer->in_flight[n];
    struct unit_gradients *gradients = &reducer->unit[unit];
    int64_t began_ns = clock_ns();
    TRY(sum_wait(&reducer->sums, &gradients->running));
    reducer->waited_ns += (uint64_t)(clock_ns() - began_ns);
    reducer->in_flight_count--;
    memmove(&reducer->in_flight[n], &reducer->in_flight[n + 1],
        (size_t)(reducer->in_flight_count - n) * sizeof *reducer->in_flight);
    reducer_add_round(reducer, unit);
    if (reducer_sums_in_place(reducer) && !gradients->sum_buffer) gradients->sum_buffer = gradients->sent;
    else reducer_return_buffer(reducer, gradients->sent);
    gradients->sent = NULL;
    return TUTTI_OK;
}
/* Waits up to POLL_NS for the oldest sum, and advances the sums meanwhile. Returns true if it is over. */
static bool reducer_await_oldest_briefly(struct reducer *reducer)
{
    int64_t began_ns = clock_ns();
    bool over;
    while (!(over = sum_is_over(reducer_get_running_sum(reducer, 0))) && clock_ns() < began_ns + POLL_NS) {
        nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
        reducer_advance_sums(reducer);
    }
    reducer->waited_ns += (uint64_t)(clock_ns() - began_ns);
    return over;
}
/* Sets *out to a buffer of this size if it is NULL: an unused one, or a new one. If the limit of buffers is reached,
   first waits a moment for the oldest sum, but never longer, since that sum may need another rank which waits for this
   one. */
static tutti_status reducer_ensure_buffer(struct reducer *reducer, size_t bytes, struct gradient_buffer **out)
{
    while (!*out) {
        *out = reducer_take_spare_buffer(reducer, bytes);
        if (*out) return TUTTI_OK;
        bool waits = reducer->in_flight_count && reducer_count_buffers(reducer, bytes) >= reducer->buffers
            && reducer_await_oldest_briefly(reducer);
        TRY(waits ? reducer_complete_sum(reducer, 0) : reducer_allocate_buffer(reducer, bytes, out));
    }
    return TUTTI_OK;
}
/* Gives the unit a buffer for its gradients if it has none. */
static tutti_status reducer_ensure_unit_buffer(struct reducer *reducer, int unit)
{
    return reducer_ensure_buffer(reducer, reducer_unit_bytes(reducer, unit), &reducer->unit[unit].buffer);
}
/* Moves the unit's gradients to a buffer with the type of its sums, if that is another type. */
static tutti_status reducer_convert_gradients(struct reducer *reducer, int unit)
{
    const struct unit_partition *u = &reducer->partition->unit[unit];
    struct gradient_buffer **buffer = &reducer->unit[unit].buffer, *wide = NULL;
    if (u->sum_dtype == u->dtype) return TUTTI_OK;
    TRY(reducer_ensure_buffer(reducer, partition_sum_bytes(reducer->partition, unit), &wide));
    narrow_to_floats(wide->memory, (*buffer)->memory, u->count, u->dtype);
    reducer_return_buffer(reducer, *buffer);
    *buffer = wide;
    return TUTTI_OK;
}
/* Sets *out to where the sum of this rank's slice goes, and allocates it if needed: `sum` in the first round,
   second_sum in the second. */
static tutti_status reducer_allocate_sum(struct reducer *reducer, int unit, void **out)
{
    struct unit_gradients *gradients = &reducer->unit[unit];
    void **place = gradients->rounds ? &gradients->second_sum : &gradients->sum;
    if (reducer_sums_in_place(reducer)) *place = gradients->buffer->memory;
    else if (!*place) {
        TRY(tutti_mem_alloc(place, reducer_slice_bytes(reducer, unit)));
        reducer_count_memory(reducer, reducer_slice_bytes(reducer, unit));
    }
    *out = *place;
    return TUTTI_OK;
}
/* Starts the sum of a unit's gradients. Its buffer now belongs to the sum, and the unit collects new gradients. */
static tutti_status reducer_start_sum(struct reducer *reducer, int unit)
{
    const struct unit_partition *u = &reducer->partition->unit[unit];
    struct unit_gradients *gradients = &reducer->unit[unit];
    void *into;
    TRY(reducer_convert_gradients(reducer, unit));
    TRY(reducer_allocate_sum(reducer, unit, &into));
    TRY(sum_start(&reducer->sums, &gradients->running, unit, gradients->buffer->memory, into));
    gradients->sent = gradients->buffer;
    gradients->buffer = NULL;
    gradients->ready_count = 0;
    gradients->is_complete = false;
    memset(reducer->presence + u->first_parameter, ABSENT, (size_t)u->parameters);
    gradients->sums_started++;
    reducer->in_flight[reducer->in_flight_count++] = unit;
    reducer->sums_started++;
    reducer->sum_bytes += partition_sum_bytes(reducer->partition, unit);
    return TUTTI_OK;
}
/* Returns the unit that is summed next by the agreed order. */
static int reducer_get_next_unit(const struct reducer *reducer)
{
    return reducer->order.agreed[reducer->sums_started % reducer->partition->units];
}
/* Starts the sums of the next units in the order, up to the first unit that is not complete. */
static tutti_status reducer_start_complete_units(struct reducer *reducer)
{
    while (reducer->sums_started < reducer->partition->units
        && reducer->unit[reducer_get_next_unit(reducer)].is_complete)
        TRY(reducer_start_sum(reducer, reducer_get_next_unit(reducer)));
    return TUTTI_OK;
}

/* ---- receiving gradients ---- */
tutti_status reducer_get_gradient_address(struct reducer *reducer, int parameter, void **out, bool *adds)
{
    const struct place_of_parameter *p = &reducer->partition->parameter[parameter];
    if (reducer->is_closed)
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
        reducer->unit[p->unit].ready_count--;
        reducer->unit[p->unit].is_complete = false;
    }
    reducer->asked[parameter] = 1;
    return TUTTI_OK;
}
tutti_status reducer_mark_ready(struct reducer *reducer, int parameter)
{
    int unit = reducer->partition->parameter[parameter].unit;
    struct unit_gradients *gradients = &reducer->unit[unit];
    if (!reducer->asked[parameter])
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "zero: parameter %d is ready, but the program did not ask where to write its gradient", parameter);
    reducer->asked[parameter] = 0;
    reducer->used[parameter] = 1;
    reducer->presence[parameter] = reducer->is_held ? HELD : READY;
    if (reducer->is_held || ++gradients->ready_count < reducer->partition->unit[unit].parameters
        || gradients->sums_started)
        return TUTTI_OK;
    gradients->is_complete = true;
    trace_record(reducer->sums.trace, TUTTI_ZERO_READY, unit, trace_now(reducer->sums.trace), 0);
    sum_order_record(&reducer->order, unit);
    if (unit != reducer_get_next_unit(reducer)) reducer->late_units++;
    return reducer_start_complete_units(reducer);
}

/* ---- the end of a step ---- */
/* Sets the gradients of the unit that the program has not computed to zero. */
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
/* Returns true if any unit has gradients that are not in a sum. */
static bool reducer_has_gradients(const struct reducer *reducer)
{
    for (int u = 0; u < reducer->partition->units; u++)
        if (reducer->unit[u].buffer) return true;
    return false;
}
/* Waits for all sums in flight. */
static tutti_status reducer_complete_sums(struct reducer *reducer)
{
    while (reducer->in_flight_count) TRY(reducer_complete_sum(reducer, 0));
    return TUTTI_OK;
}
/* Starts all sums that are missing in this round (1 or 2) in the agreed order, and waits until this rank has started to
   send each of them. */
static tutti_status reducer_start_round(struct reducer *reducer, int round)
{
    while (reducer->sums_started < round * reducer->partition->units) {
        int unit = reducer_get_next_unit(reducer);
        if (!reducer->unit[unit].is_complete) TRY(reducer_fill_absent_gradients(reducer, unit));
        TRY(reducer_start_sum(reducer, unit));
    }
    for (int n = 0; n < reducer->in_flight_count; n++)
        TRY(sum_await_sent(&reducer->sums, reducer_get_running_sum(reducer, n)));
    return TUTTI_OK;
}
/* Waits for the first sums, and sums all units once more. */
static tutti_status reducer_start_second_round(struct reducer *reducer)
{
    TRY(reducer_complete_sums(reducer));
    return reducer_start_round(reducer, 2);
}
/* Whether a rank uses the sums of a step or drops them. */
enum use_of_sums { USES_SUMS, DROPS_SUMS };
/* Closes the step, if it is open: starts the remaining sums. The ranks exchange which parameters have a gradient on any
   of them, and whether any has gradients for a second round. Fails with MISMATCH if some ranks use the sums and others
   drop them. */
static tutti_status reducer_close_step_for(struct reducer *reducer, enum use_of_sums use)
{
    uint8_t *flags = &reducer->used[reducer->partition->parameters];
    if (reducer->is_closed) return TUTTI_OK;
    TRY(reducer_start_round(reducer, 1));
    flags[HAS_MORE] = reducer_has_gradients(reducer);
    flags[DROPS] = use == DROPS_SUMS;
    flags[USES] = use == USES_SUMS;
    TRY(tutti_all_reduce(reducer->used, reducer->used, (size_t)reducer->partition->parameters + FLAGS, TUTTI_UINT8,
        TUTTI_MAX, reducer->control_comm, NULL));
    if (flags[DROPS] && flags[USES])
        return status_fail(TUTTI_MISMATCH,
            "zero: some ranks drop the gradients of this step, but others use them. A rank without gradients takes no "
            "part in tutti_zero_drop: if an error ended a pass of some ranks only, call tutti_zero_settle on all "
            "before it");
    if (flags[HAS_MORE]) TRY(reducer_start_second_round(reducer));
    reducer->is_closed = true;
    return TUTTI_OK;
}
tutti_status reducer_close_step(struct reducer *reducer) { return reducer_close_step_for(reducer, USES_SUMS); }
tutti_status reducer_complete_unit(struct reducer *reducer, int unit)
{
    for (int n = 0; n < reducer->in_flight_count; n++)
        if (reducer->in_flight[n] == unit) return reducer_complete_sum(reducer, n);
    return TUTTI_OK;
}
tutti_status reducer_settle_sums(struct reducer *reducer)
{
    TRY(reducer_close_step(reducer));
    return reducer_complete_sums(reducer);
}
/* Makes the order that rank 0 has recorded in the first step the order of all ranks. Collective. */
static tutti_status reducer_learn_order(struct reducer *reducer)
{
    int *agreed = reducer->order.agreed;
    sum_order_finish_learning(&reducer->order);
    TRY(tutti_broadcast(agreed, agreed, (size_t)reducer->partition->units, TUTTI_INT32, 0, reducer->control_comm,
        NULL));
    priority_comms_assign_units(reducer->comms, reducer->partition, agreed);
    return TUTTI_OK;
}
/* If no rank has a gradient for a parameter, its sum comes from residuals alone, and goes back to them. */
tutti_status reducer_begin_step(struct reducer *reducer)
{
    const struct place_of_parameter *p = reducer->partition->parameter;
    for (int i = 0; i < reducer->partition->parameters; i++)
        if (!reducer->used[i] && reducer->unit[p[i].unit].rounds)
            sums_return_to_residual(&reducer->sums, i, reducer->unit[p[i].unit].sum);
    for (int u = 0; u < reducer->partition->units; u++) {
        struct unit_gradients *gradients = &reducer->unit[u];
        gradients->sums_started = gradients->rounds = 0;
        if (gradients->sum_buffer) reducer_return_buffer(reducer, gradients->sum_buffer);
        gradients->sum_buffer = NULL;
    }
    memset(reducer->used, 0, (size_t)reducer->partition->parameters + FLAGS);
    reducer->sums_started = 0;
    reducer->is_closed = false;
    return reducer->order.is_learning ? reducer_learn_order(reducer) : TUTTI_OK;
}
bool reducer_is_at_rest(const struct reducer *reducer)
{
    bool any = reducer->is_closed;
    for (int i = 0; i < reducer->partition->parameters; i++) any |= reducer->used[i];
    return !any;
}
/* The sums of a step are collective, so this rank takes part in all of them and ignores the results. A rank without
   gradients cannot know whether others have some, and an exchange would make every call collective. */
tutti_status reducer_discard_gradients(struct reducer *reducer)
{
    if (reducer_is_at_rest(reducer)) return TUTTI_OK;
    TRY(reducer_close_step_for(reducer, DROPS_SUMS));
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
    r->in_flight = memory_alloc_zeroed((size_t)partition->units, sizeof *r->in_flight);
    r->presence = memory_alloc_zeroed((size_t)partition->parameters, 1);
    r->asked = memory_alloc_zeroed((size_t)partition->parameters, 1);
    r->used = memory_alloc_zeroed((size_t)partition->parameters + FLAGS, 1);
    bool fine =
        sum_order_init(&r->order, partition->units) && r->unit && r->in_flight && r->presence && r->asked && r->used;
    if (!fine)
        return status_fail(TUTTI_NO_MEMORY, "zero: no memory to sum the gradients of %d units", partition->units);
    priority_comms_assign_units(comms, partition, r->order.agreed);
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
        gradient_buffer_free(reducer->unit[u].sum_buffer);
        if (reducer_sums_in_place(reducer)) continue;
        tutti_mem_free(reducer->unit[u].sum);
        tutti_mem_free(reducer->unit[u].second_sum);
    }
    for (struct gradient_buffer *b = reducer->spare, *next; b; b = next) {
        next = b->next;
        gradient_buffer_free(b);
    }
    sum_order_finish(&reducer->order);
    free(reducer->unit);
    free(reducer->in_flight);
    free(reducer->presence);
    free(reducer->asked);
    free(reducer->used);
}
