/* The executor: runs one rank's schedule of one operation, tile by tile. It never blocks: at an unmet wait it returns,
 * and the next call continues there. Only here do schedules, the host's shared memory, the router and the kernels meet.
 *
 * Every operation begins with a roll call. A rank writes what it is about to do into its line and publishes its
 * arrival. Only the prelude of its schedule (copies into its own slots) may run before all ranks have arrived and
 * agree. In a one-sided operation (tracks.h) a rank awaits only the ranks whose data it needs. An operation whose plan
 * depends on the placement of tensors, or on uneven counts, has no prelude. So every rank finds a disagreement before
 * any output is touched, and a rank that has arrived in operation n has finished n - 1. If all await all, two
 * alternating lines suffice, with other slots than those of the last such operation. */
#pragma once
#include "backend/execute/program.h"
#include "backend/execute/rows.h"
#include "backend/host/reading.h"
#include "backend/host/segment.h"
#include "backend/host/wait.h"
#include "backend/schedule/uneven.h"
#include "kernels/reduce.h"
#include "kernels/stream.h"

/* The values that one operation binds to a program. */
struct launch {
    /* NULL: the program is chosen after the roll call. */
    struct program *program;
    const void *input;
    void *output;
    /* Bytes of one rank's part of the message, of the message per tile, and of one element. */
    size_t part_bytes;
    size_t tile_bytes;
    size_t element_bytes;
    /* NULL if the operation reduces nothing. */
    reduce_function *reduce;
    /* Reduces with stores around the cache, or NULL. */
    reduce_streamed_function *reduce_streamed;
    /* Multiplies inputs by `factor` for PREMUL_SUM, else NULL. */
    scale_function *scale;
    double factor;
    /* The divisor of AVG, else 1. */
    int divisor;
    const struct uneven *uneven;
    /* How the rows of the sum are normalised, or NULL. */
    const struct rows *rows;
    /* True if rows are normalised as they are summed (rows.h); set once the program is known. */
    bool rows_are_early;
    /* True: slots are written by ordinary stores, whatever pace.h decides. */
    bool ordinary_stores;
    /* True: only a part of the ring of slots is used, so that slots are reused early (slots.c). */
    bool short_ring;
};
/* The numbers of the counters in a rank's line: the one of arrivals and of operations of one tile, then one for each
   slot. */
enum { LINE_COUNTER, LINE_SLOTS, LINE_COUNTERS = LINE_SLOTS + MAX_SLOTS };
/* A rank's INPUT or OUTPUT. */
struct operand {
    unsigned char *base;
    /* Uneven counts in bytes, by rank; NULL: counts are even. */
    const size_t *lengths, *offsets;
    /* Mapped bytes at `base`. */
    size_t bytes;
    /* The process that `base` is an address of; NULL: this process. */
    const struct read_source *source;
};
/* A peer's tensor that the kernel failed to read. `error` is -errno, or 0 if no read has failed. */
struct failed_read { int rank; enum buffer buffer; int error; };

/* Where the executor runs; constant once the group has been joined. */
struct site {
    const struct segment *segment;
    /* This rank's control block and lines, and the control block whose bell announces its messages. */
    struct control *own_control;
    struct line *lines;
    struct control *contact;
    struct router *router;
    /* This rank's number in the group, its index on this host, and the number of ranks on this host. */
    int rank, index, ranks;
    /* The group has several hosts. */
    bool has_several_hosts;
    /* The place of each rank of the group, and the rank at each index of this host. */
    const struct place *places;
    const int *rank_at;
    /* How often an operation of one tile polls an unmet counter again before it returns. */
    int polls;
    /* Copies around the cache, or NULL. */
    stream_function *stream;
    /* True: pace.h decides for each slot whether it is written around the cache. */
    bool is_paced;
    /* The bytes of the last-level cache, for all ranks of the host together. */
    size_t cache_bytes;
    /* The bytes of the ring within each rank's slots. */
    size_t ring_bytes;
};
/* The ring of slots (slots.c). All members but `reserved` are equal on all ranks of the host. */
struct ring {
    /* Where the slots of the last operation in the ring begin and end, and the total bytes that operations have taken
       from the ring so far. */
    size_t begin, end, taken;
    /* How many bytes of this rank's slots are real memory: two halves, the ring, the tracks. */
    size_t reserved[4];
};
/* The last operation of a track: its number, counted from 1 (0: none), and the base of its counters. */
struct track_use { uint64_t number, base; };
/* The state of tracks.c. All members but `joined` are equal on all ranks that have come to the same operation. */
struct tracks {
    struct track_use last[TRACKS];
    /* The track of the next operation, the other one of a pair (tracks.c), and the farthest one used in the ring. */
    int next, other, newest;
    /* How many operations have awaited all ranks so far. */
    unsigned turn;
    /* The number, from 1, of the last operation in which this rank has found all ranks arrived and in agreement. */
    uint64_t joined;
    /* Hash of all one-sided operations so far. */
    uint64_t one_sided_hash;
};
/* When a tiny operation first polls its peer: after `delay` / STEP steps of cpu_spin_steps (roll_call.c). The next
   undelayed_count operations poll without a delay. */
struct first_poll { unsigned delay, undelayed_count; };
/* The state of the operation that runs. */
struct run {
    /* This rank's declaration, in shared memory. */
    struct declaration *declaration;
    struct operand operand[2];
    /* The cut of the program. */
    const struct program_cut *cut;
    /* Offset of the operation's slots in each rank's slots. */
    size_t slots_at;
    /* Which line is written; which half of the counts and of the large slots is used. */
    int track, parity;
    /* The oldest tile that is not over; the peer that the roll call checks next (an index of this host, or of
       program.needed); the next step of the tile in each slot. */
    int oldest_tile, next_awaited, next_step[MAX_SLOTS];
    /* The longest block of uneven counts, set when the ranks have agreed on them. */
    size_t extent;
    /* The declaration names this rank's tensors, so peers may touch them. */
    bool tensors_declared;
    /* started: the program may run steps; arrived: the roll call is over; agreed: the counts have been compared. */
    bool started, arrived, agreed, first_poll_done;
    /* deferred: the operation began without a program. one_sided: see tracks.h. */
    bool deferred, one_sided;
    /* Why a message failed, or OK; and the message that failed. */
    tutti_status message_status;
    const struct transfer *failed_message;
    struct failed_read failed_read;
    /* Hashes of the declaration: without and with the sequence number. */
    uint64_t kind, fingerprint;
    /* Hash of all calls so far; 0 on one host. */
    uint64_t history;
};
/* The executor of one communicator. */
struct executor {
    struct site site;
    struct ring ring;
    struct tracks tracks;
    /* Publishes this rank's counters in one-sided operations. */
    struct publisher publisher;
    struct first_poll first_poll;
    /* The value from which this operation's counters count, and the number, from 0, of the operation; equal on all
       ranks of the host. */
    uint64_t base, operation;
    /* [peer][counter]: the highest positions read so far. */
    uint64_t (*seen)[LINE_COUNTERS];
    /* The tensors of each peer, if the program touches them. */
    struct operand (*peer_operands)[2];
    /* The number of steps performed so far; if it has not changed, the operation has only waited. */
    uint64_t steps_done;
    /* Another rank has waited on this rank's core, so this rank must not poll. */
    bool core_is_shared;
    /* This rank's uneven counts are real memory. */
    bool counts_reserved;
    /* The code that begins an operation fills this and the declaration. */
    struct launch launch;
    struct run run;
    /* The rank for which this one waits; -1: a message. `blocked` has the words on which it can sleep. */
    int blocked_peer;
    struct wait_set blocked;
};
/* Returns the declaration of `operation` (its number, counted from 0) by the rank with local rank `index`. It is valid
   for the last DECLARATIONS operations. */
static inline struct declaration *executor_declaration(const struct executor *executor, int index, uint64_t operation)
{
    return segment_declaration(executor->site.segment, index, operation);
}
/* site_index returns the local rank of a rank of this host, and site_rank the rank of a local rank. */
static inline int site_index(const struct site *site, int rank) { return site->places[rank].index; }
static inline int site_rank(const struct site *site, int index) { return site->rank_at[index]; }

/* Initializes the executor of `rank`. segment: that of the rank's host; stream, is_paced: see struct site.
   NO_MEMORY. */
tutti_status executor_init(struct executor *executor, const struct segment *segment, const struct layout *layout,
    int rank, stream_function *stream, bool is_paced);
/* Sets members of the site that are known only later. */
void executor_set_contact(struct executor *executor, struct control *contact);
void executor_set_router(struct executor *executor, struct router *router);
/* Sets what costs decide: polls, cache_bytes and ring_bytes of the site, and may_be_unfenced of the publisher. */
void executor_set_tuning(struct executor *executor, int polls, size_t cache_bytes, size_t ring_bytes,
    bool may_be_unfenced);
/* Frees the arrays of the executor. */
void executor_finish(struct executor *executor);
/* Chooses the line of the next operation, and sets run.declaration, which the caller fills. */
void executor_prepare_declaration(struct executor *executor);
/* Hashes the declaration without its sequence number to run.kind. The caller calls this after each change of it. */
void executor_hash_declaration(struct executor *executor);
/* Announces the operation that launch and declaration describe. After an error the operation is not announced. */
tutti_status executor_begin(struct executor *executor);
/* Begins an operation like the last one, on the buffers in launch, and runs it up to an unmet wait (IN_PROGRESS) or its
   end. It must be one tile without messages. */
tutti_status executor_repeat_operation(struct executor *executor);
/* For an operation without a program: waits like executor_run_steps until all ranks have arrived and agree. After OK
   the caller may choose launch.program. */
tutti_status executor_finish_roll_call(struct executor *executor);
/* Starts the program that was chosen after the roll call. IN_PROGRESS: the group has failed, so it was not started. */
tutti_status executor_start_program(struct executor *executor);
/* Runs the operation up to unmet waits or its end (OK). IN_PROGRESS: `blocked` has what it waits for. MISMATCH: see
   executor_find_disagreement. */
tutti_status executor_run_steps(struct executor *executor);
/* Publishes the core on which this rank waits, and sets core_is_shared. Returns true if another rank of this host that
   this one may wait for was last on the same core, so this rank must yield it at once; otherwise it should keep
   spinning. */
bool executor_publish_core(struct executor *executor);
/* Cancels the operation that runs. True: the caller's buffers are no longer touched. False: a transport still holds a
   transfer; the caller polls the router and calls again. All transfers are cancelled at once, so this takes at most
   TRANSPORT_CANCEL_MS. */
bool executor_cancel(struct executor *executor);
/* Returns the rank of this host whose declaration differs from this rank's, or -1. *operation is the first operation on
   which they differ, counted from 0: this one, or an earlier one-sided one. */
int executor_find_disagreement(const struct executor *executor, uint64_t *operation);
/* True if a rank of this host has arrived in the running operation. */
bool executor_rank_has_arrived(const struct executor *executor, int rank);
/* Returns the lowest index on this host of a rank that has not arrived in the running operation, or -1. */
int executor_find_missing_index(const struct executor *executor);
/* True if all ranks that this one awaits have arrived, so that its roll call ends unless a rank fails meanwhile. */
bool executor_roll_call_is_complete(const struct executor *executor);

/* ---- between hosts ---- */
/* Returns the name that messages of the running operation carry: its number, and a hash of all calls of this rank so
   far. After ranks have differed once, their names differ, so their messages no longer match. The top bit is left to
   the user's messages. */
static inline uint64_t executor_message_name(const struct executor *executor)
{
    return executor->run.history << 33 >> 1 | (uint32_t)executor->operation;
}
/* Returns the part of a message's name that tells different calls apart. */
static inline uint64_t executor_fingerprint_of_name(uint64_t name) { return name >> 32; }
/* Sets out[rank] for each rank with which a posted message of the running operation is not complete. `out` has an entry
   per rank of the group. */
void executor_list_awaited_ranks(const struct executor *executor, bool *out);
