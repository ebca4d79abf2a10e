/* Posts receives as early as possible, so that what arrives lands in its place at once. A receive moves up to the last
 * step that touches where it lands, never past another receive (messages of a peer stay in order), never past a step
 * that touches a peer when it lands in a tensor, and not at all when it would have to wait for a send. */
#include "backend/base/memory.h"
#include "backend/schedule/build.h"
#include <stdlib.h>
#include <string.h>

struct touched {
    int step;
    bool sent;
}; /* step: 1 + the last that touched the cell */
struct hoist {
    const struct plan *plan;
    struct schedule *s;
    struct touched *cells;
    int *order, *place;        /* order[place[j]] == j: where step j has come to stand */
    int last_peer, last_fixed; /* steps that receives do not pass; -1: none yet */
    struct step *moved;
};

static int later(int a, int b) { return a > b ? a : b; }
/* The first place where the receive may stand; `step`, its own, if it may not move. */
static int place_for(const struct hoist *h, int step)
{
    const struct step *t = &h->s->steps[step];
    int first = h->last_fixed < 0 ? 0 : h->place[h->last_fixed] + 1;
    for (int d = 0; d < t->to_count; d++) {
        struct span to = step_to(h->s, t)[d];
        if (to.buffer != SCRATCH && h->last_peer >= 0) first = later(first, h->place[h->last_peer] + 1);
        for (int i = 0; i < to.count; i++) {
            const struct touched *c = &h->cells[cell_of(h->plan, to, i)];
            if (c->sent) return step;
            if (c->step) first = later(first, h->place[c->step - 1] + 1);
        }
    }
    return first;
}
static void put(struct hoist *h, int step, int first)
{
    for (int at = step; at > first; at--) {
        h->order[at] = h->order[at - 1];
        h->place[h->order[at]] = at;
    }
    h->order[first] = step;
    h->place[step] = first;
}
static void note(struct hoist *h, int step)
{
    const struct step *t = &h->s->steps[step];
    for (int x = 0; x < t->from_count + t->to_count; x++) {
        struct span a = h->s->spans[t->span + x];
        for (int i = 0; a.rank == h->s->rank && i < a.count; i++) {
            struct touched *c = &h->cells[cell_of(h->plan, a, i)];
            c->step = step + 1;
            c->sent |= t->kind == SEND;
        }
    }
    if (step_touches_peer(h->s, t)) h->last_peer = step;
    if (t->kind != WORK && t->kind != SEND) h->last_fixed = step;
}
static void hoist_schedule(struct hoist *h)
{
    struct schedule *s = h->s;
    for (int j = 0; j < s->step_count; j++) {
        put(h, j, s->steps[j].kind == RECV ? place_for(h, j) : j);
        note(h, j);
    }
    for (int j = 0; j < s->step_count; j++) h->moved[h->place[j]] = s->steps[j];
    memcpy(s->steps, h->moved, (size_t)s->step_count * sizeof *s->steps);
}
void hoist_receives(const struct build *b)
{
    for (int m = 0; m < b->plan->count; m++) {
        struct schedule *s = &b->plan->ranks[m];
        size_t steps = (size_t)s->step_count;
        struct hoist h = { .plan = b->plan, .s = s, .last_peer = -1, .last_fixed = -1 };
        h.cells = memory_zeroed((size_t)b->cells, sizeof *h.cells);
        h.order = memory_zeroed(steps, sizeof *h.order);
        h.place = memory_zeroed(steps, sizeof *h.place);
        h.moved = memory_zeroed(steps, sizeof *h.moved);
        if (h.cells && h.order && h.place && h.moved) hoist_schedule(&h);
        else schedule_fail(s, schedule_no_memory);
        free(h.cells);
        free(h.order);
        free(h.place);
        free(h.moved);
    }
}
