/* Finds the rank that writes each cell, its first and last write, and whether other ranks read the result. Every chunk
 * has one writing rank, so it is enough to wait for the last write of a chunk. */
#include "backend/base/memory.h"
#include "backend/schedule/build.h"
#include <stdlib.h>

struct writer *build_writer_of_chunk(const struct build *b, struct span a, int index)
{
    size_t member = (size_t)plan_member_of_rank(b->plan, a.rank);
    return &b->writers[member * (size_t)b->cells + (size_t)plan_cell_of_chunk(b->plan, a, index)];
}
/* All members have the same number of cells, so that a peer's slot is found without its schedule. */
static bool writers_reset_cells(struct build *b)
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
    b->writers = fits ? memory_alloc_zeroed(total, sizeof *b->writers) : NULL;
    return b->writers != NULL;
}
/* True if the step keeps the content of its target: in place, it copies a chunk onto itself. */
static bool step_keeps_target(const struct plan *p, const struct schedule *s, const struct step *t)
{
    struct span from = *step_from(s, t), to = *step_to(s, t);
    return t->from_count == 1 && t->to_count == 1 && from.rank == to.rank
        && plan_cell_of_chunk(p, to, 0) == plan_cell_of_chunk(p, from, 0);
}
static void writers_record_write(const struct build *b, struct schedule *s, int step, struct span to, bool keeps)
{
    for (int i = 0; i < to.count; i++) {
        struct writer *w = build_writer_of_chunk(b, to, i);
        if (w->exists && w->rank != s->rank) schedule_set_error(s, "two ranks write one chunk");
        if (!w->exists) *w = (struct writer){ .rank = s->rank, .first = -1, .exists = true };
        w->last = step;
        if (w->first < 0 && !keeps) w->first = step;
    }
}
static void writers_record_read(const struct build *b, const struct schedule *s, struct span from)
{
    for (int i = 0; from.buffer != INPUT && i < from.count; i++) {
        struct writer *w = build_writer_of_chunk(b, from, i);
        if (w->exists && w->rank != s->rank) w->observed = true;
    }
}
void build_find_writers(struct build *b)
{
    struct plan *p = b->plan;
    if (!writers_reset_cells(b)) {
        plan_fail_out_of_memory(p);
        return;
    }
    for (int m = 0; m < p->count; m++)
        for (int j = 0; j < p->ranks[m].step_count; j++) {
            struct schedule *s = &p->ranks[m];
            const struct step *t = &s->steps[j];
            bool keeps = t->kind == WORK && step_keeps_target(p, s, t);
            for (int d = 0; d < t->to_count; d++) writers_record_write(b, s, j, step_to(s, t)[d], keeps);
        }
    for (int m = 0; m < p->count; m++)
        for (int j = 0; j < p->ranks[m].step_count; j++) {
            const struct schedule *s = &p->ranks[m];
            const struct step *t = &s->steps[j];
            for (int f = 0; f < t->from_count; f++) writers_record_read(b, s, step_from(s, t)[f]);
        }
}
