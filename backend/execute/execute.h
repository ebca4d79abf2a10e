/* The executor: runs one rank's schedule of one operation, tile by tile. It never blocks: at a wait that is not met
 * it returns, and goes on from there when called again. It is the one place where schedules, the host's shared
 * memory, the router and the kernels meet.
 *
 * Every operation begins with a roll call: a rank writes what it is about to do into its line, then says that it has
 * arrived; nobody goes beyond the prelude of its schedule (copies into its own slots) before all have arrived and
 * agree, or in a one-sided operation (tracks.h) all those whose data it needs. An operation whose plan depends on where
 * the ranks' tensors lie, or on their counts, has no steps before the roll call. So a disagreement is found by every
 * rank before any output is touched, and whoever has arrived in operation n has finished n - 1. Where all await all,
 * two lines, used in turns, and slots that are not those of the last such operation need no other protection. */
#pragma once
#include "backend/execute/program.h"
#include "backend/execute/rows.h"
#include "backend/host/reading.h"
#include "backend/host/segment.h"
#include "backend/host/wait.h"
#include "kernels/reduce.h"
#include "kernels/stream.h"

/* Of which buffer the lengths must be equal on all ranks; or what one sends is what the other expects. */
enum { ALIKE_INPUT = INPUT, ALIKE_OUTPUT = OUTPUT, IN_PAIRS };
struct uneven {                                         /* bytes, by peer; each array has an entry per rank */
    size_t *lengths[2], *offsets[2];                    /* [INPUT], [OUTPUT]; a buffer of one part: its first entry */
    int agreement;                                      /* all_gather_v: ALIKE_OUTPUT, reduce_scatter_v: ALIKE_INPUT */
};
static inline bool uneven_is_alike(const struct uneven *u) { return u->agreement != IN_PAIRS; }
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
    const struct rows *rows;                            /* what becomes of the rows of the sum, or NULL */
    bool rows_early;                                    /* once the program is known: see rows.h */
    bool ordinary;                                      /* slots are written by ordinary stores */
    bool short_laps;                                    /* slots come round soon: slots.c */
};
enum { SEEN_COUNTER, SEEN_SLOTS, SEEN_COUNT = SEEN_SLOTS + MAX_SLOTS };
struct operand {
    unsigned char *base;
    const size_t *lengths, *offsets;
    size_t bytes;                                       /* that are mapped */
    const struct source *source;                        /* base is an address of that process; NULL: of this one */
};
struct unread { int rank; enum buffer buffer; int error; };            /* a peer's tensor; -errno, 0: none is */

struct site {                                           /* where it runs; constant once the group has been joined */
    const struct segment *segment;
    struct control *mine;
    struct line *lines;                                 /* mine */
    struct control *contact;                            /* where messages ring */
    struct router *router;
    int rank, index, ranks;                             /* mine in the group and on this host; how many are here */
    bool spread;                                        /* the group has several hosts */
    const struct place *places;                         /* of each rank of the group */
    const int *rank_at;                                 /* by index */
    int polls;                                          /* looks at a counter before it returns, with one tile */
    stream_function *stream;                            /* a copy around the cache, or NULL */
    bool paced;                                         /* slots are written so if it is better at present: pace.h */
    size_t cache_bytes;                                 /* the last cache of the host's ranks, all of them */
    size_t ring_bytes;                                  /* of each rank's slots, those that operations go round in */
};
struct ring {                                           /* of slots.c; equal on all ranks of the host but `reserved` */
    size_t first, at, taken;                            /* where the last slots begin and end; bytes ever */
    size_t reserved[4];                                 /* of my slots that are real memory: halves, ring, tracks */
};
struct last { uint64_t number, base; };                 /* an operation, from 1 (0: none), and where it counts from */
struct tracks {                                          /* of tracks.c; equal on all ranks that have come as far */
    struct last last[TRACKS];                            /* that used the track */
    int at, other, newest;                              /* of the next operation; see tracks.c; farthest in the ring */
    unsigned turn;                                      /* operations in which all await all, so far */
    uint64_t joined; /* mine: the last operation in which all have been, and agreed */
    uint64_t trail;                                     /* of the one-sided operations so far */
};
/* How long after its announcement a tiny operation first looks for its peers: roll_call.c. */
struct first_look { unsigned after, at_once; };         /* in parts of a step; so many more of them look at once */
struct run {                                            /* of the operation that runs */
    struct declaration *declaration;                    /* mine, where the others read it */
    struct operand operand[2];
    const struct program_cut *cut;                              /* the program's */
    size_t slots_at;                                    /* where its slots begin, in those of each rank */
    int track, parity;                                   /* of lines; of counts and large slots */
    int low, roll, pc[MAX_SLOTS];
    size_t extent;                                      /* of uneven counts, once they are agreed on */
    bool exposed;                                       /* the declaration names my tensors: peers may be at them */
    bool started, arrived, agreed, looked;
    bool deferred, one_sided;                           /* it had no program when it began; see tracks.h */
    tutti_status message_status;                        /* why a message failed, or OK */
    const struct transfer *failed_message;              /* which one */
    struct unread unread;
    uint64_t kind, fingerprint;                         /* of the declaration: without and with the sequence */
    uint64_t history;                                   /* the name of all calls so far; 0 on one host */
};
struct executor {
    struct site site;
    struct ring ring;
    struct tracks tracks;
    struct publisher publisher;                         /* of my counters, in one-sided operations */
    struct first_look first_look;
    uint64_t base, operation;                           /* of counters; of collectives: equal on the host */
    uint64_t (*seen)[SEEN_COUNT];                       /* per peer: the highest positions read so far */
    struct operand (*theirs)[2];                        /* per peer: its tensors, where the program touches them */
    uint64_t moves;                                     /* steps performed, ever: tells waiting from working */
    bool core_is_shared;                                /* others have waited on my core: no polls then */
    bool counts_reserved;                               /* my uneven counts are real memory */
    struct launch launch;                               /* whoever begins an operation fills it, and the declaration */
    struct run run;
    int blocked_peer;                                   /* why it is blocked: a rank, or -1: a message */
    struct wait_set blocked;
};
/* What the rank with that index says of an operation of the last DECLARATIONS. */
static inline struct declaration *executor_declaration(const struct executor *x, int index, uint64_t operation)
{
    return segment_declaration(x->site.segment, index, operation);
}
static inline int site_index(const struct site *s, int rank) { return s->places[rank].index; } /* of a rank here */
static inline int site_rank(const struct site *s, int index) { return s->rank_at[index]; }

/* The segment is that of the rank's host. */
tutti_status executor_init(struct executor *x, const struct segment *segment, const struct layout *layout, int rank,
    stream_function *stream, bool paced);
void executor_reach_out(struct executor *x, struct control *contact);
void executor_connect(struct executor *x, struct router *router);
/* polls: looks at a counter before a small operation returns; cache and ring as in struct site; may_be_bare as in
   struct publisher. */
void executor_tune(struct executor *x, int polls, size_t cache_bytes, size_t ring_bytes, bool may_be_bare);
void executor_finish(struct executor *x);
/* Chooses the line of the next operation, and with it the declaration to fill. */
void executor_prepare(struct executor *x);
/* To be called when anything but the sequence has been written into the declaration. */
void executor_describe(struct executor *x);
/* Announces the operation that launch and declaration say. An error leaves nothing announced. */
tutti_status executor_begin(struct executor *x);
/* The last operation once more, which was one tile without messages and is bound to the same: as far as it gets. */
tutti_status executor_again(struct executor *x);
/* Of an operation without a program: waits for all to come and agree, as executor_step does. OK: launch.program may be
   chosen now. */
tutti_status executor_roll_call(struct executor *x);
/* Then goes on with it. IN_PROGRESS: not, because the group has failed meanwhile. */
tutti_status executor_start(struct executor *x);
/* As far as it gets. IN_PROGRESS: blocked says on what. MISMATCH: see executor_disagreement. */
tutti_status executor_step(struct executor *x);
/* Whoever waits for a rank that is on the same core must leave it the core at once; who waits for ranks of other cores
   only had better stay. So whoever waits says where; true: another rank of this host that is to move waited here. */
bool executor_core_is_wanted(struct executor *x);
/* Gives up the operation that runs: no buffer of the caller is touched any more. false: a transport has not let go of a
   transfer yet; poll the router, and ask again. All are asked at once, so this goes on for TRANSPORT_CANCEL_MS at
   most. */
bool executor_cancel(struct executor *x);
/* The rank (of this host) whose declaration differs from mine, or -1; and the first operation about which it does,
   counted from 0: this one, or a one-sided one before it. */
int executor_disagreement(const struct executor *x, uint64_t *operation);
bool executor_has_arrived(const struct executor *x, int rank);
bool executor_is_complete(const struct executor *x);   /* the roll call ends now, unless somebody fails meanwhile */

/* ---- between hosts ---- */
/* What messages of the operation that runs say of it: its number, and a fingerprint of all calls of this rank so far.
   So ranks that have once differed differ from then on, and no message of theirs meets. */
static inline uint64_t executor_name(const struct executor *x)         /* the top bit is the users' */
{
    return x->run.history << 33 >> 1 | (uint32_t)x->operation;
}
static inline uint64_t executor_fingerprint_of(uint64_t name) { return name >> 32; }
void executor_awaits(const struct executor *x, bool *out); /* [size]: sets those whose messages it waits for */
