/* The cuts are those of the CPU (execute/bind.c): an algorithm cuts a part into pieces, its chunks, and tile k begins
   at byte k * tile_bytes of every chunk. Cuts fall on whole lines of memory. */
#include "backend/streams/cut.h"
#include "backend/base/memory.h"

enum { LINE = 128 };

tutti_status stream_cut_message(const struct stream_site *site, const struct stream_operation *operation,
    struct stream_cut *out)
{
    const struct plan *plan = operation->plan;
    const struct schedule *schedule = plan_schedule_of_rank(plan, plan_rank_of_member(plan, site->rank));
    size_t pieces = (size_t)schedule->cut, scratch = (size_t)schedule->chunks[SCRATCH];
    size_t chunks = (size_t)(schedule->chunks[INPUT] > schedule->chunks[OUTPUT] ? schedule->chunks[INPUT]
                                                                                : schedule->chunks[OUTPUT]);
    size_t piece =
        pieces == 1 ? operation->part_bytes : size_round_up((operation->part_bytes + pieces - 1) / pieces, LINE);
    size_t tile = piece;
    if (piece * chunks > operation->tile_bytes)
        tile = size_round_up((operation->tile_bytes + chunks - 1) / chunks, LINE);
    if (scratch) tile = size_smaller(tile, site->half_bytes / (scratch * (size_t)plan->slots) / LINE * LINE);
    if (piece && !tile)
        return status_refuse(TUTTI_UNSUPPORTED, "slots of %zu bytes are too small for %zu chunks of %d tiles",
            site->half_bytes, scratch, plan->slots);
    tile = size_smaller(tile, piece);
    *out = (struct stream_cut){
        .site = site,
        .operation = operation,
        .schedule = schedule,
        .piece_bytes = piece,
        .chunk_bytes = piece,
        .tile_bytes = size_larger(tile, 1),
        .slot_stride = size_round_up(tile, LINE),
        .tiles = piece ? (int)((piece + tile - 1) / tile) : 1,
        .slots_at = site->enqueued % 2 * site->half_bytes,
    };
    out->tile_slot_bytes = out->slot_stride * scratch;
    return TUTTI_OK;
}
static struct stream_piece cut_locate_chunk_in_slot(const struct stream_cut *cut, const struct span *span, int index,
    int tile)
{
    const struct plan *plan = cut->operation->plan;
    size_t from = (size_t)tile * cut->tile_bytes, place = (size_t)(tile % plan->slots);
    CUdeviceptr slots = cut->site->slots[plan_member_of_rank(plan, span->rank)] + cut->slots_at;
    return (struct stream_piece){
        slots + place * cut->tile_slot_bytes + (size_t)(span->first + index) * cut->slot_stride,
        from < cut->chunk_bytes ? size_smaller(cut->tile_bytes, cut->chunk_bytes - from) : 0,
    };
}
struct stream_piece stream_cut_locate_chunk(const struct stream_cut *cut, const struct span *span, int index, int tile)
{
    if (span->buffer == SCRATCH) return cut_locate_chunk_in_slot(cut, span, index, tile);
    const struct stream_operation *operation = cut->operation;
    CUdeviceptr base = span->buffer == INPUT ? operation->input : operation->output;
    size_t pieces = (size_t)cut->schedule->cut, at = (size_t)(span->first + index);
    size_t part = at / pieces * operation->part_bytes, from = (size_t)tile * cut->tile_bytes,
           start = at % pieces * cut->piece_bytes + from;
    if (start >= operation->part_bytes || from >= cut->chunk_bytes) return (struct stream_piece){ base, 0 };
    size_t bytes = size_smaller(size_smaller(cut->tile_bytes, cut->chunk_bytes - from), operation->part_bytes - start);
    return (struct stream_piece){ base + part + start, bytes };
}
