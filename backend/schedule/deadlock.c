/* The deadlock check. A tile waits only for its own tile on other ranks and for the tile that had its slot before. So
 * if one tile alone runs to its end, many tiles do so in any order. Positions only increase, so one order of running
 * the ranks stands for all. A send completes as late as it may: when its receive is posted. */
#include "backend/base/memory.h"
#include "backend/schedule/build.h"
#include "backend/schedule/match.h"
#include <stdio.h>
#include <stdlib.h>

struct deadlock_run {
    const struct plan *plan;
    struct match *match;
    int *at;
};

static bool wait_is_met(const struct deadlock_run *x, int rank, const struct wait *w)
{
    const struct plan *p = x->plan;
    if (w->lag == SLOT_REUSE) return true;
    if (w->rank != rank) return x->at[plan_member_of_rank(p, w->rank)] > w->step;
    struct position other = match_find_other_end(x->match, rank, w->step);
    return other.rank < 0 || x->at[plan_member_of_rank(p, other.rank)] > other.step;
}
/* Runs the member as far as it gets. True: it moved. */
static bool deadlock_run_member(const struct deadlock_run *x, int member)
{
    const struct schedule *s = &x->plan->ranks[member];
    int from = x->at[member];
    for (; x->at[member] < s->step_count; x->at[member]++) {
        const struct step *t = &s->steps[x->at[member]];
        for (int w = 0; w < t->wait_count; w++)
            if (!wait_is_met(x, s->rank, &s->waits[t->wait + w])) return x->at[member] > from;
    }
    return x->at[member] > from;
}
static bool deadlock_judge_run(const struct deadlock_run *x, struct plan *p)
{
    for (int m = 0; m < p->count; m++)
        if (x->at[m] < p->ranks[m].step_count) {
            p->cycle_rank = plan_rank_of_member(p, m);
            snprintf(p->error, sizeof p->error, "cycle: rank %d step %d waits for itself through its peers",
                p->cycle_rank, x->at[m]);
            return false;
        }
    bool complete = match_is_complete(x->match);
    if (!complete) snprintf(p->error, sizeof p->error, "a message is never sent or never received");
    return complete;
}
bool plan_is_deadlock_free(const struct build *b)
{
    struct plan *p = b->plan;
    struct deadlock_run x = {
        .plan = p, .match = match_create(p), .at = memory_alloc_zeroed((size_t)p->count, sizeof *x.at)
    };
    bool ran = x.match && x.at, free_of_it = false;
    if (ran) {
        for (bool moved = true; moved;) {
            moved = false;
            for (int m = 0; m < p->count; m++) moved |= deadlock_run_member(&x, m);
        }
        free_of_it = deadlock_judge_run(&x, p);
    } else plan_fail_out_of_memory(p);
    free(x.at);
    match_destroy(x.match);
    return free_of_it;
}
