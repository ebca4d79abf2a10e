/* What ranks do with a tutti_zero, step after step: a plan is the same for all, the orders in which gradients come, and
 * where a rank meets the others in a call of the program's own, are each rank's. Every value that is read is compared
 * with what one process alone would have. */
#pragma once
#include "include/tutti_zero.h"
#include "tests/unit/zero/strands.h"

enum { MOST_PARAMETERS = 4, STEPS = 2, NEVER = -2, BEFORE_USES = -1, FIRST = 1, SECOND = 2 };
enum closing { STEPS_AT_ONCE, SETTLES, TAKES_NORM, CLAIMS, DROPS }; /* before the step; DROPS: in place of one */
struct plan {
    const char *name;
    int ranks, hosts, units, parameters;                /* parameters beyond one for each unit are the first unit's */
    tutti_zero_placement placement;
    int buffers, prefetch;
    bool ahead;
    tutti_compression_form packs;
    enum closing closing;
    int passes;                                         /* backward passes in a step; 0: one */
    bool holds;                                         /* all of them but the last */
    bool asks_ahead;                                    /* for a place before the gradient before it is ready */
    bool uneven;                                        /* the last unit is longer, so has buffers of its own */
    bool leaves;                                        /* rank 0, as soon as it has taken its last step */
    bool leaves_out;                                    /* the last rank, the last of its gradients */
    bool skips_uses;                                    /* of the second step */
    bool meets;                                         /* each rank once in each step, at any place */
    int varies;                                         /* FIRST, SECOND: orders and choices of those steps */
    bool one_asks;                                      /* rank 0 has choices; others hear "not yet" */
    int every;                                          /* of its orders, one of so many is tried; 0: all are */
};
/* `meets` is the gradient before which the ranks meet, from 0; or NEVER, or BEFORE_USES. */
struct sum_order { int gradient[MOST_PARAMETERS], meets; };
struct orders { struct sum_order of[MOST_RANKS][STEPS]; };

static inline int plan_passes(const struct plan *plan) { return plan->passes ? plan->passes : 1; }
/* Runs it to its end, however it ends; NULL, or what is wrong, which is told by then. */
const char *program_run(const struct plan *plan, const struct orders *orders, struct choices *choices,
    struct adversary adversary, bool *feasible);
