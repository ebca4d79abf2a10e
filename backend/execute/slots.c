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

/* FIRST_RESERVED: the bytes of the ring that a rank reserves first. An operation uses the ring from RING_AT_LEAST bytes
   on, or from ALONE_AT_LEAST if only one rank writes slots. A lap is at first 1 / LAPS of the bytes taken; a short ring
   has 1 / SHORT_RING of the ring. */
enum {
    CACHE_LINE = 64,
    FIRST_RESERVED = 64 << 10,
    RING_AT_LEAST = 4 << 10,
    ALONE_AT_LEAST = 8 << 10,
    LAPS = 4,
    SHORT_RING = 8
};

/* Returns the bytes of the small slots of all tracks. */
static size_t slots_tracks_bytes(const struct executor *executor)
{
    return executor->site.has_several_hosts ? 0 : TRACKS * TRACK_BYTES;
}
/* Returns the bytes of the ring. */
static size_t slots_ring_bytes(const struct executor *executor)
{
    size_t limit = (executor->site.segment->slot_bytes - slots_tracks_bytes(executor)) / 4;
    return size_smaller(executor->site.ring_bytes, limit) / CACHE_LINE * CACHE_LINE;
}
size_t slots_max_bytes(const struct executor *executor)
{
    return (executor->site.segment->slot_bytes - slots_ring_bytes(executor) - slots_tracks_bytes(executor)) / 2
        / CACHE_LINE * CACHE_LINE;
}
size_t slots_max_chunks(const struct executor *executor, int tiles)
{
    return slots_max_bytes(executor) / CACHE_LINE / (size_t)tiles;
}
/* Returns the longest lap in bytes: the ring, or a part of it. */
static size_t slots_lap_bytes(const struct executor *executor, const struct program_cut *cut)
{
    return cut->short_ring ? slots_ring_bytes(executor) / SHORT_RING : slots_ring_bytes(executor);
}
/* True if the slots of this operation begin a new lap, at byte 0 of the ring: they exceed the present lap, and do not
   overlap the last slots there. */
static bool slots_lap_is_over(const struct executor *executor, const struct program_cut *cut)
{
    size_t bytes = cut->slots_bytes,
           lap = size_larger(size_smaller(executor->ring.taken / LAPS, slots_lap_bytes(executor, cut)), 3 * bytes);
    return executor->ring.end + bytes > lap && bytes <= executor->ring.begin;
}
/* Chooses the byte of each rank's slots at which this operation's slots begin: in the ring, in the small slot of its
   track, or in one of the halves (see above). Operations in the payload of a line need none. */
void slots_choose_place(struct executor *executor)
{
    const struct program_cut *cut = executor->run.cut;
    if (cut->is_in_line) executor->run.slots_at = 0;
    else if (cut->one_sided && !executor->run.deferred)
        executor->run.slots_at = slots_ring_bytes(executor) + (size_t)executor->run.track * TRACK_BYTES;
    else if (!cut->uses_ring)
        executor->run.slots_at = slots_ring_bytes(executor) + slots_tracks_bytes(executor)
            + (size_t)executor->run.parity * slots_max_bytes(executor);
    else executor->run.slots_at = slots_lap_is_over(executor, cut) ? 0 : executor->ring.end;
}
/* Returns the number of tile slots in which the tiles of an operation take turns: a multiple of `slots` that takes at
   most half a lap, but at least `slots`. */
static uint32_t slots_count_tile_slots(const struct executor *executor, const struct program_cut *cut, size_t slots,
    size_t tile_slot_bytes)
{
    size_t factor = slots_lap_bytes(executor, cut) / 2 / (slots * tile_slot_bytes);
    return (uint32_t)(slots * size_larger(factor, 1));
}
/* Computes the bytes of this cut's slots, and decides whether they lie in the ring, in the halves, or in the small slot
   of a track. */
void slots_lay_out(struct executor *executor, struct program_cut *cut)
{
    const struct plan *plan = executor->launch.program->plan;
    cut->tile_slot_bytes = (size_t)executor->launch.program->schedule->chunks[SCRATCH] * cut->slot_stride;
    cut->tile_slots = cut->is_single_tile || !cut->tile_slot_bytes
        ? 1
        : slots_count_tile_slots(executor, cut, (size_t)plan->slots, cut->tile_slot_bytes);
    cut->slots_bytes = cut->is_in_line ? 0 : size_smaller((size_t)cut->tiles, cut->tile_slots) * cut->tile_slot_bytes;
    bool takes_few_bytes =
        cut->slots_bytes < (executor->launch.program->plan->counts.slot_writers == 1 ? ALONE_AT_LEAST : RING_AT_LEAST);
    cut->uses_ring = !takes_few_bytes && 3 * cut->slots_bytes <= slots_ring_bytes(executor);
    cut->one_sided =
        plan->one_sided && cut->is_single_tile && cut->slots_bytes <= TRACK_BYTES && plan->period < TRACK_POSITIONS - 2;
    slots_choose_place(executor);
}
/* Makes this rank's small slots of all tracks real memory, at once because they are few. */
static tutti_status slots_reserve_tracks(struct executor *executor)
{
    size_t *reserved = &executor->ring.reserved[3];
    if (*reserved || executor->run.cut->is_in_line) return TUTTI_OK;
    unsigned char *slots = segment_slots(executor->site.segment, executor->site.index) + slots_ring_bytes(executor);
    TRY(segment_reserve(executor->site.segment, slots, slots_tracks_bytes(executor), "small staging slots"));
    *reserved = slots_tracks_bytes(executor);
    return TUTTI_OK;
}
/* It reserves only the slots that operations have reached, so a group that is seldom used takes little memory. */
tutti_status slots_reserve(struct executor *executor)
{
    const struct program_cut *cut = executor->run.cut;
    if (cut->one_sided && !executor->run.deferred) return slots_reserve_tracks(executor);
    size_t first = cut->uses_ring ? 0 : executor->run.slots_at;
    size_t *reserved = &executor->ring.reserved[cut->uses_ring ? 2 : executor->run.parity];
    size_t bytes = executor->run.slots_at - first + cut->slots_bytes;
    if (bytes <= *reserved) return TUTTI_OK;
    size_t more = size_smaller(size_larger(2 * *reserved, FIRST_RESERVED), slots_ring_bytes(executor));
    if (cut->uses_ring) bytes = size_larger(bytes, more);
    unsigned char *slots = segment_slots(executor->site.segment, executor->site.index);
    TRY(segment_reserve(executor->site.segment, slots + first + *reserved, bytes - *reserved, "staging slots"));
    *reserved = bytes;
    return TUTTI_OK;
}
void slots_end_operation(struct executor *executor)
{
    if (!executor->run.cut->uses_ring || executor->run.one_sided) return;
    executor->ring.begin = executor->run.slots_at;
    executor->ring.end = executor->run.slots_at + executor->run.cut->slots_bytes;
    executor->ring.taken += executor->run.cut->slots_bytes;
}
