/* The shared memory of a group's ranks on one host: lines, a control block and slots for each rank, in one sealed
   memfd that all ranks map. The file has no name, so the kernel frees it when the last process dies. Lines and
   control blocks are resident from the start. A rank's slots and counts become resident when the rank reserves them
   (segment_reserve), so hundreds of groups cost little. Every process computes the layout itself and reads no size or
   offset from the shared memory. */
#pragma once
#include "backend/base/fence.h"
#include "backend/memory/arena.h"
#include <stdatomic.h>

/* A rank that only sends may begin operation n + TRACKS - 1 while another rank is still in operation n. So its data for
   an operation must stay until it has begun as many later operations. Lines and small slots are in TRACKS tracks
   (execute/tracks.h). Declarations stay for twice as many, because a late rank searches as far back for the start of a
   disagreement. Counts and large slots alternate between two copies, because all ranks await each other in their
   operations. */
enum { LINE_PAYLOAD = 48, MAX_SLOTS = 8, TRACKS = 16, TRACK_BYTES = 4096, DECLARATIONS = 2 * TRACKS };
/* Two cache lines that one rank writes. The lines of a rank lie side by side, directly before those of the next rank. A
   core that reads two lines of a rank in turns prefetches the one at the same distance behind them, which no rank is
   writing then. Lines of two ranks share a page; on separate pages a series of 8-byte all-reduces between distant cores
   is a sixth slower. */
struct line {
    /* The counter shows that the rank has arrived, and its position if the operation has one tile. */
    _Atomic uint64_t counter;
    /* The fingerprint is valid once the counter shows that the rank has arrived. */
    uint64_t fingerprint;
    /* The payload is the slot of tiny messages. */
    unsigned char payload[LINE_PAYLOAD];
    /* Each slot has the position that its tile has reached. */
    _Atomic uint64_t slots[MAX_SLOTS];
};
/* The times at which this rank began and ended a timed operation (tuning/tuner.h). `number` is the number of the
   operation, from 1; 0 means no operation. */
struct stamp {
    _Atomic uint64_t number;
    _Atomic int64_t begun_ns, ended_ns;
};
/* A rank's call as plain data, for comparison and for error messages. */
struct declaration {
    /* `operation` is an enum collective. */
    uint32_t operation;
    uint32_t dtype, op;
    int32_t root;
    /* `count` is the call's count, `sequence` the number of the operation. `bits` has the factor of PREMUL_SUM, the
       description of rows, or the label of any other call. */
    uint64_t count, sequence, bits;
    /* These settings must be equal on all ranks. */
    uint64_t tile_bytes, slots;
    /* `algorithm` is a row of collectives_table. */
    uint64_t algorithm;
    /* `extent` is the largest block if counts are uneven. */
    uint64_t extent;
    /* `counts` is a digest of the counts of all ranks, in groups of several hosts. */
    uint64_t counts;
    /* These locate INPUT and OUTPUT in the arena, for operations that access shared tensors (engine/tensors.h). */
    struct location tensor[2];
    uint64_t flags;
    /* `tuner` is the code of the tested candidate, or 0 for the choice by cost. */
    uint64_t tuner;
    /* `fingerprint` is that of the line for a one-sided operation, which stays here for longer. */
    uint64_t fingerprint;
    struct stamp stamp;
};
/* The control block of one rank. */
struct control {
    /* `waiters` counts the threads asleep on one of this rank's words. */
    _Alignas(512) _Atomic uint32_t waiters;
    /* `alert` is 1 if the rank must read the failure. Every arrival reads this cache line anyway. */
    _Atomic uint32_t alert;
    /* The rank has mapped the segment (`joined`), and has destroyed its communicator (`departed`). */
    _Atomic uint32_t joined, departed;
    /* These are 1 while the rank may access shared tensors of other ranks, for a collective or for a message. */
    _Atomic uint32_t touching, copying;
    /* A peer with work for the rank's transport rings the bell. */
    _Alignas(128) _Atomic uint32_t bell;
    _Atomic uint32_t bell_waiters;
    /* `listening` is an enum listening. */
    _Atomic uint32_t listening;
    /* `core` is the wait_core() of its last wait; this cache line is seldom written. */
    _Atomic uint32_t core;
};
/* A rank that LISTENS_NOT polls, so a peer need not ring. For a rank that LISTENS a peer rings when it has work. The
   thread of a DEFERRED rank does other work, so a peer rings only after it has waited for the rank without result. */
enum listening { LISTENS_NOT, LISTENS, DEFERRED };
/* Sets this rank's `listening` to LISTENS, so that peers ring its bell. A rank that is about to sleep calls this and
   then polls once more; a peer first stores its data and then reads `listening`. Both have a fence in between, so at
   least one of them sees the other. On x86 the exchange is such a fence; elsewhere loads may pass it. */
static inline void bell_listen(struct control *mine)
{
    if (atomic_load_explicit(&mine->listening, memory_order_relaxed) == LISTENS) return;
    atomic_exchange(&mine->listening, LISTENS);
    fence_between_store_and_load();
}
/* The state has the bits READY and TELLING, and the number of claims above them, in units of CLAIM. TELLING means that
   a rank is writing the reason of the failure, and READY that the reason can be read. The failure is certain if either
   bit of CERTAIN is set. A rank claims before it fails the group, and withdraws the claim if it finds at the last
   moment that all ranks have arrived. */
enum { FAILURE_NONE, FAILURE_READY = 1, FAILURE_TELLING = 2, FAILURE_CERTAIN = 3, FAILURE_CLAIM = 4 };
/* The first error of the group. */
struct failure {
    _Atomic uint32_t state;
    int32_t status, rank;
    /* `operation` is the number, from 0, of the first collective that fails on every rank. */
    _Atomic uint64_t operation;
    char detail[500];
    /* In groups of several hosts: 1 + the index of the rank that was first to claim a failure, and to decide. The
       record is in that rank's account. */
    _Atomic uint32_t first[2];
    /* A rank of the host has warned of a slow collective. */
    _Atomic uint32_t slow_was_told;
};
/* Words of a set of cores, with 64 bits each, and room for the machine parameters. */
enum { CORE_WORDS = 16, PARAMETERS_BYTES = 320 };
/* The data of a rank that joins (join/calibration.c). */
struct join_info {
    /* The cores that the rank may run on, with one bit for each. */
    uint64_t cores[CORE_WORDS];
    /* `nonce_at` is the address of the nonce in its process (host/reading.h). */
    uint64_t nonce_at;
    /* `admits` is 1 if other processes can put fences into its threads (base/fence.h). */
    uint64_t admits;
    /* The first rank of the host and this rank write `ping` in turns. `answer_core` is this rank's wait_core() at its
       last answer, and `core` the one at which it joined, which decides whether it is pinged. */
    _Alignas(128) _Atomic uint32_t ping;
    _Atomic uint32_t core, answer_core;
};
/* Counts the ranks that have joined. The last one sets `all_joined` to 1. `waiters` counts the threads asleep on
   `all_joined`. */
struct join_counter { _Alignas(128) _Atomic uint32_t joined, all_joined, waiters; };
/* The first rank of the segment writes this record when all ranks have joined. `ready` is 1 once the rest is valid. The
   parameters are those of the machine and of its networks, for cores at that `distance` (model/machine.h). */
struct calibration_record {
    _Atomic uint32_t ready;
    /* The number of threads asleep on `ready`. */
    _Atomic uint32_t waiters;
    int32_t distance;
    unsigned char parameters[PARAMETERS_BYTES];
};
enum { MOST_TUNERS = 64, SURVEY_CALLS = 12 };
/* The shared state of one tuner (tuning/tuner.h). */
struct tuner_line {
    _Alignas(64) _Atomic uint64_t word;
    /* The number of the call of this kind, from 1, that runs the first entry of the survey; 0: there has been none. An
       entry is the code that one call runs, or 0. */
    _Atomic uint64_t survey_from;
    _Atomic uint32_t survey[SURVEY_CALLS];
};
/* The state of the tuners of the group. */
struct tuning {
    _Alignas(128) struct tuner_line lines[MOST_TUNERS];
    /* A bit is set for each collective for which a rank asks for an algorithm. */
    _Atomic uint32_t asked;
};
/* The sizes from which every rank computes the layout. The segment has `ranks` of the `columns` ranks of a group. */
struct segment_shape {
    int ranks, columns;
    /* The bytes of all slots of one rank, and of one ordered pair of ranks. */
    size_t slot_bytes, pair_bytes;
    /* The bytes of one rank's account of a failure; 0 in a group on one host. */
    size_t account_bytes;
};
/* The segment as this process maps it. Slots and pairs take whole pages. */
struct segment {
    int ranks, columns;
    size_t bytes, slot_bytes;
    unsigned char *base;
    struct failure *failure;
    struct join_counter *join_counter;
    struct calibration_record *calibration_record;
    struct tuning *tuning;
    /* A rank writes its cores before it sets `joined`. */
    struct join_info *join_infos;                /* [ranks]                                                 */
    struct control *controls;                          /* [ranks]                                                 */
    struct line *lines;                                /* [ranks][TRACKS]                                         */
    struct declaration *declarations;                  /* [ranks][DECLARATIONS]                                   */
    uint64_t *counts;                                  /* [ranks][2 parities][4 arrays][columns]                  */
    unsigned char *accounts;                           /* [ranks][account_bytes]                                  */
    size_t account_bytes;
    unsigned char *slots;                              /* [ranks][slot_bytes]                                     */
    unsigned char *pairs;                              /* [ranks][ranks][pair_bytes], owned by the transport      */
    size_t pair_bytes;
};
/* Creates the memfd of a segment, maps it and writes `nonce` into it. A rank that maps it later checks the nonce, which
   proves that the memory is shared. NO_MEMORY names the bytes, SYSTEM the refused call. The caller sends *fd to other
   processes, which need it to map the segment, and closes it. */
tutti_status segment_create(struct segment *out, const struct segment_shape *shape, const unsigned char nonce[16],
    int *fd);
/* Maps a segment that a peer has created and closes fd. It fails with SYSTEM if size, seals or nonce are wrong. */
tutti_status segment_attach(struct segment *out, const struct segment_shape *shape, const unsigned char nonce[16],
    int fd);
/* Unmaps a segment; NULL and a zeroed segment are allowed. */
void segment_detach(struct segment *segment);
/* Allocates the pages of `bytes` bytes at address `at` in the segment before they are accessed, so that a full machine
   gives an error instead of SIGBUS. The text of NO_MEMORY names the bytes and their purpose, `what`. */
tutti_status segment_reserve(const struct segment *segment, void *at, size_t bytes, const char *what);
/* Gives the whole pages of a reserved range back to the system. They read as zeros, and must be reserved again before
   their next use. */
void segment_give_back(const struct segment *segment, void *at, size_t bytes);
/* The functions below return the part of one rank. They take its `index` on this host (its local rank), which differs
   from its rank in the group. */
static inline struct control *segment_control(const struct segment *segment, int index)
{
    return &segment->controls[index];
}
static inline struct line *segment_line(const struct segment *segment, int index, int track)
{
    return &segment->lines[index * TRACKS + track];
}
/* Returns the declaration of a rank for an operation with that number; later operations use the same memory. */
static inline struct declaration *segment_declaration(const struct segment *segment, int index, uint64_t operation)
{
    return &segment->declarations[(uint64_t)index * DECLARATIONS + operation % DECLARATIONS];
}
static inline struct join_info *segment_join_info(const struct segment *segment, int index)
{
    return &segment->join_infos[index];
}
static inline unsigned char *segment_account(const struct segment *segment, int index)
{
    return segment->accounts + (size_t)index * segment->account_bytes;
}
static inline unsigned char *segment_slots(const struct segment *segment, int index)
{
    return segment->slots + (size_t)index * segment->slot_bytes;
}
/* A rank has four arrays of counts: the lengths of INPUT and OUTPUT, and from COUNTS_OFFSETS on the offsets of both. */
enum { COUNTS_OFFSETS = 2, COUNTS_ARRAYS = 4 };
/* Returns the bytes of all arrays of counts of one rank. */
static inline size_t segment_counts_bytes(const struct segment *segment)
{
    return 2 * COUNTS_ARRAYS * (size_t)segment->columns * sizeof(uint64_t);
}
/* Returns one of a rank's arrays of counts, with an entry for each rank of the group. `parity` is 0 or 1: operations
   alternate between two copies. */
static inline uint64_t *segment_counts(const struct segment *segment, int index, int parity, int array)
{
    return segment->counts
        + (((size_t)index * 2 + (size_t)parity) * COUNTS_ARRAYS + (size_t)array) * (size_t)segment->columns;
}
/* Returns the region for messages from one rank to another, both by their index on this host. */
static inline unsigned char *segment_pair(const struct segment *segment, int from, int to)
{
    return segment->pairs + ((size_t)from * (size_t)segment->ranks + (size_t)to) * segment->pair_bytes;
}
