/* Finds the rank that writes each cell, its first and last write, and whether other ranks read the result. Every chunk
 * has one writing rank, so it is enough to wait for the last write of a chunk. */
#include "backend/base/memory.h"
#include "backend/schedule/build.h"
#include <stdlib.h>

struct writer *build_writer_of_chunk(const struct build *build, struct span span, int index)
{
    size_t member = (size_t)plan_member_of_rank(build->plan, span.rank);
    return &build->writers[member * (size_t)build->cells + (size_t)plan_cell_of_chunk(build->plan, span, index)];
}
/* Allocates empty writers of all cells. Gives all members the same number of SCRATCH chunks, so that a peer's cell is
   found without its schedule. False: out of memory. */
static bool writers_reset_cells(struct build *build)
{
    struct plan *plan = build->plan;
    int scratch = 0;
    for (int m = 0; m < plan->count; m++)
        if (plan->ranks[m].chunks[SCRATCH] > scratch) scratch = plan->ranks[m].chunks[SCRATCH];
    for (int m = 0; m < plan->count; m++) plan->ranks[m].chunks[SCRATCH] = scratch;
    build->cells = plan->ranks[0].chunks[INPUT] + plan->ranks[0].chunks[OUTPUT] + scratch;
    free(build->writers);
    size_t total;
    bool fits = size_multiply((size_t)plan->count, (size_t)build->cells, &total);
    build->writers = fits ? memory_alloc_zeroed(total, sizeof *build->writers) : NULL;
    return build->writers != NULL;
}
/* True if the step keeps the content of its target: in place, it copies a chunk onto itself. */
static bool step_keeps_target(const struct plan *plan, const struct schedule *schedule, const struct step *step)
{
    struct span from = *step_from(schedule, step), to = *step_to(schedule, step);
    return step->from_count == 1 && step->to_count == 1 && from.rank == to.rank
        && plan_cell_of_chunk(plan, to, 0) == plan_cell_of_chunk(plan, from, 0);
}
/* Records that `step` of this schedule's rank writes the chunks of `to`. keeps_content: the step copies them onto
   themselves. */
static void writers_record_write(const struct build *build, struct schedule *schedule, int step, struct span to,
    bool keeps_content)
{
    for (int i = 0; i < to.count; i++) {
        struct writer *writer = build_writer_of_chunk(build, to, i);
        if (writer->exists && writer->rank != schedule->rank) schedule_set_error(schedule, "two ranks write one chunk");
        if (!writer->exists) *writer = (struct writer){ .rank = schedule->rank, .first = -1, .exists = true };
        writer->last = step;
        if (writer->first < 0 && !keeps_content) writer->first = step;
    }
}
/* Records that this schedule's rank reads `from`: results of other ranks become observed. */
static void writers_record_read(const struct build *build, const struct schedule *schedule, struct span from)
{
    for (int i = 0; from.buffer != INPUT && i < from.count; i++) {
        struct writer *writer = build_writer_of_chunk(build, from, i);
        if (writer->exists && writer->rank != schedule->rank) writer->is_observed = true;
    }
}
void build_find_writers(struct build *build)
{
    struct plan *plan = build->plan;
    if (!writers_reset_cells(build)) {
        plan_fail_out_of_memory(plan);
        return;
    }
    for (int m = 0; m < plan->count; m++)
        for (int j = 0; j < plan->ranks[m].step_count; j++) {
            struct schedule *schedule = &plan->ranks[m];
            const struct step *step = &schedule->steps[j];
            bool keeps_content = step->kind == WORK && step_keeps_target(plan, schedule, step);
            for (int d = 0; d < step->to_count; d++)
                writers_record_write(build, schedule, j, step_to(schedule, step)[d], keeps_content);
        }
    for (int m = 0; m < plan->count; m++)
        for (int j = 0; j < plan->ranks[m].step_count; j++) {
            const struct schedule *schedule = &plan->ranks[m];
            const struct step *step = &schedule->steps[j];
            for (int f = 0; f < step->from_count; f++)
                writers_record_read(build, schedule, step_from(schedule, step)[f]);
        }
}
