/* Averages arrays that the caller owns. One rank averages each slice of an array, packs the average, and sends it back
   to all. That rank keeps the residual of the second packing. */
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "zero/compressed_exchange.h"
#include <stdlib.h>

struct tutti_compressor {
    struct compressed_exchange exchange;
    struct packed_slices packed;
    /* `rest` has the residual of a slice on its way back. */
    size_t room;
    float *rest;                                        /* [room], owned */
};
enum { LEAST_SLICE = 16 };
/* Each rank of a host has a part of the array, and each side of the exchange a slice of that part. This rank's part has
   `kept` elements from `at` on. */
struct compress_cut { size_t part, slice, at, kept; };

/* Returns this rank's part of an array of `count` numbers: the array is divided into a part for each rank of the host,
   and a part into a slice for each side (rank of the exchange). */
static struct compress_cut compressor_cut_array(const tutti_compressor *compressor, size_t count)
{
    const struct compressed_exchange *exchange = &compressor->exchange;
    size_t parts = exchange->here ? (size_t)exchange->places.here : 1,
           index = exchange->here ? (size_t)exchange->places.index : 0;
    struct compress_cut k = { .part = (count + parts - 1) / parts };
    k.slice = size_round_up((k.part + (size_t)exchange->sides - 1) / (size_t)exchange->sides, LEAST_SLICE);
    k.at = size_smaller(index * k.part, count);
    k.kept = size_smaller(k.part, count - k.at);
    return k;
}
/* Returns a side's slice, which may be short or empty. */
static struct numbers compress_cut_get_slice(struct compress_cut k, int side, void *data, tutti_dtype dtype,
    uint64_t turn)
{
    size_t begin = size_smaller(k.slice * (size_t)side, k.kept), end = size_smaller(begin + k.slice, k.kept);
    return (struct numbers){ (char *)data + (k.at + begin) * tutti_dtype_bytes(dtype), end - begin, k.at + begin, dtype,
        turn };
}

/* ---- lifetime ---- */
/* Refuses the call on all ranks (MISMATCH) unless all have the same options. Collective. */
static tutti_status compression_compare_ranks(tutti_comm *comm, const tutti_compression *how)
{
    uint64_t digest = compression_digest(how), range[2] = { digest, ~digest };
    TRY(tutti_all_reduce(range, range, 2, TUTTI_UINT64, TUTTI_MAX, comm, NULL));
    if (range[0] == ~range[1]) return TUTTI_OK;
    return status_refuse(TUTTI_MISMATCH,
        "rank %d uses another compression of gradients than another rank: form, share kept, rounding, feedback, "
        "momentum and seed must be the same on all",
        tutti_comm_user_rank(comm));
}
static tutti_status compressor_init(tutti_compressor *compressor, tutti_comm *comm, const tutti_compression *how)
{
    TRY(compression_compare_ranks(comm, how));
    return exchange_init(&compressor->exchange, how, comm);
}
tutti_status tutti_compressor_create(tutti_compressor **out, tutti_comm *comm, const tutti_compression *how)
{
    if (!out || !comm || !how)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "tutti_compressor_create: the pointer to the compressor, the communicator or the form is NULL");
    *out = NULL;
    TRY(compression_check_options(how));
    if (how->form == TUTTI_COMPRESS_NONE)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "a tutti_compressor needs a form other than NONE");
    tutti_compressor *compressor = memory_alloc_zeroed(1, sizeof *compressor);
    if (!compressor) return status_fail(TUTTI_NO_MEMORY, "no memory for a tutti_compressor");
    tutti_status status = compressor_init(compressor, comm, how);
    if (status == TUTTI_OK) *out = compressor;
    else tutti_compressor_destroy(compressor);
    return status;
}
tutti_status tutti_compressor_destroy(tutti_compressor *compressor)
{
    if (!compressor) return TUTTI_OK;
    /* Operations use the memory below until this has ended them. */
    exchange_finish(&compressor->exchange);
    packed_finish(&compressor->packed);
    free(compressor->rest);
    free(compressor);
    return TUTTI_OK;
}
tutti_status tutti_compressor_span(const tutti_compressor *compressor, size_t count, size_t *at, size_t *kept,
    int *keepers)
{
    if (!compressor || !at || !kept || !keepers)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "tutti_compressor_span: a pointer to a result is NULL");
    struct compress_cut k = compressor_cut_array(compressor, count);
    *at = k.at;
    *kept = k.kept;
    *keepers = compressor->exchange.sides;
    return TUTTI_OK;
}

/* ---- averaging ---- */
/* Makes room for packed slices and for a residual of `slice` numbers. */
static tutti_status compressor_reserve_slice(tutti_compressor *compressor, size_t slice)
{
    TRY(packed_resize(&compressor->packed, &compressor->exchange, slice));
    if (slice <= compressor->room) return TUTTI_OK;
    free(compressor->rest);
    compressor->room = 0;
    compressor->rest = memory_alloc_zeroed(slice, sizeof *compressor->rest);
    if (!compressor->rest) return status_fail(TUTTI_NO_MEMORY, "no memory to compress slices of %zu numbers", slice);
    compressor->room = slice;
    return TUTTI_OK;
}
static void exchange_set_host_parts(const struct compressed_exchange *exchange, struct compress_cut k, size_t count)
{
    for (int i = 0; i < exchange->places.here; i++) {
        exchange->offsets[i] = size_smaller((size_t)i * k.part, count);
        exchange->lengths[i] = size_smaller(k.part, count - exchange->offsets[i]);
    }
}
/* The label compares the lengths of arrays, because arrays of different lengths may be packed in the same bytes. */
static uint64_t array_make_label(size_t count, tutti_dtype dtype, uint64_t turn)
{
    return ((uint64_t)count * TUTTI_DTYPE_COUNT + (uint64_t)dtype) * UINT64_C(0x9e3779b97f4a7c15) ^ turn;
}
/* Averages this rank's slice and packs the average. The residual of that joins this rank's residual, in the scale of a
   sum. */
static tutti_status compressor_average_slice(tutti_compressor *compressor, struct numbers mine, float *lost)
{
    const struct compressed_exchange *exchange = &compressor->exchange;
    TRY(packed_average_slices(&compressor->packed, exchange, mine));
    for (size_t i = 0; i < mine.count; i++) compressor->rest[i] = 0;
    packed_write_average(&compressor->packed, exchange, mine, lost ? compressor->rest : NULL);
    for (size_t i = 0; lost && i < mine.count; i++) lost[i] += compressor->rest[i] * (float)exchange->ranks;
    return TUTTI_OK;
}
/* Averages this rank's part over the sides: packs and sends one slice to each side, averages the slices that arrive,
   and sends the average back to all sides. `array` is the residual, `turn` seeds the random rounding. */
static tutti_status compressor_exchange_slices(tutti_compressor *compressor, struct compress_cut k, void *data,
    tutti_dtype dtype, float *array, uint64_t turn, uint64_t label)
{
    const struct compressed_exchange *exchange = &compressor->exchange;
    struct numbers mine = compress_cut_get_slice(k, exchange->side, data, dtype, turn);
    tutti_request request = { .struct_size = sizeof request, .blocking = true, .label = label };
    struct kept_numbers kept = exchange_split_kept(exchange, array, k.kept);
    for (int side = 0; side < exchange->sides; side++) {
        struct numbers n = compress_cut_get_slice(k, side, data, dtype, turn);
        packed_write_slice(&compressor->packed, exchange, side, n, kept_numbers_offset(kept, n.first - k.at));
    }
    if (exchange_sends_lengths(exchange)) TRY(packed_send_lengths(&compressor->packed, exchange, &request));
    request = (tutti_request){ .struct_size = sizeof request, .blocking = true, .label = label };
    TRY(packed_send(&compressor->packed, exchange, &request));
    TRY(compressor_average_slice(compressor, mine, kept_numbers_offset(kept, mine.first - k.at).lost));
    TRY(packed_send_average(&compressor->packed, exchange));
    for (int side = 0; side < exchange->sides; side++)
        TRY(packed_read_average(&compressor->packed, exchange, side,
            compress_cut_get_slice(k, side, data, dtype, turn)));
    return TUTTI_OK;
}
tutti_status tutti_compressor_average(tutti_compressor *compressor, void *data, size_t count, tutti_dtype dtype,
    float *lost, uint64_t turn, uint64_t *sent)
{
    if (compressor && sent && count == 0) return TUTTI_OK;
    if (!compressor || !data || !sent)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "tutti_compressor_average: the array is NULL");
    if (!pack_find(dtype))
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "gradients of type %s cannot be compressed; use float32 or bfloat16",
            tutti_dtype_name(dtype) ? tutti_dtype_name(dtype) : "no known");
    const struct compressed_exchange *exchange = &compressor->exchange;
    struct compress_cut k = compressor_cut_array(compressor, count);
    char *mine = (char *)data + k.at * tutti_dtype_bytes(dtype);
    TRY(compressor_reserve_slice(compressor, k.slice));
    exchange_set_host_parts(exchange, k, count);
    if (exchange->here)
        TRY(tutti_reduce_scatter_v(data, exchange->lengths, exchange->offsets, mine, dtype, TUTTI_SUM, exchange->here,
            NULL));
    tutti_status status =
        compressor_exchange_slices(compressor, k, data, dtype, lost, turn, array_make_label(count, dtype, turn));
    if (status == TUTTI_INTERNAL) exchange_abort_comms(&compressor->exchange);
    if (status != TUTTI_OK) return status;
    *sent += compressor->packed.sent;
    return exchange->here
        ? tutti_all_gather_v(mine, data, exchange->lengths, exchange->offsets, dtype, exchange->here, NULL)
        : TUTTI_OK;
}
