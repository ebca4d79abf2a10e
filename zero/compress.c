/* Averages arrays that the caller owns. One rank averages each slice of an array, packs the average, and sends it back
   to all. That rank keeps the residual of the second packing. */
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "zero/compressed_exchange.h"
#include <stdlib.h>

struct tutti_compressor {
    struct compressed_exchange exchange;
    struct packed_slices packed;
    /* average_residual has the residual of packing this rank's averaged slice. */
    size_t room;
    float *average_residual;                            /* [room], owned */
};
enum { LEAST_SLICE = 16 };
/* How an array is cut: each rank of a host has a part of part_count elements, and each side of the exchange a slice of
   slice_count elements of that part. The last ones may be shorter. This rank's part has own_count elements from
   element `first` on. */
struct array_cut { size_t part_count, slice_count, first, own_count; };

/* Returns how an array of `count` numbers is cut. If ranks of a host do not sum first, the part is the whole array. */
static struct array_cut compressor_cut_array(const tutti_compressor *compressor, size_t count)
{
    const struct compressed_exchange *exchange = &compressor->exchange;
    size_t parts = exchange->host_comm ? (size_t)exchange->places.local_ranks : 1,
           index = exchange->host_comm ? (size_t)exchange->places.index : 0;
    struct array_cut cut = { .part_count = (count + parts - 1) / parts };
    cut.slice_count =
        size_round_up((cut.part_count + (size_t)exchange->sides - 1) / (size_t)exchange->sides, LEAST_SLICE);
    cut.first = size_smaller(index * cut.part_count, count);
    cut.own_count = size_smaller(cut.part_count, count - cut.first);
    return cut;
}
/* Returns a side's slice of this rank's part of the array `data`; it may be short or empty. */
static struct numbers array_cut_get_slice(struct array_cut cut, int side, void *data, tutti_dtype dtype,
    uint64_t sequence)
{
    size_t begin = size_smaller(cut.slice_count * (size_t)side, cut.own_count),
           end = size_smaller(begin + cut.slice_count, cut.own_count);
    return (struct numbers){ (char *)data + (cut.first + begin) * tutti_dtype_bytes(dtype), end - begin,
        cut.first + begin, dtype, sequence };
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
    free(compressor->average_residual);
    free(compressor);
    return TUTTI_OK;
}
tutti_status tutti_compressor_span(const tutti_compressor *compressor, size_t count, size_t *at, size_t *kept,
    int *keepers)
{
    if (!compressor || !at || !kept || !keepers)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "tutti_compressor_span: a pointer to a result is NULL");
    struct array_cut cut = compressor_cut_array(compressor, count);
    *at = cut.first;
    *kept = cut.own_count;
    *keepers = compressor->exchange.sides;
    return TUTTI_OK;
}

/* ---- averaging ---- */
/* Makes room for packed slices and for a residual of `slice` numbers each. */
static tutti_status compressor_reserve_slice(tutti_compressor *compressor, size_t slice)
{
    TRY(packed_resize(&compressor->packed, &compressor->exchange, slice));
    if (slice <= compressor->room) return TUTTI_OK;
    free(compressor->average_residual);
    compressor->room = 0;
    compressor->average_residual = memory_alloc_zeroed(slice, sizeof *compressor->average_residual);
    if (!compressor->average_residual)
        return status_fail(TUTTI_NO_MEMORY, "no memory to compress slices of %zu numbers", slice);
    compressor->room = slice;
    return TUTTI_OK;
}
/* Sets the length and the offset of each rank's part, for the sum on this host of an array of `count` numbers. */
static void exchange_set_host_parts(const struct compressed_exchange *exchange, struct array_cut cut, size_t count)
{
    for (int i = 0; i < exchange->places.local_ranks; i++) {
        exchange->offsets[i] = size_smaller((size_t)i * cut.part_count, count);
        exchange->lengths[i] = size_smaller(cut.part_count, count - exchange->offsets[i]);
    }
}
/* Returns the label of an exchange, which must be equal on all ranks. It compares the lengths and types of arrays,
   because different arrays may be packed in the same number of bytes. */
static uint64_t array_make_label(size_t count, tutti_dtype dtype, uint64_t sequence)
{
    return ((uint64_t)count * TUTTI_DTYPE_COUNT + (uint64_t)dtype) * UINT64_C(0x9e3779b97f4a7c15) ^ sequence;
}
/* Averages this rank's slice of the array into `mine` and packs the average. The residual of that packing is added to
   this rank's residual of the slice, in the scale of a sum. residual may be NULL. */
static tutti_status compressor_average_slice(tutti_compressor *compressor, struct numbers mine, float *residual)
{
    const struct compressed_exchange *exchange = &compressor->exchange;
    TRY(packed_average_slices(&compressor->packed, exchange, mine));
    for (size_t i = 0; i < mine.count; i++) compressor->average_residual[i] = 0;
    packed_write_average(&compressor->packed, exchange, mine, residual ? compressor->average_residual : NULL);
    for (size_t i = 0; residual && i < mine.count; i++)
        residual[i] += compressor->average_residual[i] * (float)exchange->ranks;
    return TUTTI_OK;
}
/* Averages this rank's part over the sides: packs and sends one slice to each side, averages the slices that arrive,
   and sends the average back to all sides. `array` has the residual and momentum of the part, or is NULL. `sequence`
   seeds random choices. */
static tutti_status compressor_exchange_slices(tutti_compressor *compressor, struct array_cut cut, void *data,
    tutti_dtype dtype, float *array, uint64_t sequence, uint64_t label)
{
    const struct compressed_exchange *exchange = &compressor->exchange;
    struct numbers mine = array_cut_get_slice(cut, exchange->side, data, dtype, sequence);
    tutti_request request = { .struct_size = sizeof request, .blocking = true, .label = label };
    struct packing_state state = exchange_split_state(exchange, array, cut.own_count);
    for (int side = 0; side < exchange->sides; side++) {
        struct numbers n = array_cut_get_slice(cut, side, data, dtype, sequence);
        packed_write_slice(&compressor->packed, exchange, side, n, packing_state_offset(state, n.first - cut.first));
    }
    if (exchange_sends_lengths(exchange)) TRY(packed_send_lengths(&compressor->packed, exchange, &request));
    request = (tutti_request){ .struct_size = sizeof request, .blocking = true, .label = label };
    TRY(packed_send_slices(&compressor->packed, exchange, &request));
    TRY(compressor_average_slice(compressor, mine, packing_state_offset(state, mine.first - cut.first).residual));
    TRY(packed_send_average(&compressor->packed, exchange));
    for (int side = 0; side < exchange->sides; side++)
        TRY(packed_read_average(&compressor->packed, exchange, side,
            array_cut_get_slice(cut, side, data, dtype, sequence)));
    return TUTTI_OK;
}
tutti_status tutti_compressor_average(tutti_compressor *compressor, void *data, size_t count, tutti_dtype dtype,
    float *residual, uint64_t sequence, uint64_t *sent)
{
    if (compressor && sent && count == 0) return TUTTI_OK;
    if (!compressor || !data || !sent)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "tutti_compressor_average: the array is NULL");
    if (!pack_find(dtype))
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "gradients of type %s cannot be compressed; use float32 or bfloat16", tutti_dtype_name(dtype));
    const struct compressed_exchange *exchange = &compressor->exchange;
    struct array_cut cut = compressor_cut_array(compressor, count);
    char *mine = (char *)data + cut.first * tutti_dtype_bytes(dtype);
    TRY(compressor_reserve_slice(compressor, cut.slice_count));
    exchange_set_host_parts(exchange, cut, count);
    if (exchange->host_comm)
        TRY(tutti_reduce_scatter_v(data, exchange->lengths, exchange->offsets, mine, dtype, TUTTI_SUM,
            exchange->host_comm, NULL));
    tutti_status status = compressor_exchange_slices(compressor, cut, data, dtype, residual, sequence,
        array_make_label(count, dtype, sequence));
    if (status == TUTTI_INTERNAL) exchange_abort_comms(&compressor->exchange);
    if (status != TUTTI_OK) return status;
    *sent += compressor->packed.sent_bytes;
    return exchange->host_comm
        ? tutti_all_gather_v(mine, data, exchange->lengths, exchange->offsets, dtype, exchange->host_comm, NULL)
        : TUTTI_OK;
}
