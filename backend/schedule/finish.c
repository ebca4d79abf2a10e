/* Which steps leave a full sum in OUTPUT, so that an average can be divided there, once and in the same pass. It is the
 * last writer of an OUTPUT chunk, unless it only passes on what lies in an OUTPUT already. Decided on the program as
 * the algorithm wrote it; what is staged later is a copy of the finished value. */
#include "backend/schedule/build.h"

static bool finishes(const struct build *b, const struct schedule *s, int step, struct span to, int index)
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
        for (int i = 0; i < step_to(s, t)[d].count; i++, total++) finished += finishes(b, s, step, step_to(s, t)[d], i);
    if (finished && finished < total) schedule_fail(s, "finishes only a part of the chunks of a step");
    t->finish = finished > 0;
}
void finish_mark(const struct build *b)
{
    struct plan *p = b->plan;
    for (int m = 0; family_reduces(p->algorithm->family) && m < p->count; m++)
        for (int j = 0; j < p->ranks[m].step_count; j++) finish_step(b, &p->ranks[m], j);
}
