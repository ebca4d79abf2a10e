/* The edges of a plan: an edge is a wait that a step must have. `handles` and `infer` add edges in the order in which
 * they find them. Then every step gets its waits, strongest first, without those that a stronger one implies. */
#include "backend/base/memory.h"
#include "backend/schedule/build.h"
#include <stdlib.h>

static bool waits_are_equal(struct wait a, struct wait b)
{
    return a.rank == b.rank && a.step == b.step && a.lag == b.lag;
}
void edges_add_edge(struct edges *edges, struct edge edge)
{
    const struct edge *last = edges->count ? &edges->list[edges->count - 1] : NULL;
    if (last && last->member == edge.member && last->step == edge.step && waits_are_equal(last->wait, edge.wait))
        return;
    struct edge *list = memory_grow(edges->list, edges->count, &edges->room, sizeof *list);
    if (list) {
        edges->list = list;
        list[edges->count++] = edge;
    } else edges->failed = true;
}

/* ---- the waits of steps ---- */
static int int_compare(int a, int b) { return (a > b) - (a < b); }
/* Compares two waits of one step for qsort, so that a wait stands before the weaker ones that it implies. */
static int edge_compare_strength(const void *a, const void *b)
{
    const struct edge *x = a, *y = b;
    if (x->wait.rank != y->wait.rank) return int_compare(x->wait.rank, y->wait.rank);
    if (x->wait.lag != y->wait.lag) return int_compare((int)x->wait.lag, (int)y->wait.lag);
    return int_compare(y->wait.step, x->wait.step);
}
/* True if a step that has wait `by` does not need wait `a`. A peer's step of this tile implies the peer's earlier
   steps, and all its steps of the tile that had the slot before. The messages of the rank itself (`own`) complete
   independently of each other. */
static bool wait_is_implied(struct wait a, struct wait by, int own)
{
    if (a.rank != by.rank || a.rank == own) return waits_are_equal(a, by);
    return (by.lag == SAME_TILE && a.lag == SLOT_REUSE) || (a.lag == by.lag && a.step <= by.step);
}
/* Appends the wait of an edge to its step, unless the step's previous wait implies it. */
static void schedule_attach_wait(struct schedule *schedule, struct edge edge)
{
    struct step *step = &schedule->steps[edge.step];
    if (step->wait_count
        && wait_is_implied(edge.wait, schedule->waits[step->wait + step->wait_count - 1], schedule->rank))
        return;
    struct wait *waits = memory_grow(schedule->waits, schedule->wait_count, &schedule->wait_room, sizeof *waits);
    if (!waits) {
        schedule_set_error(schedule, schedule_no_memory);
        return;
    }
    schedule->waits = waits;
    if (!step->wait_count) step->wait = schedule->wait_count;
    waits[schedule->wait_count++] = edge.wait;
    step->wait_count++;
}
/* Returns first[member], the number of steps of all members before it. NULL: out of memory. */
static int *plan_count_steps_before(const struct plan *plan)
{
    int *first = memory_alloc_zeroed((size_t)plan->count + 1, sizeof *first);
    for (int m = 0; first && m < plan->count; m++) first[m + 1] = first[m] + plan->ranks[m].step_count;
    return first;
}
/* Attaches all edges in the order of members and steps, and for each step strongest first, so that a wait follows the
   one that implies it. Edges are many but few per step, so a counting sort by step comes first. It sorts the numbers of
   edges, which take less memory than edges. `end` (from plan_count_edges) and `sorted` (an entry per edge) are its
   memory; `of_step` has room for the edges of any step. */
static void plan_attach_sorted_edges(struct plan *plan, const struct edges *edges, const int *first, int *end,
    int *sorted, struct edge *of_step)
{
    int steps = first[plan->count];
    for (int i = edges->count - 1; i >= 0; i--) sorted[--end[first[edges->list[i].member] + edges->list[i].step]] = i;
    /* Now end[j] is where the edges of step j begin. */
    for (int j = 0; j < steps; j++) {
        int count = (j + 1 < steps ? end[j + 1] : edges->count) - end[j];
        for (int i = 0; i < count; i++) of_step[i] = edges->list[sorted[end[j] + i]];
        qsort(of_step, (size_t)count, sizeof *of_step, edge_compare_strength);
        for (int i = 0; i < count; i++) schedule_attach_wait(&plan->ranks[of_step[i].member], of_step[i]);
    }
}
/* Sets end[j] to the number of edges of steps 0 to j of all members, and returns the largest number of one step. */
static int plan_count_edges(const struct plan *plan, const struct edges *edges, const int *first, int *end)
{
    int most = 0;
    for (int i = 0; i < edges->count; i++) {
        int of_step = ++end[first[edges->list[i].member] + edges->list[i].step];
        if (of_step > most) most = of_step;
    }
    for (int j = 1; j < first[plan->count]; j++) end[j] += end[j - 1];
    return most;
}
void plan_attach_waits(struct plan *plan, const struct edges *edges)
{
    int *first = plan_count_steps_before(plan),
        *end = first ? memory_alloc_zeroed((size_t)first[plan->count], sizeof *end) : NULL;
    int *sorted = memory_alloc_zeroed((size_t)edges->count, sizeof *sorted);
    int most = end ? plan_count_edges(plan, edges, first, end) : 0;
    struct edge *of_step = memory_alloc_zeroed((size_t)most, sizeof *of_step);
    if (end && sorted && of_step) plan_attach_sorted_edges(plan, edges, first, end, sorted, of_step);
    else plan_fail_out_of_memory(plan);
    free(first);
    free(end);
    free(sorted);
    free(of_step);
}
