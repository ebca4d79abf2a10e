/* A private tensor is touched by its owner only. So a write into one becomes a read by the owner: where the owner first
 * needs what it brings, or else at the end of its program, in the order in which the writers would have written. */
#include "backend/base/memory.h"
#include "backend/schedule/build.h"
#include <stdlib.h>

struct pull {
    const struct schedule *writer;
    const struct step *step;
    struct span to;
    bool done;
};
struct pulls {
    struct pull *list;
    int count, room;
};

static bool is_private(const struct plan *p, const struct schedule *writer, struct span to)
{
    return to.rank != writer->rank && to.buffer != SCRATCH && !plan_shared(p, to.rank);
}
static bool any_private(const struct plan *p)
{
    for (int m = 0; m < p->count; m++)
        for (int j = 0; j < p->ranks[m].step_count; j++) {
            const struct schedule *s = &p->ranks[m];
            for (int d = 0; d < s->steps[j].to_count; d++)
                if (is_private(p, s, step_to(s, &s->steps[j])[d])) return true;
        }
    return false;
}

/* ---- the writer ---- */
static void keep_step(const struct plan *p, struct schedule *s, const struct schedule *old, const struct step *t)
{
    int kept = 0;
    for (int d = 0; d < t->to_count; d++) kept += !is_private(p, old, step_to(old, t)[d]);
    if (kept == 0 && t->to_count) return;
    struct step *copy = step_add(s, t->kind);
    if (!copy) return;
    copy->peer = t->peer;
    copy->finish = t->finish;
    for (int f = 0; f < t->from_count; f++) step_add_from(s, copy, step_from(old, t)[f]);
    for (int d = 0; d < t->to_count; d++)
        if (!is_private(p, old, step_to(old, t)[d])) step_add_to(s, copy, step_to(old, t)[d]);
}

/* ---- the owner ---- */
static void pulls_add(struct pulls *pulls, struct schedule *owner, struct pull pull)
{
    struct pull *list = memory_grow(pulls->list, pulls->count, &pulls->room, sizeof *list);
    if (list) {
        pulls->list = list;
        list[pulls->count++] = pull;
    } else schedule_fail(owner, schedule_no_memory);
}
static void pulls_collect(const struct plan *p, struct schedule *owner, const struct schedule *writer,
    struct pulls *out)
{
    for (int j = 0; j < writer->step_count; j++)
        for (int d = 0; d < writer->steps[j].to_count; d++) {
            struct span to = step_to(writer, &writer->steps[j])[d];
            if (to.rank == owner->rank && is_private(p, writer, to))
                pulls_add(out, owner, (struct pull){ writer, &writer->steps[j], to, false });
        }
}
/* A sum that the writer keeps as well is taken from there; else the owner works it out. */
static const struct span *result_of(const struct pull *pull)
{
    const struct span *to = step_to(pull->writer, pull->step);
    for (int d = 0; pull->step->from_count > 1 && d < pull->step->to_count; d++)
        if (to[d].rank == pull->writer->rank) return &to[d];
    return NULL;
}
static void pull_now(struct schedule *owner, struct pull *pull)
{
    const struct span *result = result_of(pull);
    struct step *copy = step_add(owner, WORK);
    pull->done = true;
    if (!copy) return;
    copy->finish = pull->step->finish && !result;
    if (result) step_add_from(owner, copy, *result);
    for (int f = 0; !result && f < pull->step->from_count; f++)
        step_add_from(owner, copy, step_from(pull->writer, pull->step)[f]);
    step_add_to(owner, copy, pull->to);
}
static bool step_reads(const struct schedule *s, const struct step *t, struct span a)
{
    for (int f = 0; f < t->from_count; f++)
        if (span_overlaps(step_from(s, t)[f], a)) return true;
    return false;
}
static void pull_rank(const struct plan *p, struct schedule *s, const struct schedule *old, struct pulls *pulls)
{
    int member = plan_index(p, s->rank);
    const struct schedule *mine = &old[member];
    for (int hop = 1; hop < p->count; hop++) pulls_collect(p, s, &old[(member + hop) % p->count], pulls);
    for (int j = 0; j < mine->step_count; j++) {
        for (int i = 0; i < pulls->count; i++)
            if (!pulls->list[i].done && step_reads(mine, &mine->steps[j], pulls->list[i].to))
                pull_now(s, &pulls->list[i]);
        keep_step(p, s, mine, &mine->steps[j]);
    }
    for (int i = 0; i < pulls->count; i++)
        if (!pulls->list[i].done) pull_now(s, &pulls->list[i]);
}
void pull_private(struct plan *p)
{
    if (!any_private(p)) return;
    struct schedule *old = memory_zeroed((size_t)p->count, sizeof *old);
    if (!old) {
        plan_out_of_memory(p);
        return;
    }
    for (int m = 0; m < p->count; m++) old[m] = schedule_restart(&p->ranks[m]);
    for (int m = 0; m < p->count; m++) {
        struct pulls pulls = { NULL, 0, 0 };
        pull_rank(p, &p->ranks[m], old, &pulls);
        free(pulls.list);
    }
    for (int m = 0; m < p->count; m++) schedule_release(&old[m]);
    free(old);
}
