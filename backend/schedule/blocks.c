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

static bool walk_is_own_scratch(const struct walk *walk, struct span span)
{
    return span.buffer == SCRATCH && span.rank == walk->s->rank;
}
static int *walk_block_at(const struct walk *walk, int span, int i) { return &walk->out->of[walk->out->at[span] + i]; }
static int *walk_left_block_at(const struct walk *walk, struct span span, int i)
{
    return &walk->left[(size_t)plan_member_of_rank(walk->plan, span.rank) * (size_t)walk->chunks
        + (size_t)(span.first + i)];
}
static int walk_find_block(const struct walk *walk, struct span span, int i)
{
    if (walk_is_own_scratch(walk, span)) return walk->now[span.first + i];
    if (span.buffer == SCRATCH) return *walk_left_block_at(walk, span, i);
    return collective_buffer_parts(walk->s->collective, span.buffer, walk->s->size) == 1 ? span.rank : span.first + i;
}

/* ---- to the last step ---- */
static void walk_set_block(const struct walk *walk, struct span span, int i, int block)
{
    if (walk_is_own_scratch(walk, span)) walk->now[span.first + i] = block;
    else if (span.buffer == SCRATCH && block != BLOCK_UNKNOWN) *walk_left_block_at(walk, span, i) = block;
}
/* Forward pass, work step: a chunk that is read from a known block gives its block to all its targets. */
static void walk_follow_work(const struct walk *walk, const struct step *step)
{
    const struct span *spans = &walk->s->spans[step->span];
    int count = step->from_count + step->to_count;
    for (int i = 0; i < spans->count; i++) {
        int block = BLOCK_UNKNOWN;
        for (int k = 0; k < count && block == BLOCK_UNKNOWN; k++)
            if (k < step->from_count || spans[k].buffer != SCRATCH) block = walk_find_block(walk, spans[k], i);
        for (int k = 0; k < count; k++) {
            walk_set_block(walk, spans[k], i, block);
            *walk_block_at(walk, step->span + k, i) = block;
        }
    }
}
/* Forward pass, message step: a received chunk has no known block. */
static void walk_follow_message(const struct walk *walk, const struct step *step)
{
    for (int k = step->span; k < step->span + step->from_count + step->to_count; k++)
        for (int i = 0; i < walk->s->spans[k].count; i++) {
            if (step->kind == RECV) walk_set_block(walk, walk->s->spans[k], i, BLOCK_UNKNOWN);
            *walk_block_at(walk, k, i) = walk_find_block(walk, walk->s->spans[k], i);
        }
}
static void walk_forget_blocks(const struct walk *walk)
{
    for (int c = 0; c < walk->chunks; c++) walk->now[c] = BLOCK_UNKNOWN;
}
static void walk_to_last_step(const struct walk *walk)
{
    walk_forget_blocks(walk);
    for (const struct step *step = walk->s->steps; step < walk->s->steps + walk->s->step_count; step++)
        if (step->kind == WORK) walk_follow_work(walk, step);
        else walk_follow_message(walk, step);
}

/* ---- back to the first step ---- */
/* Backward pass, work step: a target's later use tells the block of the sources. */
static void walk_expect_work(const struct walk *walk, const struct step *step)
{
    const struct span *spans = &walk->s->spans[step->span];
    int count = step->from_count + step->to_count;
    for (int i = 0; i < spans->count; i++) {
        int block = *walk_block_at(walk, step->span, i);
        for (int k = step->from_count; k < count; k++) {
            if (!walk_is_own_scratch(walk, spans[k])) continue;
            if (block == BLOCK_UNKNOWN) block = walk->now[spans[k].first + i];
            walk->now[spans[k].first + i] = BLOCK_UNKNOWN;
        }
        for (int k = 0; k < count; k++) {
            *walk_block_at(walk, step->span + k, i) = block;
            if (k < step->from_count && walk_is_own_scratch(walk, spans[k])) walk->now[spans[k].first + i] = block;
        }
    }
}
/* Backward pass, message step: a received chunk has the block of its later use. */
static void walk_expect_message(const struct walk *walk, const struct step *step)
{
    for (int k = step->span; k < step->span + step->from_count + step->to_count; k++)
        for (int i = 0; i < walk->s->spans[k].count; i++) {
            if (!walk_is_own_scratch(walk, walk->s->spans[k])) continue;
            int *now = &walk->now[walk->s->spans[k].first + i], *block = walk_block_at(walk, k, i);
            if (*block == BLOCK_UNKNOWN) *block = *now;
            *now = step->kind == RECV ? BLOCK_UNKNOWN : *block;
        }
}
static void walk_to_first_step(const struct walk *walk)
{
    walk_forget_blocks(walk);
    for (const struct step *step = walk->s->steps + walk->s->step_count; step-- > walk->s->steps;)
        if (step->kind == WORK) walk_expect_work(walk, step);
        else walk_expect_message(walk, step);
}

/* ---- all members ---- */
/* Records the blocks that this member finally leaves in SCRATCH. True: some of them are new. */
static bool walk_record_left_blocks(const struct walk *walk)
{
    int *left = &walk->left[(size_t)plan_member_of_rank(walk->plan, walk->s->rank) * (size_t)walk->chunks];
    bool more = false;
    for (int c = 0; c < walk->chunks; c++) {
        if (walk->now[c] == BLOCK_UNKNOWN || left[c] == walk->now[c]) continue;
        left[c] = walk->now[c];
        more = true;
    }
    return more;
}
/* Allocates one block number for each chunk of each span. */
static tutti_status blocks_allocate_arrays(const struct schedule *schedule, struct blocks *out)
{
    size_t chunks = 0;
    out->at = memory_alloc_zeroed((size_t)schedule->span_count + 1, sizeof *out->at);
    for (int k = 0; k < schedule->span_count; chunks += (size_t)schedule->spans[k++].count)
        if (out->at) out->at[k] = (int)chunks;
    out->of = memory_alloc_zeroed(chunks + 1, sizeof *out->of);
    if (out->at && out->of) return TUTTI_OK;
    blocks_finish(out);
    return TUTTI_NO_MEMORY;
}
/* Walks one rank's schedule forward and backward. `more`: a later walk may find more blocks. */
static tutti_status walk_visit_member(struct walk *walk, int member, struct blocks *out, bool *more)
{
    walk->s = &walk->plan->ranks[member];
    walk->out = out;
    TRY(blocks_allocate_arrays(walk->s, out));
    walk_to_last_step(walk);
    *more |= walk_record_left_blocks(walk);
    walk_to_first_step(walk);
    return TUTTI_OK;
}
/* Every pass but the last finds a block, and a chain of ranks that read from each other has at most all members. So
   `count` + 1 passes suffice. */
static tutti_status walk_visit_all_members(struct walk *walk, int rank, struct blocks *out)
{
    bool more = true;
    for (int pass = 0; more && pass <= walk->plan->count; pass++) {
        more = false;
        for (int m = 0; m < walk->plan->count; m++) {
            struct blocks its;
            TRY(walk_visit_member(walk, m, &its, &more));
            blocks_finish(&its);
        }
    }
    return walk_visit_member(walk, plan_member_of_rank(walk->plan, rank), out, &more);
}
/* Finds the blocks of one rank's chunks by walks over all ranks' schedules. */
static tutti_status walk_find_blocks(const struct plan *plan, int rank, struct blocks *out)
{
    struct walk walk = { .plan = plan, .chunks = plan->ranks[0].chunks[SCRATCH] };
    size_t total;
    bool fits = size_multiply((size_t)plan->count, (size_t)walk.chunks + 1, &total);
    walk.left = fits ? memory_alloc_zeroed(total, sizeof *walk.left) : NULL;
    walk.now = memory_alloc_zeroed((size_t)walk.chunks + 1, sizeof *walk.now);
    for (size_t i = 0; walk.left && i < total; i++) walk.left[i] = BLOCK_UNKNOWN;
    *out = (struct blocks){ NULL, NULL };
    tutti_status status = walk.left && walk.now ? walk_visit_all_members(&walk, rank, out) : TUTTI_NO_MEMORY;
    free(walk.left);
    free(walk.now);
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
