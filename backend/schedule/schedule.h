/* The data model. A collective is one *schedule* per rank: a list of copy, reduce, send and recv steps over *spans*
 * (rank, buffer, range of chunks). If a span names a peer of the same host, the step reads or writes the peer's memory;
 * messages go to any rank. Algorithms (backend/collectives) only record steps; the builder infers which step waits for
 * which. A *plan* holds the schedules of several ranks, its members: those of one host, to run them, or all, to prove
 * them.
 *
 * Names are versions. Every chunk has one writing rank, which sees its own updates in program order. All other ranks
 * see INPUT as its caller passed it, and OUTPUT and SCRATCH as they are finally left, without intermediate values. In
 * place means only that INPUT and OUTPUT chunks share *cells*; a cell is the memory of one chunk. A send or recv step
 * posts its message and returns; the k-th send of rank a to rank b is the message of the k-th receive of b from a. */
#pragma once
#include "backend/schedule/layout.h"
#include "backend/schedule/mask.h"

/* ---- what algorithms use ---- */
enum buffer { INPUT, OUTPUT, SCRATCH };
/* `first` and `count` are in chunks. */
struct span { int rank; enum buffer buffer; int first, count; };
enum collective {
    ALLREDUCE,
    REDUCE,
    BROADCAST,
    REDUCE_SCATTER,
    ALLGATHER,
    ALL_TO_ALL,
    GATHER,
    SCATTER,
    BARRIER,
    COLLECTIVE_COUNT
};
/* The number of chunks of each buffer before schedule_cut (p: the number of ranks). ALLREDUCE, BROADCAST, REDUCE,
   BARRIER: INPUT 1, OUTPUT 1. ALLGATHER, GATHER: INPUT 1, OUTPUT p. REDUCE_SCATTER, SCATTER: INPUT p, OUTPUT 1.
   ALL_TO_ALL: p and p. Only the root has OUTPUT in REDUCE and GATHER, and INPUT in BROADCAST and SCATTER; a step that
   touches an absent buffer is a build error. In a BARRIER every OUTPUT holds every contribution at least once. */

enum step_kind { WORK, SEND, RECV, AWAIT, LEAVE };
/* Which tile of the peer a wait refers to: the same tile; the earlier tile that had the slot; all tiles of the
   operation. */
enum lag { SAME_TILE, SLOT_REUSE, EVERY_TILE };
/* A step waits until rank `rank` has done `step`, or, if that is its own rank, until the message that it posted at
   `step` is complete. */
struct wait { int rank, step; enum lag lag; };
/* WORK: to[0] = to[1] = … = from[0] + from[1] + …. SEND: the froms as one message. RECV: one message into the tos.
   AWAIT: only waits for messages of this rank. LEAVE: the last step of a rank whose tensors peers may use; it waits
   until they have used them in all tiles. */
struct step {
    enum step_kind kind;
    /* SEND: the receiver, and the number of this message among the tile's messages to it, from 0. RECV: the sender, and
       the number among those from it. For other kinds peer is -1. */
    int peer, number;
    /* schedule.spans[span …]: first the froms, then the tos. */
    int span, from_count, to_count;
    /* schedule.waits[wait …] */
    int wait, wait_count;
    /* The step makes the full sum, in OUTPUT or in the SCRATCH that is copied to OUTPUT; an average divides here. */
    bool finish;
    /* The step copies INPUT into a slot in a plan with stage_inputs; PREMUL_SUM multiplies here. */
    bool premultiplies;
    /* After this step the rank publishes its position: by_tile: in every tile; by_reuse: in tiles whose slot a later
       tile reuses; by_leave: in the last tile of every slot. */
    bool by_tile, by_reuse, by_leave;
};
/* The steps of one rank. */
struct schedule {
    enum collective collective;
    /* size: the number of ranks of the group. */
    int rank, size, root;
    struct place place;
    /* The number of pieces into which schedule_cut has cut each chunk of INPUT and OUTPUT; 1: it was not called. */
    int cut;
    /* The number of chunks of each buffer. */
    int chunks[3];
    /* True: this rank does not have the buffer. */
    bool absent[3];
    const struct layout *layout;
    /* Sticky: the first error, or NULL. */
    const char *error;
    /* The other rank that caused the error, or -1. */
    int error_rank;
    struct step *steps;
    struct span *spans;
    struct wait *waits;
    int step_count, step_room, span_count, span_room, wait_count, wait_room;
    /* Steps before this one only copy the rank's tensors into its SCRATCH, so they may run before the peers arrive. */
    int prelude;
    /* The first and the last step that posts a message; -1: none. */
    int first_message, last_message;
};
/* Records the steps of the schedule's rank. */
typedef void record_function(struct schedule *);

/* A team: ranks that work together on a part of the message, in one stage of an algorithm. It has `size` members, and
   `me` is the index of this rank among them; in a team across hosts, `me` is the index of the member on this rank's
   host. `kind` and `slice` decide which rank a member is (team_rank). Piece i is chunk base + i, and i wraps at
   `pieces`. `source` holds a rank's contribution: INPUT, or OUTPUT if an earlier stage has left it there. The result is
   left in OUTPUT. One function serves a flat group (team_of_group) and one level of a hierarchy (team_of_host,
   team_across_hosts). */
struct team { const struct layout *layout; int kind, slice, size, me, base, pieces; enum buffer source; };

/* Records to = from. Either span may belong to a peer on this host. */
void step_copy(struct schedule *schedule, struct span to, struct span from);
/* Records into (op)= from. */
void step_reduce(struct schedule *schedule, struct span into, struct span from);
/* Records that a message with the chunks of a span is sent to a peer, or received from it into a span. */
void step_send(struct schedule *schedule, struct span from, int peer);
void step_recv(struct schedule *schedule, struct span into, int peer);
/* Adds one more span to the message just recorded. */
void step_add_span(struct schedule *schedule, struct span more);
/* Cuts every chunk of INPUT and OUTPUT into `pieces` chunks. An algorithm that cuts must do so before its first
   step. */
void schedule_cut(struct schedule *schedule, int pieces);
bool spans_are_equal(struct span a, struct span b);
/* span_of_chunk returns the span of one chunk, and span_of_buffer that of all chunks of a buffer. */
struct span span_of_chunk(int rank, enum buffer buffer, int index);
struct span span_of_buffer(const struct schedule *schedule, int rank, enum buffer buffer);
/* Adds `count` chunks to the SCRATCH of this rank and returns their span. */
struct span span_new_scratch(struct schedule *schedule, int count);
/* Returns the team of all ranks, and the team of the ranks on this rank's host. */
struct team team_of_group(const struct schedule *schedule);
struct team team_of_host(const struct schedule *schedule);
/* Returns the team that carries a slice of the message between the hosts: one rank of each host. */
struct team team_across_hosts(const struct schedule *schedule, int slice);
/* Returns the rank at an index of the team. Indices wrap: index `size` is the first rank, and -1 the last. */
int team_rank(const struct team *team, int index);

/* ---- the table of algorithms (backend/collectives) ---- */
struct algorithm {
    /* Unique within its collective, for example "ring". */
    const char *name;
    enum collective collective;
    record_function *record;
    /* The algorithm touches peers' memory, so all ranks must be on one host. */
    bool host_memory;
    /* It touches peers' memory on a host and sends between hosts, so it works for any layout. */
    bool hierarchical;
    /* In place, sent chunks must be copied first, or all ranks would wait for each other. One host cannot detect this
       alone, so the table declares it, and a test verifies it. */
    bool stage_in_place;
    /* It does not support uneven counts. */
    bool equal_chunks;
    /* It cuts the message by the number of hosts, or goes from host to host, so for many hosts it is used only if a
       caller names it. */
    bool few_hosts;
};

/* ---- plans ---- */
/* Sums and maxima over the members of a plan, which no schedule of one rank tells. All ranks count the same. */
struct plan_counts {
    /* The number of members that write into slots. */
    int slot_writers;
    /* The most sources and destinations of a WORK step. */
    int sources, destinations;
    /* The most chunks that a member computes in a tile, and the most that it only copies. */
    int computed, copied;
};
/* A rank that sums private tensors of peers reads them in blocks. This is the number of bytes that the blocks of all
   peers have together. */
enum { READ_BLOCK = 64 << 10 };
struct plan {
    const struct algorithm *algorithm;
    const struct layout *layout;
    int root;
    /* True: the members are the ranks of `host`, in order; false: all ranks. */
    bool one_host;
    int host;
    /* The number of tiles in flight. */
    int slots;
    /* Masks of members whose INPUT and OUTPUT are one tensor, and of members whose tensors lie in memory that the
       host's ranks share. Other tensors are staged, unless can_read_private is set. */
    const uint64_t *in_place, *shared;
    /* Peers of the same host can read tensors that are not shared, but cannot write them. */
    bool can_read_private;
    /* The builder stages the INPUT chunks that are sent and also overwritten. */
    bool stage_sends;
    /* The builder stages every INPUT chunk (PREMUL_SUM). */
    bool stage_inputs;
    /* Receives are posted as early as possible. */
    bool hoists_receives;
    /* The built plan keeps only the schedule of `rank`, to run it. */
    bool one_rank;
    int rank;

    /* The number of ranks of the group, and of members. */
    int size, count;
    /* The number of steps of the members' longest schedule. */
    int period;
    struct plan_counts counts;
    /* A member sends or receives. */
    bool has_messages;
    /* All ranks are on one host, some member does not need all others, and no member writes a peer's memory or has a
       LEAVE. */
    bool one_sided;
    /* Mask of open members that are staged to cure a cycle. */
    uint64_t *unshared;
    /* After a failed build: the rank that waits for itself, or -1. */
    int cycle_rank;
    char error[160];
    /* The schedules of the members, or the one that is kept. */
    struct schedule *ranks;
    /* 1 + the member whose schedule is kept; 0: all are. */
    int kept;
};
/* Records the algorithm's steps for every member, and infers all waits. The caller zeroes the plan and fills the fields
   down to `rank`; it owns the masks. TUTTI_OK; TUTTI_NO_MEMORY; TUTTI_INTERNAL with error filled (cycle_rank >= 0:
   staging may cure it). The caller calls plan_finish in every case. */
tutti_status plan_build(struct plan *plan);
/* Builds the plan as plan_build does. While the steps form a cycle, it stages more tensors and builds again. */
tutti_status plan_build_staging(struct plan *plan);
/* Frees the memory that the plan holds, but not the plan. */
void plan_finish(struct plan *plan);
/* Returns the memory of a built plan in bytes, with the struct itself. */
size_t plan_held_bytes(const struct plan *plan);
/* Runs a plan of all ranks symbolically: `operations` in a row of `tiles` tiles each. `seed` chooses the next step (0:
   in order). True: the plan is proved. False: `why` describes the error and its place. */
bool plan_check(const struct plan *plan, int tiles, int operations, unsigned seed, char *why, size_t why_bytes);
/* Writes the plan as text into the buffer. Returns the length of the whole text, as snprintf does. */
size_t plan_print(const struct plan *plan, char *buffer, size_t capacity);

/* Sets out[peer] for the peers that this rank awaits in an operation of one tile (no slot is reused), or whose memory
   it reads; returns their number. `out` has `size` entries, all false. */
int schedule_find_needed_peers(const struct schedule *schedule, bool *out);
/* True if `rank` has the buffer in this collective. Every rank has SCRATCH. */
bool collective_has_buffer(enum collective collective, int root, int rank, enum buffer buffer);
/* True if one rank, the root, has other buffers than the rest. */
bool collective_has_root(enum collective collective);
/* True if the collective sums: ALLREDUCE, REDUCE, REDUCE_SCATTER. */
bool collective_is_reduction(enum collective collective);
/* Returns the number of chunks of INPUT or OUTPUT before schedule_cut: `size`, the number of ranks, or 1. */
int collective_count_chunks(enum collective collective, enum buffer buffer, int size);
/* Returns the number of members, also before the plan is built. */
static inline int plan_count_members(const struct plan *plan)
{
    return plan->one_host ? layout_host_size(plan->layout, plan->host) : plan->layout->ranks;
}
/* plan_member_of_rank returns the member number of a rank, or -1; plan_rank_of_member returns the rank of a member. */
static inline int plan_member_of_rank(const struct plan *plan, int rank)
{
    if (!plan->one_host) return rank;
    struct place at = layout_place(plan->layout, rank);
    return at.host == plan->host ? at.index : -1;
}
static inline int plan_rank_of_member(const struct plan *plan, int member)
{
    return plan->one_host ? layout_rank(plan->layout, plan->host, member) : member;
}
/* Returns the schedule of a rank. NULL: the rank is not a member, or its schedule is not kept. */
static inline struct schedule *plan_schedule_of_rank(const struct plan *plan, int rank)
{
    int member = plan_member_of_rank(plan, rank);
    if (plan->kept) return member == plan->kept - 1 ? plan->ranks : NULL;
    return member >= 0 ? &plan->ranks[member] : NULL;
}
static inline bool step_is_message(const struct step *step) { return step->kind == SEND || step->kind == RECV; }
/* Returns the spans that a step reads (from_count spans), or writes (to_count spans). */
static inline struct span *step_from(const struct schedule *schedule, const struct step *step)
{
    return &schedule->spans[step->span];
}
static inline struct span *step_to(const struct schedule *schedule, const struct step *step)
{
    return &schedule->spans[step->span + step->from_count];
}
/* Returns the number of chunks in all spans of the step. For a message, that is its length. */
static inline int step_count_chunks(const struct schedule *schedule, const struct step *step)
{
    int chunks = 0;
    for (int i = 0; i < step->from_count + step->to_count; i++) chunks += schedule->spans[step->span + i].count;
    return chunks;
}
/* plan_is_in_place: INPUT and OUTPUT of the rank are one tensor. plan_is_shared: peers can read and write the rank's
   tensors, and they are not staged. */
static inline bool plan_is_in_place(const struct plan *plan, int rank)
{
    return mask_has(plan->in_place, plan_member_of_rank(plan, rank));
}
static inline bool plan_is_shared(const struct plan *plan, int rank)
{
    int member = plan_member_of_rank(plan, rank);
    return mask_has(plan->shared, member) && !mask_has(plan->unshared, member);
}
/* True if peers can read the rank's tensors where they lie. */
static inline bool plan_is_open(const struct plan *plan, int rank)
{
    return plan_is_shared(plan, rank)
        || (plan->can_read_private && !mask_has(plan->unshared, plan_member_of_rank(plan, rank)));
}
/* Returns the number of the cell that holds a chunk. A rank's cells are numbered INPUT first, then OUTPUT and SCRATCH.
   In place, INPUT and OUTPUT share cells: the smaller buffer lies inside the larger. */
static inline int plan_cell_index(const struct plan *plan, int rank, enum buffer buffer, int index)
{
    const int *chunks = plan->ranks[0].chunks;
    int in = chunks[INPUT], out = chunks[OUTPUT];
    if (plan_is_in_place(plan, rank) && buffer == OUTPUT && out <= in) return out == in ? index : index + rank * out;
    if (plan_is_in_place(plan, rank) && buffer == INPUT && in < out) return in + index + rank * in;
    return index + (buffer == INPUT ? 0 : buffer == OUTPUT ? in : in + out);
}
/* True if the rank publishes its position after this step of tile `tile` (of `tiles`), because a peer awaits it. */
static inline bool step_publishes(const struct step *step, int tile, int tiles, int slots)
{
    return step->by_tile || (step->by_reuse && tile + slots < tiles) || (step->by_leave && tile + slots >= tiles);
}

/* ---- cache ---- */
/* Plans by key, each with an object that its owner may make of it (a program). If all together take more than
   `max_bytes`, the least recently used ones are evicted. */
struct plan_cache;
/* The cache asks its owner whether it may evict a plan. True: it may, and the owner has freed `made`, the object made
   of the plan (or NULL). */
typedef bool plan_release(void *context, const struct plan *plan, void *made);
/* `release` NULL: every plan may be evicted, and no objects are made of plans. Returns NULL if memory is lacking. */
struct plan_cache *plan_cache_create(size_t max_bytes, plan_release *release, void *context);
/* Evicts all plans; `release` must not refuse. NULL is fine. */
void plan_cache_destroy(struct plan_cache *cache);
/* Returns the plan of a key, and builds it if it is new. The key is all that the caller of plan_build fills, except
   stage_sends. `layout` must outlive the cache; the masks are copied. *out stays valid until the next call for another
   plan, and then until `release` allows its eviction. */
tutti_status plan_cache_get(struct plan_cache *cache, const struct plan *key, const struct plan **out);
/* Attaches an object that takes `bytes` bytes to the plan that plan_cache_get returned last; once per plan. */
void plan_cache_attach_made(struct plan_cache *cache, const struct plan *plan, void *made, size_t bytes);
/* Returns the object of a plan in a cache; NULL: not attached yet. */
void *plan_cache_get_made(const struct plan *plan);
/* Sets another bound, which applies when the next plan or object is added. */
void plan_cache_set_limit(struct plan_cache *cache, size_t max_bytes);
/* Returns the bytes that all plans and their objects take. */
size_t plan_cache_held_bytes(const struct plan_cache *cache);
