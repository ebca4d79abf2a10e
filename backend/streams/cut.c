/* The cuts are those of the CPU (execute/bind.c): an algorithm cuts a part into pieces, its chunks, and tile k begins
   at byte k * tile_bytes of every chunk. Cuts fall on whole lines of memory. */
#include "backend/streams/cut.h"
#include "backend/base/memory.h"
#include "backend/streams/commands.h"
#include <limits.h>

/* TILES_BESIDE: when the stream has come to the end of the prelude of a tile, the rests of that tile and of the one
   before may not have run. */
enum { LINE = 128, TILES_BESIDE = 2 };

/* Returns a bound of the calls by which any rank enqueues a tile. A launch follows at most one batch of words. Small
   copies of a step are gathered, large ones are calls of their own. */
static size_t plan_count_calls(const struct plan *plan, size_t tile_bytes)
{
    size_t copied = (size_t)plan->counts.copied, gathered = (size_t)plan->period + copied / CUDA_COPIES;
    return 2 * ((size_t)plan->counts.computed + (tile_bytes < COPY_LARGE ? size_smaller(copied, gathered) : copied));
}
/* Returns how many calls an operation of so many tiles takes at most: those of the tiles, the first batch and the
   last. */
static size_t plan_count_calls_of_tiles(const struct plan *plan, size_t tile_bytes, size_t tiles)
{
    return 2 + tiles * plan_count_calls(plan, tile_bytes);
}
/* Returns the least bytes of a chunk in a tile with which an operation takes few enough calls. */
static size_t plan_find_least_tile(const struct plan *plan, size_t piece, size_t tile)
{
    size_t calls = size_larger(plan_count_calls(plan, tile), 1), most = size_larger((STREAM_CALLS - 2) / calls, 1);
    return size_larger(tile, size_round_up((piece + most - 1) / most, LINE));
}
/* Returns the bytes of a chunk in a tile. 0: the slots are too small. */
static size_t cut_choose_tile(const struct stream_site *site, const struct stream_operation *operation, size_t piece,
    size_t chunks, size_t scratch)
{
    const struct plan *plan = operation->plan;
    size_t tile = piece, most = scratch ? site->half_bytes / (scratch * (size_t)plan->slots) / LINE * LINE : piece;
    if (piece * chunks > operation->tile_bytes)
        tile = size_round_up((operation->tile_bytes + chunks - 1) / chunks, LINE);
    tile = size_smaller(tile, most);
    /* The second time a larger tile may have large copies. */
    for (int i = 0; i < 2 && tile; i++) tile = size_smaller(plan_find_least_tile(plan, piece, tile), piece);
    return tile <= most ? tile : 0;
}
/* Returns how many tiles may be in the queue of the driver besides those two. */
static size_t plan_count_tiles_in_queue(const struct plan *plan, size_t tile_bytes)
{
    size_t fit = (STREAM_CALLS - 2) / size_larger(plan_count_calls(plan, tile_bytes), 1);
    return fit > TILES_BESIDE ? fit - TILES_BESIDE : 0;
}
/* Returns the bytes of a chunk in a tile of uneven parts, which depend on no lengths, because ranks may not know those
   of others. 0: the slots are too small. */
static size_t cut_choose_uneven_tile(const struct stream_site *site, const struct stream_operation *operation,
    size_t chunks, size_t scratch)
{
    const struct plan *plan = operation->plan;
    size_t wanted = size_round_up((operation->tile_bytes + chunks - 1) / chunks, LINE);
    /* One rank alone uses no slots. */
    if (!scratch) return size_larger(operation->part_bytes, 1);
    size_t tile = size_smaller(wanted, site->half_bytes / (scratch * (size_t)plan->slots) / LINE * LINE);
    /* Smaller copies are gathered in fewer calls. */
    return plan_count_tiles_in_queue(plan, tile) ? tile : size_smaller(tile, COPY_LARGE - LINE);
}
/* Cuts the message. Returns false if the slots are too small, or the calls are too many, then with tiles_in_queue 0 if
   those of three tiles are. */
static bool cut_try_message(const struct stream_site *site, const struct stream_operation *operation,
    struct stream_cut *out)
{
    const struct plan *plan = operation->plan;
    const struct schedule *schedule = plan_schedule_of_rank(plan, plan_rank_of_member(plan, site->rank));
    size_t pieces = (size_t)schedule->cut, scratch = (size_t)schedule->chunks[SCRATCH];
    size_t chunks = (size_t)(schedule->chunks[INPUT] > schedule->chunks[OUTPUT] ? schedule->chunks[INPUT]
                                                                                : schedule->chunks[OUTPUT]);
    size_t piece =
        pieces == 1 ? operation->part_bytes : size_round_up((operation->part_bytes + pieces - 1) / pieces, LINE);
    size_t tile = operation->uneven ? cut_choose_uneven_tile(site, operation, chunks, scratch)
                                    : cut_choose_tile(site, operation, piece, chunks, scratch);
    size_t in_queue = operation->uneven ? plan_count_tiles_in_queue(plan, tile) : INT_MAX;
    size_t tiles = tile ? size_larger((piece + tile - 1) / tile, 1) : 1;
    size_t calls = plan_count_calls_of_tiles(plan, tile, size_smaller(tiles, in_queue + TILES_BESIDE));
    *out = (struct stream_cut){
        .site = site,
        .operation = operation,
        .schedule = schedule,
        .piece_bytes = piece,
        .tile_bytes = size_larger(tile, 1),
        .slot_stride = size_round_up(tile, LINE),
        .tiles = (int)size_smaller(tiles, INT_MAX),
        .has_tile_positions = tiles > 1 || operation->uneven,
        .slots_at = site->enqueued % 2 * site->half_bytes,
        .most_calls = calls,
        .tiles_in_queue = (int)in_queue,
    };
    out->slot_bytes = out->slot_stride * scratch;
    return ((!piece && !operation->uneven) || tile) && in_queue && calls <= STREAM_CALLS;
}
tutti_status stream_cut_message(const struct stream_site *site, const struct stream_operation *operation,
    struct stream_cut *out)
{
    const struct plan *plan = operation->plan;
    struct stream_cut cut;
    if (cut_try_message(site, operation, &cut)) {
        *out = cut;
        return TUTTI_OK;
    }
    if (!cut.tiles_in_queue)
        return status_refuse(TUTTI_UNSUPPORTED,
            "uneven counts of %d ranks take up to %zu calls of the driver for a tile (%s), and three tiles may take "
            "%d: use a group of fewer ranks",
            plan->count, plan_count_calls(plan, cut.tile_bytes), plan->algorithm->name, STREAM_CALLS - 2);
    return status_refuse(TUTTI_UNSUPPORTED,
        "slots of %zu bytes are too small for %zu bytes of each rank: %s has %d chunks in %d slots, and an operation "
        "may take %d calls of the driver; use larger slots or several operations",
        site->half_bytes, operation->part_bytes, plan->algorithm->name, cut.schedule->chunks[SCRATCH], plan->slots,
        STREAM_CALLS);
}
size_t stream_cut_find_most_bytes(const struct stream_site *site, const struct stream_operation *operation)
{
    struct stream_operation tried = *operation;
    struct stream_cut cut;
    while (!cut_try_message(site, &tried, &cut)) {
        if (tried.part_bytes <= LINE) return 0;
        tried.part_bytes = size_round_up(tried.part_bytes / 2, LINE);
    }
    return tried.part_bytes;
}
static struct stream_piece cut_locate_chunk_in_slot(const struct stream_cut *cut, const struct span *span, int index,
    int tile)
{
    const struct plan *plan = cut->operation->plan;
    size_t from = (size_t)tile * cut->tile_bytes, place = (size_t)(tile % plan->slots);
    CUdeviceptr slots = cut->site->slots[plan_member_of_rank(plan, span->rank)] + cut->slots_at;
    return (struct stream_piece){
        slots + place * cut->slot_bytes + (size_t)(span->first + index) * cut->slot_stride,
        from < cut->piece_bytes ? size_smaller(cut->tile_bytes, cut->piece_bytes - from) : 0,
    };
}
/* A step has a chunk of this rank's tensors, whose length counts, because the other end has the same length. */
static struct stream_piece cut_locate_uneven_chunk(const struct stream_cut *cut, const struct span *span, int index,
    int tile)
{
    const struct stream_operation *operation = cut->operation;
    const struct uneven *uneven = operation->uneven;
    CUdeviceptr base = span->buffer == INPUT ? operation->input : operation->output;
    size_t length = uneven->lengths[span->buffer][span->first + index], from = (size_t)tile * cut->tile_bytes;
    if (from >= length) return (struct stream_piece){ base, 0 };
    return (struct stream_piece){ base + uneven->offsets[span->buffer][span->first + index] + from,
        size_smaller(cut->tile_bytes, length - from) };
}
struct stream_piece stream_cut_locate_chunk(const struct stream_cut *cut, const struct span *span, int index, int tile)
{
    if (span->buffer == SCRATCH) return cut_locate_chunk_in_slot(cut, span, index, tile);
    if (cut->operation->uneven) return cut_locate_uneven_chunk(cut, span, index, tile);
    const struct stream_operation *operation = cut->operation;
    CUdeviceptr base = span->buffer == INPUT ? operation->input : operation->output;
    size_t pieces = (size_t)cut->schedule->cut, at = (size_t)(span->first + index);
    size_t stride = operation->part_stride ? operation->part_stride : operation->part_bytes;
    size_t part = at / pieces * stride, from = (size_t)tile * cut->tile_bytes,
           start = at % pieces * cut->piece_bytes + from;
    if (start >= operation->part_bytes || from >= cut->piece_bytes) return (struct stream_piece){ base, 0 };
    size_t bytes = size_smaller(size_smaller(cut->tile_bytes, cut->piece_bytes - from), operation->part_bytes - start);
    return (struct stream_piece){ base + part + start, bytes };
}
