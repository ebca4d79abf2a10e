/* All chunks of a step of arithmetic hold the same block, so one known chunk gives the others. A walk from the first
 * step to the last follows blocks that come from tensors. A walk back follows blocks that go to tensors, which also
 * covers received chunks. Peers see SCRATCH as it is finally left, so the walks over all members are repeated until
 * they find no more blocks. */
#include "backend/schedule/blocks.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <stdlib.h>
#include <string.h>

/* A walk over the steps of one member. */
struct walk {
    const struct plan *plan;
    const struct schedule *schedule;
    /* The number of SCRATCH chunks of a member. */
    int chunks;
    /* [member][chunk]: the block that the chunk finally holds. */
    int *left;
    /* [chunk] of this member: the block that it holds now; on the walk back, the block that later steps expect. */
    int *now;
    /* Receives the block of every chunk of every span of the schedule. */
    struct chunk_blocks *out;
};

/* True if the span is in the SCRATCH of the member that the walk visits. */
static bool walk_is_own_scratch(const struct walk *walk, struct span span)
{
    return span.buffer == SCRATCH && span.rank == walk->schedule->rank;
}
/* Returns the entry of walk->out for chunk i of a span (an index of schedule.spans). */
static int *walk_block_at(const struct walk *walk, int span, int i)
{
    return &walk->out->block[walk->out->first[span] + i];
}
/* Returns the entry of walk->left for chunk i of a SCRATCH span of any member. */
static int *walk_left_block_at(const struct walk *walk, struct span span, int i)
{
    return &walk->left[(size_t)plan_member_of_rank(walk->plan, span.rank) * (size_t)walk->chunks
        + (size_t)(span.first + i)];
}
/* Returns the block that chunk i of a span holds at this point of the walk (in the SCRATCH of a peer: holds finally),
   or BLOCK_UNKNOWN. In a tensor with a chunk for each rank, the block is the number of the chunk; in a tensor of one
   chunk, it is the rank. */
static int walk_find_block(const struct walk *walk, struct span span, int i)
{
    if (walk_is_own_scratch(walk, span)) return walk->now[span.first + i];
    if (span.buffer == SCRATCH) return *walk_left_block_at(walk, span, i);
    return collective_count_chunks(walk->schedule->collective, span.buffer, walk->schedule->size) == 1 ? span.rank
                                                                                                       : span.first + i;
}

/* ---- to the last step ---- */
/* Sets the block of chunk i of a SCRATCH span; tensors are ignored. An unknown block does not replace what a peer's
   chunk finally holds. */
static void walk_set_block(const struct walk *walk, struct span span, int i, int block)
{
    if (walk_is_own_scratch(walk, span)) walk->now[span.first + i] = block;
    else if (span.buffer == SCRATCH && block != BLOCK_UNKNOWN) *walk_left_block_at(walk, span, i) = block;
}
/* Forward pass, work step: the chunks i of all its spans hold one block. A source, or a target in a tensor, tells
   which. */
static void walk_follow_work(const struct walk *walk, const struct step *step)
{
    const struct span *spans = &walk->schedule->spans[step->span];
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
/* Forward pass, message step: records the blocks of what is sent. A chunk received into SCRATCH has no known block. */
static void walk_follow_message(const struct walk *walk, const struct step *step)
{
    for (int k = step->span; k < step->span + step->from_count + step->to_count; k++)
        for (int i = 0; i < walk->schedule->spans[k].count; i++) {
            if (step->kind == RECV) walk_set_block(walk, walk->schedule->spans[k], i, BLOCK_UNKNOWN);
            *walk_block_at(walk, k, i) = walk_find_block(walk, walk->schedule->spans[k], i);
        }
}
/* Marks every SCRATCH chunk of the member as unknown. */
static void walk_forget_blocks(const struct walk *walk)
{
    for (int c = 0; c < walk->chunks; c++) walk->now[c] = BLOCK_UNKNOWN;
}
/* Forward pass: finds the blocks that come from tensors. */
static void walk_to_last_step(const struct walk *walk)
{
    walk_forget_blocks(walk);
    for (const struct step *step = walk->schedule->steps; step < walk->schedule->steps + walk->schedule->step_count;
        step++)
        if (step->kind == WORK) walk_follow_work(walk, step);
        else walk_follow_message(walk, step);
}

/* ---- back to the first step ---- */
/* Backward pass, work step: if the forward pass has not found the block, it follows from the later use of a target. */
static void walk_expect_work(const struct walk *walk, const struct step *step)
{
    const struct span *spans = &walk->schedule->spans[step->span];
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
/* Backward pass, message step: an unknown chunk has the block that later steps expect of it. */
static void walk_expect_message(const struct walk *walk, const struct step *step)
{
    for (int k = step->span; k < step->span + step->from_count + step->to_count; k++)
        for (int i = 0; i < walk->schedule->spans[k].count; i++) {
            if (!walk_is_own_scratch(walk, walk->schedule->spans[k])) continue;
            int *now = &walk->now[walk->schedule->spans[k].first + i], *block = walk_block_at(walk, k, i);
            if (*block == BLOCK_UNKNOWN) *block = *now;
            *now = step->kind == RECV ? BLOCK_UNKNOWN : *block;
        }
}
/* Backward pass: finds the blocks that go to tensors. */
static void walk_to_first_step(const struct walk *walk)
{
    walk_forget_blocks(walk);
    for (const struct step *step = walk->schedule->steps + walk->schedule->step_count; step-- > walk->schedule->steps;)
        if (step->kind == WORK) walk_expect_work(walk, step);
        else walk_expect_message(walk, step);
}

/* ---- all members ---- */
/* Copies the blocks that this member finally leaves in its SCRATCH from `now` to `left`. True: some of them are new. */
static bool walk_record_left_blocks(const struct walk *walk)
{
    int *left = &walk->left[(size_t)plan_member_of_rank(walk->plan, walk->schedule->rank) * (size_t)walk->chunks];
    bool more = false;
    for (int c = 0; c < walk->chunks; c++) {
        if (walk->now[c] == BLOCK_UNKNOWN || left[c] == walk->now[c]) continue;
        left[c] = walk->now[c];
        more = true;
    }
    return more;
}
/* Allocates an entry for each chunk of each span of a schedule. */
static tutti_status chunk_blocks_allocate_arrays(const struct schedule *schedule, struct chunk_blocks *out)
{
    size_t chunks = 0;
    out->first = memory_alloc_zeroed((size_t)schedule->span_count + 1, sizeof *out->first);
    for (int k = 0; k < schedule->span_count; chunks += (size_t)schedule->spans[k++].count)
        if (out->first) out->first[k] = (int)chunks;
    out->block = memory_alloc_zeroed(chunks + 1, sizeof *out->block);
    if (out->first && out->block) return TUTTI_OK;
    chunk_blocks_finish(out);
    return TUTTI_NO_MEMORY;
}
/* Walks over a member's schedule forward and backward, and fills *out. Sets *more if another walk over the peers may
   find more blocks. */
static tutti_status walk_visit_member(struct walk *walk, int member, struct chunk_blocks *out, bool *more)
{
    walk->schedule = &walk->plan->ranks[member];
    walk->out = out;
    TRY(chunk_blocks_allocate_arrays(walk->schedule, out));
    walk_to_last_step(walk);
    *more |= walk_record_left_blocks(walk);
    walk_to_first_step(walk);
    return TUTTI_OK;
}
/* Walks over all members until no walk finds a new block, then over `rank` for *out. A chain of ranks that read from
   each other has at most all members, so `count` + 1 passes suffice. */
static tutti_status walk_visit_all_members(struct walk *walk, int rank, struct chunk_blocks *out)
{
    bool more = true;
    for (int pass = 0; more && pass <= walk->plan->count; pass++) {
        more = false;
        for (int m = 0; m < walk->plan->count; m++) {
            struct chunk_blocks discarded;
            TRY(walk_visit_member(walk, m, &discarded, &more));
            chunk_blocks_finish(&discarded);
        }
    }
    return walk_visit_member(walk, plan_member_of_rank(walk->plan, rank), out, &more);
}
/* Finds the blocks of one rank's chunks. The plan must have the schedules of all members. */
static tutti_status walk_find_blocks(const struct plan *plan, int rank, struct chunk_blocks *out)
{
    struct walk walk = { .plan = plan, .chunks = plan->ranks[0].chunks[SCRATCH] };
    size_t total;
    bool fits = size_multiply((size_t)plan->count, (size_t)walk.chunks + 1, &total);
    walk.left = fits ? memory_alloc_zeroed(total, sizeof *walk.left) : NULL;
    walk.now = memory_alloc_zeroed((size_t)walk.chunks + 1, sizeof *walk.now);
    for (size_t i = 0; walk.left && i < total; i++) walk.left[i] = BLOCK_UNKNOWN;
    *out = (struct chunk_blocks){ NULL, NULL };
    tutti_status status = walk.left && walk.now ? walk_visit_all_members(&walk, rank, out) : TUTTI_NO_MEMORY;
    free(walk.left);
    free(walk.now);
    return status == TUTTI_OK ? status : status_fail(status, "no memory to look for blocks in scratch");
}
/* If the plan has kept only one schedule, this builds the same schedules of all members again. */
tutti_status chunk_blocks_find(const struct plan *plan, int rank, struct chunk_blocks *out)
{
    if (!plan->kept) return walk_find_blocks(plan, rank, out);
    struct plan all = *plan;
    all.one_rank = false;
    all.unshared = NULL;
    all.ranks = NULL;
    *out = (struct chunk_blocks){ NULL, NULL };
    tutti_status status = plan_build_staging(&all);
    if (status == TUTTI_OK) status = walk_find_blocks(&all, rank, out);
    else status_fail(status, "cannot plan %s again: %s", plan->algorithm->name, all.error);
    plan_finish(&all);
    return status;
}
void chunk_blocks_finish(struct chunk_blocks *blocks)
{
    free(blocks->first);
    free(blocks->block);
    *blocks = (struct chunk_blocks){ NULL, NULL };
}
