/* The public calls: their checks, and their calls of the parts. A call that fails after it has sent to other ranks ends
   the tutti_zero, because the state of the other ranks is then unknown. */
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "include/tutti_zero.h"
#include "zero/async_step.h"
#include "zero/placement.h"
#include "zero/reduce.h"
#include "zero/update.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

enum { DRAIN_MS = 2000, MOST_PREFETCH = 1000, LOOK_NS = 10000, ALL_UNITS = -1 };
struct tutti_zero {
    struct partition partition;
    struct zero_placement placement;
    struct reducer reducer;
    struct optimizer optimizer;
    /* `comms` carry large messages, `control_comm` small ones. `async` is NULL without async steps. */
    struct priority_comms comms;
    tutti_comm *control_comm;
    struct async_step *async;
    struct trace trace;
    /* The rates and the scale belong to the current step. `updates`: a rule updates, not the caller. */
    tutti_zero_rates *rates;                            /* [groups], owned */
    double scale;
    bool updates;
    /* `steps` have changed parameters, `writes` of them were the caller's. `claimed`: no rank reads parameters. */
    uint64_t steps, writes;
    bool begun, claimed;
    pid_t process;
    tutti_status failure;
    char why[STATUS_DETAIL_BYTES];
};

/* ---- checks ---- */
/* Ends the waits of other ranks for this rank with an error. */
static void zero_abort_comms(tutti_zero *z)
{
    priority_comms_abort(&z->comms);
    if (z->control_comm) tutti_comm_abort(z->control_comm);
    placement_abort_comms(&z->placement);
    exchange_abort_comms(&z->reducer.sums.exchange);
}
static tutti_status zero_keep_failure(tutti_zero *z, tutti_status status)
{
    if (status == TUTTI_OK || status_is_refusal() || z->failure) return status;
    snprintf(z->why, sizeof z->why, "%s", status_detail());
    zero_abort_comms(z);
    /* A failed asynchronous step has aborted this call's operation and has the cause. After zero_abort_comms it
       ends. */
    tutti_status of_async_step = status == TUTTI_ABORTED && z->async ? async_step_await_end(z->async) : TUTTI_OK;
    if (of_async_step != TUTTI_OK && of_async_step != TUTTI_ABORTED) {
        status = of_async_step;
        snprintf(z->why, sizeof z->why, "%s", status_detail());
    }
    z->failure = status;
    return status_repeat(status, z->why);
}
static tutti_status zero_check_usable(const tutti_zero *z)
{
    if (!z) return status_refuse(TUTTI_INVALID_ARGUMENT, "the tutti_zero is NULL");
    if (z->process != getpid())
        return status_fail(TUTTI_FORKED, "zero: this tutti_zero was made before a fork; a child must make its own");
    if (z->failure) return status_repeat(z->failure, z->why);
    if (!z->begun) return status_refuse(TUTTI_INVALID_ARGUMENT, "zero: call tutti_zero_begin first");
    return TUTTI_OK;
}
/* Also waits for the asynchronous step. */
static tutti_status zero_check_and_await(const tutti_zero *z)
{
    TRY(zero_check_usable(z));
    return async_step_await_end(z->async);
}
static tutti_status zero_check_parameter(const tutti_zero *z, int parameter)
{
    TRY(zero_check_and_await(z));
    if (parameter >= 0 && parameter < z->partition.parameters) return TUTTI_OK;
    return status_refuse(TUTTI_INVALID_ARGUMENT, "zero: parameter %d does not exist; there are %d", parameter,
        z->partition.parameters);
}
static tutti_status zero_check_unit(const tutti_zero *z, int unit)
{
    TRY(zero_check_usable(z));
    if (unit >= 0 && unit < z->partition.units) return TUTTI_OK;
    return status_refuse(TUTTI_INVALID_ARGUMENT, "zero: unit %d does not exist; there are %d", unit,
        z->partition.units);
}
static bool zero_is_sharded(const tutti_zero *z) { return z->placement.kind == TUTTI_ZERO_SHARDED; }
static tutti_status config_check_struct(const tutti_zero_config *c)
{
    if (c->struct_size != sizeof *c)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "tutti_zero_config.struct_size is %zu, but this library knows %zu: initialize it with "
            "TUTTI_ZERO_CONFIG_INIT",
            c->struct_size, sizeof *c);
    return c->comm ? TUTTI_OK : status_refuse(TUTTI_INVALID_ARGUMENT, "zero: the communicator is NULL");
}
static tutti_status config_check_choices(const tutti_zero_config *c)
{
    if ((unsigned)c->placement >= TUTTI_ZERO_PLACEMENTS || (unsigned)c->rule >= TUTTI_ZERO_RULES || c->buffers < 0
        || c->prefetch < 0 || c->prefetch > MOST_PREFETCH)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "zero: placement %d, rule %d, %d buffers, %d units gathered ahead: one of these is out of range",
            (int)c->placement, (int)c->rule, c->buffers, c->prefetch);
    if (c->placement == TUTTI_ZERO_WHOLE && c->compression.form != TUTTI_COMPRESS_NONE)
        return status_refuse(TUTTI_UNSUPPORTED,
            "zero: gradients that are summed on all ranks are not packed here; use a tutti_compressor, or divide "
            "the optimizer state (REPLICATED)");
    return compression_check_options(&c->compression);
}

/* ---- a step ---- */
/* A collective close shows that all ranks have reached the step. After an earlier close ranks may have read on. */
static tutti_status zero_await_ranks(tutti_zero *z)
{
    bool closed = z->reducer.closed;
    TRY(reducer_close_step(&z->reducer));
    return closed ? tutti_barrier(z->control_comm, NULL) : TUTTI_OK;
}
static tutti_status zero_settle_and_claim(tutti_zero *z)
{
    if (z->claimed) return TUTTI_OK;
    TRY(zero_await_ranks(z));
    TRY(reducer_settle_sums(&z->reducer));
    z->claimed = true;
    return TUTTI_OK;
}
static tutti_status zero_update_unit(tutti_zero *z, int unit)
{
    struct reducer *r = &z->reducer;
    TRY(reducer_complete_unit(r, unit));
    /* A unit that was not used since the last step may still be gathering. */
    TRY(placement_await(&z->placement, unit, z->steps - 1));
    int64_t began_ns = trace_now(&z->trace);
    if (!z->updates) optimizer_copy_to_slice(&z->optimizer, unit);
    else if (r->unit[unit].rounds)
        optimizer_update_unit(&z->optimizer, unit, r->unit[unit].sum, r->used, z->rates, z->scale);
    trace_record(&z->trace, TUTTI_ZERO_UPDATED, unit, began_ns, 0);
    return placement_publish(&z->placement, unit, z->steps);
}
/* Updates units in the order of their sums; async steps reverse it. The order is the same on all ranks. */
static tutti_status zero_update_units(tutti_zero *z)
{
    int units = z->partition.units, *turn = z->reducer.order.turn;
    for (int i = 0; i < units; i++) {
        int unit = turn[z->async ? units - 1 - i : i];
        TRY(zero_update_unit(z, unit));
        if (z->async) async_step_complete_unit(z->async, unit, z->steps);
    }
    TRY(reducer_begin_step(&z->reducer));
    return placement_end_update(&z->placement);
}
static tutti_status zero_run_async_step(void *zero)
{
    tutti_status status = zero_update_units(zero);
    if (status == TUTTI_OK) return status;
    char why[STATUS_DETAIL_BYTES];
    snprintf(why, sizeof why, "%s", status_detail());
    zero_abort_comms(zero);
    return status_repeat(status, why);
}
/* With rates NULL the caller has updated the pieces. */
static tutti_status zero_take_step(tutti_zero *z, const tutti_zero_rates *rates, double scale)
{
    int64_t began_ns = trace_now(&z->trace);
    if (!z->claimed) TRY(zero_await_ranks(z));
    TRY(placement_begin_update(&z->placement));
    z->updates = rates;
    z->scale = scale;
    for (int g = 0; rates && g < z->partition.groups; g++) z->rates[g] = rates[g];
    z->claimed = false;
    z->steps++;
    if (z->async && rates) async_step_start_work(z->async);
    else TRY(zero_update_units(z));
    trace_record(&z->trace, TUTTI_ZERO_STEPPED, ALL_UNITS, began_ns, 0);
    return TUTTI_OK;
}

/* ---- lifetime ---- */
/* All ranks have the same partition, or all refuse it. */
static tutti_status zero_compare_models(const tutti_zero *z, const tutti_zero_config *c, tutti_status mine)
{
    char why[STATUS_DETAIL_BYTES] = "";
    if (mine != TUTTI_OK) snprintf(why, sizeof why, "%s", status_detail());
    uint64_t digest = mine == TUTTI_OK ? partition_digest(&z->partition, c) ^ compression_digest(&c->compression) : 0;
    uint64_t range[3] = { digest, ~digest, mine != TUTTI_OK };
    TRY(tutti_all_reduce(range, range, 3, TUTTI_UINT64, TUTTI_MAX, c->comm, NULL));
    if (mine != TUTTI_OK) return status_repeat_refusal(mine, why);
    if (range[2])
        return status_refuse(TUTTI_INVALID_ARGUMENT, "zero: another rank's model was refused; its own error says why");
    if (range[0] == ~range[1]) return TUTTI_OK;
    return status_refuse(TUTTI_MISMATCH,
        "zero: rank %d has another model than another rank: parameters must have the same shapes and types, and be "
        "in the same units and groups, and the placement, the optimizer and the compression be the same, on all ranks",
        z->partition.rank);
}
static tutti_status zero_init_parts(tutti_zero *z, const tutti_zero_config *c)
{
    tutti_status mine = partition_init(&z->partition, c, tutti_comm_user_rank(c->comm), tutti_comm_count(c->comm));
    if (mine == TUTTI_OK) mine = config_check_choices(c);
    TRY(zero_compare_models(z, c, mine));
    TRY(priority_comms_init(&z->comms, &z->partition, c));
    TRY(tutti_comm_split(c->comm, 0, z->partition.rank, &z->control_comm));
    TRY(placement_init(&z->placement, &z->partition, c, &z->comms, z->control_comm, &z->trace));
    TRY(reducer_init(&z->reducer, &z->partition, c, &z->comms, z->control_comm, &z->trace));
    TRY(optimizer_init(&z->optimizer, &z->partition, c->rule));
    z->rates = memory_alloc_zeroed((size_t)z->partition.groups, sizeof *z->rates);
    if (!z->rates) return status_fail(TUTTI_NO_MEMORY, "zero: no memory for %d groups", z->partition.groups);
    bool ahead = c->ahead && c->rule != TUTTI_ZERO_NONE && c->placement != TUTTI_ZERO_SHARDED;
    return ahead ? async_step_create(z->partition.units, zero_run_async_step, z, &z->async) : TUTTI_OK;
}
tutti_status tutti_zero_create(tutti_zero **out, const tutti_zero_config *c)
{
    if (!out || !c)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "tutti_zero_create: the pointer to the result or the config is NULL");
    *out = NULL;
    TRY(config_check_struct(c));
    tutti_zero *z = memory_alloc_aligned(sizeof *z);
    if (!z) return status_fail(TUTTI_NO_MEMORY, "no memory for a tutti_zero");
    z->process = getpid();
    trace_init(&z->trace);
    tutti_status status = zero_init_parts(z, c);
    if (status == TUTTI_OK) {
        *out = z;
        return status;
    }
    char why[STATUS_DETAIL_BYTES];
    bool refusal = status_is_refusal();
    snprintf(why, sizeof why, "%s", status_detail());
    tutti_zero_destroy(z);
    return refusal ? status_repeat_refusal(status, why) : status_repeat(status, why);
}
/* Waits up to DRAIN_MS for data that other ranks still need from this one. */
static void zero_drain_and_stop(tutti_zero *z)
{
    int64_t until_ms = clock_ms() + DRAIN_MS;
    bool over = !z->async || async_step_await_until(z->async, until_ms);
    bool midway = !over || (z->reducer.partition && !reducer_is_at_rest(&z->reducer));
    if (midway && !z->failure) zero_abort_comms(z);
    else if (!z->failure && z->placement.partition) placement_await_until(&z->placement, until_ms);
    async_step_destroy(z->async);
}
tutti_status tutti_zero_destroy(tutti_zero *z)
{
    if (!z) return TUTTI_OK;
    if (z->process == getpid()) zero_drain_and_stop(z);
    /* Operations use the memory below until this has ended them. */
    priority_comms_finish(&z->comms);
    tutti_comm_destroy(z->control_comm);
    if (z->placement.partition) placement_finish(&z->placement);
    if (z->reducer.partition) reducer_finish(&z->reducer);
    if (z->optimizer.partition) optimizer_finish(&z->optimizer);
    partition_finish(&z->partition);
    trace_finish(&z->trace);
    free(z->rates);
    free(z);
    return TUTTI_OK;
}
void *tutti_zero_parameter_at(const tutti_zero *z, int parameter)
{
    if (!z || parameter < 0 || parameter >= z->partition.parameters) return NULL;
    const struct place_of_parameter *p = &z->partition.parameter[parameter];
    return (char *)placement_flat(&z->placement, p->unit) + p->offset * z->partition.unit[p->unit].element;
}
static tutti_status zero_set_first_values(tutti_zero *z)
{
    TRY(placement_broadcast_values(&z->placement));
    for (int u = 0; u < z->partition.units; u++)
        TRY(optimizer_set_slice(&z->optimizer, u, placement_slice(&z->placement, u)));
    /* All ranks have read before any rank writes. */
    return tutti_barrier(z->control_comm, NULL);
}
tutti_status tutti_zero_begin(tutti_zero *z)
{
    if (!z) return zero_check_and_await(z);
    if (z->failure) return status_repeat(z->failure, z->why);
    TRY(async_step_await_end(z->async));
    z->begun = true;
    z->claimed = false;
    tutti_status status = placement_claim_units(&z->placement, z->steps);
    return zero_keep_failure(z, status == TUTTI_OK ? zero_set_first_values(z) : status);
}

/* ---- the events of a step ---- */
static tutti_status zero_use_unit(tutti_zero *z, int unit, bool backward)
{
    TRY(zero_check_unit(z, unit));
    int64_t began_ns = trace_now(&z->trace);
    TRY(async_step_await_unit(z->async, unit, z->steps));
    TRY(zero_keep_failure(z, placement_use(&z->placement, unit, z->steps, backward)));
    trace_record(&z->trace, TUTTI_ZERO_USED, unit, began_ns, 0);
    return TUTTI_OK;
}
tutti_status tutti_zero_use(tutti_zero *z, int unit) { return zero_use_unit(z, unit, false); }
tutti_status tutti_zero_use_backward(tutti_zero *z, int unit) { return zero_use_unit(z, unit, true); }
tutti_status tutti_zero_release(tutti_zero *z, int unit)
{
    TRY(zero_check_unit(z, unit));
    if (zero_is_sharded(z)) gatherer_release(&z->placement.gatherer, unit);
    return TUTTI_OK;
}
tutti_status tutti_zero_keep(tutti_zero *z, bool kept)
{
    TRY(zero_check_and_await(z));
    return zero_keep_failure(z, placement_keep_units(&z->placement, z->steps, kept));
}
tutti_status tutti_zero_gradient(tutti_zero *z, int parameter, void **out, bool *adds)
{
    int64_t began_ns = z ? trace_now(&z->trace) : 0;
    TRY(zero_check_parameter(z, parameter));
    int unit = z->partition.parameter[parameter].unit;
    if (zero_is_sharded(z)) TRY(gatherer_check_unit_whole(&z->placement.gatherer, unit));
    TRY(zero_keep_failure(z, reducer_get_gradient_address(&z->reducer, parameter, out, adds)));
    if (trace_now(&z->trace) > began_ns + LOOK_NS) trace_record(&z->trace, TUTTI_ZERO_ASKED, unit, began_ns, 0);
    return TUTTI_OK;
}
tutti_status tutti_zero_ready(tutti_zero *z, int parameter)
{
    TRY(zero_check_parameter(z, parameter));
    TRY(zero_keep_failure(z, reducer_mark_ready(&z->reducer, parameter)));
    if (zero_is_sharded(z)) gatherer_count_gradient(&z->placement.gatherer, z->partition.parameter[parameter].unit);
    return TUTTI_OK;
}
tutti_status tutti_zero_hold(tutti_zero *z, bool held)
{
    TRY(zero_check_and_await(z));
    z->reducer.held = held;
    return TUTTI_OK;
}
tutti_status tutti_zero_settle(tutti_zero *z)
{
    int64_t began_ns = z ? trace_now(&z->trace) : 0;
    TRY(zero_check_and_await(z));
    TRY(zero_keep_failure(z, reducer_settle_sums(&z->reducer)));
    trace_record(&z->trace, TUTTI_ZERO_SETTLED, ALL_UNITS, began_ns, 0);
    return TUTTI_OK;
}
static tutti_status zero_compute_norm(tutti_zero *z, double *out)
{
    double sum = 0;
    TRY(reducer_settle_sums(&z->reducer));
    for (int u = 0; u < z->partition.units; u++)
        if (z->reducer.unit[u].rounds) sum += optimizer_sum_squares(&z->optimizer, u, z->reducer.unit[u].sum);
    if (z->partition.slices > 1) TRY(tutti_all_reduce(&sum, &sum, 1, TUTTI_FLOAT64, TUTTI_SUM, z->control_comm, NULL));
    *out = sqrt(sum);
    return TUTTI_OK;
}
tutti_status tutti_zero_norm(tutti_zero *z, double *out)
{
    int64_t began_ns = z ? trace_now(&z->trace) : 0;
    TRY(zero_check_and_await(z));
    TRY(zero_keep_failure(z, zero_compute_norm(z, out)));
    trace_record(&z->trace, TUTTI_ZERO_SETTLED, ALL_UNITS, began_ns, 0);
    return TUTTI_OK;
}
tutti_status tutti_zero_step(tutti_zero *z, const tutti_zero_rates *rates, double scale)
{
    TRY(zero_check_and_await(z));
    if (!rates || z->optimizer.rule == TUTTI_ZERO_NONE)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "zero: a step needs a rule and rates; without a rule, update the pieces and call tutti_zero_publish");
    return zero_keep_failure(z, zero_take_step(z, rates, scale));
}
tutti_status tutti_zero_claim(tutti_zero *z)
{
    TRY(zero_check_and_await(z));
    if (!reducer_is_at_rest(&z->reducer)) return zero_keep_failure(z, zero_settle_and_claim(z));
    return zero_keep_failure(z, placement_claim_units(&z->placement, z->steps));
}
tutti_status tutti_zero_publish(tutti_zero *z)
{
    TRY(zero_check_and_await(z));
    if (!z->claimed)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "zero: pieces are updated between tutti_zero_claim and _publish");
    return zero_keep_failure(z, zero_take_step(z, NULL, 1));
}
tutti_status tutti_zero_drop(tutti_zero *z)
{
    TRY(zero_check_usable(z));
    /* No gradient has come since a step that still runs. */
    if (!async_step_await_until(z->async, 0)) return TUTTI_OK;
    TRY(async_step_await_end(z->async));
    return zero_keep_failure(z, reducer_discard_gradients(&z->reducer));
}

/* ---- the state of a rank ---- */
tutti_status tutti_zero_span(const tutti_zero *z, int parameter, int rank, size_t *at, size_t *count)
{
    TRY(zero_check_parameter(z, parameter));
    if (rank < 0 || rank >= z->partition.ranks)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "zero: rank %d does not exist; there are %d", rank,
            z->partition.ranks);
    struct slice_piece piece = partition_piece(&z->partition, parameter, rank);
    *at = piece.at;
    *count = piece.count;
    return TUTTI_OK;
}
tutti_status tutti_zero_get_piece(const tutti_zero *z, int parameter, tutti_zero_piece *out)
{
    TRY(zero_check_parameter(z, parameter));
    struct slice_piece piece = partition_piece(&z->partition, parameter, z->partition.rank);
    int unit = z->partition.parameter[parameter].unit;
    const struct optimizer_state *s = &z->optimizer.state[unit];
    const struct gathering_sum *g = &z->reducer.unit[unit];
    size_t element = z->partition.unit[unit].element;
    *out = (tutti_zero_piece){ .at = piece.at, .count = piece.count, .steps = z->optimizer.steps[parameter] };
    out->used = z->reducer.used[parameter];
    if (!piece.count) return TUTTI_OK;
    out->value = s->value + piece.from;
    out->first = s->first ? s->first + piece.from : NULL;
    out->second = s->second ? s->second + piece.from : NULL;
    out->gradient = g->sum && g->rounds ? (char *)g->sum + piece.from * element : NULL;
    return TUTTI_OK;
}
tutti_status tutti_zero_claim_pieces(tutti_zero *z)
{
    TRY(zero_check_and_await(z));
    return zero_keep_failure(z, placement_claim_pieces(&z->placement, z->steps));
}
static tutti_status zero_begin_pieces(tutti_zero *z)
{
    TRY(placement_begin_update(&z->placement));
    z->claimed = false;
    z->steps++;
    z->writes++;
    for (int u = 0; u < z->partition.units; u++) {
        optimizer_copy_to_slice(&z->optimizer, u);
        TRY(placement_publish(&z->placement, u, z->steps));
    }
    return TUTTI_OK;
}
tutti_status tutti_zero_begin_pieces(tutti_zero *z)
{
    TRY(zero_check_and_await(z));
    return zero_keep_failure(z, zero_begin_pieces(z));
}
tutti_status tutti_zero_set_steps(tutti_zero *z, int parameter, uint64_t steps)
{
    TRY(zero_check_parameter(z, parameter));
    z->optimizer.steps[parameter] = steps;
    return TUTTI_OK;
}
static tutti_status zero_check_residual(const tutti_zero *z, int parameter, const void *array)
{
    TRY(zero_check_parameter(z, parameter));
    if (array && reducer_is_at_rest(&z->reducer)) return TUTTI_OK;
    return status_refuse(TUTTI_INVALID_ARGUMENT,
        "zero: the residual of compression can be read and written only between steps, and the array must not be NULL");
}
tutti_status tutti_zero_get_lost(tutti_zero *z, int parameter, float *out)
{
    TRY(zero_check_residual(z, parameter, out));
    return zero_keep_failure(z, sums_get_residual(&z->reducer.sums, parameter, out, z->control_comm));
}
tutti_status tutti_zero_set_lost(tutti_zero *z, int parameter, const float *in)
{
    TRY(zero_check_residual(z, parameter, in));
    sums_set_residual(&z->reducer.sums, parameter, in);
    return TUTTI_OK;
}
tutti_status tutti_zero_watch(tutti_zero *z, size_t events)
{
    TRY(zero_check_and_await(z));
    return trace_open(&z->trace, events);
}
tutti_status tutti_zero_get_events(tutti_zero *z, tutti_zero_event *out, size_t capacity, size_t *count, size_t *missed)
{
    TRY(zero_check_and_await(z));
    if (!count || !missed || (capacity && !out))
        return status_refuse(TUTTI_INVALID_ARGUMENT, "zero: the array of events or a pointer to a count is NULL");
    *count = trace_read(&z->trace, out, capacity, missed);
    return TUTTI_OK;
}
tutti_status tutti_zero_get_report(const tutti_zero *z, tutti_zero_report *out)
{
    TRY(zero_check_and_await(z));
    if (!out || out->struct_size != sizeof *out)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "tutti_zero_report.struct_size is not %zu", sizeof *out);
    *out = (tutti_zero_report){ .struct_size = sizeof *out, .steps = z->steps - z->writes };
    out->waited_use_ns =
        z->placement.waited_ns + z->placement.gatherer.waited_ns + (z->async ? z->async->waited_ns : 0);
    out->unforeseen = z->placement.gatherer.unforeseen;
    out->waited_sums_ns = z->reducer.waited_ns;
    out->late_units = z->reducer.late_units;
    out->sum_bytes = z->reducer.sum_bytes;
    out->moved_bytes = z->placement.moved_bytes + z->placement.gatherer.moved_bytes;
    out->gradient_bytes = z->reducer.gradient_bytes + z->reducer.sums.lost_bytes;
    out->packed_bytes = z->reducer.sums.packed_bytes;
    out->state_bytes = z->optimizer.state_bytes;
    out->parameter_bytes = z->placement.gatherer.most_bytes;
    for (int u = 0; u < z->partition.units; u++)
        out->parameter_bytes += partition_bytes(&z->partition, u) / placement_count_copy_ranks(&z->placement);
    return TUTTI_OK;
}
