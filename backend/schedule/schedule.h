/* The data model. A collective is one *schedule* per rank: a list of copy, reduce, send and recv steps over *spans*
 * (rank, buffer, range of chunks). A span may name a peer of the same host, then the step reads or writes the peer's
 * memory; messages go to anyone. Algorithms (backend/collectives) only record steps; which step waits for which is
 * inferred. A *plan* holds the schedules of several ranks, its members: those of one host, to run them; all, to prove
 * them.
 *
 * What a name means. Every chunk has one writing rank; that rank sees its own updates in program order. Everyone else
 * sees INPUT as its caller passed it, and OUTPUT and SCRATCH as they are finally left; nobody sees anything between. In
 * place means only that INPUT and OUTPUT chunks share a home. Messages: send and recv post and return; the k-th send to
 * a peer is its k-th receive from me. */
#pragma once
#include "backend/schedule/layout.h"
#include "backend/schedule/mask.h"

/* ---- what algorithms use ---- */
enum buffer { INPUT, OUTPUT, SCRATCH };
struct span { int rank; enum buffer buffer; int first, count; };  /* counted in chunks, not bytes */
enum family {
    ALLREDUCE,
    REDUCE,
    BROADCAST,
    REDUCE_SCATTER,
    ALLGATHER,
    ALL_TO_ALL,
    GATHER,
    SCATTER,
    BARRIER,
    FAMILY_COUNT
};
/* Chunks before schedule_cut (p: ranks). ALLREDUCE, BROADCAST, REDUCE, BARRIER: INPUT 1, OUTPUT 1. ALLGATHER, GATHER:
   INPUT 1, OUTPUT p. REDUCE_SCATTER, SCATTER: INPUT p, OUTPUT 1. ALL_TO_ALL: p and p. REDUCE and GATHER have OUTPUT on
   the root only, BROADCAST and SCATTER have INPUT on the root only: touching what is absent is a build error. BARRIER:
   every OUTPUT holds every contribution at least once. */

enum step_kind { WORK, SEND, RECV, AWAIT, LEAVE };
enum lag { SAME_TILE, SLOT_REUSE, EVERY_TILE };         /* which tile of the other a wait means */
struct wait { int rank, step; enum lag lag; };  /* a peer's position; of the own rank: that message is complete */
struct step {                                           /* WORK: to[0] = to[1] = … = from[0] + from[1] + … */
    enum step_kind kind;  /* SEND: the froms as one message; RECV: one message to the tos */
    int peer, number;                                   /* the number-th message of this tile to / from peer */
    int span, from_count, to_count;                     /* schedule.spans[span …]: first the froms, then the tos */
    int wait, wait_count;                               /* schedule.waits[wait …] */
    bool finish;                                        /* leaves the full sum in OUTPUT: an average divides here */
    bool raw;  /* a copy from INPUT of a plan with stage_inputs: PREMUL_SUM multiplies here */
    bool by_tile, by_reuse, by_leave;                   /* published for every tile; for tiles whose slot is reused; for
                                                           the last tile of every slot */
};
struct schedule {
    enum family family;
    int rank, size, root;
    struct place place;                                 /* my host, and my index there */
    int cut;                                            /* pieces the message of one rank is cut into */
    int chunks[3];                                      /* by buffer */
    bool absent[3];                                     /* this rank has no such buffer */
    const struct layout *layout;
    const char *error;                                  /* sticky: the first thing that went wrong, or NULL */
    int error_rank;                                     /* the rank that is to blame, if not this one; else -1 */
    struct step *steps;
    struct span *spans;
    struct wait *waits;
    int step_count, step_room, span_count, span_room, wait_count, wait_room;
    int prelude;                                        /* steps before this one only copy my tensors into my SCRATCH:
                                                           they may run before the peers have come */
    int first_message, last_message;                    /* steps between these feed the network (-1: no messages) */
};
typedef void record_function(struct schedule *);

/* A team: ranks that work together on a part of the message. Piece i is chunk base + i, and i wraps at `pieces`;
   `source` holds what a rank brings (INPUT, or OUTPUT when an earlier stage has left it there); the result is left in
   OUTPUT. One text of an algorithm serves a flat group (team_all) and one level of a hierarchy (team_host,
   team_across). */
struct team { const struct layout *layout; int kind, slice, size, me, base, pieces; enum buffer source; };

void step_copy(struct schedule *s, struct span to, struct span from);  /* either may be a span of a peer on this host */
void step_reduce(struct schedule *s, struct span into, struct span from);  /* into (op)= from */
void step_send(struct schedule *s, struct span from, int peer);
void step_recv(struct schedule *s, struct span into, int peer);
void step_also(struct schedule *s, struct span more);   /* one more span of the message just recorded */
void schedule_cut(struct schedule *s, int pieces);      /* first call of an algorithm that cuts the message */
struct span chunk(int rank, enum buffer buffer, int index);
struct span whole(const struct schedule *s, int rank, enum buffer buffer);
struct span fresh(struct schedule *s, int count);       /* new SCRATCH chunks of my own */
struct team team_all(const struct schedule *s);
struct team team_host(const struct schedule *s);
struct team team_across(const struct schedule *s, int slice);  /* the ranks that carry this slice between the hosts */
int team_rank(const struct team *t, int index);         /* index wraps */

/* ---- the table of algorithms (backend/collectives) ---- */
struct algorithm {
    const char *name;                                   /* "ring"; unique within its family */
    enum family family;
    record_function *record;
    bool host_memory;                                   /* touches peers' memory: all ranks on one host */
    bool hierarchical;                                  /* touches peers on the host, sends between hosts: any layout */
    bool stage_in_place;                                /* in place, chunks that are sent must be copied first, or all
                                                           ranks wait for each other; no host can see this alone, so it
                                                           stands here and a test keeps it true */
    bool equal_chunks;                                  /* not for uneven counts */
    bool few_hosts;                                     /* cuts the message by their number, or goes from one to the
                                                           next: never chosen for many */
};

/* ---- plans ---- */
/* What is added up straight from where peers have it is read in blocks of so many bytes, of all peers together. */
enum { READ_BLOCK = 64 << 10 };
struct plan {
    const struct algorithm *algorithm;
    const struct layout *layout;
    int root;
    bool one_host;                                      /* members: the ranks of `host`, in their order; else all */
    int host;
    int slots;                                          /* tiles in flight */
    const uint64_t *in_place, *shared;                  /* masks of members whose INPUT and OUTPUT are one tensor; lie
                                                           in memory the host's ranks share (else: are staged) */
    bool reads;                                         /* what members of the host have that is not shared, their peers
                                                           can read where it lies, but not write */
    bool stage_sends;                                   /* copy sent INPUT chunks that are overwritten */
    bool stage_inputs;                                  /* copy every INPUT chunk first (PREMUL_SUM) */
    bool hoist;                                         /* post receives as early as possible */
    bool one_rank;                                      /* once built, keeps the schedule of `rank` alone: to run it */
    int rank;

    int size, count;                                    /* ranks of the group; members */
    int period;                                         /* the longest schedule of the members, in steps */
    int slot_writers;                                   /* members that write into slots */
    bool any_message;                                   /* a member sends or receives */
    bool one_sided;                                     /* of one host: a member can do without another; and nobody
                                                           writes into a peer's memory, or waits to leave */
    uint64_t *unshared;                                 /* a mask: open members that are staged to cure a cycle */
    int cycle_rank;                                     /* after a failed build: who waits for itself, or -1 */
    char error[160];
    struct schedule *ranks;                             /* of the members; of a plan that keeps one: [1] */
    int kept;                                           /* 1 + the member whose schedule is kept; 0: of all */
};
/* The caller zeroes the plan and fills what stands above the gap; the masks stay the caller's. TUTTI_OK;
   TUTTI_NO_MEMORY; TUTTI_INTERNAL with error filled (cycle_rank >= 0: staging may cure it). plan_finish is due in every
   case. */
tutti_status plan_build(struct plan *plan);
tutti_status plan_build_staging(struct plan *plan);     /* the same, curing cycles by staging */
void plan_finish(struct plan *plan);                    /* frees what the plan holds, not the plan */
size_t plan_bytes(const struct plan *plan);             /* that a built plan holds, itself included */
/* Runs a plan of ALL ranks symbolically: `operations` in a row of `tiles` tiles, choosing what runs next by `seed` (0:
   in order). true: proved. false: why says what is wrong, and where. */
bool plan_check(const struct plan *plan, int tiles, int operations, unsigned seed, char *why, size_t why_bytes);
/* Appends the text to buffer like snprintf; returns the whole length. */
size_t plan_print(const struct plan *plan, char *buffer, size_t capacity);

/* Sets the peers whose steps this rank awaits in a message of one tile, or whose memory it reads; returns how many.
   out: [size], all false. */
int schedule_needs(const struct schedule *s, bool *out);
bool family_has(enum family family, int root, int rank, enum buffer buffer);
bool family_has_root(enum family family);               /* its ranks are not alike */
bool family_reduces(enum family family);
int family_parts(enum family family, enum buffer buffer, int size);    /* chunks of a buffer, before schedule_cut */
static inline int plan_members(const struct plan *p)    /* their number, also before the plan is built */
{
    return p->one_host ? host_size(p->layout, p->host) : p->layout->ranks;
}
/* The how-manieth member a rank is, or -1; and the rank of a member. */
static inline int plan_index(const struct plan *p, int rank)
{
    if (!p->one_host) return rank;
    struct place at = place_of(p->layout, rank);
    return at.host == p->host ? at.index : -1;
}
static inline int plan_rank(const struct plan *p, int member)
{
    return p->one_host ? rank_at(p->layout, p->host, member) : member;
}
static inline struct schedule *plan_member(const struct plan *p, int rank)      /* NULL: is none, or is not kept */
{
    int member = plan_index(p, rank);
    if (p->kept) return member == p->kept - 1 ? p->ranks : NULL;
    return member >= 0 ? &p->ranks[member] : NULL;
}
static inline bool step_is_message(const struct step *t) { return t->kind == SEND || t->kind == RECV; }
static inline struct span *step_from(const struct schedule *s, const struct step *t) { return &s->spans[t->span]; }
static inline struct span *step_to(const struct schedule *s, const struct step *t)
{
    return &s->spans[t->span + t->from_count];
}
static inline bool plan_in_place(const struct plan *p, int rank) { return mask_has(p->in_place, plan_index(p, rank)); }
static inline bool plan_shared(const struct plan *p, int rank)
{
    int member = plan_index(p, rank);
    return mask_has(p->shared, member) && !mask_has(p->unshared, member);
}
static inline bool plan_open(const struct plan *p, int rank)           /* its tensors can be read where they lie */
{
    return plan_shared(p, rank) || (p->reads && !mask_has(p->unshared, plan_index(p, rank)));
}
/* The cell a chunk lives in; in place the smaller buffer lies inside the larger. */
static inline int plan_home(const struct plan *p, int rank, enum buffer b, int index)
{
    const int *chunks = p->ranks[0].chunks;
    int in = chunks[INPUT], out = chunks[OUTPUT];
    if (plan_in_place(p, rank) && b == OUTPUT && out <= in) return out == in ? index : index + rank * out;
    if (plan_in_place(p, rank) && b == INPUT && in < out) return in + index + rank * in;
    return index + (b == INPUT ? 0 : b == OUTPUT ? in : in + out);
}
static inline bool step_publishes(const struct step *t, int tile, int tiles, int slots)
{
    return t->by_tile || (t->by_reuse && tile + slots < tiles) || (t->by_leave && tile + slots >= tiles);
}

/* ---- cache ---- */
/* Plans by key, each with what was made of it. When all take more than `most` bytes, those that were asked for longest
   ago are given up. */
struct cache;
/* May this plan go? If so, what was made of it (or NULL) has been given up. */
typedef bool plan_release(void *context, const struct plan *plan, void *made);
/* release NULL: every plan may go, and nothing is made of them. NULL: no memory. */
struct cache *cache_create(size_t most, plan_release *release, void *context);
void cache_destroy(struct cache *cache);                /* nobody may refuse any more; NULL is fine */
/* The key is what the caller of plan_build fills, but stage_sends; layout must outlive the cache, the masks are copied.
   *out stays valid until the next call for another plan, and from then on until it is let go. */
tutti_status cache_plan(struct cache *cache, const struct plan *key, const struct plan **out);
/* Of the plan asked for last: something of so many bytes was made, once. */
void cache_attach(struct cache *cache, const struct plan *plan, void *made, size_t bytes);
void *cache_made(const struct plan *plan);              /* of a plan of a cache; NULL: nothing yet */
void cache_limit(struct cache *cache, size_t most);     /* another bound; it is looked at when a plan is added */
size_t cache_held(const struct cache *cache);
