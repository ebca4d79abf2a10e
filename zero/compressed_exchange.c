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
tutti_status exchange_init(struct compressed_exchange *x, const tutti_compression *how, tutti_comm *all)
{
    const struct topology *p = &x->places;
    *x = (struct compressed_exchange){ .how = *how, .ranks = tutti_comm_count(all) };
    TRY(topology_init(&x->places, all));
    x->lengths = memory_alloc_zeroed((size_t)p->here, sizeof *x->lengths);
    x->offsets = memory_alloc_zeroed((size_t)p->here, sizeof *x->offsets);
    if (!x->lengths || !x->offsets) return status_fail(TUTTI_NO_MEMORY, "zero: no memory for %d ranks", p->here);
    if (p->even && p->hosts > 1 && p->largest > 1) {
        x->sides = p->hosts;
        x->side = p->host;
        TRY(tutti_comm_split(all, p->host, p->index, &x->here));
        return tutti_comm_split(all, p->index, p->host, &x->across);
    }
    x->sides = x->ranks;
    x->side = tutti_comm_user_rank(all);
    return tutti_comm_split(all, 0, x->side, &x->across);
}
void exchange_abort_comms(struct compressed_exchange *x)
{
    if (x->here) tutti_comm_abort(x->here);
    if (x->across) tutti_comm_abort(x->across);
}
void exchange_finish(struct compressed_exchange *x)
{
    tutti_comm_destroy(x->here);
    tutti_comm_destroy(x->across);
    topology_finish(&x->places);
    free(x->lengths);
    free(x->offsets);
}
int exchange_rank(const struct compressed_exchange *x, int side)
{
    return x->here ? topology_rank(&x->places, side, x->places.index) : side;
}

/* ---- packing ---- */
static uint32_t seed_mix_number(uint64_t seed, uint64_t number)
{
    uint64_t x = (seed + number * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xbf58476d1ce4e5b9);
    return (uint32_t)((x ^ x >> 31) * UINT64_C(0x94d049bb133111eb) >> 32);
}
/* Each rank rounds with random numbers of its own, in both directions. RANDOMK draws the same numbers on all ranks. The
   largest numbers of several sides are more than those of one side, so more go back. */
static struct packing exchange_choose_packing(const struct compressed_exchange *x, uint64_t turn, bool back)
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
    uint32_t seed = seed_mix_number(x->how.seed, turn);
    if (!form_selects_numbers(x->how.form))
        seed = seed_mix_number(seed, 2 * (uint64_t)exchange_rank(x, x->side) + back);
    bool chosen = x->how.form == TUTTI_COMPRESS_TOPK || x->how.form == TUTTI_COMPRESS_THRESHOLD;
    int times = back && chosen ? x->sides < MOST_TIMES ? x->sides : MOST_TIMES : 1;
    int kept = x->how.kept * times < PACKING_GROUP ? x->how.kept * times : PACKING_GROUP;
    float threshold = (float)(back ? x->how.threshold / x->ranks : x->how.threshold);
    return (struct packing){ forms[x->how.form], kept, x->how.stochastic, seed, threshold };
}
/* Replaces buffers that have no room for slices of p->slot or p->back bytes. packed_finish zeroes these two fields, so
   they are set again. */
static tutti_status packed_reserve(struct packed_slices *p, const struct compressed_exchange *x)
{
    size_t sides = (size_t)x->sides, slot = p->slot, back = p->back, room = size_larger(slot, back);
    if (room <= p->room) return TUTTI_OK;
    packed_finish(p);
    p->sources = memory_alloc_zeroed(sides, sizeof *p->sources);
    p->given = memory_alloc_zeroed(3 * sides, sizeof *p->given);
    if (!p->sources || !p->given)
        return status_fail(TUTTI_NO_MEMORY, "zero: no memory for the gradients of %d ranks", x->sides);
    TRY(tutti_mem_alloc((void **)&p->out, room * sides));
    TRY(tutti_mem_alloc((void **)&p->in, room * sides));
    p->taken = p->given + sides;
    p->offsets = p->taken + sides;
    p->slot = slot;
    p->back = back;
    p->room = room;
    return TUTTI_OK;
}
tutti_status packed_resize(struct packed_slices *p, const struct compressed_exchange *x, size_t count)
{
    if (form_selects_numbers(x->how.form) && x->how.form != TUTTI_COMPRESS_RANDOMK && count > UINT32_MAX)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "zero: a slice of %zu numbers is longer than 32-bit positions allow", count);
    struct packing there = exchange_choose_packing(x, 0, false), back = exchange_choose_packing(x, 0, true);
    p->slot = size_round_up(packing_bytes(&there, count), SLOT_BYTES);
    p->back = size_round_up(packing_bytes(&back, count), SLOT_BYTES);
    TRY(packed_reserve(p, x));
    for (int side = 0; side < x->sides; side++) p->sources[side] = p->in + p->slot * (size_t)side;
    return TUTTI_OK;
}
void packed_finish(struct packed_slices *p)
{
    tutti_mem_free(p->out);
    tutti_mem_free(p->in);
    free(p->sources);
    free(p->given);
    *p = (struct packed_slices){ 0 };
}
size_t exchange_count_kept(const struct compressed_exchange *x, size_t count)
{
    return x->how.momentum > 0 ? 2 * count : count;
}
struct kept_numbers exchange_split_kept(const struct compressed_exchange *x, float *array, size_t count)
{
    return (struct kept_numbers){ array, array && x->how.momentum > 0 ? array + count : NULL };
}
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
void packed_write_slice(struct packed_slices *p, const struct compressed_exchange *x, int side, struct numbers from,
    struct kept_numbers kept)
{
    struct packing how = exchange_choose_packing(x, from.turn, false);
    if (kept.momentum) momentum_accumulate(from, kept.momentum, (float)x->how.momentum);
    char *slot = p->out + p->slot * (size_t)side;
    pack_find(from.dtype)(slot, from.at, kept.lost, from.count, &how, from.first);
    p->given[side] = packing_length(&how, slot, from.count);
    /* A number without a residual was sent, and loses its momentum. */
    for (size_t i = 0; kept.momentum && i < from.count; i++)
        if (kept.lost[i] == 0) kept.momentum[i] = 0;
}
void packed_write_average(struct packed_slices *p, const struct compressed_exchange *x, struct numbers from,
    float *lost)
{
    struct packing how = exchange_choose_packing(x, from.turn, true);
    pack_find(from.dtype)(p->out, from.at, lost, from.count, &how, from.first);
    p->given[x->side] = packing_length(&how, p->out, from.count);
}

/* ---- sending and receiving ---- */
static tutti_status exchange_fail_side(const struct compressed_exchange *x, int side, const char *what, size_t bytes)
{
    return status_fail(TUTTI_INTERNAL,
        "zero: the packed gradients of rank %d are invalid (%s, %zu bytes): its memory or the network has changed "
        "them, or it runs another version of tutti",
        exchange_rank(x, side), what, bytes);
}
static tutti_status packed_check_lengths(const struct packed_slices *p, const struct compressed_exchange *x,
    size_t most)
{
    for (int side = 0; side < x->sides; side++)
        if (p->taken[side] > most) return exchange_fail_side(x, side, "longer than they may be", p->taken[side]);
    return TUTTI_OK;
}
static tutti_status packed_check_side(const struct packed_slices *p, const struct compressed_exchange *x, int side,
    const struct packing *how, const void *from, size_t room, size_t count)
{
    size_t bytes = exchange_sends_lengths(x) ? p->taken[side] : room;
    return packing_is_valid(how, from, bytes, count) ? TUTTI_OK
                                                     : exchange_fail_side(x, side, "of wrong length or order", bytes);
}
bool exchange_sends_lengths(const struct compressed_exchange *x) { return x->how.form == TUTTI_COMPRESS_THRESHOLD; }
tutti_status packed_send_lengths(struct packed_slices *p, const struct compressed_exchange *x, tutti_request *request)
{
    return tutti_all_to_all(p->given, p->taken, 1, TUTTI_UINT64, x->across, request);
}
tutti_status packed_send(struct packed_slices *p, const struct compressed_exchange *x, tutti_request *request)
{
    bool tells = exchange_sends_lengths(x);
    p->sent = 0;
    for (int side = 0; side < x->sides; side++) {
        p->offsets[side] = p->slot * (size_t)side;
        if (side != x->side) p->sent += tells ? p->given[side] : p->slot;
    }
    if (!tells) return tutti_all_to_all(p->out, p->in, p->slot, TUTTI_UINT8, x->across, request);
    TRY(packed_check_lengths(p, x, p->slot));
    return tutti_all_to_all_v(p->out, p->given, p->offsets, p->in, p->taken, p->offsets, TUTTI_UINT8, x->across,
        request);
}
tutti_status packed_send_average(struct packed_slices *p, const struct compressed_exchange *x)
{
    bool tells = exchange_sends_lengths(x);
    p->sent += (tells ? p->given[x->side] : p->back) * (size_t)(x->sides - 1);
    if (!tells) return tutti_all_gather(p->out, p->in, p->back, TUTTI_UINT8, x->across, NULL);
    TRY(tutti_all_gather(&p->given[x->side], p->taken, 1, TUTTI_UINT64, x->across, NULL));
    TRY(packed_check_lengths(p, x, p->back));
    for (int side = 0; side < x->sides; side++) p->offsets[side] = p->back * (size_t)side;
    return tutti_all_gather_v(p->out, p->in, p->taken, p->offsets, TUTTI_UINT8, x->across, NULL);
}
tutti_status packed_average_slices(const struct packed_slices *p, const struct compressed_exchange *x,
    struct numbers to)
{
    struct packing how = exchange_choose_packing(x, to.turn, false);
    for (int side = 0; side < x->sides; side++)
        TRY(packed_check_side(p, x, side, &how, p->sources[side], p->slot, to.count));
    unpack_find(to.dtype)(to.at, p->sources, x->sides, to.count, &how, to.first, 1.0f / (float)x->ranks);
    return TUTTI_OK;
}
tutti_status packed_read_average(const struct packed_slices *p, const struct compressed_exchange *x, int side,
    struct numbers to)
{
    struct packing how = exchange_choose_packing(x, to.turn, true);
    const void *from = p->in + p->back * (size_t)side;
    TRY(packed_check_side(p, x, side, &how, from, p->back, to.count));
    unpack_find(to.dtype)(to.at, &from, 1, to.count, &how, to.first, 1.0f);
    return TUTTI_OK;
}
