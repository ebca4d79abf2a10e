/* Staging: if a reader cannot use a chunk where it lies, the owner copies it into a slot, a SCRATCH chunk, by an
 * ordinary step. That applies to private tensors that peers read, to INPUT that is overwritten in place before it is
 * read, and to all INPUT if every contribution must be multiplied first. */
#include "backend/base/memory.h"
#include "backend/schedule/build.h"
#include <stdlib.h>

/* slot[buffer][member][chunk] is 0 if the chunk is not staged, else 1 + the SCRATCH chunk. */
struct staging {
    const struct build *b;
    int *slot[2];
};

static int *staging_slot_at(const struct staging *g, int rank, enum buffer buffer, int index)
{
    const struct plan *p = g->b->plan;
    return &g->slot[buffer][(size_t)plan_member_of_rank(p, rank) * (size_t)p->ranks[0].chunks[buffer] + (size_t)index];
}
/* True for a rank's own INPUT that is read after it was overwritten. With stage_sends also for INPUT that is sent and
   overwritten at any time. */
static bool span_is_overwritten(const struct build *b, const struct schedule *s, int step, struct span a)
{
    bool sent = b->plan->stage_sends && s->steps[step].kind == SEND;
    for (int i = 0; i < a.count; i++) {
        const struct writer *w = build_writer_of_chunk(b, a, i);
        if (!w->exists || w->first < 0) continue;
        if (sent || (a.rank == s->rank && w->rank == s->rank && w->first < step)) return true;
    }
    return false;
}
static bool span_is_staged(const struct build *b, const struct schedule *s, int step, struct span a)
{
    if (a.buffer == SCRATCH) return false;
    if (a.rank != s->rank && !plan_is_open(b->plan, a.rank)) return true;
    return a.buffer == INPUT && (b->plan->stage_inputs || span_is_overwritten(b, s, step, a));
}

/* ---- slots ---- */
static void staging_mark_reads(const struct staging *g, const struct schedule *s, int step)
{
    const struct step *t = &s->steps[step];
    for (int f = 0; f < t->from_count; f++) {
        struct span a = step_from(s, t)[f];
        if (!span_is_staged(g->b, s, step, a)) continue;
        for (int i = 0; i < a.count; i++) *staging_slot_at(g, a.rank, a.buffer, a.first + i) = 1;
    }
}
static void staging_assign_slots(const struct staging *g)
{
    struct plan *p = g->b->plan;
    for (int m = 0; m < p->count; m++)
        for (int j = 0; j < p->ranks[m].step_count; j++) staging_mark_reads(g, &p->ranks[m], j);
    for (int m = 0; m < p->count; m++)
        for (int buffer = INPUT; buffer <= OUTPUT; buffer++)
            for (int c = 0; c < p->ranks[m].chunks[buffer]; c++) {
                int *slot = staging_slot_at(g, p->ranks[m].rank, (enum buffer)buffer, c);
                if (*slot) *slot = ++p->ranks[m].chunks[SCRATCH];
            }
}
/* Returns how many chunks from `first` on are staged and, in OUTPUT, written last by this rank's step `after`. */
static int staging_run_length(const struct staging *g, const struct schedule *s, enum buffer buffer, int first,
    int after)
{
    int n = 0;
    for (; first + n < s->chunks[buffer] && *staging_slot_at(g, s->rank, buffer, first + n); n++) {
        const struct writer *w = build_writer_of_chunk(g->b, span_of_chunk(s->rank, buffer, first + n), 0);
        if (buffer == OUTPUT && (!w->exists || w->rank != s->rank || w->last != after)) break;
    }
    return n;
}
static void staging_copy_run(const struct staging *g, struct schedule *s, struct span tensor)
{
    struct span slot = { s->rank, SCRATCH, *staging_slot_at(g, s->rank, tensor.buffer, tensor.first) - 1,
        tensor.count };
    struct step *t = s->step_count ? &s->steps[s->step_count - 1] : NULL;
    bool made = !s->error && tensor.buffer == OUTPUT && t && t->kind == WORK && spans_are_equal(*step_to(s, t), tensor);
    if (!made) {
        t = schedule_add_step(s, WORK);
        if (t) t->raw = tensor.buffer == INPUT && g->b->plan->stage_inputs;
        step_add_from(s, t, tensor);
    }
    step_add_to(s, t, slot);
}
static void staging_copy_input(const struct staging *g, struct schedule *s)
{
    for (int c = 0, n; c < s->chunks[INPUT]; c += n ? n : 1)
        if ((n = staging_run_length(g, s, INPUT, c, 0)) > 0)
            staging_copy_run(g, s, (struct span){ s->rank, INPUT, c, n });
}
static void staging_copy_output(const struct staging *g, struct schedule *s, const struct schedule *old, int step)
{
    const struct step *t = &old->steps[step];
    for (int d = 0; d < t->to_count; d++) {
        struct span to = step_to(old, t)[d];
        if (to.rank != s->rank || to.buffer != OUTPUT) continue;
        for (int c = to.first, n; c < to.first + to.count; c += n ? n : 1) {
            n = staging_run_length(g, s, OUTPUT, c, step);
            if (n > to.first + to.count - c) n = to.first + to.count - c;
            if (n) staging_copy_run(g, s, (struct span){ s->rank, OUTPUT, c, n });
        }
    }
}

/* ---- programs ---- */
static void staging_redirect_reads(const struct staging *g, struct schedule *old, int step)
{
    struct step *t = &old->steps[step];
    for (int f = 0; f < t->from_count; f++) {
        struct span *a = &step_from(old, t)[f];
        if (!span_is_staged(g->b, old, step, *a)) continue;
        *a = (struct span){ a->rank, SCRATCH, *staging_slot_at(g, a->rank, a->buffer, a->first) - 1, a->count };
    }
}
/* Stages received chunks as late as is safe, before the next step that touches a peer, because until then the rank need
   not wait for the message. */
static void staging_rebuild_schedule(const struct staging *g, struct schedule *s)
{
    struct schedule old = schedule_restart_recording(s);
    int late = 0;
    staging_copy_input(g, s);
    for (int j = 0; j <= old.step_count; j++) {
        if (j == old.step_count || step_touches_peer(&old, &old.steps[j]))
            for (; late < j; late++)
                if (old.steps[late].kind == RECV) staging_copy_output(g, s, &old, late);
        if (j == old.step_count) break;
        staging_redirect_reads(g, &old, j);
        schedule_append_step(s, &old, &old.steps[j]);
        if (old.steps[j].kind == WORK) staging_copy_output(g, s, &old, j);
    }
    schedule_free_arrays(&old);
}
void build_stage_private(struct build *b)
{
    struct plan *p = b->plan;
    struct staging g = { .b = b };
    for (int k = INPUT; k <= OUTPUT; k++)
        g.slot[k] = memory_alloc_zeroed((size_t)p->count * (size_t)p->ranks[0].chunks[k], sizeof *g.slot[k]);
    if (g.slot[INPUT] && g.slot[OUTPUT]) {
        staging_assign_slots(&g);
        for (int m = 0; m < p->count; m++) staging_rebuild_schedule(&g, &p->ranks[m]);
        for (int m = 0; m < p->count; m++)
            if (plan_is_open(p, p->ranks[m].rank)) schedule_add_step(&p->ranks[m], LEAVE);
    } else plan_fail_out_of_memory(p);
    free(g.slot[INPUT]);
    free(g.slot[OUTPUT]);
}
