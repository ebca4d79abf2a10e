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
enum { AGAIN, DROPS, TAKES, FLAGS };

static size_t bytes_of(const struct reducer *r, int unit) { return partition_bytes(r->partition, unit); }
static size_t slice_bytes(const struct reducer *r, int unit) { return bytes_of(r, unit) / (size_t)r->partition->ranks; }
static bool is_in_place(const struct reducer *r) { return r->partition->slices == 1; }

/* ---- buffers ---- */
static struct gradient_buffer *find_spare(struct reducer *r, size_t bytes)
{
    struct gradient_buffer **link = &r->spare;
    while (*link && (*link)->bytes != bytes) link = &(*link)->next;
    struct gradient_buffer *found = *link;
    if (found) *link = found->next;
    return found;
}
static int count_buffers(const struct reducer *r, size_t bytes)
{
    int count = 0;
    for (const struct gradient_buffer *b = r->spare; b; b = b->next) count += b->bytes == bytes;
    for (int u = 0; u < r->partition->units; u++) {
        const struct gathering_sum *g = &r->unit[u];
        count += (g->buffer && g->buffer->bytes == bytes) + (g->sent && g->sent->bytes == bytes);
    }
    return count;
}
static tutti_status make_buffer(struct reducer *r, size_t bytes, struct gradient_buffer **out)
{
    struct gradient_buffer *b = memory_zeroed(1, sizeof *b);
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
static void free_buffer(struct gradient_buffer *b)
{
    if (b) tutti_mem_free(b->memory);
    free(b);
}

/* Frees a buffer beyond the limit. take_buffer makes such a buffer when a wait for a sum might not end. */
static void give_back(struct reducer *r, struct gradient_buffer *b)
{
    if (count_buffers(r, b->bytes) > r->buffers) {
        r->gradient_bytes -= b->bytes;
        free_buffer(b);
        return;
    }
    b->next = r->spare;
    r->spare = b;
}

/* ---- sums ---- */
static void add_round(struct reducer *r, int unit)
{
    const struct unit_partition *u = &r->partition->unit[unit];
    struct gathering_sum *g = &r->unit[unit];
    const void *from[2] = { g->sum, g->more };
    if (g->rounds++ == 0) return;
    reduce_find(u->dtype, TUTTI_SUM)(&g->sum, 1, from, 2, u->slice, 1);
}
/* Returns the n-th oldest sum in flight. */
static struct gradient_sum *sum_flying(struct reducer *r, int n) { return &r->unit[r->flying[n]].running; }
static void reducer_advance(struct reducer *r)
{
    for (int n = 0; n < r->flies && sum_advance(&r->sums, sum_flying(r, n)); n++) continue;
}
static tutti_status reduction_complete(struct reducer *r, int n)
{
    int unit = r->flying[n];
    struct gathering_sum *g = &r->unit[unit];
    int64_t began_ns = clock_ns();
    TRY(sum_wait(&r->sums, &g->running));
    r->waited_ns += (uint64_t)(clock_ns() - began_ns);
    r->flies--;
    memmove(&r->flying[n], &r->flying[n + 1], (size_t)(r->flies - n) * sizeof *r->flying);
    add_round(r, unit);
    if (is_in_place(r) && !g->kept) g->kept = g->sent;
    else give_back(r, g->sent);
    g->sent = NULL;
    return TUTTI_OK;
}
/* Returns true if the oldest sum ends within SPIN_NS. */
static bool is_soon_over(struct reducer *r)
{
    int64_t began_ns = clock_ns();
    bool over;
    while (!(over = sum_is_over(sum_flying(r, 0))) && clock_ns() < began_ns + SPIN_NS) {
        nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
        reducer_advance(r);
    }
    r->waited_ns += (uint64_t)(clock_ns() - began_ns);
    return over;
}
static tutti_status take_buffer(struct reducer *r, int unit)
{
    size_t bytes = bytes_of(r, unit);
    struct gradient_buffer **out = &r->unit[unit].buffer;
    while (!*out) {
        *out = find_spare(r, bytes);
        if (*out) return TUTTI_OK;
        bool waits = r->flies && count_buffers(r, bytes) >= r->buffers && is_soon_over(r);
        TRY(waits ? reduction_complete(r, 0) : make_buffer(r, bytes, out));
    }
    return TUTTI_OK;
}
static tutti_status place_of_sum(struct reducer *r, int unit, void **out)
{
    struct gathering_sum *g = &r->unit[unit];
    void **place = g->rounds ? &g->more : &g->sum;
    if (is_in_place(r)) *place = g->buffer->memory;
    else if (!*place) {
        TRY(tutti_mem_alloc(place, slice_bytes(r, unit)));
        r->gradient_bytes += slice_bytes(r, unit);
    }
    *out = *place;
    return TUTTI_OK;
}
static tutti_status start_sum(struct reducer *r, int unit)
{
    const struct unit_partition *u = &r->partition->unit[unit];
    struct gathering_sum *g = &r->unit[unit];
    void *into;
    TRY(place_of_sum(r, unit, &into));
    TRY(sum_start(&r->sums, &g->running, unit, g->buffer->memory, into));
    g->sent = g->buffer;
    g->buffer = NULL;
    g->ready = 0;
    g->complete = false;
    memset(r->presence + u->first_parameter, ABSENT, (size_t)u->parameters);
    g->started++;
    r->flying[r->flies++] = unit;
    r->begun++;
    r->sum_bytes += bytes_of(r, unit);
    return TUTTI_OK;
}
static int whose_turn(const struct reducer *r) { return r->order.turn[r->begun % r->partition->units]; }
static tutti_status start_complete(struct reducer *r)
{
    while (r->begun < r->partition->units && r->unit[whose_turn(r)].complete) TRY(start_sum(r, whose_turn(r)));
    return TUTTI_OK;
}

/* ---- receiving gradients ---- */
tutti_status reducer_gradient(struct reducer *r, int parameter, void **out, bool *adds)
{
    const struct place_of_parameter *p = &r->partition->parameter[parameter];
    if (r->closed)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "zero: parameter %d has a new gradient, but the gradients of this step have been averaged: take the "
            "step first",
            parameter);
    reducer_advance(r);
    TRY(take_buffer(r, p->unit));
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
tutti_status reducer_ready(struct reducer *r, int parameter)
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
    order_record(&r->order, unit);
    if (unit != whose_turn(r)) r->late_units++;
    return start_complete(r);
}

/* ---- the end of a step ---- */
static tutti_status fill_absent(struct reducer *r, int unit)
{
    const struct unit_partition *u = &r->partition->unit[unit];
    TRY(take_buffer(r, unit));
    for (int i = u->first_parameter; i < u->first_parameter + u->parameters; i++) {
        const struct place_of_parameter *p = &r->partition->parameter[i];
        char *at = (char *)r->unit[unit].buffer->memory + p->offset * u->element;
        if (r->presence[i] == ABSENT) memset(at, 0, p->count * u->element);
    }
    return TUTTI_OK;
}
static bool has_gradients(const struct reducer *r)
{
    for (int u = 0; u < r->partition->units; u++)
        if (r->unit[u].buffer) return true;
    return false;
}
static tutti_status reductions_complete(struct reducer *r)
{
    while (r->flies) TRY(reduction_complete(r, 0));
    return TUTTI_OK;
}
static tutti_status start_round(struct reducer *r, int round)
{
    while (r->begun < round * r->partition->units) {
        int unit = whose_turn(r);
        if (!r->unit[unit].complete) TRY(fill_absent(r, unit));
        TRY(start_sum(r, unit));
    }
    for (int n = 0; n < r->flies; n++) TRY(sum_cross(&r->sums, sum_flying(r, n)));
    return TUTTI_OK;
}
static tutti_status start_again(struct reducer *r)
{
    TRY(reductions_complete(r));
    return start_round(r, 2);
}
static tutti_status close_step(struct reducer *r, bool drops)
{
    uint8_t *flags = &r->used[r->partition->parameters];
    if (r->closed) return TUTTI_OK;
    TRY(start_round(r, 1));
    flags[AGAIN] = has_gradients(r);
    flags[DROPS] = drops;
    flags[TAKES] = !drops;
    TRY(tutti_all_reduce(r->used, r->used, (size_t)r->partition->parameters + FLAGS, TUTTI_UINT8, TUTTI_MAX, r->word,
        NULL));
    if (flags[DROPS] && flags[TAKES])
        return status_fail(TUTTI_MISMATCH, "zero: some ranks drop the gradients of this step, but others use them");
    if (flags[AGAIN]) TRY(start_again(r));
    r->closed = true;
    return TUTTI_OK;
}
tutti_status reducer_close(struct reducer *r) { return close_step(r, false); }
tutti_status reducer_complete(struct reducer *r, int unit)
{
    for (int n = 0; n < r->flies; n++)
        if (r->flying[n] == unit) return reduction_complete(r, n);
    return TUTTI_OK;
}
tutti_status reducer_settle(struct reducer *r)
{
    TRY(reducer_close(r));
    return reductions_complete(r);
}
/* Makes the order that rank 0 has recorded in the first step the order of all ranks. */
static tutti_status order_learn(struct reducer *r)
{
    int *turn = r->order.turn;
    order_learned(&r->order);
    TRY(tutti_broadcast(turn, turn, (size_t)r->partition->units, TUTTI_INT32, 0, r->word, NULL));
    lanes_assign(r->lanes, r->partition, turn);
    return TUTTI_OK;
}
tutti_status reducer_next(struct reducer *r)
{
    const struct place_of_parameter *p = r->partition->parameter;
    for (int i = 0; i < r->partition->parameters; i++)
        if (!r->used[i] && r->unit[p[i].unit].rounds) sums_give_back(&r->sums, i, r->unit[p[i].unit].sum);
    for (int u = 0; u < r->partition->units; u++) {
        struct gathering_sum *g = &r->unit[u];
        g->started = g->rounds = 0;
        if (g->kept) give_back(r, g->kept);
        g->kept = NULL;
    }
    memset(r->used, 0, (size_t)r->partition->parameters + FLAGS);
    r->begun = 0;
    r->closed = false;
    return r->order.learns ? order_learn(r) : TUTTI_OK;
}
bool reducer_is_at_rest(const struct reducer *r)
{
    bool any = r->closed;
    for (int i = 0; i < r->partition->parameters; i++) any |= r->used[i];
    return !any;
}
tutti_status reducer_drop(struct reducer *r)
{
    if (reducer_is_at_rest(r)) return TUTTI_OK;
    TRY(close_step(r, true));
    TRY(reductions_complete(r));
    /* The residuals contain parts of the dropped gradients. */
    sums_forget(&r->sums);
    return reducer_next(r);
}

/* ---- lifetime ---- */
tutti_status reducer_init(struct reducer *r, const struct partition *partition, const tutti_zero_config *c,
    struct lanes *lanes, tutti_comm *word, struct trace *trace)
{
    *r = (struct reducer){ .partition = partition, .lanes = lanes, .word = word };
    r->buffers = is_in_place(r) ? INT_MAX : c->buffers ? c->buffers : USUAL_BUFFERS;
    r->unit = memory_zeroed((size_t)partition->units, sizeof *r->unit);
    r->flying = memory_zeroed((size_t)partition->units, sizeof *r->flying);
    r->presence = memory_zeroed((size_t)partition->parameters, 1);
    r->asked = memory_zeroed((size_t)partition->parameters, 1);
    r->used = memory_zeroed((size_t)partition->parameters + FLAGS, 1);
    bool fine = order_init(&r->order, partition->units) && r->unit && r->flying && r->presence && r->asked && r->used;
    if (!fine)
        return status_fail(TUTTI_NO_MEMORY, "zero: no memory to sum the gradients of %d units", partition->units);
    lanes_assign(lanes, partition, r->order.turn);
    return sums_init(&r->sums, partition, &c->compression, lanes, trace);
}
void reducer_finish(struct reducer *r)
{
    /* Sums use the memory below until this has ended them. */
    sums_finish(&r->sums);
    for (int u = 0; r->unit && u < r->partition->units; u++) {
        sum_finish(&r->sums, &r->unit[u].running);
        free_buffer(r->unit[u].buffer);
        free_buffer(r->unit[u].sent);
        free_buffer(r->unit[u].kept);
        if (is_in_place(r)) continue;
        tutti_mem_free(r->unit[u].sum);
        tutti_mem_free(r->unit[u].more);
    }
    for (struct gradient_buffer *b = r->spare, *next; b; b = next) {
        next = b->next;
        free_buffer(b);
    }
    order_finish(&r->order);
    free(r->unit);
    free(r->flying);
    free(r->presence);
    free(r->asked);
    free(r->used);
}
