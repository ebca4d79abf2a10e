/* Infers every wait of every step from the chunks that ranks read and write. Names are versions: peers see INPUT as its
 * caller passed it, and OUTPUT and SCRATCH as they are finally left. So a peer's read waits for the last write of a
 * chunk; if that is a receive, until the message is complete. The first write that destroys an INPUT waits for the
 * peers' reads of it. A slot is filled again only after peers have read the tile that had it before. The roll call
 * awaits the arrival of peers, so no step does. */
#include "backend/base/memory.h"
#include "backend/schedule/build.h"
#include <stdlib.h>

/* completed[member][step] is the step by which the message posted at `step` is known to be complete, or -1. */
struct inference {
    struct build *build;
    struct edges edges;
    int **completed;
};

/* Makes `rank`, before its step `step`, wait until rank `other` has done step `other_step`. */
static void inference_add_wait(struct inference *inference, int rank, int step, int other, int other_step, enum lag lag)
{
    edges_add_edge(&inference->edges,
        (struct edge){ plan_member_of_rank(inference->build->plan, rank), step, { other, other_step, lag } });
}
/* Returns the step by which step j of the rank is known to be complete: j itself, or for a message the step that awaits
   it. A message that no step awaits is an error. */
static int inference_completion_of_step(const struct inference *inference, int rank, int j)
{
    struct schedule *schedule = plan_schedule_of_rank(inference->build->plan, rank);
    if (!step_is_message(&schedule->steps[j])) return j;
    int completion = inference->completed[plan_member_of_rank(inference->build->plan, rank)][j];
    if (completion < 0) schedule_set_error(schedule, "no step waits for a message that a peer depends on");
    return completion < 0 ? j : completion;
}
/* If step j of rank r uses `span` of a peer's tensor, makes the peer's LEAVE wait for that step in every tile, so that
   the peer does not return to its caller earlier. */
static void inference_delay_peer_return(struct inference *inference, int r, int j, struct span span)
{
    if (span.rank == r || span.buffer == SCRATCH) return;
    int leave = plan_schedule_of_rank(inference->build->plan, span.rank)->step_count - 1;
    inference_add_wait(inference, span.rank, leave, r, inference_completion_of_step(inference, r, j), EVERY_TILE);
}
/* Step j of rank r reads an INPUT chunk: makes the first step that overwrites the chunk wait for that step. If r itself
   has overwritten the chunk before step j, that is an error, which staging may cure. */
static void inference_order_input_writes(struct inference *inference, int r, int j, const struct writer *writer)
{
    struct plan *plan = inference->build->plan;
    if (!writer->exists || writer->first < 0) return;
    if (writer->rank != r)
        inference_add_wait(inference, writer->rank, writer->first, r, inference_completion_of_step(inference, r, j),
            SAME_TILE);
    else if (writer->first < j) {
        schedule_set_error(plan_schedule_of_rank(plan, r), "reads an input chunk after overwriting it");
        plan->cycle_rank = r;
    }
}
/* Step j of rank r reads a chunk of `span`: makes it wait for the last write of the chunk, and for SCRATCH makes the
   next tile's first write wait for this read. */
static void inference_await_written_chunk(struct inference *inference, int r, int j, struct span span,
    const struct writer *writer)
{
    if (span.buffer == INPUT) inference_order_input_writes(inference, r, j, writer);
    else if (!writer->exists)
        schedule_set_error(plan_schedule_of_rank(inference->build->plan, r), "reads a chunk that is never written");
    /* A rank's own chunks need no wait, and an in-place chunk without a destroying write is there from the start. */
    else if (writer->rank != r && writer->first >= 0) {
        inference_add_wait(inference, r, j, writer->rank,
            inference_completion_of_step(inference, writer->rank, writer->last), SAME_TILE);
        if (span.buffer == SCRATCH)
            inference_add_wait(inference, writer->rank, writer->first, r, inference_completion_of_step(inference, r, j),
                SLOT_REUSE);
    }
}
/* Infers the waits of one step: for writers of the chunks it reads, and for peers whose tensors it touches. */
static void inference_infer_step(struct inference *inference, const struct schedule *schedule, int j)
{
    const struct step *step = &schedule->steps[j];
    for (int d = 0; d < step->to_count; d++)
        inference_delay_peer_return(inference, schedule->rank, j, step_to(schedule, step)[d]);
    for (int f = 0; f < step->from_count; f++) {
        struct span span = step_from(schedule, step)[f];
        inference_delay_peer_return(inference, schedule->rank, j, span);
        for (int i = 0; i < span.count; i++)
            inference_await_written_chunk(inference, schedule->rank, j, span,
                build_writer_of_chunk(inference->build, span, i));
    }
}

/* ---- publishing steps ---- */
/* Marks the step that the wait refers to as one that publishes, for the kind of the wait. */
static void plan_mark_publisher(struct plan *plan, const struct wait *wait)
{
    struct step *step = &plan_schedule_of_rank(plan, wait->rank)->steps[wait->step];
    if (wait->lag == SLOT_REUSE) step->by_reuse = true;
    else if (wait->lag == EVERY_TILE) step->by_leave = true;
    else step->by_tile = true;
}
/* Marks the steps whose completion another rank waits for; only these publish a counter. */
static void plan_find_publishers(struct plan *plan)
{
    plan->period = 0;
    for (int m = 0; m < plan->count; m++) {
        const struct schedule *schedule = &plan->ranks[m];
        if (schedule->step_count > plan->period) plan->period = schedule->step_count;
        for (int w = 0; w < schedule->wait_count; w++)
            if (schedule->waits[w].rank != schedule->rank) plan_mark_publisher(plan, &schedule->waits[w]);
    }
}

/* ---- prelude ---- */
/* True if the step only copies or sums the rank's own memory into its own slots, and only waits for its slots to be
   free. */
static bool step_fits_prelude(const struct schedule *schedule, const struct step *step)
{
    bool fits = step->kind == WORK && !step_touches_peer(schedule, step);
    for (int d = 0; d < step->to_count; d++) fits &= step_to(schedule, step)[d].buffer == SCRATCH;
    for (int w = 0; w < step->wait_count; w++) fits &= schedule->waits[step->wait + w].lag == SLOT_REUSE;
    return fits;
}
/* Finds the prelude of each rank: the longest beginning that only fills its own slots. */
static void plan_find_preludes(struct plan *plan)
{
    for (int m = 0; m < plan->count; m++) {
        struct schedule *schedule = &plan->ranks[m];
        schedule->prelude = 0;
        while (schedule->prelude < schedule->step_count
            && step_fits_prelude(schedule, &schedule->steps[schedule->prelude]))
            schedule->prelude++;
    }
}

/* ---- the peers that a rank needs ---- */
/* A rank needs the peers that it awaits, except for slots, and those whose memory it reads. */
int schedule_find_needed_peers(const struct schedule *schedule, bool *out)
{
    int count = 0;
    for (const struct wait *wait = schedule->waits; wait < schedule->waits + schedule->wait_count; wait++)
        if (wait->lag != SLOT_REUSE) out[wait->rank] = true;
    for (const struct step *step = schedule->steps; step < schedule->steps + schedule->step_count; step++)
        for (int f = 0; f < step->from_count; f++) out[step_from(schedule, step)[f].rank] = true;
    out[schedule->rank] = false;
    for (int r = 0; r < schedule->size; r++) count += out[r];
    return count;
}

/* ---- all of it ---- */
/* Allocates `completed`. False: out of memory. */
static bool inference_allocate_completed(struct inference *inference)
{
    struct plan *plan = inference->build->plan;
    inference->completed = memory_alloc_zeroed((size_t)plan->count, sizeof *inference->completed);
    bool has_memory = inference->completed != NULL;
    for (int m = 0; m < plan->count && has_memory; m++) {
        inference->completed[m] = memory_alloc_zeroed((size_t)plan->ranks[m].step_count, sizeof **inference->completed);
        has_memory = inference->completed[m] != NULL;
    }
    return has_memory;
}
/* Frees the arrays of the inference. */
static void inference_finish(struct inference *inference)
{
    for (int m = 0; inference->completed && m < inference->build->plan->count; m++) free(inference->completed[m]);
    free(inference->completed);
    free(inference->edges.list);
}
void build_infer_waits(struct build *build)
{
    struct plan *plan = build->plan;
    struct inference inference = { .build = build };
    if (!inference_allocate_completed(&inference)) inference.edges.failed = true;
    for (int m = 0; m < plan->count && !inference.edges.failed; m++)
        schedule_find_message_waits(build, &plan->ranks[m], &inference.edges, inference.completed[m]);
    for (int m = 0; m < plan->count && !inference.edges.failed; m++)
        for (int j = 0; j < plan->ranks[m].step_count; j++) inference_infer_step(&inference, &plan->ranks[m], j);
    if (!inference.edges.failed) {
        plan_attach_waits(plan, &inference.edges);
        plan_find_publishers(plan);
        plan_find_preludes(plan);
    } else plan_fail_out_of_memory(plan);
    inference_finish(&inference);
}
