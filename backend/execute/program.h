/* A program: a plan made ready to run by one rank, with what can be worked out once for all operations that repeat it:
 * messages, cuts, addresses. A communicator keeps its programs; the executor runs one at a time. */
#pragma once
#include "backend/host/segment.h"
#include "backend/schedule/blocks.h"
#include "backend/transports/router.h"

struct program_cut {                                            /* how a message is cut; see bind.c */
    size_t part_bytes, piece_bytes, chunk_bytes, tile_bytes, slot_stride;
    size_t unit_bytes;                                  /* what cuts fall on multiples of */
    size_t wanted_bytes;                                /* of a tile of the whole message, as it was asked for */
    bool short_laps;                                    /* likewise: slots come round soon */
    size_t tile_slot_bytes, slots_bytes;                /* of a tile's slots, of all that the operation needs */
    uint32_t tile_slots;                                /* for tiles in turns */
    bool goes_round;                                    /* its slots are in the ring: see slots.c */
    int tiles;
    bool single, in_line;                               /* one tile; and its slot is the payload of the line */
    bool beyond_cache;                                  /* the ranks' tensors do not fit into the last cache */
    bool one_sided;                                     /* nobody waits for ranks that it does not need: tracks.h */
};
struct touch { int rank; enum buffer buffer; };
struct program_address {
    enum buffer buffer;
    uintptr_t at;
};   /* in my tensor, or in the slots of any rank; lines: track 0 */
/* Few bytes: none goes around the cache. A mere copy is one whatever the call is: nothing is multiplied or divided. */
enum ease { PART_MERE_COPY = 1, PART_MERE_SUM };
/* Of a step; count: elements; its froms, then its tos, begin at `first`. */
struct part { size_t bytes, count; int first; enum ease ease; };
struct buffers { const void *input; void *output; size_t slots_at; };
struct needed { int *ranks, count; };
struct pointers { void **to; const void **from; };
struct program {                                        /* a plan made ready to run, kept with its communicator */
    const struct plan *plan;
    const struct schedule *schedule;                    /* mine */
    struct transfer *transfers;                         /* [slots][step_count]; NULL without messages */
    struct piece *pieces;                               /* [slots][piece_count] */
    int *piece_at, piece_count;                         /* where a step's pieces begin */
    struct pointers piece, block;                       /* room for those of the widest step; of a block of that */
    unsigned char *fetched;                             /* room for what is read of peers, or NULL: fetch.c */
    struct touch *touches;                              /* the peers' tensors that its steps name */
    int touch_count;
    struct program_cut cut;                                     /* of the last message: most calls repeat it */
    bool is_cut, is_fixed;
    bool tells;                                         /* with one tile, the prelude publishes */
    struct part *parts;                                 /* with is_fixed: the steps with their addresses; see bind.c */
    struct program_address *addresses;
    int *part_at, address_count;                        /* [step_count + 1] */
    void **pointers[TRACKS];                             /* by track: what the addresses are ... */
    struct buffers aimed[TRACKS];                        /* ... for these tensors and slots */
    struct needed needed;                               /* the peers that this rank cannot do without */
    size_t element_bytes;                               /* of the counts */
    size_t bytes;                                       /* that it takes, but for the plan and the blocks */
    struct blocks blocks;                               /* what scratch holds, once counts are uneven: bind.c */
};
tutti_status program_create(const struct plan *plan, int rank, struct program **out);
/* Finds out which blocks its chunks hold, if there are messages: they are as long as their blocks. */
tutti_status program_know_blocks(struct program *program);
void program_destroy(struct program *program);
