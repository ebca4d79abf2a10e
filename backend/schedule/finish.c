/* Finds the steps that leave a full sum in OUTPUT, so that an average is divided there, once and in the same pass. Such
 * a step is the last writer of an OUTPUT chunk, unless it only copies from an OUTPUT. If it copies a sum from SCRATCH
 * on one host, the step that made that sum counts instead. The steps are found in the program as the algorithm recorded
 * it; chunks staged later are copies of finished values. */
#include "backend/schedule/build.h"

static bool step_finishes(const struct build *b, const struct schedule *s, int step, struct span to, int index)
{
    const struct step *t = &s->steps[step];
    const struct writer *w = writer_of(b, to, index);
    bool passes_on = t->from_count == 1 && step_from(s, t)->buffer == OUTPUT;
    return to.buffer == OUTPUT && w->rank == s->rank && w->last == step && !passes_on;
}
static void finish_step(const struct build *b, struct schedule *s, int step)
{
    struct step *t = &s->steps[step];
    int finished = 0, total = 0;
    for (int d = 0; t->kind == WORK && d < t->to_count; d++)
        for (int i = 0; i < step_to(s, t)[d].count; i++, total++)
            finished += step_finishes(b, s, step, step_to(s, t)[d], i);
    if (finished && finished < total) schedule_fail(s, "finishes only a part of the chunks of a step");
    t->finish = finished > 0;
}
/* Returns the step that made the sum which `t` copies from SCRATCH, on this rank or a peer; else NULL. */
static struct step *summed_by(const struct build *b, const struct schedule *s, const struct step *t, int index)
{
    struct plan *p = b->plan;
    struct span from = *step_from(s, t);
    const struct writer *w = writer_of(b, from, index);
    if (from.buffer != SCRATCH || !w->exists) return NULL;
    struct step *sum = &plan_member(p, w->rank)->steps[w->last];
    return sum->kind == WORK && sum->from_count > 1 ? sum : NULL;
}
/* Divides a sum that is only copied into OUTPUT where it is made, while it is exact. A sum that is first rounded to a
   narrow type might become infinite. */
static void finish_sooner(const struct build *b, struct schedule *s, struct step *t)
{
    if (!t->finish || t->from_count != 1) return;
    int count = step_to(s, t)->count;
    for (int i = 0; i < count; i++)
        if (!summed_by(b, s, t, i)) return;
    for (int i = 0; i < count; i++) summed_by(b, s, t, i)->finish = true;
    t->finish = false;
}
void finish_mark(const struct build *b)
{
    struct plan *p = b->plan;
    if (!family_reduces(p->algorithm->family)) return;
    for (int m = 0; m < p->count; m++)
        for (int j = 0; j < p->ranks[m].step_count; j++) finish_step(b, &p->ranks[m], j);
    /* In algorithms of messages only, sums in SCRATCH are sent to other ranks, which add to them. */
    bool stays = p->algorithm->host_memory || p->algorithm->hierarchical;
    for (int m = 0; m < p->count && stays; m++)
        for (int j = 0; j < p->ranks[m].step_count; j++) finish_sooner(b, &p->ranks[m], &p->ranks[m].steps[j]);
}
