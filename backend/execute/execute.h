/* The executor: runs one rank's schedule of one operation, tile by tile. It never blocks: at a wait that is not met
 * it returns, and goes on from there when called again. It is the one place where schedules, the host's shared
 * memory, the transport and the kernels meet.
 *
 * Every operation begins with a roll call: a rank writes what it is about to do into its line, then says that it has
 * arrived; nobody goes beyond the prelude of its schedule (copies into its own slots) before all have arrived and
 * agree. An operation whose plan depends on where the ranks' tensors lie, or on their counts, has no steps before the
 * roll call. So a disagreement is found by every rank before any output is touched, and whoever has arrived in
 * operation n has finished n - 1: two lines, used in turns, and slots that are not those of the last operation need no
 * other protection. */
#pragma once
#include "backend/host/segment.h"
#include "backend/host/wait.h"
#include "backend/schedule/schedule.h"
#include "backend/transports/transport.h"
#include "kernels/reduce.h"
#include "kernels/stream.h"

struct cut {                                            /* how a message is cut; see bind.c */
    size_t part_bytes, piece_bytes, chunk_bytes, tile_bytes, slot_stride;
    size_t place_bytes, slots_bytes;                    /* of a tile's slots, of all that the operation needs */
    uint32_t places;                                    /* for tiles in turns */
    bool goes_round;                                    /* its slots are in the ring: see slots.c */
    int tiles;
    bool single, in_line;                               /* one tile; and its slot is the payload of the line */
    bool beyond_cache;                                  /* the ranks' tensors do not fit into the last cache */
};
struct touch { int rank; enum buffer buffer; };
struct address { enum buffer buffer; uintptr_t at[2]; }; /* in my tensor, or by parity in the slots of whoever */
struct part { size_t bytes, count; int first; };        /* of a step; elements; its froms, then its tos, begin there */
struct buffers { const void *input; void *output; size_t slots_at; };
struct program {                                        /* a plan made ready to run, kept with its communicator */
    const struct plan *plan;
    const struct schedule *schedule;                    /* mine */
    struct transfer *transfers;                         /* [slots][step_count]; NULL without messages */
    struct piece *pieces;                               /* [slots][piece_count] */
    int *piece_at, piece_count;                         /* where a step's pieces begin */
    void **to;
    const void **from;                                  /* room for the pointers of the widest step */
    struct touch *touches;                              /* the peers' tensors that its steps name */
    int touch_count;
    struct cut cut;                                     /* of the last message: most calls repeat it */
    bool is_cut, is_fixed;
    bool tells;                                         /* with one tile, the prelude publishes */
    bool alone;                                         /* only one rank writes into slots */
    struct part *parts;                                 /* with is_fixed: the steps with their addresses; see bind.c */
    struct address *addresses;
    int *part_at, address_count;                        /* [step_count + 1] */
    void **pointers[2];                                 /* by parity: what the addresses are ... */
    struct buffers aimed[2];                            /* ... for these tensors and slots */
    size_t element_bytes;                               /* of the counts */
    struct program *next;
};
tutti_status program_create(const struct plan *plan, int rank, struct program **out);
void program_destroy(struct program *program);

struct uneven {                                         /* bytes, by peer; each array has an entry per rank */
    size_t *lengths[2], *offsets[2];                    /* [INPUT], [OUTPUT] */
};
struct launch {                                         /* what is bound to a program for one operation */
    struct program *program;                            /* NULL: chosen after the roll call */
    const void *input;
    void *output;
    size_t part_bytes;                                  /* of one rank's part of the message */
    size_t tile_bytes;                                  /* of the message that is worked on at a time */
    size_t element_bytes;
    reduce_function *reduce;                            /* NULL where nothing is reduced */
    reduce_streamed_function *reduce_streamed;          /* around the cache, or NULL */
    scale_function *scale;                              /* of PREMUL_SUM, else NULL */
    double factor;
    int divisor;                                        /* of AVG, else 1 */
    const struct uneven *uneven;                        /* or NULL */
};
enum { SEEN_COUNTER, SEEN_SLOTS, SEEN_COUNT = SEEN_SLOTS + MAX_SLOTS };
struct operand { unsigned char *base; const size_t *lengths, *offsets; size_t bytes; };    /* bytes: that are mapped */

struct executor {
    /* of the group */
    const struct segment *segment;
    struct control *mine;
    struct transport *transport;
    int rank, host_first, host_ranks;
    int polls;                                          /* looks at a counter before it returns, with one tile */
    bool crowded;                                       /* not then: others have waited on my core */
    stream_function *stream;                            /* a copy around the cache, or NULL */
    bool paced;                                         /* slots are written so if it is better at present: pace.h */
    size_t cache_bytes;                                 /* the last cache of the host's ranks, all of them */
    size_t ring_bytes;                                  /* of each rank's slots, those that operations go round in */
    /* between operations; equal on all ranks of the host */
    uint64_t base, operation;
    uint64_t (*seen)[SEEN_COUNT];                       /* per peer: the highest positions read so far */
    size_t ring_first, ring_at, ring_taken;             /* where the last slots of the ring begin and end; bytes ever */
    size_t reserved[3];                                 /* bytes of my slots that are real memory: halves, ring */
    struct operand (*theirs)[2];                        /* per peer: its tensors, where the program touches them */
    /* of the operation that runs; whoever begins it fills launch and the descriptor first */
    struct launch launch;
    struct descriptor *descriptor;                      /* mine, where the others read it */
    struct operand operand[2];
    const struct cut *cut;                              /* the program's */
    size_t slots_at;                                    /* where its slots begin, in those of each rank */
    int parity, low, roll, pc[MAX_SLOTS];
    size_t extent;                                      /* of uneven counts, once they are agreed on */
    bool exposed;                                       /* the descriptor names my tensors: peers may be at them */
    bool started, arrived, agreed;
    tutti_status broken;                                /* why a message failed, or OK */
    uint64_t moves;                                     /* steps performed, ever: tells waiting from working */
    uint64_t kind, fingerprint;                         /* of the descriptor: without and with the sequence */
    /* why it is blocked */
    int blocked_peer;                                   /* a rank, or -1: a message */
    struct wait_set blocked;
};
tutti_status executor_init(struct executor *x, const struct segment *segment, int rank, int host_first, int host_ranks);
void executor_finish(struct executor *x);
/* Chooses the line of the next operation, and with it the descriptor to fill. */
void executor_prepare(struct executor *x);
/* To be called when anything but the sequence has been written into the descriptor. */
void executor_describe(struct executor *x);
/* Announces the operation that launch and descriptor say. An error leaves nothing announced. */
tutti_status executor_begin(struct executor *x);
/* Of an operation without a program: waits for all to come and agree, as executor_step does. OK: launch.program may be
   chosen now. */
tutti_status executor_roll_call(struct executor *x);
/* Then goes on with it. IN_PROGRESS: not, because the group has failed meanwhile. */
tutti_status executor_start(struct executor *x);
/* As far as it gets. IN_PROGRESS: blocked says on what. MISMATCH: see executor_disagreement. */
tutti_status executor_step(struct executor *x);
/* Whoever waits for a rank that is on the same core must leave it the core at once; who waits for ranks of other cores
   only had better stay. So whoever waits says where; true: another rank of this host that is to move waited here. */
bool executor_is_in_the_way(struct executor *x);
/* Gives up the operation that runs: no buffer of the caller is touched any more. */
void executor_cancel(struct executor *x);
/* The rank (of this host) whose descriptor differs from mine, or -1. */
int executor_disagreement(const struct executor *x);
bool executor_has_arrived(const struct executor *x, int rank);
bool executor_is_complete(const struct executor *x);   /* all have */
