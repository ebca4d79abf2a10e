/* Posts receives as early as possible, so that messages are received into their place at once. A receive moves up to
 * the last step that touches its destination, but stays behind earlier receives, which keeps a peer's messages in
 * order. If its destination is a tensor, it also stays behind steps that touch a peer. If it would have to wait for a
 * send, it does not move. So receives keep their order, and so do the other steps; one pass merges both lists. */
#include "backend/base/memory.h"
#include "backend/schedule/build.h"
#include <stdlib.h>

/* A cell: the last step that touches it is among the first `after` other steps; `sent`: a send reads it. */
struct touched { int after; bool sent; };
struct hoist {
    const struct plan *plan;
    struct schedule *s;
    struct touched *cells;
    /* [receive]: how many of the other steps come before it. */
    int *after;
    /* Receives and other steps so far. */
    int receives, others;
    /* How many other steps come before the last step that touches a peer, and before the last that all receives stay
       behind. */
    int peers, fixed;
    struct step *receive, *other;
};

static int int_larger(int a, int b) { return a > b ? a : b; }
static int hoist_find_place(const struct hoist *h, const struct step *t)
{
    int after = h->fixed;
    for (int d = 0; d < t->to_count; d++) {
        struct span to = step_to(h->s, t)[d];
        if (to.buffer != SCRATCH) after = int_larger(after, h->peers);
        for (int i = 0; i < to.count; i++) {
            const struct touched *c = &h->cells[plan_cell_of_chunk(h->plan, to, i)];
            if (c->sent) return h->others;
            after = int_larger(after, c->after);
        }
    }
    return after;
}
static void hoist_sort_step(struct hoist *h, const struct step *t)
{
    if (t->kind != RECV) {
        h->other[h->others++] = *t;
        return;
    }
    h->fixed = h->after[h->receives] = hoist_find_place(h, t);
    h->receive[h->receives++] = *t;
}
static void hoist_record_accesses(struct hoist *h, const struct step *t)
{
    int place = t->kind == RECV ? h->fixed : h->others;
    for (int x = 0; x < t->from_count + t->to_count; x++) {
        struct span a = h->s->spans[t->span + x];
        for (int i = 0; a.rank == h->s->rank && i < a.count; i++) {
            struct touched *c = &h->cells[plan_cell_of_chunk(h->plan, a, i)];
            c->after = place;
            c->sent |= t->kind == SEND;
        }
    }
    if (step_touches_peer(h->s, t)) h->peers = place;
    if (t->kind != WORK && t->kind != SEND) h->fixed = place;
}
static void hoist_merge_steps(const struct hoist *h)
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
        hoist_sort_step(h, &h->s->steps[j]);
        hoist_record_accesses(h, &h->s->steps[j]);
    }
    hoist_merge_steps(h);
}
void plan_hoist_receives(const struct build *b)
{
    for (int m = 0; m < b->plan->count; m++) {
        struct schedule *s = &b->plan->ranks[m];
        size_t steps = (size_t)s->step_count;
        struct hoist h = { .plan = b->plan, .s = s };
        h.cells = memory_alloc_zeroed((size_t)b->cells, sizeof *h.cells);
        h.after = memory_alloc_zeroed(steps, sizeof *h.after);
        h.receive = memory_alloc_zeroed(steps, sizeof *h.receive);
        h.other = memory_alloc_zeroed(steps, sizeof *h.other);
        if (h.cells && h.after && h.receive && h.other) hoist_schedule(&h);
        else schedule_set_error(s, schedule_no_memory);
        free(h.cells);
        free(h.after);
        free(h.receive);
        free(h.other);
    }
}
