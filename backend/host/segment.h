/* What the ranks of one host share: for each rank lines, a control block and a region of slots, in one memfd (sealed:
   it cannot shrink), mapped by everyone. It has no name, so nothing is left behind whoever dies. Lines and control
   blocks are resident from the start; a rank's slots and counts only when it asks for them (segment_reserve), so
   hundreds of groups cost little. Every process computes where things lie by itself; no size and no offset is read from
   the shared memory. */
#pragma once
#include "backend/base/fence.h"
#include "backend/memory/arena.h"
#include <stdatomic.h>

/* How far ranks may be apart. A rank that only sends may be up to TRACKS - 1 operations ahead of one that has not come,
   so what it writes for an operation stays for as many: lines in as many tracks (which, execute/tracks.h says), small
   slots beside them, and declarations for twice as many, because a rank that lags looks back as far again, for where a
   disagreement began. Counts and large slots alternate between two: their operations have everybody wait for all. */
enum { LINE_PAYLOAD = 48, MAX_SLOTS = 8, TRACKS = 16, TRACK_BYTES = 4096, DECLARATIONS = 2 * TRACKS };
/* Two cache lines, written by one rank. A rank's lie side by side with nothing else between them and those of the next:
   who reads two of them in turns prefetches what follows at the same distance, which is a line that nobody writes just
   then. Lines of two ranks share a page: where they do not, a row of 8-byte all-reduces between far cores is a sixth
   slower. */
struct line {
    _Atomic uint64_t counter;                          /* arrival; and the position reached, if there is one tile */
    uint64_t fingerprint;                              /* valid once counter says that the rank has arrived       */
    unsigned char payload[LINE_PAYLOAD];               /* the slot of tiny messages                               */
    _Atomic uint64_t slots[MAX_SLOTS];                 /* position reached by the tile in each slot               */
};
struct stamp {                                         /* of an operation that is timed: engine/trials.h          */
    _Atomic uint64_t number;                           /* from 1; 0: none                                         */
    _Atomic int64_t begun_ns, ended_ns;                /* by this rank                                            */
};
struct declaration {                                   /* what I think we are doing, in clear, for error messages */
    uint32_t operation;                                /* enum family                                             */
    uint32_t dtype, op;
    int32_t root;
    uint64_t count, sequence, bits;                    /* bits: of the factor, and other things that must agree   */
    uint64_t tile_bytes, slots;                        /* settings that must agree                                */
    uint64_t algorithm;                                /* row of collectives_table                                */
    uint64_t extent;                                   /* the largest block, where counts are uneven              */
    uint64_t counts;                                   /* over several hosts: a digest of those all ranks give    */
    struct location tensor[2];                         /* of operations that look where tensors lie: of INPUT and */
    uint64_t flags;                                    /* OUTPUT, in the arena; see engine/tensors.h             */
    uint64_t trial;                                    /* what is tried in place of what is priced, or 0          */
    uint64_t fingerprint;                              /* of a one-sided one, as in the line, but kept for longer */
    struct stamp stamp;
};
struct control {                                       /* of one rank                                             */
    _Alignas(512) _Atomic uint32_t waiters;            /* threads asleep on one of this rank's words              */
    _Atomic uint32_t alert;                            /* 1: look at the failure. Beside what every arrival reads */
    _Atomic uint32_t joined, departed;                 /* it has mapped the segment; has destroyed the group      */
    _Atomic uint32_t touching, copying;                /* 1: it may be at shared tensors of other ranks, for a    */
                                                       /* collective, for a message                               */
    _Alignas(128) _Atomic uint32_t bell;               /* rung by whoever has something for its transport         */
    _Atomic uint32_t bell_waiters;
    _Atomic uint32_t listening;                        /* enum listening                                          */
    _Atomic uint32_t core; /* where it last waited, wait_core(); on a line seldom written */
};
/* LISTENS_NOT: it polls all the time, nobody needs to ring. LISTENS: ring when there is something for it. DEFERRED: its
   thread does other things; ring when you have waited for it in vain. */
enum listening { LISTENS_NOT, LISTENS, DEFERRED };
/* Whoever is going to sleep until the bell rings listens first, and then polls once more; who has something for it
   stores that, and then looks whether it listens. A fence on both sides (on x86 the exchange would be one, elsewhere it
   lets loads pass): so one of the two sees the other. */
static inline void bell_listen(struct control *mine)
{
    if (atomic_load_explicit(&mine->listening, memory_order_relaxed) == LISTENS) return;
    atomic_exchange(&mine->listening, LISTENS);
    fence_between_store_and_load();
}
/* Bits, and above them the number of claims. TELLING: a rank writes down why the group fails; READY: it can be read. A
   claim is that of a rank which is about to fail the group, or finds at the last moment that it need not. */
enum { FAILURE_NONE, FAILURE_READY = 1, FAILURE_TELLING = 2, FAILURE_CERTAIN = 3, FAILURE_CLAIM = 4 };
struct failure {                                       /* the first error of the group, for all its ranks         */
    _Atomic uint32_t state;
    int32_t status, rank;
    _Atomic uint64_t operation;                        /* the first collective that succeeds on nobody            */
    char detail[500];
    /* Of several hosts: 1 + the index of the rank that was first to claim a failure, to decide; its account has it. */
    _Atomic uint32_t first[2];
};
enum { CORE_WORDS = 16, PARAMETERS_BYTES = 320 };
struct introduction {                                  /* of one rank; join/calibration.c                             */
    uint64_t cores[CORE_WORDS];                        /* it may run on, a bit for each                           */
    uint64_t nonce_at;                                 /* where its process has its nonce: host/reading.h         */
    uint64_t admits;                                   /* 1: others can put fences into its threads: base/fence.h */
    _Alignas(128) _Atomic uint32_t ping;               /* goes to and fro between rank 0 and this one             */
    _Atomic uint32_t core;                             /* wait_core() when it last returned it                    */
};
struct told {                                          /* by rank 0 to the others, when all have joined           */
    _Atomic uint32_t ready;                            /* 1: the rest is there                                    */
    int32_t distance;
    unsigned char parameters[PARAMETERS_BYTES]; /* of the machine, and of what leads to other hosts        */
};
enum { TRIALS = 64 };
struct tuning {                                        /* what runs of several choices: engine/trials.h           */
    _Alignas(128) _Atomic uint64_t word[TRIALS];
    _Atomic uint32_t asked;                            /* bits: of these families a rank asks for an algorithm    */
};
struct segment_shape {
    int ranks, columns;                                /* it is for so many ranks, of a group of so many          */
    size_t slot_bytes, pair_bytes;                     /* of each rank, of each ordered pair                      */
    size_t account_bytes;                              /* of each rank: what it says of a failure; 0 on one host  */
};
struct segment {                                       /* this process's view                                     */
    int ranks, columns;
    size_t bytes, slot_bytes;                          /* slot_bytes: of one rank; whole pages                    */
    unsigned char *base;
    struct failure *failure;
    struct told *told;
    struct tuning *tuning;
    struct introduction *introductions;                /* [ranks], cores written before the rank has joined       */
    struct control *controls;                          /* [ranks]                                                 */
    struct line *lines;                                /* [ranks][TRACKS]                                         */
    struct declaration *declarations;                  /* [ranks][DECLARATIONS]                                   */
    uint64_t *counts;                                  /* [ranks][2 parities][4 arrays][columns]                  */
    unsigned char *accounts;                           /* [ranks][account_bytes], as asked for                    */
    size_t account_bytes;
    unsigned char *slots;                              /* [ranks][slot_bytes]                                     */
    unsigned char *pairs;                              /* [ranks][ranks][pair_bytes]: the transport's             */
    size_t pair_bytes;                                 /* as asked for, rounded up to whole pages                 */
};
/* Creates the memfd and maps it. `nonce` (16 bytes) is written into it; who maps it reads it back to know that memory
   is shared. NO_MEMORY names the bytes; SYSTEM names the call that was refused. The caller closes *fd. */
tutti_status segment_create(struct segment *out, const struct segment_shape *shape, const unsigned char nonce[16],
    int *fd);
/* Maps what a peer created; fails with SYSTEM when size, seals or nonce are not what they should be. Takes over fd and
   closes it. */
tutti_status segment_attach(struct segment *out, const struct segment_shape *shape, const unsigned char nonce[16],
    int fd);
void segment_detach(struct segment *segment);          /* NULL and zeroed are fine                                */
/* Makes the memory real before it is touched, so that a full machine is an error and not a SIGBUS: NO_MEMORY names the
   bytes and what they were for. */
tutti_status segment_reserve(const struct segment *segment, void *at, size_t bytes, const char *what);
/* Of the rank with that index on this host, which is not its rank in the group. */
static inline struct control *segment_control(const struct segment *s, int index) { return &s->controls[index]; }
static inline struct line *segment_line(const struct segment *s, int index, int track)
{
    return &s->lines[index * TRACKS + track];
}
static inline struct declaration *segment_declaration(const struct segment *s, int index, uint64_t operation)
{
    return &s->declarations[(uint64_t)index * DECLARATIONS + operation % DECLARATIONS];
}
static inline struct introduction *segment_introduction(const struct segment *s, int index)
{
    return &s->introductions[index];
}
static inline unsigned char *segment_account(const struct segment *s, int index)
{
    return s->accounts + (size_t)index * s->account_bytes;
}
static inline unsigned char *segment_slots(const struct segment *s, int index)
{
    return s->slots + (size_t)index * s->slot_bytes;
}
enum { COUNTS_OFFSETS = 2, COUNTS_ARRAYS = 4 };         /* lengths of INPUT and OUTPUT, then offsets of both       */
static inline size_t segment_counts_bytes(const struct segment *s)     /* of one rank                             */
{
    return 2 * COUNTS_ARRAYS * (size_t)s->columns * sizeof(uint64_t);
}
static inline uint64_t *segment_counts(const struct segment *s, int index, int parity, int array)
{
    return s->counts + (((size_t)index * 2 + (size_t)parity) * COUNTS_ARRAYS + (size_t)array) * (size_t)s->columns;
}
static inline unsigned char *segment_pair(const struct segment *s, int from, int to)
{
    return s->pairs + ((size_t)from * (size_t)s->ranks + (size_t)to) * s->pair_bytes;
}
