/* An uncompressed sum is a reduce-scatter, or an all-reduce if all ranks have the same single slice. For a packed sum
   on several hosts, the ranks of a host first sum the slices of all sides. Then each side's slice is packed and
   sent. */
#include "zero/sum.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "kernels/update.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool sums_are_packed(const struct sums *sums) { return sums->exchange.how.form != TUTTI_COMPRESS_NONE; }

/* ---- lifetime ---- */
/* Returns the number of elements of a unit's residual: its slices for all sides. */
static size_t sums_count_residual(const struct sums *sums, int unit)
{
    return sums->partition->unit[unit].slice * (size_t)sums->exchange.sides;
}
tutti_status sums_init(struct sums *s, const struct partition *partition, const tutti_compression *how,
    const struct priority_comms *comms, struct trace *trace)
{
    *s = (struct sums){ .partition = partition, .comms = comms, .trace = trace };
    if (how->form == TUTTI_COMPRESS_NONE) return TUTTI_OK;
    TRY(exchange_init(&s->exchange, how, comms->all[0]));
    if (!how->feedback) return TUTTI_OK;
    s->residual = memory_alloc_zeroed((size_t)partition->units, sizeof *s->residual);
    bool fine = s->residual;
    for (int u = 0; fine && u < partition->units; u++) {
        size_t kept = exchange_count_state(&s->exchange, sums_count_residual(s, u));
        s->residual[u] = memory_alloc_zeroed(kept, sizeof(float));
        s->residual_bytes += kept * sizeof(float);
        fine = s->residual[u];
    }
    return fine ? TUTTI_OK : status_fail(TUTTI_NO_MEMORY, "zero: no memory for the residual of compression");
}
void sums_finish(struct sums *sums)
{
    for (int u = 0; sums->residual && u < sums->partition->units; u++) free(sums->residual[u]);
    free(sums->residual);
    if (sums_are_packed(sums)) exchange_finish(&sums->exchange);
}
void sum_finish(struct sums *sums, struct gradient_sum *sum)
{
    if (!sums_are_packed(sums)) return;
    tutti_mem_free(sum->part);
    free(sum->host_requests);
    packed_finish(&sum->packed);
    sum->part = NULL;
    sum->host_requests = NULL;
}

/* ---- uncompressed ---- */
/* Returns the op that averages over `ranks` ranks. DistributedDataParallel multiplies by 1 / ranks, then sums. For a
   power of two AVG is faster and bit-identical, because both divisions are exact except for subnormal numbers and sums
   that overflow. */
static tutti_op average_choose_op(int ranks) { return (ranks & (ranks - 1)) == 0 ? TUTTI_AVG : TUTTI_PREMUL_SUM; }
/* Starts the collective that averages the unit's gradients into sum->into. */
static tutti_status sum_start_uncompressed(struct sums *sums, struct gradient_sum *sum)
{
    const struct unit_partition *unit = &sums->partition->unit[sum->unit];
    sum->request.factor = 1.0 / sums->partition->ranks;
    trace_interval_follow_request(&sum->interval, &sum->request);
    tutti_op op = average_choose_op(sums->partition->ranks);
    tutti_comm *comm = priority_comms_get_all(sums->comms, sum->unit);
    if (sums->partition->slices == 1)
        return tutti_all_reduce(sum->from, sum->into, unit->slice, unit->sum_dtype, op, comm, &sum->request);
    return tutti_reduce_scatter(sum->from, sum->into, unit->slice, unit->sum_dtype, op, comm, &sum->request);
}

/* ---- packed ---- */
/* Returns the unit's gradients, or this host's sum of them, for the slice of one side. */
static struct numbers sum_get_slice(const struct sums *s, const struct gradient_sum *sum, int side)
{
    const struct unit_partition *unit = &s->partition->unit[sum->unit];
    size_t first = unit->slice * (size_t)exchange_side_rank(&s->exchange, side);
    char *at = sum->part ? (char *)sum->part + unit->slice * unit->element * (size_t)side
                         : (char *)sum->from + first * unit->element;
    return (struct numbers){ at, unit->slice, first, unit->dtype, sum->sequence };
}
/* Sets the padding of the unit in `array` to zero, because packing treats it as numbers. */
static void unit_clear_gaps(const struct sums *sums, int unit, void *array)
{
    const struct unit_partition *u = &sums->partition->unit[unit];
    size_t end = 0;
    for (int i = 0; i <= u->parameters; i++) {
        const struct place_of_parameter *p = &sums->partition->parameter[u->first_parameter + i];
        size_t begin = i < u->parameters ? p->offset : u->count;
        memset((char *)array + end * u->element, 0, (begin - end) * u->element);
        end = i < u->parameters ? p->offset + p->count : 0;
    }
}
/* Starts to send the packed slices to all sides (STAGE_SENDING). */
static tutti_status sum_send_packed(struct sums *sums, struct gradient_sum *sum)
{
    sum->stage = STAGE_SENDING;
    sum->request = (tutti_request)TUTTI_REQUEST_INIT;
    sum->request.label = sum->sequence;
    TRY(packed_send_slices(&sum->packed, &sums->exchange, &sum->request));
    sums->packed_bytes += sum->packed.sent_bytes;
    return TUTTI_OK;
}
/* Packs a slice with its residual for each side, and starts to send the slices, or first their lengths. */
static tutti_status sum_pack_slices(struct sums *sums, struct gradient_sum *sum)
{
    size_t slice = sums->partition->unit[sum->unit].slice;
    struct packing_state state = exchange_split_state(&sums->exchange,
        sums->residual ? sums->residual[sum->unit] : NULL, sums_count_residual(sums, sum->unit));
    sum->stage = STAGE_SENDING;
    TRY(packed_resize(&sum->packed, &sums->exchange, slice));
    for (int side = 0; side < sums->exchange.sides; side++)
        packed_write_slice(&sum->packed, &sums->exchange, side, sum_get_slice(sums, sum, side),
            packing_state_offset(state, slice * (size_t)side));
    if (!exchange_sends_lengths(&sums->exchange)) return sum_send_packed(sums, sum);
    sum->request.label = sum->sequence;
    TRY(packed_send_lengths(&sum->packed, &sums->exchange, &sum->request));
    sum->stage = STAGE_LENGTHS;
    return TUTTI_OK;
}
/* Starts this host's sums (STAGE_HOST_SUM). For each side, this rank gets the host's sum of the slice of the rank that
   has its index on that host. */
static tutti_status sum_start_on_host(struct sums *sums, struct gradient_sum *sum)
{
    const struct unit_partition *unit = &sums->partition->unit[sum->unit];
    const struct compressed_exchange *exchange = &sums->exchange;
    const struct topology *topology = &exchange->places;
    sum->host_requests = memory_alloc_zeroed((size_t)exchange->sides, sizeof *sum->host_requests);
    if (!sum->host_requests) return status_fail(TUTTI_NO_MEMORY, "zero: no memory to sum a unit");
    TRY(tutti_mem_alloc(&sum->part, unit->slice * unit->element * (size_t)topology->hosts));
    for (int side = 0; side < topology->hosts; side++) {
        for (int i = 0; i < topology->local_ranks; i++) {
            exchange->lengths[i] = unit->slice;
            exchange->offsets[i] = unit->slice * (size_t)topology_rank_at(topology, side, i);
        }
        sum->host_requests[side] = (tutti_request)TUTTI_REQUEST_INIT;
        TRY(tutti_reduce_scatter_v(sum->from, exchange->lengths, exchange->offsets, sum_get_slice(sums, sum, side).at,
            unit->dtype, TUTTI_SUM, exchange->host_comm, &sum->host_requests[side]));
    }
    sum->stage = STAGE_HOST_SUM;
    return TUTTI_OK;
}
/* Returns true if this host's sums have ended, or there are none. */
static bool sum_is_over_on_host(const struct sums *sums, struct gradient_sum *sum)
{
    for (int side = 0; sum->host_requests && side < sums->exchange.sides; side++)
        if (tutti_test(&sum->host_requests[side]) == TUTTI_IN_PROGRESS) return false;
    return true;
}
/* Waits for this host's sums in STAGE_HOST_SUM. */
static tutti_status sum_await_on_host(const struct sums *sums, struct gradient_sum *sum)
{
    for (int side = 0; sum->stage == STAGE_HOST_SUM && sum->host_requests && side < sums->exchange.sides; side++)
        TRY(tutti_wait(&sum->host_requests[side], 0));
    return TUTTI_OK;
}
bool sum_advance(struct sums *sums, struct gradient_sum *sum)
{
    if (sum->stage == STAGE_HOST_SUM) {
        if (!sum_is_over_on_host(sums, sum)) return false;
        sum->status = sum_await_on_host(sums, sum);
        if (sum->status == TUTTI_OK) sum->status = sum_pack_slices(sums, sum);
        else sum->stage = STAGE_SENDING;
    }
    if (sum->stage == STAGE_LENGTHS) {
        if (tutti_test(&sum->request) == TUTTI_IN_PROGRESS) return false;
        sum->status = tutti_wait(&sum->request, 0);
        if (sum->status == TUTTI_OK) sum->status = sum_send_packed(sums, sum);
        else sum->stage = STAGE_SENDING;
    }
    return true;
}

/* ---- one sum ---- */
tutti_status sum_start(struct sums *sums, struct gradient_sum *sum, int unit, void *from, void *into)
{
    *sum = (struct gradient_sum){ .unit = unit, .from = from, .into = into, .sequence = sums->started_count++ };
    sum->request = (tutti_request)TUTTI_REQUEST_INIT;
    trace_interval_begin(&sum->interval, sums->trace, TUTTI_ZERO_SUMMED, unit,
        partition_sum_bytes(sums->partition, unit));
    if (!sums_are_packed(sums)) return sum_start_uncompressed(sums, sum);
    unit_clear_gaps(sums, unit, from);
    if (sums->exchange.host_comm) return sum_start_on_host(sums, sum);
    if (!exchange_sends_lengths(&sums->exchange)) return sum_pack_slices(sums, sum);
    /* There is no sum on this host, but the lengths may go out only after the earlier sums have been sent. So this sum
       starts in the first stage, and sum_advance packs it. */
    sum->stage = STAGE_HOST_SUM;
    return TUTTI_OK;
}
bool sum_is_over(struct gradient_sum *sum)
{
    return sum->stage == STAGE_SENDING && (sum->status != TUTTI_OK || tutti_test(&sum->request) != TUTTI_IN_PROGRESS);
}
tutti_status sum_await_sent(struct sums *sums, struct gradient_sum *sum)
{
    TRY(sum_await_on_host(sums, sum));
    sum_advance(sums, sum);
    if (sum->stage == STAGE_LENGTHS) TRY(tutti_wait(&sum->request, 0));
    sum_advance(sums, sum);
    return sum->status;
}
tutti_status sum_wait(struct sums *sums, struct gradient_sum *sum)
{
    const struct unit_partition *unit = &sums->partition->unit[sum->unit];
    TRY(sum_await_sent(sums, sum));
    TRY(tutti_wait(&sum->request, 0));
    trace_interval_await_end(&sum->interval);
    if (!sums_are_packed(sums)) return TUTTI_OK;
    size_t first = unit->slice * (size_t)sums->partition->rank;
    struct numbers mine = { sum->into, unit->slice, first, unit->dtype, sum->sequence };
    TRY(packed_average_slices(&sum->packed, &sums->exchange, mine));
    trace_interval_end(&sum->interval);
    sum_finish(sums, sum);
    return TUTTI_OK;
}

/* ---- residuals ---- */
/* Returns this rank's residual of the part of a parameter that is in a side's slice. *out gets that piece.
   sums->residual must not be NULL. */
static float *sums_residual_of_piece(const struct sums *sums, int parameter, int side, struct slice_piece *out)
{
    int unit = sums->partition->parameter[parameter].unit;
    *out = partition_find_piece(sums->partition, parameter, exchange_side_rank(&sums->exchange, side));
    return sums->residual[unit] + sums->partition->unit[unit].slice * (size_t)side + out->from;
}
tutti_status sums_get_residual(const struct sums *sums, int parameter, float *to, tutti_comm *control_comm)
{
    size_t count = sums->partition->parameter[parameter].count;
    struct slice_piece piece;
    memset(to, 0, count * sizeof *to);
    for (int side = 0; sums->residual && side < sums->exchange.sides; side++) {
        const float *residual = sums_residual_of_piece(sums, parameter, side, &piece);
        for (size_t i = 0; i < piece.count; i++) to[piece.at + i] = residual[i] / (float)sums->partition->ranks;
    }
    return sums->residual ? tutti_all_reduce(to, to, count, TUTTI_FLOAT32, TUTTI_SUM, control_comm, NULL) : TUTTI_OK;
}
void sums_set_residual(struct sums *sums, int parameter, const float *from)
{
    float share = (float)sums->partition->ranks / (float)sums->exchange.sides;
    struct slice_piece piece;
    for (int side = 0; sums->residual && side < sums->exchange.sides; side++) {
        float *residual = sums_residual_of_piece(sums, parameter, side, &piece);
        float *momentum = exchange_split_state(&sums->exchange, residual,
            sums_count_residual(sums, sums->partition->parameter[parameter].unit))
                              .momentum;
        for (size_t i = 0; i < piece.count; i++) residual[i] = from[piece.at + i] * share;
        for (size_t i = 0; momentum && i < piece.count; i++) momentum[i] = 0;
    }
}
void sums_return_to_residual(struct sums *sums, int parameter, const void *sum)
{
    if (!sums->residual) return;
    struct slice_piece piece;
    float *residual = sums_residual_of_piece(sums, parameter, sums->exchange.side, &piece);
    const float *wide = (const float *)sum + piece.from;
    const uint16_t *narrow = (const uint16_t *)sum + piece.from;
    bool is_wide = sums->partition->unit[sums->partition->parameter[parameter].unit].dtype == TUTTI_FLOAT32;
    for (size_t i = 0; i < piece.count; i++) {
        float average = is_wide ? wide[i] : bfloat16_to_float(narrow[i]);
        /* A NaN comes from another number of its block. */
        if (isfinite(average)) residual[i] += average * (float)sums->partition->ranks;
    }
}
void sums_clear_residuals(struct sums *sums)
{
    for (int u = 0; sums->residual && u < sums->partition->units; u++)
        memset(sums->residual[u], 0,
            exchange_count_state(&sums->exchange, sums_count_residual(sums, u)) * sizeof(float));
}
