/* Posts receives as early as possible, so that messages are received into their place at once. A receive moves up to
 * the last step that touches its destination, but stays behind earlier receives, which keeps a peer's messages in
 * order. If its destination is a tensor, it also stays behind steps that touch a peer. If it would have to wait for a
 * send, it does not move. So receives keep their order, and so do the other steps; one pass merges both lists. */
#include "backend/base/memory.h"
#include "backend/schedule/build.h"
#include <stdlib.h>

/* The use of a cell so far. after: a receive into the cell must come after this many other steps; is_sent: a send reads
   the cell. */
struct touched { int after; bool is_sent; };
/* The new order of one rank's steps. Other steps are all that are not receives. */
struct hoist {
    const struct plan *plan;
    struct schedule *schedule;
    /* The cells of this rank. */
    struct touched *cells;
    /* [receive]: how many other steps come before it. */
    int *after;
    /* The numbers of receives and of other steps so far. */
    int receives, others;
    /* A receive into a tensor comes after `after_peers` other steps, and any receive after `after_fixed`. */
    int after_peers, after_fixed;
    /* The receives and the other steps, in order. */
    struct step *receive, *other;
};

static int int_larger(int a, int b) { return a > b ? a : b; }
/* Returns how many other steps must come before a receive. If a send reads its target, those are all so far, so that
   the receive does not move. */
static int hoist_find_place(const struct hoist *hoist, const struct step *step)
{
    int after = hoist->after_fixed;
    for (int d = 0; d < step->to_count; d++) {
        struct span to = step_to(hoist->schedule, step)[d];
        if (to.buffer != SCRATCH) after = int_larger(after, hoist->after_peers);
        for (int i = 0; i < to.count; i++) {
            const struct touched *cell = &hoist->cells[plan_cell_of_chunk(hoist->plan, to, i)];
            if (cell->is_sent) return hoist->others;
            after = int_larger(after, cell->after);
        }
    }
    return after;
}
/* Appends a receive to the list of receives with its new place, and any other step to the other list. */
static void hoist_sort_step(struct hoist *hoist, const struct step *step)
{
    if (step->kind != RECV) {
        hoist->other[hoist->others++] = *step;
        return;
    }
    hoist->after_fixed = hoist->after[hoist->receives] = hoist_find_place(hoist, step);
    hoist->receive[hoist->receives++] = *step;
}
/* Records what a step, which is in its list, means for later receives: the cells that it uses, whether it touches a
   peer, and whether all later receives stay behind it. */
static void hoist_record_accesses(struct hoist *hoist, const struct step *step)
{
    int after = step->kind == RECV ? hoist->after_fixed : hoist->others;
    for (int x = 0; x < step->from_count + step->to_count; x++) {
        struct span span = hoist->schedule->spans[step->span + x];
        for (int i = 0; span.rank == hoist->schedule->rank && i < span.count; i++) {
            struct touched *cell = &hoist->cells[plan_cell_of_chunk(hoist->plan, span, i)];
            cell->after = after;
            cell->is_sent |= step->kind == SEND;
        }
    }
    if (step_touches_peer(hoist->schedule, step)) hoist->after_peers = after;
    if (step->kind != WORK && step->kind != SEND) hoist->after_fixed = after;
}
/* Writes receives and other steps back into the schedule in their new order. */
static void hoist_merge_steps(const struct hoist *hoist)
{
    struct step *out = hoist->schedule->steps;
    for (int i = 0, r = 0; i <= hoist->others; i++) {
        while (r < hoist->receives && hoist->after[r] <= i) *out++ = hoist->receive[r++];
        if (i < hoist->others) *out++ = hoist->other[i];
    }
}
/* Orders the steps of one rank again. */
static void hoist_schedule(struct hoist *hoist)
{
    for (int j = 0; j < hoist->schedule->step_count; j++) {
        hoist_sort_step(hoist, &hoist->schedule->steps[j]);
        hoist_record_accesses(hoist, &hoist->schedule->steps[j]);
    }
    hoist_merge_steps(hoist);
}
void plan_hoist_receives(const struct build *build)
{
    for (int m = 0; m < build->plan->count; m++) {
        struct schedule *schedule = &build->plan->ranks[m];
        size_t steps = (size_t)schedule->step_count;
        struct hoist hoist = { .plan = build->plan, .schedule = schedule };
        hoist.cells = memory_alloc_zeroed((size_t)build->cells, sizeof *hoist.cells);
        hoist.after = memory_alloc_zeroed(steps, sizeof *hoist.after);
        hoist.receive = memory_alloc_zeroed(steps, sizeof *hoist.receive);
        hoist.other = memory_alloc_zeroed(steps, sizeof *hoist.other);
        if (hoist.cells && hoist.after && hoist.receive && hoist.other) hoist_schedule(&hoist);
        else schedule_set_error(schedule, schedule_no_memory);
        free(hoist.cells);
        free(hoist.after);
        free(hoist.receive);
        free(hoist.other);
    }
}
