/* The public calls of a training step: their checks, and their calls of the parts (state.c has the other calls). A call
   that fails after it has sent to other ranks ends the tutti_zero, because the state of those is then unknown. */
#include "zero/zero.h"
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "include/tutti_zero.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* tutti_zero_destroy waits at most DRAIN_MS for ranks that still read this rank's data. MOST_PREFETCH is the highest
   `prefetch` of a config. The trace records waits for a gradient buffer that last longer than LEAST_WAIT_NS. ALL_UNITS
   is the unit number of events that belong to no single unit. */
enum { DRAIN_MS = 2000, MOST_PREFETCH = 1000, LEAST_WAIT_NS = 10000, ALL_UNITS = -1 };
/* ---- checks ---- */
/* Aborts all communicators, which ends the waits of other ranks for this rank with an error. */
static void zero_abort_comms(tutti_zero *zero)
{
    priority_comms_abort(&zero->comms);
    if (zero->control_comm) tutti_comm_abort(zero->control_comm);
    placement_abort_comms(&zero->placement);
    exchange_abort_comms(&zero->reducer.sums.exchange);
}
tutti_status zero_record_failure(tutti_zero *zero, tutti_status status)
{
    if (status == TUTTI_OK || status_is_refusal() || zero->failure) return status;
    snprintf(zero->why, sizeof zero->why, "%s", status_detail());
    zero_abort_comms(zero);
    /* If the asynchronous step has failed, it has aborted the operation of this call, and its error is the cause.
       zero_abort_comms makes it end. */
    tutti_status async_status = status == TUTTI_ABORTED && zero->async ? async_step_await_end(zero->async) : TUTTI_OK;
    if (async_status != TUTTI_OK && async_status != TUTTI_ABORTED) {
        status = async_status;
        snprintf(zero->why, sizeof zero->why, "%s", status_detail());
    }
    zero->failure = status;
    return status_repeat(status, zero->why);
}
tutti_status zero_check_usable(const tutti_zero *zero)
{
    if (!zero) return status_refuse(TUTTI_INVALID_ARGUMENT, "the tutti_zero is NULL");
    if (zero->process != getpid())
        return status_fail(TUTTI_FORKED, "zero: this tutti_zero was made before a fork; a child must make its own");
    if (zero->failure) return status_repeat(zero->failure, zero->why);
    if (!zero->is_begun) return status_refuse(TUTTI_INVALID_ARGUMENT, "zero: call tutti_zero_begin first");
    return TUTTI_OK;
}
tutti_status zero_check_and_await(const tutti_zero *zero)
{
    TRY(zero_check_usable(zero));
    return async_step_await_end(zero->async);
}
tutti_status zero_check_parameter(const tutti_zero *zero, int parameter)
{
    TRY(zero_check_and_await(zero));
    if (parameter >= 0 && parameter < zero->partition.parameters) return TUTTI_OK;
    return status_refuse(TUTTI_INVALID_ARGUMENT, "zero: parameter %d does not exist; there are %d", parameter,
        zero->partition.parameters);
}
static tutti_status zero_check_unit(const tutti_zero *zero, int unit)
{
    TRY(zero_check_usable(zero));
    if (unit >= 0 && unit < zero->partition.units) return TUTTI_OK;
    return status_refuse(TUTTI_INVALID_ARGUMENT, "zero: unit %d does not exist; there are %d", unit,
        zero->partition.units);
}
static bool zero_is_sharded(const tutti_zero *zero) { return zero->placement.kind == TUTTI_ZERO_SHARDED; }
/* Refuses a config of another version of the library, or without a communicator. */
static tutti_status config_check_struct(const tutti_zero_config *config)
{
    if (config->struct_size != sizeof *config)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "tutti_zero_config.struct_size is %zu, but this library knows %zu: initialize it with "
            "TUTTI_ZERO_CONFIG_INIT",
            config->struct_size, sizeof *config);
    return config->comm ? TUTTI_OK : status_refuse(TUTTI_INVALID_ARGUMENT, "zero: the communicator is NULL");
}
/* Refuses enums, numbers and combinations of a config that are out of range. */
static tutti_status config_check_choices(const tutti_zero_config *config)
{
    if ((unsigned)config->placement >= TUTTI_ZERO_PLACEMENTS || (unsigned)config->rule >= TUTTI_ZERO_RULES
        || config->buffers < 0 || config->prefetch < 0 || config->prefetch > MOST_PREFETCH)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "zero: placement %d, rule %d, %d buffers, %d units gathered ahead: one of these is out of range",
            (int)config->placement, (int)config->rule, config->buffers, config->prefetch);
    if (config->placement == TUTTI_ZERO_WHOLE && config->compression.form != TUTTI_COMPRESS_NONE)
        return status_refuse(TUTTI_UNSUPPORTED,
            "zero: gradients that are summed on all ranks are not packed here; use a tutti_compressor, or divide "
            "the optimizer state (REPLICATED)");
    return compression_check_options(&config->compression);
}

/* ---- a step ---- */
/* Returns when all ranks have reached the step. The collective close of the step shows this. If the step was closed
   earlier (settle, norm), ranks may have read parameters since, so a barrier shows it. */
static tutti_status zero_await_ranks(tutti_zero *zero)
{
    bool closed = zero->reducer.is_closed;
    TRY(reducer_close_step(&zero->reducer));
    return closed ? tutti_barrier(zero->control_comm, NULL) : TUTTI_OK;
}
/* Completes all sums of the step, and marks parameters as claimed: no rank reads them until the next step. */
static tutti_status zero_settle_and_claim(tutti_zero *zero)
{
    if (zero->is_claimed) return TUTTI_OK;
    TRY(zero_await_ranks(zero));
    TRY(reducer_settle_sums(&zero->reducer));
    zero->is_claimed = true;
    return TUTTI_OK;
}
/* Updates this rank's slice of a unit by the rule, or takes the caller's update, and starts to distribute the slice. */
static tutti_status zero_update_unit(tutti_zero *zero, int unit)
{
    struct reducer *reducer = &zero->reducer;
    TRY(reducer_complete_unit(reducer, unit));
    /* A unit that was not used since the last step may still be gathering. */
    TRY(placement_await_unit(&zero->placement, unit, zero->steps - 1));
    int64_t began_ns = trace_now(&zero->trace);
    if (!zero->has_rule) optimizer_copy_to_slice(&zero->optimizer, unit);
    else if (reducer->unit[unit].rounds)
        optimizer_update_unit(&zero->optimizer, unit, reducer->unit[unit].sum, reducer->used, zero->rates, zero->scale);
    trace_record(&zero->trace, TUTTI_ZERO_UPDATED, unit, began_ns, 0);
    return placement_publish_slice(&zero->placement, unit, zero->steps);
}
/* Updates and publishes this rank's slices of all units in the order of their sums, or in reverse if the step is
   asynchronous, and starts the next step of the reducer. The order is the same on all ranks. */
static tutti_status zero_update_units(tutti_zero *zero)
{
    int units = zero->partition.units, *agreed = zero->reducer.order.agreed;
    for (int i = 0; i < units; i++) {
        int unit = agreed[zero->async ? units - 1 - i : i];
        if (i + 1 < units) state_file_prefetch(&zero->optimizer.file, agreed[zero->async ? units - 2 - i : i + 1]);
        TRY(zero_update_unit(zero, unit));
        TRY(state_file_write_behind(&zero->optimizer.file, unit));
        if (zero->async) async_step_complete_unit(zero->async, unit, zero->steps);
    }
    TRY(reducer_begin_step(&zero->reducer));
    return placement_update_prefetches(&zero->placement);
}
/* Does the work of the asynchronous step's thread. After an error it aborts the communicators, so that no other rank
   waits for this one. */
static tutti_status zero_run_async_step(void *zero)
{
    tutti_status status = zero_update_units(zero);
    if (status == TUTTI_OK) return status;
    char why[STATUS_DETAIL_BYTES];
    snprintf(why, sizeof why, "%s", status_detail());
    zero_abort_comms(zero);
    return status_repeat(status, why);
}
/* Takes a step when all ranks have reached it, on this thread or on that of async steps. rates: [groups], or NULL if
   the caller has updated the pieces. */
static tutti_status zero_take_step(tutti_zero *zero, const tutti_zero_rates *rates, double scale)
{
    int64_t began_ns = trace_now(&zero->trace);
    if (!zero->is_claimed) TRY(zero_await_ranks(zero));
    TRY(placement_close_units(&zero->placement));
    zero->has_rule = rates;
    zero->scale = scale;
    for (int g = 0; rates && g < zero->partition.groups; g++) zero->rates[g] = rates[g];
    zero->is_claimed = false;
    zero->steps++;
    if (zero->async && rates) async_step_start_work(zero->async);
    else TRY(zero_update_units(zero));
    trace_record(&zero->trace, TUTTI_ZERO_STEPPED, ALL_UNITS, began_ns, 0);
    return TUTTI_OK;
}

/* ---- lifetime ---- */
/* Refuses the model on all ranks unless all have the same partition and compression. `mine` is the result of this
   rank's own checks, which it returns if they have failed. Collective. */
static tutti_status zero_compare_models(const tutti_zero *zero, const tutti_zero_config *config, tutti_status mine)
{
    char why[STATUS_DETAIL_BYTES] = "";
    if (mine != TUTTI_OK) snprintf(why, sizeof why, "%s", status_detail());
    uint64_t digest =
        mine == TUTTI_OK ? partition_digest(&zero->partition, config) ^ compression_digest(&config->compression) : 0;
    uint64_t range[3] = { digest, ~digest, mine != TUTTI_OK };
    TRY(tutti_all_reduce(range, range, 3, TUTTI_UINT64, TUTTI_MAX, config->comm, NULL));
    if (mine != TUTTI_OK) return status_repeat_refusal(mine, why);
    if (range[2])
        return status_refuse(TUTTI_INVALID_ARGUMENT, "zero: another rank's model was refused; its own error says why");
    if (range[0] == ~range[1]) return TUTTI_OK;
    return status_refuse(TUTTI_MISMATCH,
        "zero: rank %d has another model than another rank: parameters must have the same shapes and types, and be "
        "in the same units and groups, and the placement, the optimizer, the types of sums and the compression be the "
        "same, on all ranks",
        zero->partition.rank);
}
/* Compares the models of all ranks and creates the parts, in an order that keeps the collective calls of all ranks
   equal. */
static tutti_status zero_init_parts(tutti_zero *zero, const tutti_zero_config *config)
{
    tutti_status mine =
        partition_init(&zero->partition, config, tutti_comm_user_rank(config->comm), tutti_comm_count(config->comm));
    if (mine == TUTTI_OK) mine = config_check_choices(config);
    if (mine == TUTTI_OK) mine = optimizer_init(&zero->optimizer, &zero->partition, config);
    TRY(zero_compare_models(zero, config, mine));
    TRY(priority_comms_init(&zero->comms, &zero->partition, config));
    TRY(tutti_comm_split(zero->comms.all[0], 0, zero->partition.rank, &zero->control_comm));
    TRY(placement_init(&zero->placement, &zero->partition, config, &zero->comms, zero->control_comm, &zero->trace));
    TRY(reducer_init(&zero->reducer, &zero->partition, config, &zero->comms, zero->control_comm, &zero->trace));
    zero->rates = memory_alloc_zeroed((size_t)zero->partition.groups, sizeof *zero->rates);
    if (!zero->rates) return status_fail(TUTTI_NO_MEMORY, "zero: no memory for %d groups", zero->partition.groups);
    bool ahead = config->ahead && config->rule != TUTTI_ZERO_NONE && config->placement != TUTTI_ZERO_SHARDED;
    return ahead ? async_step_create(zero->partition.units, zero_run_async_step, zero, &zero->async) : TUTTI_OK;
}
tutti_status tutti_zero_create(tutti_zero **out, const tutti_zero_config *config)
{
    if (!out || !config)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "tutti_zero_create: the pointer to the result or the config is NULL");
    *out = NULL;
    TRY(config_check_struct(config));
    tutti_zero *zero = memory_alloc_aligned(sizeof *zero);
    if (!zero) return status_fail(TUTTI_NO_MEMORY, "no memory for a tutti_zero");
    zero->process = getpid();
    trace_init(&zero->trace);
    tutti_status status = zero_init_parts(zero, config);
    if (status == TUTTI_OK) {
        *out = zero;
        return status;
    }
    char why[STATUS_DETAIL_BYTES];
    bool refusal = status_is_refusal();
    snprintf(why, sizeof why, "%s", status_detail());
    tutti_zero_destroy(zero);
    return refusal ? status_repeat_refusal(status, why) : status_repeat(status, why);
}
/* Waits up to DRAIN_MS for data that other ranks still need from this one, or aborts the communicators in the middle of
   a step. Ends the thread of async steps. */
static void zero_drain_and_stop(tutti_zero *zero)
{
    int64_t until_ms = clock_ms() + DRAIN_MS;
    bool over = !zero->async || async_step_await_until(zero->async, until_ms);
    bool midway = !over || (zero->reducer.partition && !reducer_is_at_rest(&zero->reducer));
    if (midway && !zero->failure) zero_abort_comms(zero);
    else if (!zero->failure && zero->placement.partition) placement_await_until(&zero->placement, until_ms);
    async_step_destroy(zero->async);
}
tutti_status tutti_zero_destroy(tutti_zero *zero)
{
    if (!zero) return TUTTI_OK;
    if (zero->process == getpid()) zero_drain_and_stop(zero);
    /* Operations use the memory below until this has ended them. */
    priority_comms_finish(&zero->comms);
    tutti_comm_destroy(zero->control_comm);
    if (zero->placement.partition) placement_finish(&zero->placement);
    if (zero->reducer.partition) reducer_finish(&zero->reducer);
    if (zero->optimizer.partition) optimizer_finish(&zero->optimizer);
    partition_finish(&zero->partition);
    trace_finish(&zero->trace);
    free(zero->rates);
    free(zero);
    return TUTTI_OK;
}
void *tutti_zero_parameter_at(const tutti_zero *zero, int parameter)
{
    if (!zero || parameter < 0 || parameter >= zero->partition.parameters) return NULL;
    const struct place_of_parameter *p = &zero->partition.parameter[parameter];
    return (char *)placement_get_flat(&zero->placement, p->unit) + p->offset * zero->partition.unit[p->unit].element;
}
/* Distributes rank 0's values to all ranks, and makes this rank's slices the values of its optimizer state. */
static tutti_status zero_set_first_values(tutti_zero *zero)
{
    TRY(placement_broadcast_values(&zero->placement));
    for (int u = 0; u < zero->partition.units; u++)
        TRY(optimizer_set_slice(&zero->optimizer, u, placement_get_slice(&zero->placement, u)));
    /* The barrier ends when all ranks have read rank 0's values. Until then no rank writes. */
    return tutti_barrier(zero->control_comm, NULL);
}
tutti_status tutti_zero_begin(tutti_zero *zero)
{
    if (!zero) return zero_check_and_await(zero);
    if (zero->failure) return status_repeat(zero->failure, zero->why);
    TRY(async_step_await_end(zero->async));
    zero->is_begun = true;
    zero->is_claimed = false;
    tutti_status status = placement_claim_units(&zero->placement, zero->steps);
    return zero_record_failure(zero, status == TUTTI_OK ? zero_set_first_values(zero) : status);
}

/* ---- the events of a step ---- */
/* Begins a use of the unit in a forward or backward pass, and returns when it has the values of the last step. */
static tutti_status zero_use_unit(tutti_zero *zero, int unit, bool backward)
{
    TRY(zero_check_unit(zero, unit));
    int64_t began_ns = trace_now(&zero->trace);
    TRY(async_step_await_unit(zero->async, unit, zero->steps));
    TRY(zero_record_failure(zero, placement_use_unit(&zero->placement, unit, zero->steps, backward)));
    trace_record(&zero->trace, TUTTI_ZERO_USED, unit, began_ns, 0);
    return TUTTI_OK;
}
tutti_status tutti_zero_use(tutti_zero *zero, int unit) { return zero_use_unit(zero, unit, false); }
tutti_status tutti_zero_use_backward(tutti_zero *zero, int unit) { return zero_use_unit(zero, unit, true); }
tutti_status tutti_zero_release(tutti_zero *zero, int unit)
{
    TRY(zero_check_unit(zero, unit));
    if (zero_is_sharded(zero)) gatherer_release_unit(&zero->placement.gatherer, unit);
    return TUTTI_OK;
}
tutti_status tutti_zero_keep(tutti_zero *zero, bool kept)
{
    TRY(zero_check_and_await(zero));
    return zero_record_failure(zero, placement_keep_units(&zero->placement, zero->steps, kept));
}
tutti_status tutti_zero_gradient(tutti_zero *zero, int parameter, void **out, bool *adds)
{
    int64_t began_ns = zero ? trace_now(&zero->trace) : 0;
    TRY(zero_check_parameter(zero, parameter));
    int unit = zero->partition.parameter[parameter].unit;
    if (zero_is_sharded(zero)) TRY(gatherer_check_unit_whole(&zero->placement.gatherer, unit));
    TRY(zero_record_failure(zero, reducer_get_gradient_address(&zero->reducer, parameter, out, adds)));
    if (trace_now(&zero->trace) > began_ns + LEAST_WAIT_NS)
        trace_record(&zero->trace, TUTTI_ZERO_ASKED, unit, began_ns, 0);
    return TUTTI_OK;
}
tutti_status tutti_zero_ready(tutti_zero *zero, int parameter)
{
    TRY(zero_check_parameter(zero, parameter));
    TRY(zero_record_failure(zero, reducer_mark_ready(&zero->reducer, parameter)));
    if (zero_is_sharded(zero))
        gatherer_count_gradient(&zero->placement.gatherer, zero->partition.parameter[parameter].unit);
    return TUTTI_OK;
}
tutti_status tutti_zero_hold(tutti_zero *zero, bool held)
{
    TRY(zero_check_and_await(zero));
    zero->reducer.is_held = held;
    return TUTTI_OK;
}
tutti_status tutti_zero_settle(tutti_zero *zero)
{
    int64_t began_ns = zero ? trace_now(&zero->trace) : 0;
    TRY(zero_check_and_await(zero));
    TRY(zero_record_failure(zero, reducer_settle_sums(&zero->reducer)));
    trace_record(&zero->trace, TUTTI_ZERO_SETTLED, ALL_UNITS, began_ns, 0);
    return TUTTI_OK;
}
/* Settles the sums, and computes the 2-norm of all averaged gradients: each rank squares its slices, and all ranks add
   the results. */
static tutti_status zero_compute_norm(tutti_zero *zero, double *out)
{
    double sum = 0;
    TRY(reducer_settle_sums(&zero->reducer));
    for (int u = 0; u < zero->partition.units; u++)
        if (zero->reducer.unit[u].rounds) sum += optimizer_sum_squares(&zero->optimizer, u, zero->reducer.unit[u].sum);
    if (zero->partition.slices > 1)
        TRY(tutti_all_reduce(&sum, &sum, 1, TUTTI_FLOAT64, TUTTI_SUM, zero->control_comm, NULL));
    *out = sqrt(sum);
    return TUTTI_OK;
}
tutti_status tutti_zero_norm(tutti_zero *zero, double *out)
{
    int64_t began_ns = zero ? trace_now(&zero->trace) : 0;
    TRY(zero_check_and_await(zero));
    TRY(zero_record_failure(zero, zero_compute_norm(zero, out)));
    trace_record(&zero->trace, TUTTI_ZERO_SETTLED, ALL_UNITS, began_ns, 0);
    return TUTTI_OK;
}
tutti_status tutti_zero_step(tutti_zero *zero, const tutti_zero_rates *rates, double scale)
{
    TRY(zero_check_and_await(zero));
    if (!rates || zero->optimizer.rule == TUTTI_ZERO_NONE)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "zero: a step needs a rule and rates; without a rule, update the pieces and call tutti_zero_publish");
    return zero_record_failure(zero, zero_take_step(zero, rates, scale));
}
tutti_status tutti_zero_claim(tutti_zero *zero)
{
    TRY(zero_check_and_await(zero));
    if (!reducer_is_at_rest(&zero->reducer)) return zero_record_failure(zero, zero_settle_and_claim(zero));
    return zero_record_failure(zero, placement_claim_units(&zero->placement, zero->steps));
}
tutti_status tutti_zero_publish(tutti_zero *zero)
{
    TRY(zero_check_and_await(zero));
    if (!zero->is_claimed)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "zero: pieces are updated between tutti_zero_claim and _publish");
    return zero_record_failure(zero, zero_take_step(zero, NULL, 1));
}
tutti_status tutti_zero_drop(tutti_zero *zero)
{
    TRY(zero_check_usable(zero));
    /* No gradient has come since a step that still runs. */
    if (!async_step_await_until(zero->async, 0)) return TUTTI_OK;
    TRY(async_step_await_end(zero->async));
    return zero_record_failure(zero, reducer_discard_gradients(&zero->reducer));
}
