/* All chunks of a step of arithmetic hold the same block, so one known chunk gives the others. A walk from the first
 * step to the last follows blocks that come from tensors. A walk back follows blocks that go to tensors, which also
 * covers received chunks. Peers see SCRATCH as it is finally left, so the walks over all members are repeated until
 * they find no more blocks. */
#include "backend/schedule/blocks.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <stdlib.h>
#include <string.h>

struct walk {
    const struct plan *plan;
    const struct schedule *s;
    /* The number of SCRATCH chunks of a member. */
    int chunks;
    /* [member][chunk]: the block that the chunk finally holds. */
    int *left;
    /* [chunk] of this member: the block that it holds now; on the walk back, the block that later steps expect. */
    int *now;
    struct blocks *out;
};

static bool is_mine(const struct walk *w, struct span a) { return a.buffer == SCRATCH && a.rank == w->s->rank; }
static int *block_slot(const struct walk *w, int span, int i) { return &w->out->of[w->out->at[span] + i]; }
static int *left_of(const struct walk *w, struct span a, int i)
{
    return &w->left[(size_t)plan_index(w->plan, a.rank) * (size_t)w->chunks + (size_t)(a.first + i)];
}
static int block_of(const struct walk *w, struct span a, int i)
{
    if (is_mine(w, a)) return w->now[a.first + i];
    if (a.buffer == SCRATCH) return *left_of(w, a, i);
    return family_parts(w->s->family, a.buffer, w->s->size) == 1 ? a.rank : a.first + i;
}

/* ---- to the last step ---- */
static void block_hold(const struct walk *w, struct span a, int i, int block)
{
    if (is_mine(w, a)) w->now[a.first + i] = block;
    else if (a.buffer == SCRATCH && block != BLOCK_UNKNOWN) *left_of(w, a, i) = block;
}
static void follow_work(const struct walk *w, const struct step *t)
{
    const struct span *spans = &w->s->spans[t->span];
    int count = t->from_count + t->to_count;
    for (int i = 0; i < spans->count; i++) {
        int block = BLOCK_UNKNOWN;
        for (int k = 0; k < count && block == BLOCK_UNKNOWN; k++)
            if (k < t->from_count || spans[k].buffer != SCRATCH) block = block_of(w, spans[k], i);
        for (int k = 0; k < count; k++) {
            block_hold(w, spans[k], i, block);
            *block_slot(w, t->span + k, i) = block;
        }
    }
}
static void follow_message(const struct walk *w, const struct step *t)
{
    for (int k = t->span; k < t->span + t->from_count + t->to_count; k++)
        for (int i = 0; i < w->s->spans[k].count; i++) {
            if (t->kind == RECV) block_hold(w, w->s->spans[k], i, BLOCK_UNKNOWN);
            *block_slot(w, k, i) = block_of(w, w->s->spans[k], i);
        }
}
static void walk_forget(const struct walk *w)
{
    for (int c = 0; c < w->chunks; c++) w->now[c] = BLOCK_UNKNOWN;
}
static void walk_follow(const struct walk *w)
{
    walk_forget(w);
    for (const struct step *t = w->s->steps; t < w->s->steps + w->s->step_count; t++)
        if (t->kind == WORK) follow_work(w, t);
        else follow_message(w, t);
}

/* ---- back to the first step ---- */
static void expect_work(const struct walk *w, const struct step *t)
{
    const struct span *spans = &w->s->spans[t->span];
    int count = t->from_count + t->to_count;
    for (int i = 0; i < spans->count; i++) {
        int block = *block_slot(w, t->span, i);
        for (int k = t->from_count; k < count; k++) {
            if (!is_mine(w, spans[k])) continue;
            if (block == BLOCK_UNKNOWN) block = w->now[spans[k].first + i];
            w->now[spans[k].first + i] = BLOCK_UNKNOWN;
        }
        for (int k = 0; k < count; k++) {
            *block_slot(w, t->span + k, i) = block;
            if (k < t->from_count && is_mine(w, spans[k])) w->now[spans[k].first + i] = block;
        }
    }
}
static void expect_message(const struct walk *w, const struct step *t)
{
    for (int k = t->span; k < t->span + t->from_count + t->to_count; k++)
        for (int i = 0; i < w->s->spans[k].count; i++) {
            if (!is_mine(w, w->s->spans[k])) continue;
            int *now = &w->now[w->s->spans[k].first + i], *block = block_slot(w, k, i);
            if (*block == BLOCK_UNKNOWN) *block = *now;
            *now = t->kind == RECV ? BLOCK_UNKNOWN : *block;
        }
}
static void walk_expect(const struct walk *w)
{
    walk_forget(w);
    for (const struct step *t = w->s->steps + w->s->step_count; t-- > w->s->steps;)
        if (t->kind == WORK) expect_work(w, t);
        else expect_message(w, t);
}

/* ---- all members ---- */
/* Records the blocks that this member finally leaves in SCRATCH. True: some of them are new. */
static bool walk_leave(const struct walk *w)
{
    int *left = &w->left[(size_t)plan_index(w->plan, w->s->rank) * (size_t)w->chunks];
    bool more = false;
    for (int c = 0; c < w->chunks; c++) {
        if (w->now[c] == BLOCK_UNKNOWN || left[c] == w->now[c]) continue;
        left[c] = w->now[c];
        more = true;
    }
    return more;
}
static tutti_status blocks_init(const struct schedule *s, struct blocks *out)
{
    size_t chunks = 0;
    out->at = memory_zeroed((size_t)s->span_count + 1, sizeof *out->at);
    for (int k = 0; k < s->span_count; chunks += (size_t)s->spans[k++].count)
        if (out->at) out->at[k] = (int)chunks;
    out->of = memory_zeroed(chunks + 1, sizeof *out->of);
    if (out->at && out->of) return TUTTI_OK;
    blocks_finish(out);
    return TUTTI_NO_MEMORY;
}
static tutti_status walk_member(struct walk *w, int member, struct blocks *out, bool *more)
{
    w->s = &w->plan->ranks[member];
    w->out = out;
    TRY(blocks_init(w->s, out));
    walk_follow(w);
    *more |= walk_leave(w);
    walk_expect(w);
    return TUTTI_OK;
}
/* Every pass but the last finds a block, and a chain of ranks that read from each other has at most all members. So
   `count` + 1 passes suffice. */
static tutti_status walk_all(struct walk *w, int rank, struct blocks *out)
{
    bool more = true;
    for (int pass = 0; more && pass <= w->plan->count; pass++) {
        more = false;
        for (int m = 0; m < w->plan->count; m++) {
            struct blocks its;
            TRY(walk_member(w, m, &its, &more));
            blocks_finish(&its);
        }
    }
    return walk_member(w, plan_index(w->plan, rank), out, &more);
}
static tutti_status walk_find(const struct plan *plan, int rank, struct blocks *out)
{
    struct walk w = { .plan = plan, .chunks = plan->ranks[0].chunks[SCRATCH] };
    size_t total;
    bool fits = size_multiply((size_t)plan->count, (size_t)w.chunks + 1, &total);
    w.left = fits ? memory_zeroed(total, sizeof *w.left) : NULL;
    w.now = memory_zeroed((size_t)w.chunks + 1, sizeof *w.now);
    for (size_t i = 0; w.left && i < total; i++) w.left[i] = BLOCK_UNKNOWN;
    *out = (struct blocks){ NULL, NULL };
    tutti_status status = w.left && w.now ? walk_all(&w, rank, out) : TUTTI_NO_MEMORY;
    free(w.left);
    free(w.now);
    return status == TUTTI_OK ? status : status_fail(status, "no memory to look for blocks in scratch");
}
/* If the plan has kept only one schedule, this builds the same schedules of all members again. */
tutti_status blocks_find(const struct plan *plan, int rank, struct blocks *out)
{
    if (!plan->kept) return walk_find(plan, rank, out);
    struct plan all = *plan;
    all.one_rank = false;
    all.unshared = NULL;
    all.ranks = NULL;
    *out = (struct blocks){ NULL, NULL };
    tutti_status status = plan_build_staging(&all);
    if (status == TUTTI_OK) status = walk_find(&all, rank, out);
    else status_fail(status, "cannot plan %s again: %s", plan->algorithm->name, all.error);
    plan_finish(&all);
    return status;
}
void blocks_finish(struct blocks *blocks)
{
    free(blocks->at);
    free(blocks->of);
    *blocks = (struct blocks){ NULL, NULL };
}
