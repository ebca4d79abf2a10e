/* Which steps leave a full sum in OUTPUT, so that an average can be divided there, once and in the same pass. It is the
 * last writer of an OUTPUT chunk, unless it only passes on what lies in an OUTPUT already, or on one host what was
 * summed up in SCRATCH: then it is that sum's step. Decided on the program as the algorithm wrote it; what is staged
 * later is a copy of the finished value. */
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
/* The step that summed up what `t` copies, if a peer or this rank did so in SCRATCH; else NULL. */
static struct step *summed_by(const struct build *b, const struct schedule *s, const struct step *t, int index)
{
    struct plan *p = b->plan;
    struct span from = *step_from(s, t);
    const struct writer *w = writer_of(b, from, index);
    if (from.buffer != SCRATCH || !w->exists) return NULL;
    struct step *sum = &plan_member(p, w->rank)->steps[w->last];
    return sum->kind == WORK && sum->from_count > 1 ? sum : NULL;
}
/* A sum that only has to be copied into OUTPUT is divided where it is made, while it is exact: rounded to a narrow type
   first, it might have become infinite. */
static void finish_sooner(const struct build *b, struct schedule *s, struct step *t)
{
    if (!t->finish || t->from_count != 1) return;           /* a send has nothing that it leaves somewhere */
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
    bool stays = p->algorithm->host_memory || p->algorithm->hierarchical;  /* else such sums travel on to be summed */
    for (int m = 0; m < p->count && stays; m++)
        for (int j = 0; j < p->ranks[m].step_count; j++) finish_sooner(b, &p->ranks[m], &p->ranks[m].steps[j]);
}
