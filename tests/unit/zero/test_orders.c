/* That nobody waits for ever, whatever order gradients come in and wherever ranks meet in calls of the program's own:
   all orders of small models are tried, with zero's own code, on verbs that are pretended (verbs.h).

   Why that is all. Ranks act on each other only by collectives, which each rank starts in an order of its own program
   and which end when all ranks have come; and by words that one writes and others wait for. If ranks only waited, who
   is faster would not matter: each does the same, in every interleaving, until it can go on no more (a Kahn network).
   So one interleaving shows them all. What a rank does depends on time only where it asks whether something is over and
   goes on either way: tutti_test, and a wait with an end. There the answer is a choice, and all combinations are tried,
   depth first, each run from the start (no state is kept). "Not yet" may always be: others are slow, or the news is.
   "It is" may be if it ever is; who is told so waits for it, which is the interleaving in which it was slow. If it
   never is, this combination does not exist, and is counted as infeasible: the one with "not yet" there is tried as
   well. If nobody can go on, and nobody waits to be told yes, there is a deadlock.

   In every run calls are compared, and all that is read; all is given back in the end; and where waits had to be ended,
   with errors, all strands end. What is read depends on time, too, where ranks share memory, which a network of words
   does not show. So somebody lags: whoever is about to update a slice, or whoever reads; the first rank has the first
   turn, or the last; what nobody blocks in is over when all have come, or when nobody can go on without. Orders have
   one of these eight in turn; that finds what is wrong in many orders, and is no proof.

   Not tried: errors and deaths, but as the end of a run; more than two steps; choices of a step in which orders do not
   vary (all are "not yet" there: but for spare buffers a step leaves nothing that depends on them); a program that
   leaves in the middle of a step, or hastily, when others have not come to the step; journals; zero/pages.c. Of plans
   with `every`, but in --deep, and with `one_asks`, not all. --deep tries all orders, with each of the eight. */
#include "tests/support/exploration.h"
#include "tests/unit/zero/program.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FEW_ORDERS = 12, ADVERSARIES = 8 };
#ifdef FEW
enum { MOST_ORDERS = FEW_ORDERS / 3 };
#else
enum { MOST_ORDERS = 1 << 30 };
#endif
struct tally { long orders, runs, infeasible, choices; int most_choices; };

/* ---- orders ---- */
static int permutations(int n) { return n < 2 ? 1 : n * permutations(n - 1); }
static void find_permutation(int n, int number, int *out)
{
    int left[MOST_PARAMETERS];
    for (int i = 0; i < n; i++) left[i] = n - 1 - i;    /* number 0: as backward passes have them */
    for (int i = 0; i < n; i++) {
        int rest = permutations(n - 1 - i), at = number / rest;
        number %= rest;
        out[i] = left[at];
        memmove(&left[at], &left[at + 1], (size_t)(n - 1 - i - at) * sizeof *left);
    }
}
/* SHARDED: uses are collective, so a rank that met others before them would wait for those that meet it later. */
static int first_place(const struct plan *p) { return p->placement == TUTTI_ZERO_SHARDED ? 0 : BEFORE_USES; }
static int places(const struct plan *p, int rank)
{
    int gradients = p->parameters - (p->leaves_out && rank == p->ranks - 1);
    return p->meets ? gradients * plan_passes(p) + 1 - first_place(p) : 1;
}
static long count_orders(const struct plan *p)
{
    long count = 1, steps = 1;
    for (int r = 0; r < p->ranks; r++) count *= permutations(p->parameters) * places(p, r);
    for (int step = 0; step < STEPS; step++)
        if (p->varies >> step & 1) steps *= count;
    return steps;
}
/* In the step that does not vary all have one order: the first step's is one that is not learned by chance. */
static void find_order(const struct plan *p, int step, int rank, long *number, struct sum_order *out)
{
    int ways = permutations(p->parameters), count = places(p, rank);
    bool varies = p->varies >> step & 1;
    find_permutation(p->parameters, varies ? (int)(*number % ways) : step ? 0 : ways / 2, out->gradient);
    if (varies) *number /= ways;
    out->meets = !p->meets ? NEVER : first_place(p) + (varies ? (int)(*number % count) : count - 1);
    if (varies) *number /= count;
}
static void find_orders(const struct plan *p, long number, struct orders *out)
{
    for (int step = 0; step < STEPS; step++)
        for (int r = 0; r < p->ranks; r++) find_order(p, step, r, &number, &out->of[r][step]);
}

/* ---- choices ---- */
/* The last "not yet" becomes a "yes", and what came after is open. */
static bool next_choices(struct choices *c)
{
    while (c->count && c->taken[c->count - 1]) c->count--;
    if (c->count) c->taken[c->count - 1] = 1;
    return c->count;
}
static void tell(const struct plan *p, const struct orders *o, const struct choices *c, struct adversary a,
    const char *what)
{
    printf("  WRONG in \"%s\": %s\n", p->name, what);
    for (int step = 0; step < STEPS; step++)
        for (int r = 0; r < p->ranks; r++) {
            printf("    step %d, rank %d: gradients", step, r);
            for (int i = 0; i < p->parameters; i++) printf(" %d", o->of[r][step].gradient[i]);
            if (o->of[r][step].meets != NEVER) printf("; meets others at place %d", o->of[r][step].meets);
            printf("\n");
        }
    printf("    choices");
    for (int i = 0; i < c->next; i++) printf(" %d", c->taken[i]);
    printf("; the %s rank first, who %s lags, calls end %s\n", a.backwards ? "last" : "first",
        a.writers_lag ? "updates" : "reads", a.late ? "late" : "at once");
}
static bool try_order(const struct plan *p, long number, long whose, struct tally *tally)
{
    static struct choices c;
    struct orders orders;
    struct adversary a = { whose & 1, whose & 2, !(whose & 2), whose & 4 };
    bool feasible;
    find_orders(p, number, &orders);
    c.count = 0;
    do {
        const char *what = program_run(p, &orders, &c, a, &feasible);
        if (what) {
            tell(p, &orders, &c, a, what);
            return false;
        }
        tally->runs++;
        tally->infeasible += !feasible;
        tally->choices += c.next;
        if (c.next > tally->most_choices) tally->most_choices = c.next;
        c.count = c.next;
    } while (next_choices(&c));
    tally->orders++;
    return true;
}

/* ---- what is tried ---- */
/* ranks, hosts, units, parameters */
#define OF(r, h, u, p) .ranks = (r), .hosts = (h), .units = (u), .parameters = (p)
#define SHARED .placement = TUTTI_ZERO_SHARED
#define REPLICATED .placement = TUTTI_ZERO_REPLICATED
#define SHARDED .placement = TUTTI_ZERO_SHARDED
#define WHOLE .placement = TUTTI_ZERO_WHOLE
#define PACKED .packs = TUTTI_COMPRESS_FLOAT16
#define TOLD .packs = TUTTI_COMPRESS_THRESHOLD          /* sides tell each other first how much comes */
static const struct plan plans[] = {
    { "shared, the first step", OF(2, 1, 3, 3), SHARED, .meets = true, .buffers = 1, .varies = FIRST },
    { "shared", OF(2, 1, 3, 3), SHARED, .meets = true, .buffers = 1, .varies = SECOND },
    { "shared, two buffers", OF(2, 1, 3, 3), SHARED, .meets = true, .buffers = 2, .varies = SECOND },
    { "shared, both steps", OF(2, 1, 2, 2), SHARED, .meets = true, .buffers = 1, .varies = FIRST | SECOND },
    { "shared, both steps, no calls", OF(2, 1, 3, 3), SHARED, .buffers = 1, .varies = FIRST | SECOND },
    { "shared, two hosts", OF(2, 2, 3, 3), SHARED, .meets = true, .buffers = 1, .varies = SECOND },
    { "shared, three ranks", OF(3, 1, 2, 2), SHARED, .meets = true, .buffers = 1, .varies = SECOND },
    { "shared, three ranks, three units, no calls", OF(3, 1, 3, 3), SHARED, .buffers = 1, .varies = SECOND },
    { "shared, two hosts of two", OF(4, 2, 2, 2), SHARED, .meets = true, .buffers = 1, .varies = SECOND, .every = 11 },
    { "replicated", OF(2, 1, 3, 3), REPLICATED, .meets = true, .buffers = 1, .varies = SECOND },
    { "replicated, three ranks", OF(3, 1, 2, 2), REPLICATED, .meets = true, .buffers = 1, .varies = SECOND },
    { "whole", OF(2, 1, 3, 3), WHOLE, .meets = true, .buffers = 1, .varies = SECOND },
    { "whole, three ranks", OF(3, 1, 2, 2), WHOLE, .meets = true, .buffers = 1, .varies = SECOND },
    { "sharded", OF(2, 1, 3, 3), SHARDED, .meets = true, .buffers = 1, .varies = SECOND },
    { "sharded, some gathered ahead", OF(2, 1, 3, 3), SHARDED, .meets = true, .prefetch = 1, .buffers = 1,
        .varies = SECOND },
    { "sharded, two ahead, both steps", OF(2, 1, 2, 2), SHARDED, .meets = true, .prefetch = 2, .buffers = 1,
        .varies = FIRST | SECOND },
    /* what is brought when, and what is asked for before the step */
    { "a unit of two", OF(2, 1, 2, 3), SHARED, .meets = true, .buffers = 1, .varies = FIRST },
    { "a gradient is left out", OF(2, 1, 3, 3), SHARED, .meets = true, .leaves_out = true, .buffers = 1,
        .varies = SECOND },
    { "left out of two", OF(2, 1, 2, 3), REPLICATED, .meets = true, .leaves_out = true, .buffers = 1, .varies = FIRST },
    { "left out, sharded", OF(2, 1, 3, 3), SHARDED, .meets = true, .leaves_out = true, .prefetch = 1, .buffers = 1,
        .varies = SECOND },
    { "two passes", OF(2, 1, 2, 2), SHARED, .meets = true, .passes = 2, .buffers = 1, .varies = SECOND },
    { "two passes, three units", OF(2, 1, 3, 3), SHARED, .passes = 2, .buffers = 1, .varies = SECOND },
    { "two passes, one left out", OF(2, 1, 2, 3), SHARED, .leaves_out = true, .passes = 2, .buffers = 2,
        .varies = SECOND },
    { "two passes, sharded", OF(2, 1, 3, 3), SHARDED, .passes = 2, .prefetch = 1, .buffers = 1, .varies = SECOND,
        .every = 11 },
    { "two passes, sharded, one left out", OF(2, 1, 3, 3), SHARDED, .passes = 2, .leaves_out = true, .prefetch = 1,
        .buffers = 1, .varies = SECOND },
    { "two passes, asked for ahead", OF(2, 1, 3, 3), SHARED, .passes = 2, .asks_ahead = true, .buffers = 2,
        .varies = SECOND },
    { "asked for ahead", OF(2, 1, 3, 3), REPLICATED, .meets = true, .asks_ahead = true, .buffers = 1,
        .varies = SECOND },
    { "the first pass is held", OF(2, 1, 2, 2), SHARED, .meets = true, .passes = 2, .holds = true, .buffers = 1,
        .varies = SECOND },
    { "settled", OF(2, 1, 3, 3), SHARED, .meets = true, .closing = SETTLES, .buffers = 1, .varies = SECOND },
    { "a norm", OF(2, 1, 3, 3), REPLICATED, .meets = true, .closing = TAKES_NORM, .buffers = 1, .varies = SECOND },
    { "a norm, sharded", OF(2, 1, 3, 3), SHARDED, .closing = TAKES_NORM, .prefetch = 1, .buffers = 1,
        .varies = SECOND },
    { "claimed", OF(2, 1, 3, 3), SHARED, .closing = CLAIMS, .buffers = 1, .varies = SECOND },
    { "claimed, sharded", OF(2, 1, 3, 3), SHARDED, .closing = CLAIMS, .prefetch = 1, .buffers = 1, .varies = FIRST },
    { "dropped", OF(2, 1, 3, 3), SHARED, .meets = true, .closing = DROPS, .buffers = 1, .varies = SECOND },
    { "dropped first", OF(2, 1, 2, 2), REPLICATED, .meets = true, .closing = DROPS, .buffers = 1, .varies = FIRST },
    { "not used before the second", OF(2, 1, 3, 3), SHARED, .meets = true, .skips_uses = true, .buffers = 1,
        .varies = SECOND },
    { "not used, replicated", OF(2, 1, 3, 3), REPLICATED, .meets = true, .skips_uses = true, .buffers = 1,
        .varies = SECOND },
    { "not used, two hosts of two", OF(4, 2, 2, 2), SHARED, .skips_uses = true, .buffers = 1, .varies = SECOND },
    { "one of three is longer", OF(2, 1, 3, 3), SHARED, .meets = true, .uneven = true, .buffers = 1, .varies = SECOND },
    { "one leaves early", OF(3, 1, 2, 2), SHARED, .meets = true, .leaves = true, .buffers = 1, .varies = SECOND },
    { "one leaves early, replicated", OF(3, 1, 2, 2), REPLICATED, .meets = true, .leaves = true, .buffers = 1,
        .varies = SECOND },
    { "one leaves early, two hosts", OF(2, 2, 3, 3), SHARED, .leaves = true, .buffers = 1, .varies = SECOND },
    /* ahead: a tail of each step, beside the next */
    { "ahead", OF(2, 1, 3, 3), SHARED, .meets = true, .ahead = true, .buffers = 1, .varies = SECOND },
    { "ahead, both steps", OF(2, 1, 2, 2), SHARED, .meets = true, .ahead = true, .buffers = 1,
        .varies = FIRST | SECOND },
    { "ahead, replicated", OF(2, 1, 3, 3), REPLICATED, .meets = true, .ahead = true, .buffers = 1, .varies = SECOND },
    { "ahead, two hosts", OF(2, 2, 3, 3), SHARED, .meets = true, .ahead = true, .buffers = 1, .varies = SECOND },
    { "ahead, two hosts of two", OF(4, 2, 2, 2), SHARED, .ahead = true, .buffers = 1, .varies = FIRST | SECOND },
    { "ahead, three ranks", OF(3, 1, 2, 2), SHARED, .meets = true, .ahead = true, .buffers = 1, .varies = SECOND },
    { "ahead, a gradient is left out", OF(2, 1, 3, 3), REPLICATED, .meets = true, .ahead = true, .leaves_out = true,
        .buffers = 1, .varies = SECOND },
    { "ahead, two passes", OF(2, 1, 2, 2), SHARED, .meets = true, .ahead = true, .passes = 2, .buffers = 1,
        .varies = FIRST },
    { "ahead, a norm", OF(2, 1, 3, 3), SHARED, .ahead = true, .closing = TAKES_NORM, .buffers = 1, .varies = FIRST },
    { "ahead, dropped", OF(2, 1, 2, 2), SHARED, .meets = true, .ahead = true, .closing = DROPS, .buffers = 1,
        .varies = SECOND },
    { "ahead, one leaves early", OF(3, 1, 2, 2), REPLICATED, .meets = true, .ahead = true, .leaves = true, .buffers = 1,
        .varies = SECOND },
    { "ahead, one leaves early, two hosts of two", OF(4, 2, 2, 2), SHARED, .ahead = true, .leaves = true, .buffers = 1,
        .varies = SECOND },
    { "ahead, not used", OF(2, 1, 3, 3), REPLICATED, .meets = true, .ahead = true, .skips_uses = true, .buffers = 1,
        .varies = SECOND },
    { "ahead, whole", OF(2, 1, 3, 3), WHOLE, .meets = true, .ahead = true, .leaves_out = true, .buffers = 1,
        .varies = SECOND },
    /* packed */
    { "told", OF(2, 1, 3, 3), REPLICATED, .meets = true, TOLD, .buffers = 1, .varies = SECOND, .every = 67 },
    { "told, two passes", OF(2, 1, 2, 2), SHARED, .meets = true, .passes = 2, TOLD, .one_asks = true, .buffers = 1,
        .varies = SECOND, .every = 11 },
    { "told, ahead", OF(2, 1, 2, 2), SHARED, .meets = true, .ahead = true, TOLD, .buffers = 1, .varies = SECOND },
    { "told, two hosts of two, one asks", OF(4, 2, 2, 2), REPLICATED, TOLD, .one_asks = true, .buffers = 2,
        .varies = SECOND },
    { "the largest", OF(2, 1, 2, 2), SHARED, .packs = TUTTI_COMPRESS_TOPK, .buffers = 1, .varies = FIRST },
    { "packed", OF(2, 1, 3, 3), SHARED, .meets = true, PACKED, .buffers = 1, .varies = SECOND },
    { "packed, two hosts of two", OF(4, 2, 2, 2), REPLICATED, .meets = true, PACKED, .buffers = 1, .varies = SECOND,
        .every = 67 },
    { "packed, two hosts of two, no calls", OF(4, 2, 2, 2), REPLICATED, PACKED, .buffers = 2, .varies = SECOND },
    { "packed, two hosts of two, one asks", OF(4, 2, 3, 3), REPLICATED, PACKED, .one_asks = true, .buffers = 2,
        .varies = SECOND, .every = 11 },
    { "packed, ahead, two hosts of two", OF(4, 2, 2, 2), SHARED, PACKED, .ahead = true, .buffers = 1,
        .varies = SECOND },
};
/* Orders are numbers of many digits, and the adversary is the last one: a stride that divides none shows all values. */
static long find_stride(const struct plan *p, long orders, long most)
{
    long every = orders / most + 1;
    if (every < p->every) every = p->every;
    while (every > 1 && (every % 2 == 0 || every % 3 == 0 || every % 5 == 0 || every % 7 == 0)) every++;
    return every;
}
/* Of each plan `most` orders at most, evenly spread, with one adversary each; or all, with each. */
static bool try_plan(const struct plan *p, long most, bool deep, struct tally *tally)
{
    long orders = count_orders(p), every = deep ? 1 : find_stride(p, orders, most);
    for (long n = 0; n < orders; n += every)
        for (long a = 0; a < (deep ? ADVERSARIES : 1); a++)
            if (!try_order(p, n, n + a, tally)) return false;
    return true;
}
static bool try_all(long most, bool deep)
{
    struct tally all = { 0 };
    bool fine = true;
    for (size_t i = 0; i < sizeof plans / sizeof *plans && fine; i++) {
        const struct plan *p = &plans[i];
        struct tally t = { 0 };
        fine = try_plan(p, most, deep, &t);
        printf("%-52s %6ld orders, %8ld runs, %8ld infeasible, %3d choices at most\n", p->name, t.orders, t.runs,
            t.infeasible, t.most_choices);
        fflush(stdout);
        all.orders += t.orders;
        all.runs += t.runs;
        all.infeasible += t.infeasible;
        all.choices += t.choices;
    }
    printf("%zu plans, %ld orders, %ld runs with %ld choices, %ld of them infeasible: %s\n",
        sizeof plans / sizeof *plans, all.orders, all.runs, all.choices, all.infeasible,
        fine ? "nobody waits for ever, and all values are right" : "WRONG");
    return fine;
}
bool exploration_holds(enum depth depth) { return try_all(depth == QUICK ? FEW_ORDERS : MOST_ORDERS, depth == DEEP); }
