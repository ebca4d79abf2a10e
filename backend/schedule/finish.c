/* Finds the steps that make full sums for OUTPUT, so that an average is divided there, once and in the same pass. Such
 * a step is the last writer of an OUTPUT chunk, unless it only copies from an OUTPUT. In an algorithm that reads peers'
 * memory, if it only copies a sum from SCRATCH, the step that made that sum counts instead. The steps are found in the
 * program as the algorithm recorded it; chunks staged later are copies of finished values. */
#include "backend/schedule/build.h"

/* True if the step makes the final value of chunk `index` of `to` on its own rank. A copy from an OUTPUT only passes on
   a value that another step has finished. */
static bool step_finishes_chunk(const struct build *build, const struct schedule *schedule, int step, struct span to,
    int index)
{
    const struct step *t = &schedule->steps[step];
    const struct writer *writer = build_writer_of_chunk(build, to, index);
    bool copies_output = t->from_count == 1 && step_from(schedule, t)->buffer == OUTPUT;
    return to.buffer == OUTPUT && writer->rank == schedule->rank && writer->last == step && !copies_output;
}
/* Sets the step's `finish` if it completes the sums of all chunks that it writes. Completing only some is an error. */
static void step_mark_finish(const struct build *build, struct schedule *schedule, int step)
{
    struct step *t = &schedule->steps[step];
    int finished = 0, total = 0;
    for (int d = 0; t->kind == WORK && d < t->to_count; d++)
        for (int i = 0; i < step_to(schedule, t)[d].count; i++, total++)
            finished += step_finishes_chunk(build, schedule, step, step_to(schedule, t)[d], i);
    if (finished && finished < total) schedule_set_error(schedule, "finishes only a part of the chunks of a step");
    t->finish = finished > 0;
}
/* Returns the step, of this rank or a peer, whose sum `step` copies from chunk `index` of a SCRATCH span; NULL: the
   chunk is no such sum. */
static struct step *step_find_sum(const struct build *build, const struct schedule *schedule, const struct step *step,
    int index)
{
    struct plan *plan = build->plan;
    struct span from = *step_from(schedule, step);
    const struct writer *writer = build_writer_of_chunk(build, from, index);
    if (from.buffer != SCRATCH || !writer->exists) return NULL;
    struct step *sum = &plan_schedule_of_rank(plan, writer->rank)->steps[writer->last];
    return sum->kind == WORK && sum->from_count > 1 ? sum : NULL;
}
/* Moves the mark `finish` from a step that only copies sums to the steps that make them, so that an average is divided
   while the sum is exact. A sum that is first rounded to a narrow type might become infinite. */
static void step_move_finish_to_sum(const struct build *build, struct schedule *schedule, struct step *step)
{
    if (!step->finish || step->from_count != 1) return;
    int count = step_to(schedule, step)->count;
    for (int i = 0; i < count; i++)
        if (!step_find_sum(build, schedule, step, i)) return;
    for (int i = 0; i < count; i++) step_find_sum(build, schedule, step, i)->finish = true;
    step->finish = false;
}
void plan_mark_finishing_steps(const struct build *build)
{
    struct plan *plan = build->plan;
    if (!collective_is_reduction(plan->algorithm->collective)) return;
    for (int m = 0; m < plan->count; m++)
        for (int j = 0; j < plan->ranks[m].step_count; j++) step_mark_finish(build, &plan->ranks[m], j);
    /* In algorithms of messages only, sums in SCRATCH are sent to other ranks, which add to them. */
    bool has_host_memory = plan->algorithm->host_memory || plan->algorithm->hierarchical;
    for (int m = 0; m < plan->count && has_host_memory; m++)
        for (int j = 0; j < plan->ranks[m].step_count; j++)
            step_move_finish_to_sum(build, &plan->ranks[m], &plan->ranks[m].steps[j]);
}
