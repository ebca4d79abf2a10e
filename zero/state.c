/* The public calls that read or set what a rank has: its pieces of parameters and optimizer state, the residual of
   compression, the trace and the report. */
#include "backend/base/status.h"
#include "zero/zero.h"

tutti_status tutti_zero_span(const tutti_zero *zero, int parameter, int rank, size_t *at, size_t *count)
{
    TRY(zero_check_parameter(zero, parameter));
    if (rank < 0 || rank >= zero->partition.ranks)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "zero: rank %d does not exist; there are %d", rank,
            zero->partition.ranks);
    struct slice_piece piece = partition_find_piece(&zero->partition, parameter, rank);
    *at = piece.at;
    *count = piece.count;
    return TUTTI_OK;
}
tutti_status tutti_zero_get_piece(const tutti_zero *zero, int parameter, tutti_zero_piece *out)
{
    TRY(zero_check_parameter(zero, parameter));
    struct slice_piece piece = partition_find_piece(&zero->partition, parameter, zero->partition.rank);
    int unit = zero->partition.parameter[parameter].unit;
    const struct optimizer_state *s = &zero->optimizer.state[unit];
    const struct unit_gradients *gradients = &zero->reducer.unit[unit];
    size_t element = zero->partition.unit[unit].element;
    *out = (tutti_zero_piece){ .at = piece.at, .count = piece.count, .steps = zero->optimizer.steps[parameter] };
    out->used = zero->reducer.used[parameter];
    if (!piece.count) return TUTTI_OK;
    out->value = (char *)s->value + piece.from * (element == sizeof(double) ? sizeof(double) : sizeof(float));
    out->first = s->first ? s->first + piece.from : NULL;
    out->second = s->second ? s->second + piece.from : NULL;
    out->gradient = gradients->sum && gradients->rounds
        ? (char *)gradients->sum + piece.from * zero->partition.unit[unit].sum_element
        : NULL;
    return TUTTI_OK;
}
tutti_status tutti_zero_claim_pieces(tutti_zero *zero)
{
    TRY(zero_check_and_await(zero));
    return zero_record_failure(zero, placement_claim_pieces(&zero->placement, zero->steps));
}
/* Publishes the pieces that the caller has written, so that all ranks read them. */
static tutti_status zero_begin_pieces(tutti_zero *zero)
{
    TRY(placement_close_units(&zero->placement));
    zero->is_claimed = false;
    zero->steps++;
    zero->writes++;
    for (int u = 0; u < zero->partition.units; u++) {
        optimizer_copy_to_slice(&zero->optimizer, u);
        TRY(placement_publish_slice(&zero->placement, u, zero->steps));
    }
    return TUTTI_OK;
}
tutti_status tutti_zero_begin_pieces(tutti_zero *zero)
{
    TRY(zero_check_and_await(zero));
    return zero_record_failure(zero, zero_begin_pieces(zero));
}
tutti_status tutti_zero_set_steps(tutti_zero *zero, int parameter, uint64_t steps)
{
    TRY(zero_check_parameter(zero, parameter));
    zero->optimizer.steps[parameter] = steps;
    return TUTTI_OK;
}
/* Refuses a call that reads or sets the residual of a parameter, unless it comes between steps and its array is not
   NULL. */
static tutti_status zero_check_residual(const tutti_zero *zero, int parameter, const void *array)
{
    TRY(zero_check_parameter(zero, parameter));
    if (array && reducer_is_at_rest(&zero->reducer)) return TUTTI_OK;
    return status_refuse(TUTTI_INVALID_ARGUMENT,
        "zero: the residual of compression can be read and written only between steps, and the array must not be NULL");
}
tutti_status tutti_zero_get_lost(tutti_zero *zero, int parameter, float *out)
{
    TRY(zero_check_residual(zero, parameter, out));
    return zero_record_failure(zero, sums_get_residual(&zero->reducer.sums, parameter, out, zero->control_comm));
}
tutti_status tutti_zero_set_lost(tutti_zero *zero, int parameter, const float *in)
{
    TRY(zero_check_residual(zero, parameter, in));
    sums_set_residual(&zero->reducer.sums, parameter, in);
    return TUTTI_OK;
}
tutti_status tutti_zero_watch(tutti_zero *zero, size_t events)
{
    TRY(zero_check_and_await(zero));
    return trace_open(&zero->trace, events);
}
tutti_status tutti_zero_get_events(tutti_zero *zero, tutti_zero_event *out, size_t capacity, size_t *count,
    size_t *missed)
{
    TRY(zero_check_and_await(zero));
    if (!count || !missed || (capacity && !out))
        return status_refuse(TUTTI_INVALID_ARGUMENT, "zero: the array of events or a pointer to a count is NULL");
    *count = trace_read(&zero->trace, out, capacity, missed);
    return TUTTI_OK;
}
tutti_status tutti_zero_get_report(const tutti_zero *zero, tutti_zero_report *out)
{
    TRY(zero_check_and_await(zero));
    if (!out || out->struct_size != sizeof *out)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "tutti_zero_report.struct_size is not %zu", sizeof *out);
    *out = (tutti_zero_report){ .struct_size = sizeof *out, .steps = zero->steps - zero->writes };
    out->waited_use_ns =
        zero->placement.waited_ns + zero->placement.gatherer.waited_ns + (zero->async ? zero->async->waited_ns : 0);
    out->unforeseen = zero->placement.gatherer.unforeseen;
    out->waited_sums_ns = zero->reducer.waited_ns;
    out->late_units = zero->reducer.late_units;
    out->sum_bytes = zero->reducer.sum_bytes;
    out->moved_bytes = zero->placement.moved_bytes + zero->placement.gatherer.moved_bytes;
    out->gradient_bytes = zero->reducer.gradient_bytes + zero->reducer.sums.residual_bytes;
    out->gradient_peak_bytes = zero->reducer.most_gradient_bytes + zero->reducer.sums.residual_bytes;
    out->packed_bytes = zero->reducer.sums.packed_bytes;
    out->state_bytes = zero->optimizer.state_bytes;
    out->state_file_bytes = zero->optimizer.file.bytes;
    out->parameter_bytes = zero->placement.gatherer.most_bytes;
    for (int u = 0; u < zero->partition.units; u++)
        out->parameter_bytes +=
            partition_unit_bytes(&zero->partition, u) / placement_count_copy_ranks(&zero->placement);
    return TUTTI_OK;
}
