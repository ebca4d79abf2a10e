/* Only its owner may write a private tensor, so a peer's write into it becomes a read by the owner. The owner reads
 * before the first step that needs the chunk, or else at the end of its program, writer by writer. */
#include "backend/base/memory.h"
#include "backend/schedule/build.h"
#include <stdlib.h>

/* A write of `step` into a peer's private span `to`. The owner of `to` reads the values instead. */
struct pull {
    const struct schedule *writer;
    const struct step *step;
    struct span to;
    /* The owner's read has been recorded. */
    bool is_recorded;
};
struct pulls {
    /* Sorted by owner, then by writer. */
    struct pull *list;
    /* [members + 1]: the index in `list` at which the pulls of each owner begin. */
    int *begin;
};

/* True if the write goes into a private tensor of another rank, so that it must become a read by the owner. */
static bool write_is_private(const struct plan *plan, const struct schedule *writer, struct span to)
{
    return to.rank != writer->rank && to.buffer != SCRATCH && !plan_is_shared(plan, to.rank);
}
/* True if any step writes a tensor that only its owner can write. */
static bool plan_has_private_writes(const struct plan *plan)
{
    for (int m = 0; m < plan->count; m++)
        for (int j = 0; j < plan->ranks[m].step_count; j++) {
            const struct schedule *schedule = &plan->ranks[m];
            for (int d = 0; d < schedule->steps[j].to_count; d++)
                if (write_is_private(plan, schedule, step_to(schedule, &schedule->steps[j])[d])) return true;
        }
    return false;
}

/* ---- the writer ---- */
/* Adds a copy of the step without its private writes. A step that had only such writes is left out. */
static void schedule_keep_step(const struct plan *plan, struct schedule *schedule, const struct schedule *old,
    const struct step *step)
{
    int kept = 0;
    for (int d = 0; d < step->to_count; d++) kept += !write_is_private(plan, old, step_to(old, step)[d]);
    if (kept == 0 && step->to_count) return;
    struct step *copy = schedule_add_step(schedule, step->kind);
    if (!copy) return;
    copy->peer = step->peer;
    copy->finish = step->finish;
    for (int f = 0; f < step->from_count; f++) step_add_from(schedule, copy, step_from(old, step)[f]);
    for (int d = 0; d < step->to_count; d++)
        if (!write_is_private(plan, old, step_to(old, step)[d])) step_add_to(schedule, copy, step_to(old, step)[d]);
}

/* ---- the owner ---- */
/* Finds the private writes of one schedule. Without a list, counts them by owner in begin[owner + 1]. With a list, adds
   each at begin[owner], which it increments. */
static void pulls_count_or_add(const struct plan *plan, const struct schedule *writer, struct pulls *pulls)
{
    for (int j = 0; j < writer->step_count; j++)
        for (int d = 0; d < writer->steps[j].to_count; d++) {
            struct span to = step_to(writer, &writer->steps[j])[d];
            if (!write_is_private(plan, writer, to)) continue;
            int *at = &pulls->begin[plan_member_of_rank(plan, to.rank)];
            if (pulls->list) pulls->list[(*at)++] = (struct pull){ writer, &writer->steps[j], to, false };
            else at[1]++;
        }
}
/* Lists the private writes of all schedules by owner. False: out of memory. */
static bool pulls_collect(const struct plan *plan, const struct schedule *old, struct pulls *pulls)
{
    pulls->begin = memory_alloc_zeroed((size_t)plan->count + 1, sizeof *pulls->begin);
    if (!pulls->begin) return false;
    for (int m = 0; m < plan->count; m++) pulls_count_or_add(plan, &old[m], pulls);
    for (int m = 0; m < plan->count; m++) pulls->begin[m + 1] += pulls->begin[m];
    pulls->list = memory_alloc_zeroed((size_t)pulls->begin[plan->count], sizeof *pulls->list);
    if (!pulls->list) return false;
    for (int m = 0; m < plan->count; m++) pulls_count_or_add(plan, &old[m], pulls);
    for (int m = plan->count; m > 0; m--) pulls->begin[m] = pulls->begin[m - 1];
    pulls->begin[0] = 0;
    return true;
}
/* Returns the span of the writer's own memory that gets the same sum: the owner then copies it. NULL: there is no such
   span or no sum, and the owner does the step itself. */
static const struct span *pull_find_result(const struct pull *pull)
{
    const struct span *to = step_to(pull->writer, pull->step);
    for (int d = 0; pull->step->from_count > 1 && d < pull->step->to_count; d++)
        if (to[d].rank == pull->writer->rank) return &to[d];
    return NULL;
}
/* Records, in the schedule of the owner, the copy or sum that replaces a private write. */
static void schedule_record_pull(struct schedule *owner, struct pull *pull)
{
    const struct span *result = pull_find_result(pull);
    struct step *copy = schedule_add_step(owner, WORK);
    pull->is_recorded = true;
    if (!copy) return;
    copy->finish = pull->step->finish && !result;
    if (result) step_add_from(owner, copy, *result);
    for (int f = 0; !result && f < pull->step->from_count; f++)
        step_add_from(owner, copy, step_from(pull->writer, pull->step)[f]);
    step_add_to(owner, copy, pull->to);
}
/* True if a chunk that the step reads is in the span. */
static bool step_reads_span(const struct schedule *schedule, const struct step *step, struct span span)
{
    for (int f = 0; f < step->from_count; f++)
        if (spans_overlap(step_from(schedule, step)[f], span)) return true;
    return false;
}
/* True if the step reads this rank's own OUTPUT. */
static bool step_reads_own_output(const struct schedule *schedule, const struct step *step)
{
    for (int f = 0; f < step->from_count; f++)
        if (step_from(schedule, step)[f].rank == schedule->rank && step_from(schedule, step)[f].buffer == OUTPUT)
            return true;
    return false;
}
/* Records again the steps `mine` of one owner in `schedule`, with the `count` pulls of `list` into its tensors. A pull
   comes before the first step that reads it, or else at the end. The writers come in turn, beginning after the owner,
   so that owners begin with different writers. */
static void schedule_record_pulls(const struct plan *plan, struct schedule *schedule, const struct schedule *mine,
    struct pull *list, int count)
{
    int first = 0, member = plan_member_of_rank(plan, schedule->rank);
    while (first < count && plan_member_of_rank(plan, list[first].writer->rank) < member) first++;
    for (int j = 0; j < mine->step_count; j++) {
        const struct step *step = &mine->steps[j];
        for (int i = 0, reads = step_reads_own_output(mine, step); i < count && reads; i++) {
            struct pull *pull = &list[(first + i) % count];
            if (!pull->is_recorded && step_reads_span(mine, step, pull->to)) schedule_record_pull(schedule, pull);
        }
        schedule_keep_step(plan, schedule, mine, step);
    }
    for (int i = 0; i < count; i++)
        if (!list[(first + i) % count].is_recorded) schedule_record_pull(schedule, &list[(first + i) % count]);
}
/* Records all schedules again, with pulls in place of writes to private tensors. `old` gets the steps that they have
   now (an entry per member). */
static void plan_pull_writes(struct plan *plan, struct schedule *old)
{
    struct pulls pulls = { NULL, NULL };
    for (int m = 0; m < plan->count; m++) old[m] = schedule_restart_recording(&plan->ranks[m]);
    if (!pulls_collect(plan, old, &pulls)) plan_fail_out_of_memory(plan);
    for (int m = 0; pulls.list && m < plan->count; m++)
        schedule_record_pulls(plan, &plan->ranks[m], &old[m], pulls.list + pulls.begin[m],
            pulls.begin[m + 1] - pulls.begin[m]);
    for (int m = 0; m < plan->count; m++) schedule_free_arrays(&old[m]);
    free(pulls.list);
    free(pulls.begin);
}
void plan_pull_private_writes(struct plan *plan)
{
    if (!plan_has_private_writes(plan)) return;
    struct schedule *old = memory_alloc_zeroed((size_t)plan->count, sizeof *old);
    if (old) plan_pull_writes(plan, old);
    else plan_fail_out_of_memory(plan);
    free(old);
}
