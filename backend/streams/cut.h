/* How a message is cut into tiles, and where the chunks of a tile lie in tensors and slots. */
#pragma once
#include "backend/schedule/uneven.h"
#include "backend/streams/site.h"

/* An operation of this rank. Every rank of the host calls the same one, by the same plan. */
struct stream_operation {
    /* A plan for private tensors: without messages, and peers touch slots only. */
    const struct plan *plan;
    CUdeviceptr input, output;
    /* The bytes of one rank's part of the message, and of the whole message in one tile. Tiles are smaller if the slots
       require it, and larger if their calls of the driver would be too many. */
    size_t part_bytes, tile_bytes;
    tutti_dtype dtype;
    tutti_op op;
    /* The factor of PREMUL_SUM. */
    double factor;
    /* The distance of two parts in the tensors; 0: part_bytes. A longer one lets several operations do parts of one
       message. */
    size_t part_stride;
    /* A number that must be equal on all ranks. */
    uint64_t label;
    /* The parts of the tensors, if their lengths differ. Then part_bytes is the longest part that this rank knows.
       NULL: all have part_bytes. */
    const struct uneven *uneven;
    /* When a call that waits for room gives up. Only operations with uneven parts wait in the call. */
    int64_t deadline_ms;
};
struct stream_cut {
    const struct stream_site *site;
    const struct stream_operation *operation;
    const struct schedule *schedule;
    /* The bytes of a chunk. */
    size_t piece_bytes;
    /* The bytes of a chunk in one tile. */
    size_t tile_bytes;
    /* The distance of two chunks in a slot. */
    size_t slot_stride;
    /* The bytes of a slot. */
    size_t slot_bytes;
    /* The offset of the operation's slots. */
    size_t slots_at;
    int tiles;
    /* The positions are those of tiles. True if a rank may have several tiles. */
    bool has_tile_positions;
    /* A bound of the calls by which any rank enqueues the operation, or if its parts are uneven, of those whose work is
       not done at any time: those of `tiles_in_queue` tiles and the two beside them. */
    size_t most_calls;
    int tiles_in_queue;
};
/* The memory of a chunk in a tile. */
struct stream_piece {
    CUdeviceptr at;
    size_t bytes;
};
/* Cuts the message of an operation. UNSUPPORTED: the slots are too small for the plan, or for so few tiles that all
   calls of the driver find room in its queue, or so many ranks have uneven counts that three tiles do not. */
tutti_status stream_cut_message(const struct stream_site *site, const struct stream_operation *operation,
    struct stream_cut *out);
/* Returns the most bytes of a part, at most part_bytes, that one operation can have. It is equal on all ranks. 0: the
   slots are too small for any. */
size_t stream_cut_find_most_bytes(const struct stream_site *site, const struct stream_operation *operation);
/* Returns the memory of chunk `index` of a span in a tile. */
struct stream_piece stream_cut_locate_chunk(const struct stream_cut *cut, const struct span *span, int index, int tile);
