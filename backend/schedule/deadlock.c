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

/* True if the simulated ranks have passed the step that `wait` names. SLOT_REUSE never matters in one tile. */
static bool wait_is_met(const struct deadlock_run *x, int rank, const struct wait *wait)
{
    const struct plan *plan = x->plan;
    if (wait->lag == SLOT_REUSE) return true;
    if (wait->rank != rank) return x->at[plan_member_of_rank(plan, wait->rank)] > wait->step;
    struct position other = match_find_other_end(x->match, rank, wait->step);
    return other.rank < 0 || x->at[plan_member_of_rank(plan, other.rank)] > other.step;
}
/* Runs the member as far as it gets. True: it moved. */
static bool deadlock_run_member(const struct deadlock_run *x, int member)
{
    const struct schedule *schedule = &x->plan->ranks[member];
    int from = x->at[member];
    for (; x->at[member] < schedule->step_count; x->at[member]++) {
        const struct step *step = &schedule->steps[x->at[member]];
        for (int w = 0; w < step->wait_count; w++)
            if (!wait_is_met(x, schedule->rank, &schedule->waits[step->wait + w])) return x->at[member] > from;
    }
    return x->at[member] > from;
}
/* True if the simulated run is complete. Otherwise describes the cycle or the unmatched message. */
static bool deadlock_judge_run(const struct deadlock_run *x, struct plan *plan)
{
    for (int m = 0; m < plan->count; m++)
        if (x->at[m] < plan->ranks[m].step_count) {
            plan->cycle_rank = plan_rank_of_member(plan, m);
            snprintf(plan->error, sizeof plan->error, "cycle: rank %d step %d waits for itself through its peers",
                plan->cycle_rank, x->at[m]);
            return false;
        }
    bool complete = match_is_complete(x->match);
    if (!complete) snprintf(plan->error, sizeof plan->error, "a message is never sent or never received");
    return complete;
}
bool plan_is_deadlock_free(const struct build *build)
{
    struct plan *plan = build->plan;
    struct deadlock_run x = {
        .plan = plan, .match = match_create(plan), .at = memory_alloc_zeroed((size_t)plan->count, sizeof *x.at)
    };
    bool ran = x.match && x.at, free_of_it = false;
    if (ran) {
        for (bool moved = true; moved;) {
            moved = false;
            for (int m = 0; m < plan->count; m++) moved |= deadlock_run_member(&x, m);
        }
        free_of_it = deadlock_judge_run(&x, plan);
    } else plan_fail_out_of_memory(plan);
    free(x.at);
    match_destroy(x.match);
    return free_of_it;
}
