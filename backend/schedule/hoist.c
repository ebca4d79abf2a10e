/* Posts receives as early as possible, so that what arrives lands in its place at once. A receive moves up to the last
 * step that touches where it lands, never past another receive (messages of a peer stay in order), never past a step
 * that touches a peer when it lands in a tensor, and not at all when it would have to wait for a send. So the receives
 * stay in their order, and the other steps in theirs: the program is a merge of both, made in one pass. */
#include "backend/base/memory.h"
#include "backend/schedule/build.h"
#include <stdlib.h>

struct touched { int after; bool sent; };                   /* the cell: by so many of the others, at most */
struct hoist {
    const struct plan *plan;
    struct schedule *s;
    struct touched *cells;
    int *after;                                             /* [receive]: behind so many of the other steps */
    int receives, others;                                   /* so far */
    int peers, fixed;                                       /* the others up to the last that receives do not pass */
    struct step *receive, *other;                           /* in their order */
};

static int int_later(int a, int b) { return a > b ? a : b; }
static int place_for(const struct hoist *h, const struct step *t)
{
    int after = h->fixed;
    for (int d = 0; d < t->to_count; d++) {
        struct span to = step_to(h->s, t)[d];
        if (to.buffer != SCRATCH) after = int_later(after, h->peers);
        for (int i = 0; i < to.count; i++) {
            const struct touched *c = &h->cells[cell_of(h->plan, to, i)];
            if (c->sent) return h->others;
            after = int_later(after, c->after);
        }
    }
    return after;
}
static void step_put(struct hoist *h, const struct step *t)
{
    if (t->kind != RECV) {
        h->other[h->others++] = *t;
        return;
    }
    h->fixed = h->after[h->receives] = place_for(h, t);
    h->receive[h->receives++] = *t;
}
static void step_record(struct hoist *h, const struct step *t)
{
    int place = t->kind == RECV ? h->fixed : h->others;
    for (int x = 0; x < t->from_count + t->to_count; x++) {
        struct span a = h->s->spans[t->span + x];
        for (int i = 0; a.rank == h->s->rank && i < a.count; i++) {
            struct touched *c = &h->cells[cell_of(h->plan, a, i)];
            c->after = place;
            c->sent |= t->kind == SEND;
        }
    }
    if (step_touches_peer(h->s, t)) h->peers = place;
    if (t->kind != WORK && t->kind != SEND) h->fixed = place;
}
static void steps_merge(const struct hoist *h)
{
    struct step *out = h->s->steps;
    for (int i = 0, r = 0; i <= h->others; i++) {
        while (r < h->receives && h->after[r] <= i) *out++ = h->receive[r++];
        if (i < h->others) *out++ = h->other[i];
    }
}
static void hoist_schedule(struct hoist *h)
{
    for (int j = 0; j < h->s->step_count; j++) {
        step_put(h, &h->s->steps[j]);
        step_record(h, &h->s->steps[j]);
    }
    steps_merge(h);
}
void hoist_receives(const struct build *b)
{
    for (int m = 0; m < b->plan->count; m++) {
        struct schedule *s = &b->plan->ranks[m];
        size_t steps = (size_t)s->step_count;
        struct hoist h = { .plan = b->plan, .s = s };
        h.cells = memory_zeroed((size_t)b->cells, sizeof *h.cells);
        h.after = memory_zeroed(steps, sizeof *h.after);
        h.receive = memory_zeroed(steps, sizeof *h.receive);
        h.other = memory_zeroed(steps, sizeof *h.other);
        if (h.cells && h.after && h.receive && h.other) hoist_schedule(&h);
        else schedule_fail(s, schedule_no_memory);
        free(h.cells);
        free(h.after);
        free(h.receive);
        free(h.other);
    }
}
