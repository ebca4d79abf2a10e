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
/* Returns the first position at which a receive may be posted: after the last step that accesses its target. */
static int hoist_find_place(const struct hoist *h, const struct step *step)
{
    int after = h->fixed;
    for (int d = 0; d < step->to_count; d++) {
        struct span to = step_to(h->s, step)[d];
        if (to.buffer != SCRATCH) after = int_larger(after, h->peers);
        for (int i = 0; i < to.count; i++) {
            const struct touched *c = &h->cells[plan_cell_of_chunk(h->plan, to, i)];
            if (c->sent) return h->others;
            after = int_larger(after, c->after);
        }
    }
    return after;
}
/* Puts a receive into the list of receives with its new position, and any other step into the other list. */
static void hoist_sort_step(struct hoist *h, const struct step *step)
{
    if (step->kind != RECV) {
        h->other[h->others++] = *step;
        return;
    }
    h->fixed = h->after[h->receives] = hoist_find_place(h, step);
    h->receive[h->receives++] = *step;
}
/* Records which chunks a step accesses, for later receives. */
static void hoist_record_accesses(struct hoist *h, const struct step *step)
{
    int place = step->kind == RECV ? h->fixed : h->others;
    for (int x = 0; x < step->from_count + step->to_count; x++) {
        struct span span = h->s->spans[step->span + x];
        for (int i = 0; span.rank == h->s->rank && i < span.count; i++) {
            struct touched *c = &h->cells[plan_cell_of_chunk(h->plan, span, i)];
            c->after = place;
            c->sent |= step->kind == SEND;
        }
    }
    if (step_touches_peer(h->s, step)) h->peers = place;
    if (step->kind != WORK && step->kind != SEND) h->fixed = place;
}
/* Merges receives and other steps in their new order. */
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
void plan_hoist_receives(const struct build *build)
{
    for (int m = 0; m < build->plan->count; m++) {
        struct schedule *schedule = &build->plan->ranks[m];
        size_t steps = (size_t)schedule->step_count;
        struct hoist h = { .plan = build->plan, .s = schedule };
        h.cells = memory_alloc_zeroed((size_t)build->cells, sizeof *h.cells);
        h.after = memory_alloc_zeroed(steps, sizeof *h.after);
        h.receive = memory_alloc_zeroed(steps, sizeof *h.receive);
        h.other = memory_alloc_zeroed(steps, sizeof *h.other);
        if (h.cells && h.after && h.receive && h.other) hoist_schedule(&h);
        else schedule_set_error(schedule, schedule_no_memory);
        free(h.cells);
        free(h.after);
        free(h.receive);
        free(h.other);
    }
}
