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
    s->lost = memory_alloc_zeroed((size_t)partition->units, sizeof *s->lost);
    bool fine = s->lost;
    for (int u = 0; fine && u < partition->units; u++) {
        size_t kept = exchange_count_kept(&s->exchange, sums_count_residual(s, u));
        s->lost[u] = memory_alloc_zeroed(kept, sizeof(float));
        s->lost_bytes += kept * sizeof(float);
        fine = s->lost[u];
    }
    return fine ? TUTTI_OK : status_fail(TUTTI_NO_MEMORY, "zero: no memory for the residual of compression");
}
void sums_finish(struct sums *sums)
{
    for (int u = 0; sums->lost && u < sums->partition->units; u++) free(sums->lost[u]);
    free(sums->lost);
    if (sums_are_packed(sums)) exchange_finish(&sums->exchange);
}
void sum_finish(struct sums *sums, struct gradient_sum *sum)
{
    if (!sums_are_packed(sums)) return;
    tutti_mem_free(sum->part);
    free(sum->here);
    packed_finish(&sum->packed);
    sum->part = NULL;
    sum->here = NULL;
}

/* ---- uncompressed ---- */
/* DistributedDataParallel multiplies by 1 / ranks, then sums. For a power of two AVG is faster and bit-identical,
   because both divisions are exact except for subnormal numbers and sums that overflow. */
static tutti_op average_choose_op(int ranks) { return (ranks & (ranks - 1)) == 0 ? TUTTI_AVG : TUTTI_PREMUL_SUM; }
static tutti_status sum_start_uncompressed(struct sums *sums, struct gradient_sum *sum)
{
    const struct unit_partition *unit = &sums->partition->unit[sum->unit];
    sum->request.factor = 1.0 / sums->partition->ranks;
    trace_span_follow_request(&sum->span, &sum->request);
    tutti_op op = average_choose_op(sums->partition->ranks);
    tutti_comm *comm = priority_comms_all(sums->comms, sum->unit);
    if (sums->partition->slices == 1)
        return tutti_all_reduce(sum->from, sum->into, unit->slice, unit->dtype, op, comm, &sum->request);
    return tutti_reduce_scatter(sum->from, sum->into, unit->slice, unit->dtype, op, comm, &sum->request);
}

/* ---- packed ---- */
/* Returns the gradients of this unit that go to one side: its slice. */
static struct numbers sum_get_slice(const struct sums *s, const struct gradient_sum *sum, int side)
{
    const struct unit_partition *unit = &s->partition->unit[sum->unit];
    size_t first = unit->slice * (size_t)exchange_rank(&s->exchange, side);
    char *at = sum->part ? (char *)sum->part + unit->slice * unit->element * (size_t)side
                         : (char *)sum->from + first * unit->element;
    return (struct numbers){ at, unit->slice, first, unit->dtype, sum->turn };
}
/* Clears the gaps between parameters and after the last one, because packing treats them as numbers. */
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
/* Starts to send the packed slices to all sides. */
static tutti_status sum_send_packed(struct sums *sums, struct gradient_sum *sum)
{
    sum->stage = STAGE_SENDING;
    sum->request = (tutti_request)TUTTI_REQUEST_INIT;
    sum->request.label = sum->turn;
    TRY(packed_send(&sum->packed, &sums->exchange, &sum->request));
    sums->packed_bytes += sum->packed.sent;
    return TUTTI_OK;
}
/* Packs a slice for each side, adding the residual, and starts to send them, or first their lengths. */
static tutti_status sum_pack_slices(struct sums *sums, struct gradient_sum *sum)
{
    size_t slice = sums->partition->unit[sum->unit].slice;
    struct kept_numbers kept = exchange_split_kept(&sums->exchange, sums->lost ? sums->lost[sum->unit] : NULL,
        sums_count_residual(sums, sum->unit));
    sum->stage = STAGE_SENDING;
    TRY(packed_resize(&sum->packed, &sums->exchange, slice));
    for (int side = 0; side < sums->exchange.sides; side++)
        packed_write_slice(&sum->packed, &sums->exchange, side, sum_get_slice(sums, sum, side),
            kept_numbers_offset(kept, slice * (size_t)side));
    if (!exchange_sends_lengths(&sums->exchange)) return sum_send_packed(sums, sum);
    sum->request.label = sum->turn;
    TRY(packed_send_lengths(&sum->packed, &sums->exchange, &sum->request));
    sum->stage = STAGE_LENGTHS;
    return TUTTI_OK;
}
/* Starts this host's sums. For each side, a rank gets the sum of the slice of the rank with its index there. */
static tutti_status sum_start_on_host(struct sums *sums, struct gradient_sum *sum)
{
    const struct unit_partition *unit = &sums->partition->unit[sum->unit];
    const struct compressed_exchange *exchange = &sums->exchange;
    const struct topology *topology = &exchange->places;
    sum->here = memory_alloc_zeroed((size_t)exchange->sides, sizeof *sum->here);
    if (!sum->here) return status_fail(TUTTI_NO_MEMORY, "zero: no memory to sum a unit");
    TRY(tutti_mem_alloc(&sum->part, unit->slice * unit->element * (size_t)topology->hosts));
    for (int side = 0; side < topology->hosts; side++) {
        for (int i = 0; i < topology->here; i++) {
            exchange->lengths[i] = unit->slice;
            exchange->offsets[i] = unit->slice * (size_t)topology_rank(topology, side, i);
        }
        sum->here[side] = (tutti_request)TUTTI_REQUEST_INIT;
        TRY(tutti_reduce_scatter_v(sum->from, exchange->lengths, exchange->offsets, sum_get_slice(sums, sum, side).at,
            unit->dtype, TUTTI_SUM, exchange->here, &sum->here[side]));
    }
    sum->stage = STAGE_HOST_SUM;
    return TUTTI_OK;
}
static bool sum_is_over_on_host(const struct sums *sums, struct gradient_sum *sum)
{
    for (int side = 0; sum->here && side < sums->exchange.sides; side++)
        if (tutti_test(&sum->here[side]) == TUTTI_IN_PROGRESS) return false;
    return true;
}
static tutti_status sum_await_on_host(const struct sums *sums, struct gradient_sum *sum)
{
    for (int side = 0; sum->stage == STAGE_HOST_SUM && sum->here && side < sums->exchange.sides; side++)
        TRY(tutti_wait(&sum->here[side], 0));
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
    *sum = (struct gradient_sum){ .unit = unit, .from = from, .into = into, .turn = sums->begun++ };
    sum->request = (tutti_request)TUTTI_REQUEST_INIT;
    trace_span_begin(&sum->span, sums->trace, TUTTI_ZERO_SUMMED, unit, partition_bytes(sums->partition, unit));
    if (!sums_are_packed(sums)) return sum_start_uncompressed(sums, sum);
    unit_clear_gaps(sums, unit, from);
    if (sums->exchange.here) return sum_start_on_host(sums, sum);
    if (!exchange_sends_lengths(&sums->exchange)) return sum_pack_slices(sums, sum);
    /* There is nothing to add, but the lengths may go out only after the sums before this one have sent. */
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
/* Waits for a sum. A packed one is then unpacked and averaged into the slice of this rank. */
tutti_status sum_wait(struct sums *sums, struct gradient_sum *sum)
{
    const struct unit_partition *unit = &sums->partition->unit[sum->unit];
    TRY(sum_await_sent(sums, sum));
    TRY(tutti_wait(&sum->request, 0));
    trace_span_await_end(&sum->span);
    if (!sums_are_packed(sums)) return TUTTI_OK;
    size_t first = unit->slice * (size_t)sums->partition->rank;
    struct numbers mine = { sum->into, unit->slice, first, unit->dtype, sum->turn };
    TRY(packed_average_slices(&sum->packed, &sums->exchange, mine));
    trace_span_end(&sum->span);
    sum_finish(sums, sum);
    return TUTTI_OK;
}

/* ---- residuals ---- */
/* Returns this rank's residual of a parameter in a side's slice. *out gets the piece of the parameter there. */
static float *sums_residual_of_piece(const struct sums *sums, int parameter, int side, struct slice_piece *out)
{
    int unit = sums->partition->parameter[parameter].unit;
    *out = partition_piece(sums->partition, parameter, exchange_rank(&sums->exchange, side));
    return sums->lost[unit] + sums->partition->unit[unit].slice * (size_t)side + out->from;
}
tutti_status sums_get_residual(const struct sums *sums, int parameter, float *to, tutti_comm *control_comm)
{
    size_t count = sums->partition->parameter[parameter].count;
    struct slice_piece piece;
    memset(to, 0, count * sizeof *to);
    for (int side = 0; sums->lost && side < sums->exchange.sides; side++) {
        const float *lost = sums_residual_of_piece(sums, parameter, side, &piece);
        for (size_t i = 0; i < piece.count; i++) to[piece.at + i] = lost[i] / (float)sums->partition->ranks;
    }
    return sums->lost ? tutti_all_reduce(to, to, count, TUTTI_FLOAT32, TUTTI_SUM, control_comm, NULL) : TUTTI_OK;
}
void sums_set_residual(struct sums *sums, int parameter, const float *from)
{
    float share = (float)sums->partition->ranks / (float)sums->exchange.sides;
    struct slice_piece piece;
    for (int side = 0; sums->lost && side < sums->exchange.sides; side++) {
        float *lost = sums_residual_of_piece(sums, parameter, side, &piece);
        float *momentum = exchange_split_kept(&sums->exchange, lost,
            sums_count_residual(sums, sums->partition->parameter[parameter].unit))
                              .momentum;
        for (size_t i = 0; i < piece.count; i++) lost[i] = from[piece.at + i] * share;
        for (size_t i = 0; momentum && i < piece.count; i++) momentum[i] = 0;
    }
}
void sums_return_to_residual(struct sums *sums, int parameter, const void *sum)
{
    if (!sums->lost) return;
    struct slice_piece piece;
    float *lost = sums_residual_of_piece(sums, parameter, sums->exchange.side, &piece);
    const float *wide = (const float *)sum + piece.from;
    const uint16_t *narrow = (const uint16_t *)sum + piece.from;
    bool is_wide = sums->partition->unit[sums->partition->parameter[parameter].unit].dtype == TUTTI_FLOAT32;
    for (size_t i = 0; i < piece.count; i++) {
        float came = is_wide ? wide[i] : bfloat16_to_float(narrow[i]);
        /* A NaN comes from another number of its block. */
        if (isfinite(came)) lost[i] += came * (float)sums->partition->ranks;
    }
}
void sums_clear_residuals(struct sums *sums)
{
    for (int u = 0; sums->lost && u < sums->partition->units; u++)
        memset(sums->lost[u], 0, exchange_count_kept(&sums->exchange, sums_count_residual(sums, u)) * sizeof(float));
}
