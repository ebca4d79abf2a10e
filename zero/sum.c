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

static bool sums_are_packed(const struct sums *s) { return s->exchange.how.form != TUTTI_COMPRESS_NONE; }

/* ---- lifetime ---- */
static size_t sums_count_residual(const struct sums *s, int unit)
{
    return s->partition->unit[unit].slice * (size_t)s->exchange.sides;
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
void sums_finish(struct sums *s)
{
    for (int u = 0; s->lost && u < s->partition->units; u++) free(s->lost[u]);
    free(s->lost);
    if (sums_are_packed(s)) exchange_finish(&s->exchange);
}
void sum_finish(struct sums *s, struct gradient_sum *sum)
{
    if (!sums_are_packed(s)) return;
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
static tutti_status sum_start_uncompressed(struct sums *s, struct gradient_sum *sum)
{
    const struct unit_partition *u = &s->partition->unit[sum->unit];
    sum->request.factor = 1.0 / s->partition->ranks;
    trace_span_follow_request(&sum->span, &sum->request);
    tutti_op op = average_choose_op(s->partition->ranks);
    tutti_comm *comm = priority_comms_all(s->comms, sum->unit);
    if (s->partition->slices == 1)
        return tutti_all_reduce(sum->from, sum->into, u->slice, u->dtype, op, comm, &sum->request);
    return tutti_reduce_scatter(sum->from, sum->into, u->slice, u->dtype, op, comm, &sum->request);
}

/* ---- packed ---- */
static struct numbers sum_get_slice(const struct sums *s, const struct gradient_sum *sum, int side)
{
    const struct unit_partition *u = &s->partition->unit[sum->unit];
    size_t first = u->slice * (size_t)exchange_rank(&s->exchange, side);
    char *at =
        sum->part ? (char *)sum->part + u->slice * u->element * (size_t)side : (char *)sum->from + first * u->element;
    return (struct numbers){ at, u->slice, first, u->dtype, sum->turn };
}
/* Clears the gaps between parameters and after the last one, because packing treats them as numbers. */
static void unit_clear_gaps(const struct sums *s, int unit, void *array)
{
    const struct unit_partition *u = &s->partition->unit[unit];
    size_t end = 0;
    for (int i = 0; i <= u->parameters; i++) {
        const struct place_of_parameter *p = &s->partition->parameter[u->first_parameter + i];
        size_t begin = i < u->parameters ? p->offset : u->count;
        memset((char *)array + end * u->element, 0, (begin - end) * u->element);
        end = i < u->parameters ? p->offset + p->count : 0;
    }
}
static tutti_status sum_send_packed(struct sums *s, struct gradient_sum *sum)
{
    sum->stage = STAGE_SENDING;
    sum->request = (tutti_request)TUTTI_REQUEST_INIT;
    sum->request.label = sum->turn;
    TRY(packed_send(&sum->packed, &s->exchange, &sum->request));
    s->packed_bytes += sum->packed.sent;
    return TUTTI_OK;
}
static tutti_status sum_pack_slices(struct sums *s, struct gradient_sum *sum)
{
    size_t slice = s->partition->unit[sum->unit].slice;
    struct kept_numbers kept =
        exchange_split_kept(&s->exchange, s->lost ? s->lost[sum->unit] : NULL, sums_count_residual(s, sum->unit));
    sum->stage = STAGE_SENDING;
    TRY(packed_resize(&sum->packed, &s->exchange, slice));
    for (int side = 0; side < s->exchange.sides; side++)
        packed_write_slice(&sum->packed, &s->exchange, side, sum_get_slice(s, sum, side),
            kept_numbers_offset(kept, slice * (size_t)side));
    if (!exchange_sends_lengths(&s->exchange)) return sum_send_packed(s, sum);
    sum->request.label = sum->turn;
    TRY(packed_send_lengths(&sum->packed, &s->exchange, &sum->request));
    sum->stage = STAGE_LENGTHS;
    return TUTTI_OK;
}
/* Starts this host's sums. For each side, a rank gets the sum of the slice of the rank with its index there. */
static tutti_status sum_start_on_host(struct sums *s, struct gradient_sum *sum)
{
    const struct unit_partition *u = &s->partition->unit[sum->unit];
    const struct compressed_exchange *x = &s->exchange;
    const struct topology *p = &x->places;
    sum->here = memory_alloc_zeroed((size_t)x->sides, sizeof *sum->here);
    if (!sum->here) return status_fail(TUTTI_NO_MEMORY, "zero: no memory to sum a unit");
    TRY(tutti_mem_alloc(&sum->part, u->slice * u->element * (size_t)p->hosts));
    for (int side = 0; side < p->hosts; side++) {
        for (int i = 0; i < p->here; i++) {
            x->lengths[i] = u->slice;
            x->offsets[i] = u->slice * (size_t)topology_rank(p, side, i);
        }
        sum->here[side] = (tutti_request)TUTTI_REQUEST_INIT;
        TRY(tutti_reduce_scatter_v(sum->from, x->lengths, x->offsets, sum_get_slice(s, sum, side).at, u->dtype,
            TUTTI_SUM, x->here, &sum->here[side]));
    }
    sum->stage = STAGE_HOST_SUM;
    return TUTTI_OK;
}
static bool sum_is_over_on_host(const struct sums *s, struct gradient_sum *sum)
{
    for (int side = 0; sum->here && side < s->exchange.sides; side++)
        if (tutti_test(&sum->here[side]) == TUTTI_IN_PROGRESS) return false;
    return true;
}
static tutti_status sum_await_on_host(const struct sums *s, struct gradient_sum *sum)
{
    for (int side = 0; sum->stage == STAGE_HOST_SUM && sum->here && side < s->exchange.sides; side++)
        TRY(tutti_wait(&sum->here[side], 0));
    return TUTTI_OK;
}
bool sum_advance(struct sums *s, struct gradient_sum *sum)
{
    if (sum->stage == STAGE_HOST_SUM) {
        if (!sum_is_over_on_host(s, sum)) return false;
        sum->status = sum_await_on_host(s, sum);
        if (sum->status == TUTTI_OK) sum->status = sum_pack_slices(s, sum);
        else sum->stage = STAGE_SENDING;
    }
    if (sum->stage == STAGE_LENGTHS) {
        if (tutti_test(&sum->request) == TUTTI_IN_PROGRESS) return false;
        sum->status = tutti_wait(&sum->request, 0);
        if (sum->status == TUTTI_OK) sum->status = sum_send_packed(s, sum);
        else sum->stage = STAGE_SENDING;
    }
    return true;
}

/* ---- one sum ---- */
tutti_status sum_start(struct sums *s, struct gradient_sum *sum, int unit, void *from, void *into)
{
    *sum = (struct gradient_sum){ .unit = unit, .from = from, .into = into, .turn = s->begun++ };
    sum->request = (tutti_request)TUTTI_REQUEST_INIT;
    trace_span_begin(&sum->span, s->trace, TUTTI_ZERO_SUMMED, unit, partition_bytes(s->partition, unit));
    if (!sums_are_packed(s)) return sum_start_uncompressed(s, sum);
    unit_clear_gaps(s, unit, from);
    if (s->exchange.here) return sum_start_on_host(s, sum);
    if (!exchange_sends_lengths(&s->exchange)) return sum_pack_slices(s, sum);
    /* There is nothing to add, but the lengths may go out only after the sums before this one have sent. */
    sum->stage = STAGE_HOST_SUM;
    return TUTTI_OK;
}
bool sum_is_over(struct gradient_sum *sum)
{
    return sum->stage == STAGE_SENDING && (sum->status != TUTTI_OK || tutti_test(&sum->request) != TUTTI_IN_PROGRESS);
}
tutti_status sum_await_sent(struct sums *s, struct gradient_sum *sum)
{
    TRY(sum_await_on_host(s, sum));
    sum_advance(s, sum);
    if (sum->stage == STAGE_LENGTHS) TRY(tutti_wait(&sum->request, 0));
    sum_advance(s, sum);
    return sum->status;
}
tutti_status sum_wait(struct sums *s, struct gradient_sum *sum)
{
    const struct unit_partition *u = &s->partition->unit[sum->unit];
    TRY(sum_await_sent(s, sum));
    TRY(tutti_wait(&sum->request, 0));
    trace_span_await_end(&sum->span);
    if (!sums_are_packed(s)) return TUTTI_OK;
    size_t first = u->slice * (size_t)s->partition->rank;
    struct numbers mine = { sum->into, u->slice, first, u->dtype, sum->turn };
    TRY(packed_average_slices(&sum->packed, &s->exchange, mine));
    trace_span_end(&sum->span);
    sum_finish(s, sum);
    return TUTTI_OK;
}

/* ---- residuals ---- */
/* Returns this rank's residual of a parameter in a side's slice. *out gets the piece of the parameter there. */
static float *sums_residual_of_piece(const struct sums *s, int parameter, int side, struct slice_piece *out)
{
    int unit = s->partition->parameter[parameter].unit;
    *out = partition_piece(s->partition, parameter, exchange_rank(&s->exchange, side));
    return s->lost[unit] + s->partition->unit[unit].slice * (size_t)side + out->from;
}
tutti_status sums_get_residual(const struct sums *s, int parameter, float *to, tutti_comm *control_comm)
{
    size_t count = s->partition->parameter[parameter].count;
    struct slice_piece piece;
    memset(to, 0, count * sizeof *to);
    for (int side = 0; s->lost && side < s->exchange.sides; side++) {
        const float *lost = sums_residual_of_piece(s, parameter, side, &piece);
        for (size_t i = 0; i < piece.count; i++) to[piece.at + i] = lost[i] / (float)s->partition->ranks;
    }
    return s->lost ? tutti_all_reduce(to, to, count, TUTTI_FLOAT32, TUTTI_SUM, control_comm, NULL) : TUTTI_OK;
}
void sums_set_residual(struct sums *s, int parameter, const float *from)
{
    float share = (float)s->partition->ranks / (float)s->exchange.sides;
    struct slice_piece piece;
    for (int side = 0; s->lost && side < s->exchange.sides; side++) {
        float *lost = sums_residual_of_piece(s, parameter, side, &piece);
        float *momentum =
            exchange_split_kept(&s->exchange, lost, sums_count_residual(s, s->partition->parameter[parameter].unit))
                .momentum;
        for (size_t i = 0; i < piece.count; i++) lost[i] = from[piece.at + i] * share;
        for (size_t i = 0; momentum && i < piece.count; i++) momentum[i] = 0;
    }
}
void sums_return_to_residual(struct sums *s, int parameter, const void *sum)
{
    if (!s->lost) return;
    struct slice_piece piece;
    float *lost = sums_residual_of_piece(s, parameter, s->exchange.side, &piece);
    const float *wide = (const float *)sum + piece.from;
    const uint16_t *narrow = (const uint16_t *)sum + piece.from;
    bool is_wide = s->partition->unit[s->partition->parameter[parameter].unit].dtype == TUTTI_FLOAT32;
    for (size_t i = 0; i < piece.count; i++) {
        float came = is_wide ? wide[i] : bfloat16_to_float(narrow[i]);
        /* A NaN comes from another number of its block. */
        if (isfinite(came)) lost[i] += came * (float)s->partition->ranks;
    }
}
void sums_clear_residuals(struct sums *s)
{
    for (int u = 0; s->lost && u < s->partition->units; u++)
        memset(s->lost[u], 0, exchange_count_kept(&s->exchange, sums_count_residual(s, u)) * sizeof(float));
}
