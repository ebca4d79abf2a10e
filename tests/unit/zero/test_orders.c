/* Shows that no rank waits without end, in whatever order gradients are ready and wherever ranks meet in calls of the
   program. All orders of small models are tried, with zero's own code on simulated collectives (verbs.h).

   Why the search is complete: ranks affect each other only by collectives, which each rank starts in the order of its
   program and which end when all ranks have started them, and by words of memory that one rank writes and others wait
   for. If ranks only waited, their speed would not matter: each rank would do the same in every interleaving, until it
   cannot continue (a Kahn network). So one interleaving would show them all. What a rank does depends on time only
   where it asks whether something is over and continues with either answer: in tutti_test, and in a wait with a
   timeout. There the answer is a choice. All combinations of choices are tried, depth first, each run from the start
   (no state is kept). "Not yet" is always possible, because other ranks, or their messages, may be slow. "Yes" is
   possible if the thing is ever over. The rank that gets this answer waits for it, which is the interleaving in which
   the rank was slow. If the thing is never over, the combination does not exist. It is counted as infeasible, and the
   one with "not yet" is tried as well. If no rank can continue, and none waits for a "yes", there is a deadlock.

   Every run compares the calls of the ranks, checks all values that are read, and checks that all memory is freed. If
   waits had to be ended, with errors, all strands must still end. What a rank reads from shared memory depends on time,
   too, which a Kahn network does not show. So each run delays some ranks: those that are about to update a slice, or
   those that read. The first rank has the first turn, or the last. A call that blocks no rank ends when all ranks have
   made it, or only when no rank can continue without it. Orders have these eight adversaries in turn. This finds faults
   that many orders show, but it is no proof.

   Not tried: errors and deaths, except as the end of a run; more than two steps; choices in a step whose orders do not
   vary (all are "not yet" there, because a step leaves nothing that depends on them but spare buffers); a program that
   leaves in the middle of a step, or before the others have reached the step; traces (tutti_zero_watch); zero/pages.c.
   Plans with `every` are tried in part, except with --deep, and plans with `one_asks` always in part. --deep tries all
   orders with each of the eight adversaries. */
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
    /* Number 0 is the order of a backward pass. */
    for (int i = 0; i < n; i++) left[i] = n - 1 - i;
    for (int i = 0; i < n; i++) {
        int rest = permutations(n - 1 - i), at = number / rest;
        number %= rest;
        out[i] = left[at];
        memmove(&left[at], &left[at + 1], (size_t)(n - 1 - i - at) * sizeof *left);
    }
}
/* With SHARDED, uses are collective. So a rank that met the others before its uses would wait for ranks that meet after
   theirs. */
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
/* In a step that does not vary all ranks have one order. In the first step this is not the order of a backward pass,
   which a rank would have right without learning it. */
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
/* Changes the last "not yet" to "yes", and removes the choices after it. Returns false if there was none. */
static bool next_choices(struct choices *c)
{
    while (c->count && c->taken[c->count - 1]) c->count--;
    if (c->count) c->taken[c->count - 1] = 1;
    return c->count;
}
static void print_fault(const struct plan *p, const struct orders *o, const struct choices *c, struct adversary a,
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
    printf("; the %s rank runs first, ranks lag before they %s, calls end %s\n", a.backwards ? "last" : "first",
        a.writers_lag ? "update" : "read", a.late ? "late" : "at once");
}
static bool try_order(const struct plan *p, long number, long turn, struct tally *tally)
{
    static struct choices c;
    struct orders orders;
    struct adversary a = { turn & 1, turn & 2, !(turn & 2), turn & 4 };
    bool feasible;
    find_orders(p, number, &orders);
    c.count = 0;
    do {
        const char *what = program_run(p, &orders, &c, a, &feasible);
        if (what) {
            print_fault(p, &orders, &c, a, what);
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

/* ---- plans ---- */
/* The numbers of ranks, hosts, units and parameters. */
#define OF(r, h, u, p) .ranks = (r), .hosts = (h), .units = (u), .parameters = (p)
#define SHARED .placement = TUTTI_ZERO_SHARED
#define REPLICATED .placement = TUTTI_ZERO_REPLICATED
#define SHARDED .placement = TUTTI_ZERO_SHARDED
#define WHOLE .placement = TUTTI_ZERO_WHOLE
#define PACKED .packs = TUTTI_COMPRESS_FLOAT16
/* With this form, the ranks first send each other the lengths of the slices. */
#define WITH_LENGTHS .packs = TUTTI_COMPRESS_THRESHOLD
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
    /* Gradients that are left out, several passes, and calls before the step. */
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
    /* Async steps. */
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
    /* Compressed gradients. */
    { "lengths sent", OF(2, 1, 3, 3), REPLICATED, .meets = true, WITH_LENGTHS, .buffers = 1, .varies = SECOND,
        .every = 67 },
    { "lengths sent, two passes", OF(2, 1, 2, 2), SHARED, .meets = true, .passes = 2, WITH_LENGTHS, .one_asks = true,
        .buffers = 1, .varies = SECOND, .every = 11 },
    { "lengths sent, ahead", OF(2, 1, 2, 2), SHARED, .meets = true, .ahead = true, WITH_LENGTHS, .buffers = 1,
        .varies = SECOND },
    { "lengths sent, two hosts of two, one asks", OF(4, 2, 2, 2), REPLICATED, WITH_LENGTHS, .one_asks = true,
        .buffers = 2, .varies = SECOND },
    { "packed by top-k", OF(2, 1, 2, 2), SHARED, .packs = TUTTI_COMPRESS_TOPK, .buffers = 1, .varies = FIRST },
    { "packed", OF(2, 1, 3, 3), SHARED, .meets = true, PACKED, .buffers = 1, .varies = SECOND },
    { "packed, two hosts of two", OF(4, 2, 2, 2), REPLICATED, .meets = true, PACKED, .buffers = 1, .varies = SECOND,
        .every = 67 },
    { "packed, two hosts of two, no calls", OF(4, 2, 2, 2), REPLICATED, PACKED, .buffers = 2, .varies = SECOND },
    { "packed, two hosts of two, one asks", OF(4, 2, 3, 3), REPLICATED, PACKED, .one_asks = true, .buffers = 2,
        .varies = SECOND, .every = 11 },
    { "packed, ahead, two hosts of two", OF(4, 2, 2, 2), SHARED, PACKED, .ahead = true, .buffers = 1,
        .varies = SECOND },
};
/* The number of an order has several digits, of which the adversary is the last. A stride without a common factor with
   their bases reaches all values of each digit. */
static long find_stride(const struct plan *p, long orders, long most)
{
    long every = orders / most + 1;
    if (every < p->every) every = p->every;
    while (every > 1 && (every % 2 == 0 || every % 3 == 0 || every % 5 == 0 || every % 7 == 0)) every++;
    return every;
}
/* Tries at most `most` orders of a plan, evenly spread, with one adversary each. `deep`: all orders with all
   adversaries. */
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
        fine ? "no rank waits without end, and all values are right" : "WRONG");
    return fine;
}
bool exploration_holds(enum depth depth) { return try_all(depth == QUICK ? FEW_ORDERS : MOST_ORDERS, depth == DEEP); }
