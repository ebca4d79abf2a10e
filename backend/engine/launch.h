/* From an operation to something that runs: start, step, cancel; the driver is the one caller. */
#pragma once
#include "backend/engine/choice.h"
#include "backend/engine/operation.h"
#include "backend/engine/trials.h"

struct recent {                                         /* the last choice of a family: most calls repeat it */
    uint64_t bytes;                                     /* uneven counts: their sum if all know it, or 0 */
    int root;
    bool stage_inputs, uneven;
    const struct algorithm *asked;
    const struct algorithm *algorithm;                  /* if all tensors are private */
    bool looks;                                         /* first where tensors lie, whatever is tried */
    bool may_read;                                      /* then: private ones may be read there */
    struct program *program;                            /* of who has looked: for this placement; NULL: none yet */
    uint64_t *shared, *in_place;                        /* masks of the ranks of this host, in the launcher's `masks` */
    bool asked_for, open, reading;                      /* as the placement said */
    struct choice runs;                                 /* what the program is, and how it is cut */
    uint32_t code;                                      /* what is tried that way; 0: it is as priced */
    struct trial *trial;                                /* of calls like this; NULL: nothing is tried */
};
/* What makes two calls of the same kind: only their buffers and their sequence differ. */
struct call {
    int family, root;
    tutti_dtype dtype;
    tutti_op op;
    uint64_t count;
    uint64_t bits;
    const struct algorithm *asked;
    bool uneven, rows;
};
static inline bool call_is_like(const struct call *a, const struct call *b)
{
    return a->asked == b->asked && a->count == b->count && a->family == b->family && a->dtype == b->dtype
        && a->op == b->op && a->root == b->root && a->bits == b->bits && a->rows == b->rows && !a->uneven && !b->uneven;
}
/* What a communicator keeps of plans and programs, but for those that the last call of each family has used; and of
   plans that it has only priced. */
enum { KEPT_BYTES = 4 << 20, PRICED_BYTES = 4 << 20 };
/* Calls that were timed; how long they took is read of all ranks when some have come together. */
enum { PENDING = 8 };
struct pending_launch {
    struct {
        struct trial *trial;
        uint64_t number;
    } of[PENDING];
    int count;
};
struct launcher {                                       /* of the driver */
    int64_t tile_setting, slots_setting;                /* 0: by price */
    int64_t single_copy;                                /* 0: private tensors are not read where they lie, 1: they are;
                                                           -1: by price */
    int ranks;                                          /* of this host */
    struct cache *cache;                                /* of plans to run, with their programs */
    struct cache *priced;                               /* of plans of all ranks, to be priced */
    struct chooser chooser;
    struct recent recent[FAMILY_COUNT];
    uint64_t *masks;                                    /* two for each family */
    struct call last;                                   /* what the executor's launch is for */
    int repeats;                                        /* declarations that say so; 0: last does not count */
    struct trials trials;
    uint32_t code;                                      /* of the operation that runs: what is tried, or 0 */
    bool deferred;                                      /* it looks: its plan is chosen after the roll call */
    struct pending_launch pending;
    bool timed;                                         /* what runs now: all are to say when they begin and end it */
    int64_t begun_ns;                                   /* then: when this rank did */
};
tutti_status launcher_init(struct launcher *launcher, int ranks);
/* cores: that the ranks of this host may run on, all of them together */
void launcher_tune(struct launcher *launcher, const struct layout *layout, int cores, const struct machine *machine,
    struct tuning *tuning);
void launcher_finish(struct launcher *launcher);
/* What an operation with even counts on private tensors would run as, and its price. can_read: all ranks can read them.
   NO_MEMORY; as `choose`. */
tutti_status launch_predict(tutti_comm *comm, const struct question *question, bool can_read, struct choice *out);
/* In a declaration, in place of the count that ranks must agree on: the counts are in arrays of their own. */
#define UNEVEN_COUNT UINT64_MAX
/* In a declaration, in place of the op: rows are added up and normalised; `bits` has how. */
enum { OP_OF_ROWS = TUTTI_OP_COUNT };
/* Announces the operation. An error leaves nothing announced. */
tutti_status launch_start(tutti_comm *comm, struct operation *op);
/* Writes what the last kind of call is into the declaration of the operation that begins. */
void launch_declare(tutti_comm *comm, uint64_t sequence);
/* As far as it gets: IN_PROGRESS (the executor's `blocked` says on what), OK, or an error. */
tutti_status launch_step(tutti_comm *comm, struct operation *op);
/* Gives it up. Buffers of this rank are touched by nobody here any more; by peers until tensors_are_released says.
   false: not yet, as executor_cancel. */
bool launch_cancel(tutti_comm *comm);
