/* Divides the ranks into sides, packs and unpacks slices, and checks what other ranks have sent. */
#include "zero/compressed_exchange.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "kernels/update.h"
#include <float.h>
#include <stdlib.h>

/* The lengths of packed slices are multiples of ALIGN_BYTES. An average keeps at most MOST_TIMES as many numbers as a
   slice. */
enum { ALIGN_BYTES = 64, MOST_TIMES = 4 };

/* ---- options ---- */
/* Returns true if the form packs only some of the numbers. */
static bool form_selects_numbers(tutti_compression_form form) { return form >= TUTTI_COMPRESS_TOPK; }
tutti_status compression_check_options(const tutti_compression *how)
{
    if ((unsigned)how->form >= TUTTI_COMPRESS_FORMS)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "zero: unknown compression %d", (int)how->form);
    if (form_selects_numbers(how->form) && (how->kept < 1 || how->kept > PACKING_GROUP))
        return status_refuse(TUTTI_INVALID_ARGUMENT, "zero: compression keeps 1 to %d of %d numbers, not %d",
            PACKING_GROUP, PACKING_GROUP, how->kept);
    if (how->form == TUTTI_COMPRESS_THRESHOLD && !(how->threshold > 0 && how->threshold < FLT_MAX))
        return status_refuse(TUTTI_INVALID_ARGUMENT, "zero: compression with a threshold of %g: it must be above 0",
            how->threshold);
    bool is_allowed = form_selects_numbers(how->form) && how->feedback && how->momentum > 0 && how->momentum < 1;
    if (how->momentum != 0 && !is_allowed)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "zero: compression with momentum %g: it must be below 1, and needs feedback and a form that leaves "
            "numbers out",
            how->momentum);
    return TUTTI_OK;
}
uint64_t compression_digest(const tutti_compression *how)
{
    uint64_t kept = form_selects_numbers(how->form) ? (uint64_t)how->kept : 0,
             flags = how->stochastic * 2u + how->feedback;
    uint64_t momentum, threshold;
    memcpy(&momentum, &how->momentum, sizeof momentum);
    memcpy(&threshold, &how->threshold, sizeof threshold);
    if (how->form == TUTTI_COMPRESS_THRESHOLD) momentum ^= threshold * UINT64_C(0xbf58476d1ce4e5b9);
    return (((uint64_t)how->form << 32 | kept << 8 | flags) ^ momentum) * UINT64_C(0x9e3779b97f4a7c15) ^ how->seed;
}

/* ---- the sides ---- */
tutti_status exchange_init(struct compressed_exchange *exchange, const tutti_compression *how, tutti_comm *all)
{
    const struct topology *topology = &exchange->places;
    *exchange = (struct compressed_exchange){ .how = *how, .ranks = tutti_comm_count(all) };
    TRY(topology_init(&exchange->places, all));
    exchange->lengths = memory_alloc_zeroed((size_t)topology->local_ranks, sizeof *exchange->lengths);
    exchange->offsets = memory_alloc_zeroed((size_t)topology->local_ranks, sizeof *exchange->offsets);
    if (!exchange->lengths || !exchange->offsets)
        return status_fail(TUTTI_NO_MEMORY, "zero: no memory for %d ranks", topology->local_ranks);
    if (topology->even && topology->hosts > 1 && topology->largest > 1) {
        exchange->sides = topology->hosts;
        exchange->side = topology->host;
        TRY(tutti_comm_split(all, topology->host, topology->index, &exchange->host_comm));
        return tutti_comm_split(all, topology->index, topology->host, &exchange->side_comm);
    }
    exchange->sides = exchange->ranks;
    exchange->side = tutti_comm_user_rank(all);
    return tutti_comm_split(all, 0, exchange->side, &exchange->side_comm);
}
void exchange_abort_comms(struct compressed_exchange *exchange)
{
    if (exchange->host_comm) tutti_comm_abort(exchange->host_comm);
    if (exchange->side_comm) tutti_comm_abort(exchange->side_comm);
}
void exchange_finish(struct compressed_exchange *exchange)
{
    tutti_comm_destroy(exchange->host_comm);
    tutti_comm_destroy(exchange->side_comm);
    topology_finish(&exchange->places);
    free(exchange->lengths);
    free(exchange->offsets);
}
int exchange_side_rank(const struct compressed_exchange *exchange, int side)
{
    return exchange->host_comm ? topology_rank_at(&exchange->places, side, exchange->places.index) : side;
}

/* ---- packing ---- */
/* Returns a hash of `seed` and `number`. */
static uint32_t seed_mix_number(uint64_t seed, uint64_t number)
{
    uint64_t x = (seed + number * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xbf58476d1ce4e5b9);
    return (uint32_t)((x ^ x >> 31) * UINT64_C(0x94d049bb133111eb) >> 32);
}
/* Returns how this rank packs a slice, or the average of its slice (is_average). Each rank rounds with random numbers
   of its own, in both directions. RANDOMK draws the same numbers on all ranks. The largest numbers of several sides are
   more than those of one side, so an average keeps more numbers. */
static struct packing exchange_choose_packing(const struct compressed_exchange *exchange, uint64_t sequence,
    bool is_average)
{
    static const enum packing_form forms[TUTTI_COMPRESS_FORMS] = {
        [TUTTI_COMPRESS_FLOAT16] = PACKING_FLOAT16,
        [TUTTI_COMPRESS_BFLOAT16] = PACKING_BFLOAT16,
        [TUTTI_COMPRESS_INT8] = PACKING_INT8,
        [TUTTI_COMPRESS_INT4] = PACKING_INT4,
        [TUTTI_COMPRESS_TOPK] = PACKING_TOPK,
        [TUTTI_COMPRESS_RANDOMK] = PACKING_RANDOMK,
        [TUTTI_COMPRESS_THRESHOLD] = PACKING_THRESHOLD,
    };
    uint32_t seed = seed_mix_number(exchange->how.seed, sequence);
    if (!form_selects_numbers(exchange->how.form))
        seed = seed_mix_number(seed, 2 * (uint64_t)exchange_side_rank(exchange, exchange->side) + is_average);
    bool is_largest = exchange->how.form == TUTTI_COMPRESS_TOPK || exchange->how.form == TUTTI_COMPRESS_THRESHOLD;
    int times = is_average && is_largest ? exchange->sides < MOST_TIMES ? exchange->sides : MOST_TIMES : 1;
    int kept = exchange->how.kept * times < PACKING_GROUP ? exchange->how.kept * times : PACKING_GROUP;
    float threshold = (float)(is_average ? exchange->how.threshold / exchange->ranks : exchange->how.threshold);
    return (struct packing){ forms[exchange->how.form], kept, exchange->how.stochastic, seed, threshold };
}
/* Replaces the buffers if they have no room for slices of slice_bytes and averages of average_bytes. The caller has set
   these two fields; packed_finish zeroes *packed, so they are set again. */
static tutti_status packed_reserve(struct packed_slices *packed, const struct compressed_exchange *exchange)
{
    size_t sides = (size_t)exchange->sides, slice_bytes = packed->slice_bytes, average_bytes = packed->average_bytes,
           room = size_larger(slice_bytes, average_bytes);
    if (room <= packed->side_room) return TUTTI_OK;
    packed_finish(packed);
    packed->sources = memory_alloc_zeroed(sides, sizeof *packed->sources);
    packed->out_bytes = memory_alloc_zeroed(3 * sides, sizeof *packed->out_bytes);
    if (!packed->sources || !packed->out_bytes)
        return status_fail(TUTTI_NO_MEMORY, "zero: no memory for the gradients of %d ranks", exchange->sides);
    TRY(tutti_mem_alloc((void **)&packed->out, room * sides));
    TRY(tutti_mem_alloc((void **)&packed->in, room * sides));
    packed->in_bytes = packed->out_bytes + sides;
    packed->offsets = packed->in_bytes + sides;
    packed->slice_bytes = slice_bytes;
    packed->average_bytes = average_bytes;
    packed->side_room = room;
    return TUTTI_OK;
}
tutti_status packed_resize(struct packed_slices *packed, const struct compressed_exchange *exchange, size_t count)
{
    if (form_selects_numbers(exchange->how.form) && exchange->how.form != TUTTI_COMPRESS_RANDOMK && count > UINT32_MAX)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "zero: a slice of %zu numbers is longer than 32-bit positions allow", count);
    struct packing for_slice = exchange_choose_packing(exchange, 0, false),
                   for_average = exchange_choose_packing(exchange, 0, true);
    packed->slice_bytes = size_round_up(packing_bytes(&for_slice, count), ALIGN_BYTES);
    packed->average_bytes = size_round_up(packing_bytes(&for_average, count), ALIGN_BYTES);
    TRY(packed_reserve(packed, exchange));
    for (int side = 0; side < exchange->sides; side++)
        packed->sources[side] = packed->in + packed->slice_bytes * (size_t)side;
    return TUTTI_OK;
}
void packed_finish(struct packed_slices *packed)
{
    tutti_mem_free(packed->out);
    tutti_mem_free(packed->in);
    free(packed->sources);
    free(packed->out_bytes);
    *packed = (struct packed_slices){ 0 };
}
size_t exchange_count_state(const struct compressed_exchange *exchange, size_t count)
{
    return exchange->how.momentum > 0 ? 2 * count : count;
}
struct packing_state exchange_split_state(const struct compressed_exchange *exchange, float *array, size_t count)
{
    return (struct packing_state){ array, array && exchange->how.momentum > 0 ? array + count : NULL };
}
/* Replaces each momentum m by factor * m + g, and each gradient g by the new m (deep gradient compression). */
static void momentum_accumulate(struct numbers n, float *momentum, float factor)
{
    float *wide = n.at;
    uint16_t *narrow = n.at;
    for (size_t i = 0; i < n.count; i++) {
        momentum[i] = momentum[i] * factor + (n.dtype == TUTTI_FLOAT32 ? wide[i] : bfloat16_to_float(narrow[i]));
        if (n.dtype == TUTTI_FLOAT32) wide[i] = momentum[i];
        else narrow[i] = bfloat16_from_float(momentum[i]);
    }
}
void packed_write_slice(struct packed_slices *packed, const struct compressed_exchange *exchange, int side,
    struct numbers from, struct packing_state state)
{
    struct packing how = exchange_choose_packing(exchange, from.sequence, false);
    if (state.momentum) momentum_accumulate(from, state.momentum, (float)exchange->how.momentum);
    char *slice = packed->out + packed->slice_bytes * (size_t)side;
    pack_find(from.dtype)(slice, from.at, state.residual, from.count, &how, from.first);
    packed->out_bytes[side] = packing_length(&how, slice, from.count);
    /* A number without a residual was sent, and loses its momentum. */
    for (size_t i = 0; state.momentum && i < from.count; i++)
        if (state.residual[i] == 0) state.momentum[i] = 0;
}
void packed_write_average(struct packed_slices *packed, const struct compressed_exchange *exchange, struct numbers from,
    float *residual)
{
    struct packing how = exchange_choose_packing(exchange, from.sequence, true);
    pack_find(from.dtype)(packed->out, from.at, residual, from.count, &how, from.first);
    packed->out_bytes[exchange->side] = packing_length(&how, packed->out, from.count);
}

/* ---- sending and receiving ---- */
/* Returns INTERNAL for invalid bytes from a side. `what` names the fault, and `bytes` is the received length. */
static tutti_status exchange_fail_side(const struct compressed_exchange *exchange, int side, const char *what,
    size_t bytes)
{
    return status_fail(TUTTI_INTERNAL,
        "zero: the packed gradients of rank %d are invalid (%s, %zu bytes): its memory or the network has changed "
        "them, or it runs another version of tutti",
        exchange_side_rank(exchange, side), what, bytes);
}
/* Fails if a side has announced more than `limit` bytes, before memory is written. */
static tutti_status packed_check_lengths(const struct packed_slices *packed, const struct compressed_exchange *exchange,
    size_t limit)
{
    for (int side = 0; side < exchange->sides; side++)
        if (packed->in_bytes[side] > limit)
            return exchange_fail_side(exchange, side, "longer than they may be", packed->in_bytes[side]);
    return TUTTI_OK;
}
/* Fails if the bytes from one side, at `from`, are not a valid packing of `count` numbers. They have `room` bytes, or
   fewer if sides send lengths. */
static tutti_status packed_check_side(const struct packed_slices *packed, const struct compressed_exchange *exchange,
    int side, const struct packing *how, const void *from, size_t room, size_t count)
{
    size_t bytes = exchange_sends_lengths(exchange) ? packed->in_bytes[side] : room;
    return packing_is_valid(how, from, bytes, count)
        ? TUTTI_OK
        : exchange_fail_side(exchange, side, "of wrong length or order", bytes);
}
bool exchange_sends_lengths(const struct compressed_exchange *exchange)
{
    return exchange->how.form == TUTTI_COMPRESS_THRESHOLD;
}
tutti_status packed_send_lengths(struct packed_slices *packed, const struct compressed_exchange *exchange,
    tutti_request *request)
{
    return tutti_all_to_all(packed->out_bytes, packed->in_bytes, 1, TUTTI_UINT64, exchange->side_comm, request);
}
tutti_status packed_send_slices(struct packed_slices *packed, const struct compressed_exchange *exchange,
    tutti_request *request)
{
    bool has_lengths = exchange_sends_lengths(exchange);
    packed->sent_bytes = 0;
    for (int side = 0; side < exchange->sides; side++) {
        packed->offsets[side] = packed->slice_bytes * (size_t)side;
        if (side != exchange->side) packed->sent_bytes += has_lengths ? packed->out_bytes[side] : packed->slice_bytes;
    }
    if (!has_lengths)
        return tutti_all_to_all(packed->out, packed->in, packed->slice_bytes, TUTTI_UINT8, exchange->side_comm,
            request);
    TRY(packed_check_lengths(packed, exchange, packed->slice_bytes));
    return tutti_all_to_all_v(packed->out, packed->out_bytes, packed->offsets, packed->in, packed->in_bytes,
        packed->offsets, TUTTI_UINT8, exchange->side_comm, request);
}
tutti_status packed_send_average(struct packed_slices *packed, const struct compressed_exchange *exchange)
{
    bool has_lengths = exchange_sends_lengths(exchange);
    packed->sent_bytes +=
        (has_lengths ? packed->out_bytes[exchange->side] : packed->average_bytes) * (size_t)(exchange->sides - 1);
    if (!has_lengths)
        return tutti_all_gather(packed->out, packed->in, packed->average_bytes, TUTTI_UINT8, exchange->side_comm, NULL);
    TRY(tutti_all_gather(&packed->out_bytes[exchange->side], packed->in_bytes, 1, TUTTI_UINT64, exchange->side_comm,
        NULL));
    TRY(packed_check_lengths(packed, exchange, packed->average_bytes));
    for (int side = 0; side < exchange->sides; side++) packed->offsets[side] = packed->average_bytes * (size_t)side;
    return tutti_all_gather_v(packed->out, packed->in, packed->in_bytes, packed->offsets, TUTTI_UINT8,
        exchange->side_comm, NULL);
}
tutti_status packed_average_slices(const struct packed_slices *packed, const struct compressed_exchange *exchange,
    struct numbers to)
{
    struct packing how = exchange_choose_packing(exchange, to.sequence, false);
    for (int side = 0; side < exchange->sides; side++)
        TRY(packed_check_side(packed, exchange, side, &how, packed->sources[side], packed->slice_bytes, to.count));
    unpack_find(to.dtype)(to.at, packed->sources, exchange->sides, to.count, &how, to.first,
        1.0f / (float)exchange->ranks);
    return TUTTI_OK;
}
tutti_status packed_read_average(const struct packed_slices *packed, const struct compressed_exchange *exchange,
    int side, struct numbers to)
{
    struct packing how = exchange_choose_packing(exchange, to.sequence, true);
    const void *from = packed->in + packed->average_bytes * (size_t)side;
    TRY(packed_check_side(packed, exchange, side, &how, from, packed->average_bytes, to.count));
    unpack_find(to.dtype)(to.at, &from, 1, to.count, &how, to.first, 1.0f);
    return TUTTI_OK;
}
