/* Staging: if a reader cannot use a chunk where it lies, the owner copies it into a slot, a SCRATCH chunk, by an
 * ordinary step. That applies to private tensors that peers read, to INPUT that is overwritten in place before it is
 * read, and to all INPUT if every contribution must be multiplied first. */
#include "backend/base/memory.h"
#include "backend/schedule/build.h"
#include <stdlib.h>

/* slot[buffer][member * chunks + chunk] is 0 if the chunk of that member's tensor is not staged, else 1 + the SCRATCH
   chunk that has the copy. */
struct staging {
    const struct build *build;
    int *slot[2];
};

/* Returns the entry of a chunk of a rank's tensor in staging.slot. */
static int *staging_slot_at(const struct staging *staging, int rank, enum buffer buffer, int index)
{
    const struct plan *plan = staging->build->plan;
    return &staging->slot[buffer][(size_t)plan_member_of_rank(plan, rank) * (size_t)plan->ranks[0].chunks[buffer]
        + (size_t)index];
}
/* True if `step` reads the rank's own INPUT in `span` after this rank has overwritten it. With stage_sends also if it
   sends INPUT that is overwritten at any time. */
static bool span_is_overwritten(const struct build *build, const struct schedule *schedule, int step, struct span span)
{
    bool sent = build->plan->stage_sends && schedule->steps[step].kind == SEND;
    for (int i = 0; i < span.count; i++) {
        const struct writer *writer = build_writer_of_chunk(build, span, i);
        if (!writer->exists || writer->first < 0) continue;
        if (sent || (span.rank == schedule->rank && writer->rank == schedule->rank && writer->first < step))
            return true;
    }
    return false;
}
/* True if `step` must read a copy of the span in slots instead of the tensor. */
static bool span_is_staged(const struct build *build, const struct schedule *schedule, int step, struct span span)
{
    if (span.buffer == SCRATCH) return false;
    if (span.rank != schedule->rank && !plan_is_open(build->plan, span.rank)) return true;
    return span.buffer == INPUT && (build->plan->stage_inputs || span_is_overwritten(build, schedule, step, span));
}

/* ---- slots ---- */
/* Marks the chunks that a step must read from a slot. */
static void staging_mark_reads(const struct staging *staging, const struct schedule *schedule, int step)
{
    const struct step *t = &schedule->steps[step];
    for (int f = 0; f < t->from_count; f++) {
        struct span span = step_from(schedule, t)[f];
        if (!span_is_staged(staging->build, schedule, step, span)) continue;
        for (int i = 0; i < span.count; i++) *staging_slot_at(staging, span.rank, span.buffer, span.first + i) = 1;
    }
}
/* Gives each marked chunk a slot of its owner. */
static void staging_assign_slots(const struct staging *staging)
{
    struct plan *plan = staging->build->plan;
    for (int m = 0; m < plan->count; m++)
        for (int j = 0; j < plan->ranks[m].step_count; j++) staging_mark_reads(staging, &plan->ranks[m], j);
    for (int m = 0; m < plan->count; m++)
        for (int buffer = INPUT; buffer <= OUTPUT; buffer++)
            for (int c = 0; c < plan->ranks[m].chunks[buffer]; c++) {
                int *slot = staging_slot_at(staging, plan->ranks[m].rank, (enum buffer)buffer, c);
                if (*slot) *slot = ++plan->ranks[m].chunks[SCRATCH];
            }
}
/* Returns how many adjacent chunks of this rank's tensor, from `first` on, are staged. In OUTPUT only those count that
   this rank's step `after` writes last. */
static int staging_run_length(const struct staging *staging, const struct schedule *schedule, enum buffer buffer,
    int first, int after)
{
    int n = 0;
    for (; first + n < schedule->chunks[buffer] && *staging_slot_at(staging, schedule->rank, buffer, first + n); n++) {
        const struct writer *writer =
            build_writer_of_chunk(staging->build, span_of_chunk(schedule->rank, buffer, first + n), 0);
        if (buffer == OUTPUT && (!writer->exists || writer->rank != schedule->rank || writer->last != after)) break;
    }
    return n;
}
/* Fills slots with adjacent chunks (`tensor`) of this rank's tensor. If the last step has just written them to OUTPUT,
   it gets the slots as a further target; otherwise this adds a copy step. */
static void staging_copy_run(const struct staging *staging, struct schedule *schedule, struct span tensor)
{
    struct span slot = { schedule->rank, SCRATCH,
        *staging_slot_at(staging, schedule->rank, tensor.buffer, tensor.first) - 1, tensor.count };
    struct step *step = schedule->step_count ? &schedule->steps[schedule->step_count - 1] : NULL;
    bool has_just_written = !schedule->error && tensor.buffer == OUTPUT && step && step->kind == WORK
        && spans_are_equal(*step_to(schedule, step), tensor);
    if (!has_just_written) {
        step = schedule_add_step(schedule, WORK);
        if (step) step->premultiplies = tensor.buffer == INPUT && staging->build->plan->stage_inputs;
        step_add_from(schedule, step, tensor);
    }
    step_add_to(schedule, step, slot);
}
/* Adds copies of this rank's staged INPUT into slots. */
static void staging_copy_input(const struct staging *staging, struct schedule *schedule)
{
    for (int c = 0, n; c < schedule->chunks[INPUT]; c += n ? n : 1)
        if ((n = staging_run_length(staging, schedule, INPUT, c, 0)) > 0)
            staging_copy_run(staging, schedule, (struct span){ schedule->rank, INPUT, c, n });
}
/* Adds copies of the staged OUTPUT chunks that step `step` of the old schedule writes last. */
static void staging_copy_output(const struct staging *staging, struct schedule *schedule, const struct schedule *old,
    int step)
{
    const struct step *t = &old->steps[step];
    for (int d = 0; d < t->to_count; d++) {
        struct span to = step_to(old, t)[d];
        if (to.rank != schedule->rank || to.buffer != OUTPUT) continue;
        for (int c = to.first, n; c < to.first + to.count; c += n ? n : 1) {
            n = staging_run_length(staging, schedule, OUTPUT, c, step);
            if (n > to.first + to.count - c) n = to.first + to.count - c;
            if (n) staging_copy_run(staging, schedule, (struct span){ schedule->rank, OUTPUT, c, n });
        }
    }
}

/* ---- programs ---- */
/* Replaces the staged tensors that a step reads by their slots. */
static void staging_redirect_reads(const struct staging *staging, struct schedule *old, int step)
{
    struct step *t = &old->steps[step];
    for (int f = 0; f < t->from_count; f++) {
        struct span *span = &step_from(old, t)[f];
        if (!span_is_staged(staging->build, old, step, *span)) continue;
        *span = (struct span){ span->rank, SCRATCH,
            *staging_slot_at(staging, span->rank, span->buffer, span->first) - 1, span->count };
    }
}
/* Records a schedule again, with copies into slots and reads from slots. Received chunks are staged as late as is safe,
   before the next step that touches a peer, because until then the rank need not wait for the message. */
static void staging_rebuild_schedule(const struct staging *staging, struct schedule *schedule)
{
    struct schedule old = schedule_restart_recording(schedule);
    int next_receive = 0;
    staging_copy_input(staging, schedule);
    for (int j = 0; j <= old.step_count; j++) {
        if (j == old.step_count || step_touches_peer(&old, &old.steps[j]))
            for (; next_receive < j; next_receive++)
                if (old.steps[next_receive].kind == RECV) staging_copy_output(staging, schedule, &old, next_receive);
        if (j == old.step_count) break;
        staging_redirect_reads(staging, &old, j);
        schedule_append_step(schedule, &old, &old.steps[j]);
        if (old.steps[j].kind == WORK) staging_copy_output(staging, schedule, &old, j);
    }
    schedule_free_arrays(&old);
}
void build_stage_private(struct build *build)
{
    struct plan *plan = build->plan;
    struct staging staging = { .build = build };
    for (int k = INPUT; k <= OUTPUT; k++)
        staging.slot[k] =
            memory_alloc_zeroed((size_t)plan->count * (size_t)plan->ranks[0].chunks[k], sizeof *staging.slot[k]);
    if (staging.slot[INPUT] && staging.slot[OUTPUT]) {
        staging_assign_slots(&staging);
        for (int m = 0; m < plan->count; m++) staging_rebuild_schedule(&staging, &plan->ranks[m]);
        for (int m = 0; m < plan->count; m++)
            if (plan_is_open(plan, plan->ranks[m].rank)) schedule_add_step(&plan->ranks[m], LEAVE);
    } else plan_fail_out_of_memory(plan);
    free(staging.slot[INPUT]);
    free(staging.slot[OUTPUT]);
}
