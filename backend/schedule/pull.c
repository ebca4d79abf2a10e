/* A private tensor is touched by its owner only. So a write into one becomes a read by the owner, at the end of its
 * program, in the order in which the writer would have written. */
#include "backend/schedule/build.h"
#include "backend/base/memory.h"
#include <stdlib.h>

static bool is_private(const struct plan *p, const struct schedule *s, struct span to)
{
    return to.rank != s->rank && to.buffer != SCRATCH && !plan_shared(p, to.rank);
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
/* Whether the owner can take the result from the writer, or has to work it out itself. */
static const struct span *result_of(const struct schedule *s, const struct step *t)
{
    for (int d = 0; t->from_count > 1 && d < t->to_count; d++)
        if (step_to(s, t)[d].rank == s->rank) return &step_to(s, t)[d];
    return NULL;
}
static void keep_step(const struct plan *p, struct schedule *s, const struct schedule *old, const struct step *t)
{
    int kept = 0;
    for (int d = 0; d < t->to_count; d++) kept += !is_private(p, s, step_to(old, t)[d]);
    if (kept == t->to_count) {
        step_append(s, old, t);
        return;
    }
    struct step *copy = kept ? step_add(s, t->kind) : NULL;
    if (!copy) return;
    copy->finish = t->finish;
    for (int f = 0; f < t->from_count; f++) step_add_from(s, copy, step_from(old, t)[f]);
    for (int d = 0; d < t->to_count; d++)
        if (!is_private(p, s, step_to(old, t)[d])) step_add_to(s, copy, step_to(old, t)[d]);
}
static void pull_step(struct schedule *owner, const struct schedule *writer, const struct step *t, struct span to)
{
    const struct span *result = result_of(writer, t);
    struct step *copy = step_add(owner, WORK);
    if (!copy) return;
    copy->finish = t->finish && !result;
    if (result) step_add_from(owner, copy, *result);
    for (int f = 0; !result && f < t->from_count; f++) step_add_from(owner, copy, step_from(writer, t)[f]);
    step_add_to(owner, copy, to);
}
static void pull_from(struct plan *p, struct schedule *owner, const struct schedule *writer)
{
    for (int j = 0; j < writer->step_count; j++) {
        const struct step *t = &writer->steps[j];
        for (int d = 0; d < t->to_count; d++) {
            struct span to = step_to(writer, t)[d];
            if (to.rank == owner->rank && is_private(p, writer, to)) pull_step(owner, writer, t, to);
        }
    }
}
/* The owner would read its chunk before it has pulled it. */
static void check_reads(struct plan *p, const struct schedule *old, int pulls_from, struct schedule *owner)
{
    for (int j = pulls_from; j < owner->step_count; j++)
        for (int k = 0; k < old->step_count; k++)
            for (int f = 0; f < old->steps[k].from_count; f++) {
                struct span read = step_from(old, &old->steps[k])[f], to = *step_to(owner, &owner->steps[j]);
                bool reads = read.rank == to.rank && read.buffer == to.buffer && read.first < to.first + to.count &&
                             to.first < read.first + read.count;
                if (reads && !plan_shared(p, owner->rank)) schedule_fail(owner, "reads what a peer writes into it");
            }
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
    for (int m = 0; m < p->count; m++)
        for (int j = 0; j < old[m].step_count; j++) keep_step(p, &p->ranks[m], &old[m], &old[m].steps[j]);
    for (int m = 0; m < p->count; m++) {
        int own_steps = p->ranks[m].step_count;
        for (int hop = 1; hop < p->count; hop++) pull_from(p, &p->ranks[m], &old[(m + hop) % p->count]);
        check_reads(p, &old[m], own_steps, &p->ranks[m]);
    }
    for (int m = 0; m < p->count; m++) schedule_release(&old[m]);
    free(old);
}
