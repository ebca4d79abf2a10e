/* A mutant is a right plan with one mistake. These functions make every possible mistake of enum mutation in turn, and
   the checker must reject each mutant: a checker that cannot fail proves nothing. A wait that other waits and messages
   imply may be dropped without a mistake, so such mutants do not count. A search finds those waits. */
#pragma once
#include "backend/schedule/match.h"
#include "tests/unit/schedule/plans.h"
#include <stdlib.h>

enum mutation { DROP_WAIT, SHIFT_SPAN, CHANGE_PEER, DROP_STEP, FLIP_FINISH, FLIP_RAW, MUTATIONS };
static const char *const mutation_names[MUTATIONS] = { "waits dropped", "spans shifted", "peers changed",
    "steps dropped", "finish flipped", "raw flipped" };
static struct { int made, killed; } mutants[MUTATIONS];
static int implied_waits, survivors;
/* Mutants also lack waits of a rank for its own messages. */
static bool own_waits = true;

static inline bool plan_holds(const struct plan *p, char *why, size_t bytes)
{
    return plan_check(p, 2 * p->slots + 1, 3, 0, why, bytes) && plan_check(p, 1, 3, 0, why, bytes)
        && plan_check(p, p->slots + 1, 3, 0, why, bytes);
}

/* ---- waits that others imply ---- */
/* A search backwards in the plan for the position (rank, step, tile `of`) that a dropped wait awaits. */
struct search {
    const struct plan *p;
    struct match *match;
    char *seen;
    int tiles, rank, step, of;
    bool found;
};
static inline void search_back(struct search *x, int rank, int step, int tile);
/* Searches back from the end of a tile: from its last step, and from all its messages, which have arrived by then. */
static inline void search_tile(struct search *x, int rank, int tile)
{
    const struct schedule *s = &x->p->ranks[rank];
    search_back(x, rank, s->step_count - 1, tile);
    for (int j = 0; j < s->step_count; j++) {
        struct position o = match_find_other_end(x->match, rank, j);
        if (s->steps[j].kind == RECV) search_back(x, o.rank, o.step, tile);
    }
}
static inline void search_back(struct search *x, int rank, int step, int tile)
{
    const struct schedule *s = &x->p->ranks[rank];
    int slots = x->p->slots;
    if (x->found || tile < 0) return;
    if (rank == x->rank && ((tile == x->of && step >= x->step) || (tile > x->of && (tile - x->of) % slots == 0))) {
        x->found = true;
        return;
    }
    char *seen = &x->seen[(rank * x->tiles + tile) * (x->p->period + 1) + step];
    if (*seen) return;
    *seen = 1;
    if (step) search_back(x, rank, step - 1, tile);
    else search_tile(x, rank, tile - slots);
    for (int w = 0; w < s->steps[step].wait_count; w++) {
        const struct wait *a = &s->waits[s->steps[step].wait + w];
        struct position o =
            a->rank == rank ? match_find_other_end(x->match, rank, a->step) : (struct position){ a->rank, a->step };
        if (a->rank != rank || s->steps[a->step].kind == RECV)
            search_back(x, o.rank, o.step, a->lag == SLOT_REUSE ? tile - slots : tile);
    }
}
/* True if the awaited position precedes the step also without the wait. */
static inline bool is_implied(const struct plan *p, int rank, int step, struct wait w)
{
    int tile = 3 * p->slots;
    struct search x = { .p = p,
        .match = match_create(p),
        .tiles = 4 * p->slots,
        .rank = w.rank,
        .step = w.step,
        .of = w.lag == SLOT_REUSE ? tile - p->slots : tile };
    x.seen = calloc((size_t)(p->size * x.tiles), (size_t)p->period + 1);
    if (w.rank != rank) search_back(&x, rank, step, tile);
    if (w.rank != rank && w.lag == EVERY_TILE) search_tile(&x, rank, tile);
    free(x.seen);
    match_destroy(x.match);
    return x.found;
}

/* ---- mutants ---- */
/* Checks a mutant and counts it. `dropped` is its dropped wait, or no_wait. */
static inline void mutant_check(const struct plan *p, enum mutation kind, int rank, int step, struct wait dropped)
{
    char why[200] = "", text[200];
    bool dead = !plan_holds(p, why, sizeof why);
    if (!dead && kind == DROP_WAIT && is_implied(p, rank, step, dropped)) {
        implied_waits++;
        return;
    }
    mutants[kind].made++;
    mutants[kind].killed += dead;
    if (dead || survivors++ >= 10) return;
    describe(p, text, sizeof text);
    print_error("survives: %s at %d:%d (wait %d:%d lag %d): %s\n", mutation_names[kind], rank, step, dropped.rank,
        dropped.step, (int)dropped.lag, text);
}
static const struct wait no_wait = { -1, -1, SAME_TILE };
static inline void drop_waits(struct plan *p, int rank, int step)
{
    struct schedule *s = &p->ranks[rank];
    struct step *t = &s->steps[step];
    for (int w = 0; w < t->wait_count; w++) {
        struct wait *x = &s->waits[t->wait + w], *last = &s->waits[t->wait + --t->wait_count], kept = *x;
        *x = *last;
        *last = kept;
        if (own_waits || kept.rank != rank) mutant_check(p, DROP_WAIT, rank, step, kept);
        *last = *x;
        *x = kept;
        t->wait_count++;
    }
}
/* True for a copy of a chunk onto itself, which is in the plan only for its waits. The results stay right without it,
   and also if it copies another chunk into memory that is overwritten later. */
static inline bool moves_nothing(const struct plan *p, const struct schedule *s, const struct step *t)
{
    if (t->kind != WORK || t->from_count != 1 || t->to_count != 1) return false;
    struct span from = *step_from(s, t), to = *step_to(s, t);
    return from.rank == to.rank
        && plan_cell_index(p, from.rank, from.buffer, from.first) == plan_cell_index(p, to.rank, to.buffer, to.first);
}
static inline void shift_spans(struct plan *p, int rank, int step)
{
    struct schedule *s = &p->ranks[rank];
    const struct step *t = &s->steps[step];
    for (int i = 0; i < t->from_count + t->to_count; i++) {
        struct span *a = &s->spans[t->span + i], kept = *a;
        if (s->chunks[a->buffer] == a->count) continue;
        a->first += a->first + a->count < s->chunks[a->buffer] ? 1 : -1;
        mutant_check(p, SHIFT_SPAN, rank, step, no_wait);
        *a = kept;
    }
}
static inline void change_peer(struct plan *p, int rank, int step)
{
    struct step *t = &p->ranks[rank].steps[step];
    int kept = t->peer;
    do t->peer = (t->peer + 1) % p->size;
    while (t->peer == rank);
    if (t->peer != kept) mutant_check(p, CHANGE_PEER, rank, step, no_wait);
    t->peer = kept;
}
static inline void drop_step(struct plan *p, int rank, int step)
{
    struct step *t = &p->ranks[rank].steps[step], kept = *t;
    t->kind = AWAIT;
    t->from_count = t->to_count = 0;
    mutant_check(p, DROP_STEP, rank, step, no_wait);
    *t = kept;
}
static inline void flip(struct plan *p, enum mutation kind, int rank, int step, bool *flag)
{
    *flag = !*flag;
    mutant_check(p, kind, rank, step, no_wait);
    *flag = !*flag;
}
static inline void mutate(struct plan *p)
{
    for (int r = 0; r < p->size; r++)
        for (int j = 0; j < p->ranks[r].step_count; j++) {
            const struct schedule *s = &p->ranks[r];
            struct step *t = &p->ranks[r].steps[j];
            bool sends = t->kind == SEND || t->kind == RECV, works = t->kind == WORK && !moves_nothing(p, s, t);
            drop_waits(p, r, j);
            if (sends) change_peer(p, r, j);
            if (sends || works) shift_spans(p, r, j);
            if (sends || works) drop_step(p, r, j);
            if (t->kind == WORK && p->size > 1) flip(p, FLIP_FINISH, r, j, &t->finish);
            if (works) flip(p, FLIP_RAW, r, j, &t->premultiplies);
        }
}
static inline void mutants_report(void)
{
    for (int k = 0; k < MUTATIONS; k++)
        print_message("%6d of %6d %s killed\n", mutants[k].killed, mutants[k].made, mutation_names[k]);
    print_message("%6d waits left out, implied by others\n", implied_waits);
    for (int k = 0; k < MUTATIONS; k++) assert_true(mutants[k].made > 0);
    assert_int_equal(survivors, 0);
}
