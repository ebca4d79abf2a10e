/* Infers every wait of every step from the chunks that ranks read and write. Names are versions: peers see INPUT as its
 * caller passed it, and OUTPUT and SCRATCH as they are finally left. So a peer's read waits for the last write
 * (complete, if it is a receive). The first write that destroys an INPUT waits for the peers' reads of it. A slot is
 * filled again after the tile that had it before has been read. The roll call awaits the arrival of peers, so no step
 * does. */
#include "backend/base/memory.h"
#include "backend/schedule/build.h"
#include <stdlib.h>

/* completed[member][step] is the step by which a message is known to be complete. */
struct inference {
    struct build *b;
    struct edges edges;
    int **completed;
};

/* Makes `rank` wait before its step for the position of `other`. */
static void inference_add_wait(struct inference *x, int rank, int step, int other, int position, enum lag lag)
{
    edges_add_edge(&x->edges, (struct edge){ plan_member_of_rank(x->b->plan, rank), step, { other, position, lag } });
}
/* Returns the step by which step j of the rank is known to be complete. */
static int inference_completion_of_step(const struct inference *x, int rank, int j)
{
    struct schedule *s = plan_schedule_of_rank(x->b->plan, rank);
    if (!step_is_message(&s->steps[j])) return j;
    int at = x->completed[plan_member_of_rank(x->b->plan, rank)][j];
    if (at < 0) schedule_set_error(s, "no step waits for a message that a peer depends on");
    return at < 0 ? j : at;
}
/* If step j of rank r touches a peer's tensor, the peer must not return to its caller before that step is complete. */
static void inference_delay_peer_return(struct inference *x, int r, int j, struct span a)
{
    if (a.rank == r || a.buffer == SCRATCH) return;
    int leave = plan_schedule_of_rank(x->b->plan, a.rank)->step_count - 1;
    inference_add_wait(x, a.rank, leave, r, inference_completion_of_step(x, r, j), EVERY_TILE);
}
/* Step j of rank r reads an INPUT chunk. The first write that destroys the chunk must wait for that step. */
static void inference_order_input_writes(struct inference *x, int r, int j, const struct writer *w)
{
    struct plan *p = x->b->plan;
    if (!w->exists || w->first < 0) return;
    if (w->rank != r) inference_add_wait(x, w->rank, w->first, r, inference_completion_of_step(x, r, j), SAME_TILE);
    else if (w->first < j) {
        schedule_set_error(plan_schedule_of_rank(p, r), "reads an input chunk after overwriting it");
        p->cycle_rank = r;
    }
}
/* Step j of rank r reads a chunk of `a`, whose writer is w: the step waits for the last write. */
static void inference_await_written_chunk(struct inference *x, int r, int j, struct span a, const struct writer *w)
{
    if (a.buffer == INPUT) inference_order_input_writes(x, r, j, w);
    else if (!w->exists)
        schedule_set_error(plan_schedule_of_rank(x->b->plan, r), "reads a chunk that is never written");
    /* A rank's own chunks need no wait, and an in-place chunk without a destroying write is there from the start. */
    else if (w->rank != r && w->first >= 0) {
        inference_add_wait(x, r, j, w->rank, inference_completion_of_step(x, w->rank, w->last), SAME_TILE);
        if (a.buffer == SCRATCH)
            inference_add_wait(x, w->rank, w->first, r, inference_completion_of_step(x, r, j), SLOT_REUSE);
    }
}
static void inference_infer_step(struct inference *x, const struct schedule *s, int j)
{
    const struct step *t = &s->steps[j];
    for (int d = 0; d < t->to_count; d++) inference_delay_peer_return(x, s->rank, j, step_to(s, t)[d]);
    for (int f = 0; f < t->from_count; f++) {
        struct span a = step_from(s, t)[f];
        inference_delay_peer_return(x, s->rank, j, a);
        for (int i = 0; i < a.count; i++)
            inference_await_written_chunk(x, s->rank, j, a, build_writer_of_chunk(x->b, a, i));
    }
}

/* ---- publishing steps ---- */
static void plan_mark_publisher(struct plan *p, const struct wait *w)
{
    struct step *t = &plan_schedule_of_rank(p, w->rank)->steps[w->step];
    if (w->lag == SLOT_REUSE) t->by_reuse = true;
    else if (w->lag == EVERY_TILE) t->by_leave = true;
    else t->by_tile = true;
}
static void plan_find_publishers(struct plan *p)
{
    p->period = 0;
    for (int m = 0; m < p->count; m++) {
        const struct schedule *s = &p->ranks[m];
        if (s->step_count > p->period) p->period = s->step_count;
        for (int w = 0; w < s->wait_count; w++)
            if (s->waits[w].rank != s->rank) plan_mark_publisher(p, &s->waits[w]);
    }
}

/* ---- prelude ---- */
static bool step_fits_prelude(const struct schedule *s, const struct step *t)
{
    bool fine = t->kind == WORK && !step_touches_peer(s, t);
    for (int d = 0; d < t->to_count; d++) fine &= step_to(s, t)[d].buffer == SCRATCH;
    for (int w = 0; w < t->wait_count; w++) fine &= s->waits[t->wait + w].lag == SLOT_REUSE;
    return fine;
}
static void plan_find_preludes(struct plan *p)
{
    for (int m = 0; m < p->count; m++) {
        struct schedule *s = &p->ranks[m];
        s->prelude = 0;
        while (s->prelude < s->step_count && step_fits_prelude(s, &s->steps[s->prelude])) s->prelude++;
    }
}

/* ---- the peers that a rank needs ---- */
int schedule_find_needed_peers(const struct schedule *s, bool *out)
{
    int count = 0;
    for (const struct wait *w = s->waits; w < s->waits + s->wait_count; w++)
        if (w->lag != SLOT_REUSE) out[w->rank] = true;
    for (const struct step *t = s->steps; t < s->steps + s->step_count; t++)
        for (int f = 0; f < t->from_count; f++) out[step_from(s, t)[f].rank] = true;
    out[s->rank] = false;
    for (int r = 0; r < s->size; r++) count += out[r];
    return count;
}

/* ---- all of it ---- */
static bool inference_allocate_completed(struct inference *x)
{
    struct plan *p = x->b->plan;
    x->completed = memory_alloc_zeroed((size_t)p->count, sizeof *x->completed);
    bool fine = x->completed != NULL;
    for (int m = 0; m < p->count && fine; m++) {
        x->completed[m] = memory_alloc_zeroed((size_t)p->ranks[m].step_count, sizeof **x->completed);
        fine = x->completed[m] != NULL;
    }
    return fine;
}
static void inference_finish(struct inference *x)
{
    for (int m = 0; x->completed && m < x->b->plan->count; m++) free(x->completed[m]);
    free(x->completed);
    free(x->edges.list);
}
void build_infer_waits(struct build *b)
{
    struct plan *p = b->plan;
    struct inference x = { .b = b };
    if (!inference_allocate_completed(&x)) x.edges.failed = true;
    for (int m = 0; m < p->count && !x.edges.failed; m++)
        schedule_find_message_waits(b, &p->ranks[m], &x.edges, x.completed[m]);
    for (int m = 0; m < p->count && !x.edges.failed; m++)
        for (int j = 0; j < p->ranks[m].step_count; j++) inference_infer_step(&x, &p->ranks[m], j);
    if (!x.edges.failed) {
        plan_attach_waits(p, &x.edges);
        plan_find_publishers(p);
        plan_find_preludes(p);
    } else plan_fail_out_of_memory(p);
    inference_finish(&x);
}
