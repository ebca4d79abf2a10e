/* Finds the steps that leave a full sum in OUTPUT, so that an average is divided there, once and in the same pass. Such
 * a step is the last writer of an OUTPUT chunk, unless it only copies from an OUTPUT. If it copies a sum from SCRATCH
 * on one host, the step that made that sum counts instead. The steps are found in the program as the algorithm recorded
 * it; chunks staged later are copies of finished values. */
#include "backend/schedule/build.h"

/* True if the step makes the final value of chunk `index` of `to` on its own rank. A copy from an OUTPUT only passes on
   a value that another step has finished. */
static bool step_finishes_chunk(const struct build *b, const struct schedule *s, int step, struct span to, int index)
{
    const struct step *t = &s->steps[step];
    const struct writer *w = build_writer_of_chunk(b, to, index);
    bool passes_on = t->from_count == 1 && step_from(s, t)->buffer == OUTPUT;
    return to.buffer == OUTPUT && w->rank == s->rank && w->last == step && !passes_on;
}
static void step_mark_finish(const struct build *b, struct schedule *s, int step)
{
    struct step *t = &s->steps[step];
    int finished = 0, total = 0;
    for (int d = 0; t->kind == WORK && d < t->to_count; d++)
        for (int i = 0; i < step_to(s, t)[d].count; i++, total++)
            finished += step_finishes_chunk(b, s, step, step_to(s, t)[d], i);
    if (finished && finished < total) schedule_set_error(s, "finishes only a part of the chunks of a step");
    t->finish = finished > 0;
}
/* Returns the step that made the sum which `t` copies from SCRATCH, on this rank or a peer; else NULL. */
static struct step *step_find_sum(const struct build *b, const struct schedule *s, const struct step *t, int index)
{
    struct plan *p = b->plan;
    struct span from = *step_from(s, t);
    const struct writer *w = build_writer_of_chunk(b, from, index);
    if (from.buffer != SCRATCH || !w->exists) return NULL;
    struct step *sum = &plan_schedule_of_rank(p, w->rank)->steps[w->last];
    return sum->kind == WORK && sum->from_count > 1 ? sum : NULL;
}
/* Divides a sum that is only copied into OUTPUT where it is made, while it is exact. A sum that is first rounded to a
   narrow type might become infinite. */
static void step_move_finish_to_sum(const struct build *b, struct schedule *s, struct step *t)
{
    if (!t->finish || t->from_count != 1) return;
    int count = step_to(s, t)->count;
    for (int i = 0; i < count; i++)
        if (!step_find_sum(b, s, t, i)) return;
    for (int i = 0; i < count; i++) step_find_sum(b, s, t, i)->finish = true;
    t->finish = false;
}
void plan_mark_finishing_steps(const struct build *b)
{
    struct plan *p = b->plan;
    if (!collective_is_reduction(p->algorithm->collective)) return;
    for (int m = 0; m < p->count; m++)
        for (int j = 0; j < p->ranks[m].step_count; j++) step_mark_finish(b, &p->ranks[m], j);
    /* In algorithms of messages only, sums in SCRATCH are sent to other ranks, which add to them. */
    bool stays = p->algorithm->host_memory || p->algorithm->hierarchical;
    for (int m = 0; m < p->count && stays; m++)
        for (int j = 0; j < p->ranks[m].step_count; j++)
            step_move_finish_to_sum(b, &p->ranks[m], &p->ranks[m].steps[j]);
}
