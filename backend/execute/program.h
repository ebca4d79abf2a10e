/* A program: a plan that one rank is ready to run, with the values that all operations repeating it share: messages,
 * cuts, addresses. A communicator keeps its programs; the executor runs one at a time. */
#pragma once
#include "backend/host/segment.h"
#include "backend/schedule/blocks.h"
#include "backend/transports/router.h"

/* How a message is cut (bind.c). */
struct program_cut {
    /* The bytes of one rank's part of the message, of a piece of it, of the largest chunk, of a chunk's part in one
       tile, and from chunk to chunk in a slot. */
    size_t part_bytes, piece_bytes, chunk_bytes, tile_bytes, slot_stride;
    /* All cuts fall on multiples of this. */
    size_t unit_bytes;
    /* The requests of struct launch: the tile size, in bytes of the whole message, and short_ring. */
    size_t wanted_bytes;
    bool short_ring;
    /* Bytes of the slots of one tile, and of all slots of the operation. */
    size_t tile_slot_bytes, slots_bytes;
    /* How many tiles have slots of their own; later tiles reuse them in turn. */
    uint32_t tile_slots;
    /* The slots are taken from the ring (slots.c). */
    bool uses_ring;
    int tiles;
    /* There is one tile; its slot is the payload of the line. */
    bool is_single_tile, is_in_line;
    /* The ranks' tensors together exceed the last-level cache by far (bind.c). */
    bool beyond_cache;
    /* A rank waits only for the ranks that it needs (tracks.h). */
    bool one_sided;
};
/* A tensor of a peer that the program reads or writes. */
struct touch { int rank; enum buffer buffer; };
/* An address in a tensor of this rank, relative to the tensor's base. In SCRATCH: the address in the slots less
   run.slots_at, or the address in the line of track 0. */
struct program_address {
    enum buffer buffer;
    uintptr_t at;
};
/* Marks a part that is too short to be written around the cache. A PART_MERE_COPY is only a copy in every call, because
   it is neither multiplied nor divided. */
enum part_shortcut { PART_MERE_COPY = 1, PART_MERE_SUM };
/* A part of a step. `count` is in elements. Its source addresses begin at `first`; its destinations follow. */
struct part { size_t bytes, count; int first; enum part_shortcut shortcut; };
/* The bases of the addresses of an operation. */
struct buffers { const void *input; void *output; size_t slots_at; };
/* The ranks that this one must await. */
struct needed { int *ranks, count; };
/* Pointers to the targets and to the sources of a step. */
struct pointers { void **to; const void **from; };
struct program {
    const struct plan *plan;
    /* This rank's schedule. */
    const struct schedule *schedule;
    /* [slots][step_count] and [slots][piece_count]; NULL without messages. */
    struct transfer *transfers;
    struct piece *pieces;
    /* [step_count]: where the pieces of each step begin. */
    int *piece_at, piece_count;
    /* Pointers to the pieces of the widest step, and to a block of them. */
    struct pointers piece, block;
    /* Room for bytes read from peers, or NULL (fetch.c). */
    unsigned char *fetched;
    /* The peers' tensors that the steps name. */
    struct touch *touches;
    int touch_count;
    /* The cut of the last message, because most calls repeat it. */
    struct program_cut cut;
    /* is_cut: `cut` is valid. has_addresses: parts, addresses and part_at are valid for that cut. */
    bool is_cut, has_addresses;
    /* With one tile, the prelude publishes a position, which also announces the arrival. */
    bool prelude_announces_arrival;
    /* The parts of all work steps, and their addresses (bind.c). */
    struct part *parts;
    struct program_address *addresses;
    /* part_at: [step_count + 1], the first part of each step. */
    int *part_at, address_count;
    /* The addresses as pointers, and the tensors and slots that they were computed for, by track. */
    void **pointers[TRACKS];
    struct buffers pointers_for[TRACKS];
    /* The peers that this rank must wait for in a one-sided operation. */
    struct needed needed;
    /* The element size that the counts in `parts` were computed with. */
    size_t element_bytes;
    /* The memory that the program takes, without the plan and the blocks. */
    size_t bytes;
    /* Which rank's block of the message each chunk holds: with uneven counts the chunk is as long as this block
       (bind.c). Empty until program_find_chunk_blocks fills it. */
    struct chunk_blocks chunk_blocks;
};
/* Makes the program by which a rank runs the plan, which must outlive it. NO_MEMORY. */
tutti_status program_create(const struct plan *plan, int rank, struct program **out);
/* Fills chunk_blocks, which operations with uneven counts need. Does nothing if it is filled or the plan has no
   messages. NO_MEMORY. */
tutti_status program_find_chunk_blocks(struct program *program);
void program_destroy(struct program *program);
