/* A rank's slots are a ring, then a small slot for each track, then two halves. A slot that is reused at once is still
   in its reader's cache, and to regain it from there is expensive (model/probe.c). So operations take their slots one
   behind the other from a ring that exceeds such a cache. Peers may still read the slots of the last operation, but not
   those of the one before. An operation that needs more than a third of the ring would overlap the last one, so it uses
   the halves in turn. An operation that needs only a few lines also uses them, because these lines return faster than
   others are fetched. All ranks compute the same places. One-sided operations, in which ranks are farther apart, use
   the small slot of their track (tracks.h).

   The first access to a page costs more than any cache saves, so laps are short at first. A lap is a quarter of the
   bytes taken so far, but holds at least three operations like this one. If the next lap's first slots would overlap
   the last ones, they follow them instead; they fit, because each operation takes at most a third of the ring. */
#include "backend/execute/slots.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/execute/tracks.h"

enum {
    CACHE_LINE = 64,
    FIRST_RESERVED = 64 << 10,
    ROUND_AT_LEAST = 4 << 10,
    ALONE_AT_LEAST = 8 << 10,
    LAPS = 4,
    SHORT_LAPS = 8
};

static size_t slots_tracks_bytes(const struct executor *x) { return x->site.spread ? 0 : TRACKS * TRACK_BYTES; }
static size_t slots_ring_bytes(const struct executor *x)
{
    size_t most = (x->site.segment->slot_bytes - slots_tracks_bytes(x)) / 4;
    return size_smaller(x->site.ring_bytes, most) / CACHE_LINE * CACHE_LINE;
}
size_t slots_most_bytes(const struct executor *x)
{
    return (x->site.segment->slot_bytes - slots_ring_bytes(x) - slots_tracks_bytes(x)) / 2 / CACHE_LINE * CACHE_LINE;
}
size_t slots_most_chunks(const struct executor *x, int tiles)
{
    return slots_most_bytes(x) / CACHE_LINE / (size_t)tiles;
}
static size_t slots_lap_bytes(const struct executor *x, const struct program_cut *c)
{
    return c->short_laps ? slots_ring_bytes(x) / SHORT_LAPS : slots_ring_bytes(x);
}
static bool slots_begin_lap(const struct executor *x, const struct program_cut *c)
{
    size_t bytes = c->slots_bytes,
           lap = size_larger(size_smaller(x->ring.taken / LAPS, slots_lap_bytes(x, c)), 3 * bytes);
    return x->ring.at + bytes > lap && bytes <= x->ring.first;
}
void slots_choose_place(struct executor *x)
{
    const struct program_cut *c = x->run.cut;
    if (c->in_line) x->run.slots_at = 0;
    else if (c->one_sided && !x->run.deferred)
        x->run.slots_at = slots_ring_bytes(x) + (size_t)x->run.track * TRACK_BYTES;
    else if (!c->goes_round)
        x->run.slots_at = slots_ring_bytes(x) + slots_tracks_bytes(x) + (size_t)x->run.parity * slots_most_bytes(x);
    else x->run.slots_at = slots_begin_lap(x, c) ? 0 : x->ring.at;
}
/* The tiles of one operation take turns in a number of tile slots that is a multiple of `slots`. */
static uint32_t slots_count_tile_slots(const struct executor *x, const struct program_cut *c, size_t slots,
    size_t tile_slot_bytes)
{
    size_t times = slots_lap_bytes(x, c) / 2 / (slots * tile_slot_bytes);
    return (uint32_t)(slots * size_larger(times, 1));
}
/* Computes the bytes of this cut's slots, and decides whether they lie in the ring, in the halves, or in the small slot
   of a track. */
void slots_lay_out(struct executor *x, struct program_cut *c)
{
    const struct plan *plan = x->launch.program->plan;
    c->tile_slot_bytes = (size_t)x->launch.program->schedule->chunks[SCRATCH] * c->slot_stride;
    c->tile_slots =
        c->single || !c->tile_slot_bytes ? 1 : slots_count_tile_slots(x, c, (size_t)plan->slots, c->tile_slot_bytes);
    c->slots_bytes = c->in_line ? 0 : size_smaller((size_t)c->tiles, c->tile_slots) * c->tile_slot_bytes;
    bool few = c->slots_bytes < (x->launch.program->plan->slot_writers == 1 ? ALONE_AT_LEAST : ROUND_AT_LEAST);
    c->goes_round = !few && 3 * c->slots_bytes <= slots_ring_bytes(x);
    c->one_sided = plan->one_sided && c->single && c->slots_bytes <= TRACK_BYTES && plan->period < TRACK_POSITIONS - 2;
    slots_choose_place(x);
}
/* Reserves the small slots of all tracks at once, because they are few. */
static tutti_status slots_reserve_tracks(struct executor *x)
{
    size_t *reserved = &x->ring.reserved[3];
    if (*reserved || x->run.cut->in_line) return TUTTI_OK;
    unsigned char *slots = segment_slots(x->site.segment, x->site.index) + slots_ring_bytes(x);
    TRY(segment_reserve(x->site.segment, slots, slots_tracks_bytes(x), "small staging slots"));
    *reserved = slots_tracks_bytes(x);
    return TUTTI_OK;
}
/* Reserves only the slots that operations have reached, so a group that is seldom used takes little memory. */
tutti_status slots_reserve(struct executor *x)
{
    const struct program_cut *c = x->run.cut;
    if (c->one_sided && !x->run.deferred) return slots_reserve_tracks(x);
    size_t first = c->goes_round ? 0 : x->run.slots_at;
    size_t *reserved = &x->ring.reserved[c->goes_round ? 2 : x->run.parity];
    size_t bytes = x->run.slots_at - first + c->slots_bytes;
    if (bytes <= *reserved) return TUTTI_OK;
    size_t more = size_smaller(size_larger(2 * *reserved, FIRST_RESERVED), slots_ring_bytes(x));
    if (c->goes_round) bytes = size_larger(bytes, more);
    unsigned char *slots = segment_slots(x->site.segment, x->site.index);
    TRY(segment_reserve(x->site.segment, slots + first + *reserved, bytes - *reserved, "staging slots"));
    *reserved = bytes;
    return TUTTI_OK;
}
void slots_end_operation(struct executor *x)
{
    if (!x->run.cut->goes_round || x->run.one_sided) return;
    x->ring.first = x->run.slots_at;
    x->ring.at = x->run.slots_at + x->run.cut->slots_bytes;
    x->ring.taken += x->run.cut->slots_bytes;
}
