/* A program whose ranks train with a tutti_zero for some steps. All ranks have the same plan. Each rank has its own
 * order of gradients, and its own place where it meets the others in a barrier of the program. Every value that a rank
 * reads is compared with the value that one process alone would have. */
#pragma once
#include "include/tutti_zero.h"
#include "tests/unit/zero/strands.h"

enum { MOST_PARAMETERS = 4, STEPS = 2, NEVER = -2, BEFORE_USES = -1, FIRST = 1, SECOND = 2 };
/* The call of a rank before its step. STEPS_AT_ONCE: none. DROPS: in place of a step that varies. */
enum closing { STEPS_AT_ONCE, SETTLES, TAKES_NORM, CLAIMS, DROPS };
struct plan {
    const char *name;
    /* If there are more parameters than units, the first unit has several. */
    int ranks, hosts, units, parameters;
    tutti_zero_placement placement;
    int buffers, prefetch;
    bool ahead;
    tutti_compression_form packs;
    enum closing closing;
    /* The number of backward passes in a step (0: one). */
    int passes;
    /* All passes but the last are held. */
    bool holds;
    /* A rank asks where to write a gradient before the previous gradient is ready. */
    bool asks_ahead;
    /* The last unit is longer than the others, so it has its own buffers. */
    bool uneven;
    /* Rank 0 leaves as soon as it has taken its last step. */
    bool leaves;
    /* The last rank leaves out the last gradient of its order. */
    bool leaves_out;
    /* The second step uses no units. */
    bool skips_uses;
    /* Each rank meets the others once in each step, at any place. */
    bool meets;
    /* The steps whose orders and choices vary: FIRST, SECOND or both. */
    int varies;
    /* Only rank 0 has choices. The other ranks get the answer "not yet". */
    bool one_asks;
    /* At most one of this many orders is tried (0: all may be). */
    int every;
};
/* The gradients of a rank in a step. `meets` is the number of the gradient, from 0, before which the rank meets the
   others, or NEVER, or BEFORE_USES. */
struct sum_order { int gradient[MOST_PARAMETERS], meets; };
struct orders { struct sum_order of[MOST_RANKS][STEPS]; };

static inline int plan_passes(const struct plan *plan) { return plan->passes ? plan->passes : 1; }
/* Runs the program to its end. Returns NULL, or the text of a fault. *feasible is false if a
   choice was "yes" for something that never ends. */
const char *program_run(const struct plan *plan, const struct orders *orders, struct choices *choices,
    struct adversary adversary, bool *feasible);
