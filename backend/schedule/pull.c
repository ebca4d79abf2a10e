/* Only its owner may touch a private tensor, so a peer's write into it becomes a read by the owner. The owner reads
 * before the first step that needs the chunk, or else at the end of its program, writer by writer. */
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
    /* Sorted by owner, then by writer. */
    struct pull *list;
    /* [members + 1]: where the pulls of each owner begin. */
    int *begin;
};

/* True if the write goes into a private tensor of another rank, so that it must become a read by the owner. */
static bool write_is_private(const struct plan *p, const struct schedule *writer, struct span to)
{
    return to.rank != writer->rank && to.buffer != SCRATCH && !plan_is_shared(p, to.rank);
}
static bool plan_has_private_writes(const struct plan *p)
{
    for (int m = 0; m < p->count; m++)
        for (int j = 0; j < p->ranks[m].step_count; j++) {
            const struct schedule *s = &p->ranks[m];
            for (int d = 0; d < s->steps[j].to_count; d++)
                if (write_is_private(p, s, step_to(s, &s->steps[j])[d])) return true;
        }
    return false;
}

/* ---- the writer ---- */
/* Adds a copy of the step without its private writes, but no step that had only such writes. */
static void schedule_keep_step(const struct plan *p, struct schedule *s, const struct schedule *old,
    const struct step *t)
{
    int kept = 0;
    for (int d = 0; d < t->to_count; d++) kept += !write_is_private(p, old, step_to(old, t)[d]);
    if (kept == 0 && t->to_count) return;
    struct step *copy = schedule_add_step(s, t->kind);
    if (!copy) return;
    copy->peer = t->peer;
    copy->finish = t->finish;
    for (int f = 0; f < t->from_count; f++) step_add_from(s, copy, step_from(old, t)[f]);
    for (int d = 0; d < t->to_count; d++)
        if (!write_is_private(p, old, step_to(old, t)[d])) step_add_to(s, copy, step_to(old, t)[d]);
}

/* ---- the owner ---- */
/* Without a list: counts the pulls of every owner in begin[owner + 1]. With a list: adds each pull at begin[owner] and
   increments it. */
static void pulls_count_or_add(const struct plan *p, const struct schedule *writer, struct pulls *pulls)
{
    for (int j = 0; j < writer->step_count; j++)
        for (int d = 0; d < writer->steps[j].to_count; d++) {
            struct span to = step_to(writer, &writer->steps[j])[d];
            if (!write_is_private(p, writer, to)) continue;
            int *at = &pulls->begin[plan_member_of_rank(p, to.rank)];
            if (pulls->list) pulls->list[(*at)++] = (struct pull){ writer, &writer->steps[j], to, false };
            else at[1]++;
        }
}
/* False: out of memory. */
static bool pulls_collect(const struct plan *p, const struct schedule *old, struct pulls *pulls)
{
    pulls->begin = memory_alloc_zeroed((size_t)p->count + 1, sizeof *pulls->begin);
    if (!pulls->begin) return false;
    for (int m = 0; m < p->count; m++) pulls_count_or_add(p, &old[m], pulls);
    for (int m = 0; m < p->count; m++) pulls->begin[m + 1] += pulls->begin[m];
    pulls->list = memory_alloc_zeroed((size_t)pulls->begin[p->count], sizeof *pulls->list);
    if (!pulls->list) return false;
    for (int m = 0; m < p->count; m++) pulls_count_or_add(p, &old[m], pulls);
    for (int m = p->count; m > 0; m--) pulls->begin[m] = pulls->begin[m - 1];
    pulls->begin[0] = 0;
    return true;
}
/* Returns the span in which the writer keeps the same sum, which the owner then copies; NULL: the owner sums itself. */
static const struct span *pull_find_result(const struct pull *pull)
{
    const struct span *to = step_to(pull->writer, pull->step);
    for (int d = 0; pull->step->from_count > 1 && d < pull->step->to_count; d++)
        if (to[d].rank == pull->writer->rank) return &to[d];
    return NULL;
}
static void schedule_record_pull(struct schedule *owner, struct pull *pull)
{
    const struct span *result = pull_find_result(pull);
    struct step *copy = schedule_add_step(owner, WORK);
    pull->done = true;
    if (!copy) return;
    copy->finish = pull->step->finish && !result;
    if (result) step_add_from(owner, copy, *result);
    for (int f = 0; !result && f < pull->step->from_count; f++)
        step_add_from(owner, copy, step_from(pull->writer, pull->step)[f]);
    step_add_to(owner, copy, pull->to);
}
static bool step_reads_span(const struct schedule *s, const struct step *t, struct span a)
{
    for (int f = 0; f < t->from_count; f++)
        if (spans_overlap(step_from(s, t)[f], a)) return true;
    return false;
}
/* True if the step reads this rank's own OUTPUT. */
static bool step_reads_own_output(const struct schedule *s, const struct step *t)
{
    for (int f = 0; f < t->from_count; f++)
        if (step_from(s, t)[f].rank == s->rank && step_from(s, t)[f].buffer == OUTPUT) return true;
    return false;
}
/* Visits the writers in turn, beginning behind the owner, so that owners begin with different writers. */
static void schedule_record_pulls(const struct plan *p, struct schedule *s, const struct schedule *mine,
    struct pull *list, int count)
{
    int first = 0, member = plan_member_of_rank(p, s->rank);
    while (first < count && plan_member_of_rank(p, list[first].writer->rank) < member) first++;
    for (int j = 0; j < mine->step_count; j++) {
        const struct step *t = &mine->steps[j];
        for (int i = 0, reads = step_reads_own_output(mine, t); i < count && reads; i++) {
            struct pull *pull = &list[(first + i) % count];
            if (!pull->done && step_reads_span(mine, t, pull->to)) schedule_record_pull(s, pull);
        }
        schedule_keep_step(p, s, mine, t);
    }
    for (int i = 0; i < count; i++)
        if (!list[(first + i) % count].done) schedule_record_pull(s, &list[(first + i) % count]);
}
static void plan_pull_writes(struct plan *p, struct schedule *old)
{
    struct pulls pulls = { NULL, NULL };
    for (int m = 0; m < p->count; m++) old[m] = schedule_restart_recording(&p->ranks[m]);
    if (!pulls_collect(p, old, &pulls)) plan_fail_out_of_memory(p);
    for (int m = 0; pulls.list && m < p->count; m++)
        schedule_record_pulls(p, &p->ranks[m], &old[m], pulls.list + pulls.begin[m],
            pulls.begin[m + 1] - pulls.begin[m]);
    for (int m = 0; m < p->count; m++) schedule_free_arrays(&old[m]);
    free(pulls.list);
    free(pulls.begin);
}
void plan_pull_private_writes(struct plan *p)
{
    if (!plan_has_private_writes(p)) return;
    struct schedule *old = memory_alloc_zeroed((size_t)p->count, sizeof *old);
    if (old) plan_pull_writes(p, old);
    else plan_fail_out_of_memory(p);
    free(old);
}
