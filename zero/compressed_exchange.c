#include "zero/compressed_exchange.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "kernels/update.h"
#include <float.h>
#include <stdlib.h>

enum { SLOT_BYTES = 64, MOST_TIMES = 4 };

/* ---- options ---- */
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
    bool may = form_selects_numbers(how->form) && how->feedback && how->momentum > 0 && how->momentum < 1;
    if (how->momentum != 0 && !may)
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
    exchange->lengths = memory_alloc_zeroed((size_t)topology->here, sizeof *exchange->lengths);
    exchange->offsets = memory_alloc_zeroed((size_t)topology->here, sizeof *exchange->offsets);
    if (!exchange->lengths || !exchange->offsets)
        return status_fail(TUTTI_NO_MEMORY, "zero: no memory for %d ranks", topology->here);
    if (topology->even && topology->hosts > 1 && topology->largest > 1) {
        exchange->sides = topology->hosts;
        exchange->side = topology->host;
        TRY(tutti_comm_split(all, topology->host, topology->index, &exchange->here));
        return tutti_comm_split(all, topology->index, topology->host, &exchange->across);
    }
    exchange->sides = exchange->ranks;
    exchange->side = tutti_comm_user_rank(all);
    return tutti_comm_split(all, 0, exchange->side, &exchange->across);
}
void exchange_abort_comms(struct compressed_exchange *exchange)
{
    if (exchange->here) tutti_comm_abort(exchange->here);
    if (exchange->across) tutti_comm_abort(exchange->across);
}
void exchange_finish(struct compressed_exchange *exchange)
{
    tutti_comm_destroy(exchange->here);
    tutti_comm_destroy(exchange->across);
    topology_finish(&exchange->places);
    free(exchange->lengths);
    free(exchange->offsets);
}
int exchange_rank(const struct compressed_exchange *exchange, int side)
{
    return exchange->here ? topology_rank(&exchange->places, side, exchange->places.index) : side;
}

/* ---- packing ---- */
static uint32_t seed_mix_number(uint64_t seed, uint64_t number)
{
    uint64_t x = (seed + number * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xbf58476d1ce4e5b9);
    return (uint32_t)((x ^ x >> 31) * UINT64_C(0x94d049bb133111eb) >> 32);
}
/* Each rank rounds with random numbers of its own, in both directions. RANDOMK draws the same numbers on all ranks. The
   largest numbers of several sides are more than those of one side, so more go back. */
static struct packing exchange_choose_packing(const struct compressed_exchange *exchange, uint64_t turn, bool back)
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
    uint32_t seed = seed_mix_number(exchange->how.seed, turn);
    if (!form_selects_numbers(exchange->how.form))
        seed = seed_mix_number(seed, 2 * (uint64_t)exchange_rank(exchange, exchange->side) + back);
    bool chosen = exchange->how.form == TUTTI_COMPRESS_TOPK || exchange->how.form == TUTTI_COMPRESS_THRESHOLD;
    int times = back && chosen ? exchange->sides < MOST_TIMES ? exchange->sides : MOST_TIMES : 1;
    int kept = exchange->how.kept * times < PACKING_GROUP ? exchange->how.kept * times : PACKING_GROUP;
    float threshold = (float)(back ? exchange->how.threshold / exchange->ranks : exchange->how.threshold);
    return (struct packing){ forms[exchange->how.form], kept, exchange->how.stochastic, seed, threshold };
}
/* Replaces buffers that have no room for slices of p->slot or p->back bytes. packed_finish zeroes these two fields, so
   they are set again. */
static tutti_status packed_reserve(struct packed_slices *packed, const struct compressed_exchange *exchange)
{
    size_t sides = (size_t)exchange->sides, slot = packed->slot, back = packed->back, room = size_larger(slot, back);
    if (room <= packed->room) return TUTTI_OK;
    packed_finish(packed);
    packed->sources = memory_alloc_zeroed(sides, sizeof *packed->sources);
    packed->given = memory_alloc_zeroed(3 * sides, sizeof *packed->given);
    if (!packed->sources || !packed->given)
        return status_fail(TUTTI_NO_MEMORY, "zero: no memory for the gradients of %d ranks", exchange->sides);
    TRY(tutti_mem_alloc((void **)&packed->out, room * sides));
    TRY(tutti_mem_alloc((void **)&packed->in, room * sides));
    packed->taken = packed->given + sides;
    packed->offsets = packed->taken + sides;
    packed->slot = slot;
    packed->back = back;
    packed->room = room;
    return TUTTI_OK;
}
tutti_status packed_resize(struct packed_slices *packed, const struct compressed_exchange *exchange, size_t count)
{
    if (form_selects_numbers(exchange->how.form) && exchange->how.form != TUTTI_COMPRESS_RANDOMK && count > UINT32_MAX)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "zero: a slice of %zu numbers is longer than 32-bit positions allow", count);
    struct packing there = exchange_choose_packing(exchange, 0, false),
                   back = exchange_choose_packing(exchange, 0, true);
    packed->slot = size_round_up(packing_bytes(&there, count), SLOT_BYTES);
    packed->back = size_round_up(packing_bytes(&back, count), SLOT_BYTES);
    TRY(packed_reserve(packed, exchange));
    for (int side = 0; side < exchange->sides; side++) packed->sources[side] = packed->in + packed->slot * (size_t)side;
    return TUTTI_OK;
}
void packed_finish(struct packed_slices *packed)
{
    tutti_mem_free(packed->out);
    tutti_mem_free(packed->in);
    free(packed->sources);
    free(packed->given);
    *packed = (struct packed_slices){ 0 };
}
size_t exchange_count_kept(const struct compressed_exchange *exchange, size_t count)
{
    return exchange->how.momentum > 0 ? 2 * count : count;
}
struct kept_numbers exchange_split_kept(const struct compressed_exchange *exchange, float *array, size_t count)
{
    return (struct kept_numbers){ array, array && exchange->how.momentum > 0 ? array + count : NULL };
}
/* Replaces each gradient g by the momentum m = factor * m + g (deep gradient compression). */
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
    struct numbers from, struct kept_numbers kept)
{
    struct packing how = exchange_choose_packing(exchange, from.turn, false);
    if (kept.momentum) momentum_accumulate(from, kept.momentum, (float)exchange->how.momentum);
    char *slot = packed->out + packed->slot * (size_t)side;
    pack_find(from.dtype)(slot, from.at, kept.lost, from.count, &how, from.first);
    packed->given[side] = packing_length(&how, slot, from.count);
    /* A number without a residual was sent, and loses its momentum. */
    for (size_t i = 0; kept.momentum && i < from.count; i++)
        if (kept.lost[i] == 0) kept.momentum[i] = 0;
}
void packed_write_average(struct packed_slices *packed, const struct compressed_exchange *exchange, struct numbers from,
    float *lost)
{
    struct packing how = exchange_choose_packing(exchange, from.turn, true);
    pack_find(from.dtype)(packed->out, from.at, lost, from.count, &how, from.first);
    packed->given[exchange->side] = packing_length(&how, packed->out, from.count);
}

/* ---- sending and receiving ---- */
static tutti_status exchange_fail_side(const struct compressed_exchange *exchange, int side, const char *what,
    size_t bytes)
{
    return status_fail(TUTTI_INTERNAL,
        "zero: the packed gradients of rank %d are invalid (%s, %zu bytes): its memory or the network has changed "
        "them, or it runs another version of tutti",
        exchange_rank(exchange, side), what, bytes);
}
/* Rejects received lengths above `most` bytes before memory is written. */
static tutti_status packed_check_lengths(const struct packed_slices *packed, const struct compressed_exchange *exchange,
    size_t most)
{
    for (int side = 0; side < exchange->sides; side++)
        if (packed->taken[side] > most)
            return exchange_fail_side(exchange, side, "longer than they may be", packed->taken[side]);
    return TUTTI_OK;
}
/* Rejects packed bytes of one side that are not a valid packing of `count` numbers. */
static tutti_status packed_check_side(const struct packed_slices *packed, const struct compressed_exchange *exchange,
    int side, const struct packing *how, const void *from, size_t room, size_t count)
{
    size_t bytes = exchange_sends_lengths(exchange) ? packed->taken[side] : room;
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
    return tutti_all_to_all(packed->given, packed->taken, 1, TUTTI_UINT64, exchange->across, request);
}
tutti_status packed_send(struct packed_slices *packed, const struct compressed_exchange *exchange,
    tutti_request *request)
{
    bool tells = exchange_sends_lengths(exchange);
    packed->sent = 0;
    for (int side = 0; side < exchange->sides; side++) {
        packed->offsets[side] = packed->slot * (size_t)side;
        if (side != exchange->side) packed->sent += tells ? packed->given[side] : packed->slot;
    }
    if (!tells) return tutti_all_to_all(packed->out, packed->in, packed->slot, TUTTI_UINT8, exchange->across, request);
    TRY(packed_check_lengths(packed, exchange, packed->slot));
    return tutti_all_to_all_v(packed->out, packed->given, packed->offsets, packed->in, packed->taken, packed->offsets,
        TUTTI_UINT8, exchange->across, request);
}
tutti_status packed_send_average(struct packed_slices *packed, const struct compressed_exchange *exchange)
{
    bool tells = exchange_sends_lengths(exchange);
    packed->sent += (tells ? packed->given[exchange->side] : packed->back) * (size_t)(exchange->sides - 1);
    if (!tells) return tutti_all_gather(packed->out, packed->in, packed->back, TUTTI_UINT8, exchange->across, NULL);
    TRY(tutti_all_gather(&packed->given[exchange->side], packed->taken, 1, TUTTI_UINT64, exchange->across, NULL));
    TRY(packed_check_lengths(packed, exchange, packed->back));
    for (int side = 0; side < exchange->sides; side++) packed->offsets[side] = packed->back * (size_t)side;
    return tutti_all_gather_v(packed->out, packed->in, packed->taken, packed->offsets, TUTTI_UINT8, exchange->across,
        NULL);
}
tutti_status packed_average_slices(const struct packed_slices *packed, const struct compressed_exchange *exchange,
    struct numbers to)
{
    struct packing how = exchange_choose_packing(exchange, to.turn, false);
    for (int side = 0; side < exchange->sides; side++)
        TRY(packed_check_side(packed, exchange, side, &how, packed->sources[side], packed->slot, to.count));
    unpack_find(to.dtype)(to.at, packed->sources, exchange->sides, to.count, &how, to.first,
        1.0f / (float)exchange->ranks);
    return TUTTI_OK;
}
tutti_status packed_read_average(const struct packed_slices *packed, const struct compressed_exchange *exchange,
    int side, struct numbers to)
{
    struct packing how = exchange_choose_packing(exchange, to.turn, true);
    const void *from = packed->in + packed->back * (size_t)side;
    TRY(packed_check_side(packed, exchange, side, &how, from, packed->back, to.count));
    unpack_find(to.dtype)(to.at, &from, 1, to.count, &how, to.first, 1.0f);
    return TUTTI_OK;
}
