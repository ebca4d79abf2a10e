/* The deadlock check. A tile waits only for its own tile on other ranks and for the tile that had its slot before. So
 * if one tile alone runs to its end, many tiles do so in any order. Positions only increase, so one order of running
 * the ranks stands for all. A send completes as late as it may: when its receive is posted. */
#include "backend/base/memory.h"
#include "backend/schedule/build.h"
#include "backend/schedule/match.h"
#include <stdio.h>
#include <stdlib.h>

/* A simulation of one tile. */
struct deadlock_run {
    const struct plan *plan;
    struct match *match;
    /* [member]: the step that the member does next. */
    int *at;
};

/* True if the simulation has gone far enough for a wait of `rank`. A wait for a peer needs the peer's step. A wait for
   an own message needs its other end, if that is a member. SLOT_REUSE never matters in one tile. */
static bool wait_is_met(const struct deadlock_run *run, int rank, const struct wait *wait)
{
    const struct plan *plan = run->plan;
    if (wait->lag == SLOT_REUSE) return true;
    if (wait->rank != rank) return run->at[plan_member_of_rank(plan, wait->rank)] > wait->step;
    struct position other = match_find_other_end(run->match, rank, wait->step);
    return other.rank < 0 || run->at[plan_member_of_rank(plan, other.rank)] > other.step;
}
/* Advances the member to its first step with an unmet wait, or to its end. True: it did at least one step. */
static bool deadlock_run_member(const struct deadlock_run *run, int member)
{
    const struct schedule *schedule = &run->plan->ranks[member];
    int from = run->at[member];
    for (; run->at[member] < schedule->step_count; run->at[member]++) {
        const struct step *step = &schedule->steps[run->at[member]];
        for (int w = 0; w < step->wait_count; w++)
            if (!wait_is_met(run, schedule->rank, &schedule->waits[step->wait + w])) return run->at[member] > from;
    }
    return run->at[member] > from;
}
/* True if all members have done all steps and all messages have both ends. Otherwise sets plan->error, and cycle_rank
   if a member stopped. */
static bool deadlock_judge_run(const struct deadlock_run *run, struct plan *plan)
{
    for (int m = 0; m < plan->count; m++)
        if (run->at[m] < plan->ranks[m].step_count) {
            plan->cycle_rank = plan_rank_of_member(plan, m);
            snprintf(plan->error, sizeof plan->error, "cycle: rank %d step %d waits for itself through its peers",
                plan->cycle_rank, run->at[m]);
            return false;
        }
    bool complete = match_is_complete(run->match);
    if (!complete) snprintf(plan->error, sizeof plan->error, "a message is never sent or never received");
    return complete;
}
bool plan_verify_no_deadlock(const struct build *build)
{
    struct plan *plan = build->plan;
    struct deadlock_run run = {
        .plan = plan, .match = match_create(plan), .at = memory_alloc_zeroed((size_t)plan->count, sizeof *run.at)
    };
    bool has_memory = run.match && run.at, ends = false;
    if (has_memory) {
        for (bool moved = true; moved;) {
            moved = false;
            for (int m = 0; m < plan->count; m++) moved |= deadlock_run_member(&run, m);
        }
        ends = deadlock_judge_run(&run, plan);
    } else plan_fail_out_of_memory(plan);
    free(run.at);
    match_destroy(run.match);
    return ends;
}
