/* Finds the rank that writes each cell, its first and last write, and whether other ranks read the result. Every chunk
 * has one writing rank, so it is enough to wait for the last write of a chunk. */
#include "backend/base/memory.h"
#include "backend/schedule/build.h"
#include <stdlib.h>

struct writer *writer_of(const struct build *b, struct span a, int index)
{
    size_t member = (size_t)plan_index(b->plan, a.rank);
    return &b->writers[member * (size_t)b->cells + (size_t)cell_of(b->plan, a, index)];
}
/* All members have the same number of cells, so that a peer's slot is found without its schedule. */
static bool writers_reset(struct build *b)
{
    struct plan *p = b->plan;
    int scratch = 0;
    for (int m = 0; m < p->count; m++)
        if (p->ranks[m].chunks[SCRATCH] > scratch) scratch = p->ranks[m].chunks[SCRATCH];
    for (int m = 0; m < p->count; m++) p->ranks[m].chunks[SCRATCH] = scratch;
    b->cells = p->ranks[0].chunks[INPUT] + p->ranks[0].chunks[OUTPUT] + scratch;
    free(b->writers);
    size_t total;
    bool fits = size_multiply((size_t)p->count, (size_t)b->cells, &total);
    b->writers = fits ? memory_zeroed(total, sizeof *b->writers) : NULL;
    return b->writers != NULL;
}
/* True if the step keeps the content of its target: in place, it copies a chunk onto itself. */
static bool step_keeps(const struct plan *p, const struct schedule *s, const struct step *t)
{
    struct span from = *step_from(s, t), to = *step_to(s, t);
    return t->from_count == 1 && t->to_count == 1 && from.rank == to.rank && cell_of(p, to, 0) == cell_of(p, from, 0);
}
static void write_record(const struct build *b, struct schedule *s, int step, struct span to, bool keeps)
{
    for (int i = 0; i < to.count; i++) {
        struct writer *w = writer_of(b, to, i);
        if (w->exists && w->rank != s->rank) schedule_fail(s, "two ranks write one chunk");
        if (!w->exists) *w = (struct writer){ .rank = s->rank, .first = -1, .exists = true };
        w->last = step;
        if (w->first < 0 && !keeps) w->first = step;
    }
}
static void read_record(const struct build *b, const struct schedule *s, struct span from)
{
    for (int i = 0; from.buffer != INPUT && i < from.count; i++) {
        struct writer *w = writer_of(b, from, i);
        if (w->exists && w->rank != s->rank) w->observed = true;
    }
}
void writers_find(struct build *b)
{
    struct plan *p = b->plan;
    if (!writers_reset(b)) {
        plan_out_of_memory(p);
        return;
    }
    for (int m = 0; m < p->count; m++)
        for (int j = 0; j < p->ranks[m].step_count; j++) {
            struct schedule *s = &p->ranks[m];
            const struct step *t = &s->steps[j];
            bool keeps = t->kind == WORK && step_keeps(p, s, t);
            for (int d = 0; d < t->to_count; d++) write_record(b, s, j, step_to(s, t)[d], keeps);
        }
    for (int m = 0; m < p->count; m++)
        for (int j = 0; j < p->ranks[m].step_count; j++) {
            const struct schedule *s = &p->ranks[m];
            const struct step *t = &s->steps[j];
            for (int f = 0; f < t->from_count; f++) read_record(b, s, step_from(s, t)[f]);
        }
}
