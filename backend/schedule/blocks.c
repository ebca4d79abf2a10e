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

static bool walk_is_own_scratch(const struct walk *w, struct span a)
{
    return a.buffer == SCRATCH && a.rank == w->s->rank;
}
static int *walk_block_at(const struct walk *w, int span, int i) { return &w->out->of[w->out->at[span] + i]; }
static int *walk_left_block_at(const struct walk *w, struct span a, int i)
{
    return &w->left[(size_t)plan_member_of_rank(w->plan, a.rank) * (size_t)w->chunks + (size_t)(a.first + i)];
}
static int walk_find_block(const struct walk *w, struct span a, int i)
{
    if (walk_is_own_scratch(w, a)) return w->now[a.first + i];
    if (a.buffer == SCRATCH) return *walk_left_block_at(w, a, i);
    return collective_buffer_parts(w->s->collective, a.buffer, w->s->size) == 1 ? a.rank : a.first + i;
}

/* ---- to the last step ---- */
static void walk_set_block(const struct walk *w, struct span a, int i, int block)
{
    if (walk_is_own_scratch(w, a)) w->now[a.first + i] = block;
    else if (a.buffer == SCRATCH && block != BLOCK_UNKNOWN) *walk_left_block_at(w, a, i) = block;
}
static void walk_follow_work(const struct walk *w, const struct step *t)
{
    const struct span *spans = &w->s->spans[t->span];
    int count = t->from_count + t->to_count;
    for (int i = 0; i < spans->count; i++) {
        int block = BLOCK_UNKNOWN;
        for (int k = 0; k < count && block == BLOCK_UNKNOWN; k++)
            if (k < t->from_count || spans[k].buffer != SCRATCH) block = walk_find_block(w, spans[k], i);
        for (int k = 0; k < count; k++) {
            walk_set_block(w, spans[k], i, block);
            *walk_block_at(w, t->span + k, i) = block;
        }
    }
}
static void walk_follow_message(const struct walk *w, const struct step *t)
{
    for (int k = t->span; k < t->span + t->from_count + t->to_count; k++)
        for (int i = 0; i < w->s->spans[k].count; i++) {
            if (t->kind == RECV) walk_set_block(w, w->s->spans[k], i, BLOCK_UNKNOWN);
            *walk_block_at(w, k, i) = walk_find_block(w, w->s->spans[k], i);
        }
}
static void walk_forget_blocks(const struct walk *w)
{
    for (int c = 0; c < w->chunks; c++) w->now[c] = BLOCK_UNKNOWN;
}
static void walk_to_last_step(const struct walk *w)
{
    walk_forget_blocks(w);
    for (const struct step *t = w->s->steps; t < w->s->steps + w->s->step_count; t++)
        if (t->kind == WORK) walk_follow_work(w, t);
        else walk_follow_message(w, t);
}

/* ---- back to the first step ---- */
static void walk_expect_work(const struct walk *w, const struct step *t)
{
    const struct span *spans = &w->s->spans[t->span];
    int count = t->from_count + t->to_count;
    for (int i = 0; i < spans->count; i++) {
        int block = *walk_block_at(w, t->span, i);
        for (int k = t->from_count; k < count; k++) {
            if (!walk_is_own_scratch(w, spans[k])) continue;
            if (block == BLOCK_UNKNOWN) block = w->now[spans[k].first + i];
            w->now[spans[k].first + i] = BLOCK_UNKNOWN;
        }
        for (int k = 0; k < count; k++) {
            *walk_block_at(w, t->span + k, i) = block;
            if (k < t->from_count && walk_is_own_scratch(w, spans[k])) w->now[spans[k].first + i] = block;
        }
    }
}
static void walk_expect_message(const struct walk *w, const struct step *t)
{
    for (int k = t->span; k < t->span + t->from_count + t->to_count; k++)
        for (int i = 0; i < w->s->spans[k].count; i++) {
            if (!walk_is_own_scratch(w, w->s->spans[k])) continue;
            int *now = &w->now[w->s->spans[k].first + i], *block = walk_block_at(w, k, i);
            if (*block == BLOCK_UNKNOWN) *block = *now;
            *now = t->kind == RECV ? BLOCK_UNKNOWN : *block;
        }
}
static void walk_to_first_step(const struct walk *w)
{
    walk_forget_blocks(w);
    for (const struct step *t = w->s->steps + w->s->step_count; t-- > w->s->steps;)
        if (t->kind == WORK) walk_expect_work(w, t);
        else walk_expect_message(w, t);
}

/* ---- all members ---- */
/* Records the blocks that this member finally leaves in SCRATCH. True: some of them are new. */
static bool walk_record_left_blocks(const struct walk *w)
{
    int *left = &w->left[(size_t)plan_member_of_rank(w->plan, w->s->rank) * (size_t)w->chunks];
    bool more = false;
    for (int c = 0; c < w->chunks; c++) {
        if (w->now[c] == BLOCK_UNKNOWN || left[c] == w->now[c]) continue;
        left[c] = w->now[c];
        more = true;
    }
    return more;
}
static tutti_status blocks_allocate_arrays(const struct schedule *s, struct blocks *out)
{
    size_t chunks = 0;
    out->at = memory_alloc_zeroed((size_t)s->span_count + 1, sizeof *out->at);
    for (int k = 0; k < s->span_count; chunks += (size_t)s->spans[k++].count)
        if (out->at) out->at[k] = (int)chunks;
    out->of = memory_alloc_zeroed(chunks + 1, sizeof *out->of);
    if (out->at && out->of) return TUTTI_OK;
    blocks_finish(out);
    return TUTTI_NO_MEMORY;
}
static tutti_status walk_visit_member(struct walk *w, int member, struct blocks *out, bool *more)
{
    w->s = &w->plan->ranks[member];
    w->out = out;
    TRY(blocks_allocate_arrays(w->s, out));
    walk_to_last_step(w);
    *more |= walk_record_left_blocks(w);
    walk_to_first_step(w);
    return TUTTI_OK;
}
/* Every pass but the last finds a block, and a chain of ranks that read from each other has at most all members. So
   `count` + 1 passes suffice. */
static tutti_status walk_visit_all_members(struct walk *w, int rank, struct blocks *out)
{
    bool more = true;
    for (int pass = 0; more && pass <= w->plan->count; pass++) {
        more = false;
        for (int m = 0; m < w->plan->count; m++) {
            struct blocks its;
            TRY(walk_visit_member(w, m, &its, &more));
            blocks_finish(&its);
        }
    }
    return walk_visit_member(w, plan_member_of_rank(w->plan, rank), out, &more);
}
static tutti_status walk_find_blocks(const struct plan *plan, int rank, struct blocks *out)
{
    struct walk w = { .plan = plan, .chunks = plan->ranks[0].chunks[SCRATCH] };
    size_t total;
    bool fits = size_multiply((size_t)plan->count, (size_t)w.chunks + 1, &total);
    w.left = fits ? memory_alloc_zeroed(total, sizeof *w.left) : NULL;
    w.now = memory_alloc_zeroed((size_t)w.chunks + 1, sizeof *w.now);
    for (size_t i = 0; w.left && i < total; i++) w.left[i] = BLOCK_UNKNOWN;
    *out = (struct blocks){ NULL, NULL };
    tutti_status status = w.left && w.now ? walk_visit_all_members(&w, rank, out) : TUTTI_NO_MEMORY;
    free(w.left);
    free(w.now);
    return status == TUTTI_OK ? status : status_fail(status, "no memory to look for blocks in scratch");
}
/* If the plan has kept only one schedule, this builds the same schedules of all members again. */
tutti_status blocks_find(const struct plan *plan, int rank, struct blocks *out)
{
    if (!plan->kept) return walk_find_blocks(plan, rank, out);
    struct plan all = *plan;
    all.one_rank = false;
    all.unshared = NULL;
    all.ranks = NULL;
    *out = (struct blocks){ NULL, NULL };
    tutti_status status = plan_build_staging(&all);
    if (status == TUTTI_OK) status = walk_find_blocks(&all, rank, out);
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
