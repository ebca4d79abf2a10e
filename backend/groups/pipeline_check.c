/* Simulates a pipeline. Each rank takes its list in order, and an action begins when the actions that it needs are
   over. A message between two ranks arrives after its transfer time. The results are times, and whether the pipeline
   ends. */
#include "backend/base/memory.h"
#include "backend/base/sorted.h"
#include "backend/base/status.h"
#include "backend/groups/pipeline.h"
#include <stdlib.h>

/* The simulation of a pipeline. */
struct pipeline_run {
    const struct tutti_pipeline *pipeline;
    const tutti_pipeline_cost *cost;
    /* [work][stage and microbatch (pipeline_cell)]: the time at which an action ends; negative: it has not begun. */
    double *cell_ends[TUTTI_WORKS];
    /* [rank]: the action of its list that it takes next, and the time at which it is free. */
    int *next;
    double *free_at;
};
static const char *const names[] = { "forward", "backward", "backward of inputs", "backward of weights" };

/* ---- one action ---- */
/* Returns how long an action takes, in the unit of the caller's costs. */
static double pipeline_run_action_length(const struct pipeline_run *run, tutti_action action)
{
    const tutti_pipeline_cost *c = run->cost;
    switch (action.work) {
    case TUTTI_FORWARD: return c->forward[action.stage];
    case TUTTI_BACKWARD_INPUT: return c->input[action.stage];
    case TUTTI_BACKWARD_WEIGHT: return c->weight[action.stage];
    default: return c->input[action.stage] + c->weight[action.stage];
    }
}
/* Returns when the result of a stage's work for a microbatch is at the rank: the message's time later, unless the rank
   has the stage. Negative: the work has not begun. */
static double pipeline_run_input_arrival(const struct pipeline_run *run, tutti_work work, int stage, int microbatch,
    int rank)
{
    double end = run->cell_ends[work][pipeline_cell(run->pipeline, stage, microbatch)];
    return end < 0 || pipeline_stage_rank(run->pipeline, stage) == rank ? end : end + run->cost->message;
}
/* Returns when the gradient of a stage for a microbatch is at the rank, from a whole backward or one of inputs.
   Negative: neither has begun. */
static double pipeline_run_backward_arrival(const struct pipeline_run *run, int stage, int microbatch, int rank)
{
    double whole = pipeline_run_input_arrival(run, TUTTI_BACKWARD, stage, microbatch, rank);
    return whole < 0 ? pipeline_run_input_arrival(run, TUTTI_BACKWARD_INPUT, stage, microbatch, rank) : whole;
}
/* Returns when the rank can begin an action; negative while an action that it needs has not begun. */
static double pipeline_run_action_begin_time(const struct pipeline_run *run, int rank, tutti_action action)
{
    double free_at = run->free_at[rank], own_input, received = 0;
    if (action.work == TUTTI_FORWARD) {
        received = action.stage
            ? pipeline_run_input_arrival(run, TUTTI_FORWARD, action.stage - 1, action.microbatch, rank)
            : 0;
        return received < 0 ? received : double_larger(free_at, received);
    }
    if (action.work == TUTTI_BACKWARD_WEIGHT) {
        own_input = run->cell_ends[TUTTI_BACKWARD_INPUT][pipeline_cell(run->pipeline, action.stage, action.microbatch)];
        return own_input < 0 ? own_input : double_larger(free_at, own_input);
    }
    own_input = run->cell_ends[TUTTI_FORWARD][pipeline_cell(run->pipeline, action.stage, action.microbatch)];
    if (action.stage < run->pipeline->stages - 1)
        received = pipeline_run_backward_arrival(run, action.stage + 1, action.microbatch, rank);
    return own_input < 0 || received < 0 ? -1 : double_larger(free_at, double_larger(own_input, received));
}

/* ---- the whole pipeline ---- */
/* Lets each rank take actions from its list until one must wait for an action that has not begun. action_ends, unless
   NULL, gets the time at which each action ends: [actions], rank after rank. False: no rank took an action. */
static bool pipeline_run_advance_ranks(struct pipeline_run *run, double *action_ends)
{
    bool advanced = false;
    for (int rank = 0, actions_before = 0; rank < run->pipeline->ranks;
        actions_before += run->pipeline->list[rank++].count) {
        const struct pipeline_list *list = &run->pipeline->list[rank];
        while (run->next[rank] < list->count) {
            tutti_action action = list->action[run->next[rank]];
            double begin = pipeline_run_action_begin_time(run, rank, action);
            if (begin < 0) break;
            run->free_at[rank] =
                run->cell_ends[action.work][pipeline_cell(run->pipeline, action.stage, action.microbatch)] =
                    begin + pipeline_run_action_length(run, action);
            if (action_ends) action_ends[actions_before + run->next[rank]] = run->free_at[rank];
            run->next[rank]++;
            advanced = true;
        }
    }
    return advanced;
}
/* Returns OK if every rank has reached the end of its list. Otherwise the lists deadlock: returns INVALID_ARGUMENT,
   whose text names the first unfinished rank and the action that it cannot begin. */
static tutti_status pipeline_run_check_finished(const struct pipeline_run *run)
{
    for (int rank = 0; rank < run->pipeline->ranks; rank++) {
        const struct pipeline_list *list = &run->pipeline->list[rank];
        if (run->next[rank] == list->count) continue;
        tutti_action action = list->action[run->next[rank]];
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "pipeline: deadlock: rank %d never completes its action %d, the %s of microbatch %d on stage %d", rank,
            run->next[rank], names[action.work], action.microbatch, action.stage);
    }
    return TUTTI_OK;
}
/* Allocates the arrays of the run and simulates the lists of all ranks. action_ends: as in pipeline_run_advance_ranks.
   INVALID_ARGUMENT if the lists deadlock; NO_MEMORY. The caller frees the arrays in every case. */
static tutti_status pipeline_run_simulate(struct pipeline_run *run, double *action_ends)
{
    size_t cells = (size_t)run->pipeline->stages * (size_t)run->pipeline->microbatches;
    run->next = memory_alloc_zeroed((size_t)run->pipeline->ranks, sizeof *run->next);
    run->free_at = memory_alloc_zeroed((size_t)run->pipeline->ranks, sizeof *run->free_at);
    bool has_memory = run->next && run->free_at;
    for (int w = 0; w < TUTTI_WORKS; w++) {
        run->cell_ends[w] = memory_alloc_zeroed(cells, sizeof(double));
        has_memory = has_memory && run->cell_ends[w];
        for (size_t i = 0; has_memory && i < cells; i++) run->cell_ends[w][i] = -1;
    }
    if (!has_memory) return status_fail(TUTTI_NO_MEMORY, "pipeline: no memory to simulate %zu pieces of work", cells);
    while (pipeline_run_advance_ranks(run, action_ends)) continue;
    return pipeline_run_check_finished(run);
}
/* Frees the arrays of pipeline_run_simulate. */
static void pipeline_run_free_arrays(struct pipeline_run *run)
{
    for (int w = 0; w < TUTTI_WORKS; w++) free(run->cell_ends[w]);
    free(run->next);
    free(run->free_at);
}
/* Returns the most activations (of a microbatch in a stage) that a rank with this list has at a time. */
static int pipeline_list_max_held(const struct pipeline_list *list)
{
    int held = 0, most_held = 0;
    for (int i = 0; i < list->count; i++) {
        tutti_work work = list->action[i].work;
        held += work == TUTTI_FORWARD;
        if (held > most_held) most_held = held;
        held -= work == TUTTI_BACKWARD_WEIGHT || work == TUTTI_BACKWARD;
    }
    return most_held;
}
/* INVALID_ARGUMENT if a time is negative or NaN. */
static tutti_status pipeline_check_cost(const struct tutti_pipeline *pipeline, const tutti_pipeline_cost *cost)
{
    bool is_valid = cost->message >= 0;
    for (int s = 0; s < pipeline->stages; s++)
        is_valid = is_valid && cost->forward[s] >= 0 && cost->input[s] >= 0 && cost->weight[s] >= 0;
    return is_valid ? TUTTI_OK : status_refuse(TUTTI_INVALID_ARGUMENT, "pipeline: a time is negative or not a number");
}
tutti_status pipeline_compute_times(const struct tutti_pipeline *pipeline, const tutti_pipeline_cost *cost,
    double *action_ends, double *makespan, double *busy, int *held)
{
    TRY(pipeline_check_cost(pipeline, cost));
    struct pipeline_run run = { .pipeline = pipeline, .cost = cost };
    tutti_status status = pipeline_run_simulate(&run, action_ends);
    *makespan = 0;
    for (int rank = 0; status == TUTTI_OK && rank < pipeline->ranks; rank++) {
        const struct pipeline_list *list = &pipeline->list[rank];
        busy[rank] = 0;
        for (int i = 0; i < list->count; i++) busy[rank] += pipeline_run_action_length(&run, list->action[i]);
        held[rank] = pipeline_list_max_held(list);
        *makespan = double_larger(*makespan, run.free_at[rank]);
    }
    pipeline_run_free_arrays(&run);
    return status;
}

/* ---- checks ---- */
/* INVALID_ARGUMENT if the lists do not have each forward and backward exactly once, on the right rank. `seen`: a zeroed
   entry per kind of work, stage and microbatch. */
static tutti_status pipeline_check_each_once(const struct tutti_pipeline *pipeline, uint8_t *seen)
{
    size_t cells = (size_t)pipeline->stages * (size_t)pipeline->microbatches;
    for (int rank = 0; rank < pipeline->ranks; rank++)
        for (int i = 0; i < pipeline->list[rank].count; i++) {
            tutti_action action = pipeline->list[rank].action[i];
            bool exists = (unsigned)action.work < TUTTI_WORKS && action.stage >= 0 && action.stage < pipeline->stages
                && action.microbatch >= 0 && action.microbatch < pipeline->microbatches;
            if (!exists || pipeline_stage_rank(pipeline, action.stage) != rank
                || seen[action.work * cells + pipeline_cell(pipeline, action.stage, action.microbatch)]++)
                return status_refuse(TUTTI_INVALID_ARGUMENT,
                    "pipeline: action %d of rank %d belongs to another rank, or is a duplicate", i, rank);
        }
    for (size_t c = 0; c < cells; c++) {
        int halves = seen[TUTTI_BACKWARD_INPUT * cells + c] + seen[TUTTI_BACKWARD_WEIGHT * cells + c];
        if (!seen[c] || halves + 2 * seen[TUTTI_BACKWARD * cells + c] != 2)
            return status_refuse(TUTTI_INVALID_ARGUMENT, "pipeline: microbatch %d is missing on stage %d",
                (int)(c % (size_t)pipeline->microbatches), (int)(c / (size_t)pipeline->microbatches));
    }
    return TUTTI_OK;
}
/* Finds the next message from rank `from` to rank `to`, of forwards or backwards, in the list of one of them (owner),
   from action *at on. *out gets the action whose result it sends. Returns the index of the owner's action, or -1 after
   the last. */
static int pipeline_next_message(const struct tutti_pipeline *pipeline, bool forward, int owner, int from, int to,
    int *at, tutti_action *out)
{
    for (; *at < pipeline->list[owner].count; ++*at) {
        tutti_action action = pipeline->list[owner].action[*at];
        if ((action.work == TUTTI_FORWARD) != forward || action.work == TUTTI_BACKWARD_WEIGHT) continue;
        int direction = (forward ? 1 : -1) * (owner == from ? 1 : -1), other = action.stage + direction;
        if (other < 0 || other >= pipeline->stages
            || pipeline_stage_rank(pipeline, other) != (owner == from ? to : from))
            continue;
        /* The result names the stage that sent the message. */
        *out = (tutti_action){ action.work, owner == from ? action.stage : other, action.microbatch };
        return (*at)++;
    }
    return -1;
}
/* INVALID_ARGUMENT if rank `to` uses the messages from rank `from`, of forwards or backwards, in another order than
   `from` sends them. */
static tutti_status pipeline_check_messages(const struct tutti_pipeline *pipeline, bool forward, int from, int to)
{
    int sent = 0, received = 0;
    for (;;) {
        tutti_action sent_action = { 0 }, used_action = { 0 };
        int sent_index = pipeline_next_message(pipeline, forward, from, from, to, &sent, &sent_action);
        int received_index = pipeline_next_message(pipeline, forward, to, from, to, &received, &used_action);
        if (sent_index < 0 && received_index < 0) return TUTTI_OK;
        if (sent_index < 0 || received_index < 0 || sent_action.stage != used_action.stage
            || sent_action.microbatch != used_action.microbatch)
            return status_refuse(TUTTI_INVALID_ARGUMENT,
                "pipeline: rank %d sends rank %d the %s of microbatch %d where that of microbatch %d is expected", from,
                to, names[sent_action.work], sent_action.microbatch, used_action.microbatch);
    }
}
tutti_status pipeline_check(const struct tutti_pipeline *pipeline)
{
    size_t cells = (size_t)pipeline->stages * (size_t)pipeline->microbatches;
    double *ones = memory_alloc_zeroed((size_t)pipeline->stages, sizeof *ones);
    uint8_t *seen = memory_alloc_zeroed(cells, TUTTI_WORKS);
    tutti_status status =
        ones && seen ? pipeline_check_each_once(pipeline, seen) : status_fail(TUTTI_NO_MEMORY, "pipeline: no memory");
    for (int s = 0; ones && s < pipeline->stages; s++) ones[s] = 1;
    struct pipeline_run run = { .pipeline = pipeline, .cost = &(tutti_pipeline_cost){ ones, ones, ones, 0 } };
    if (status == TUTTI_OK) status = pipeline_run_simulate(&run, NULL);
    pipeline_run_free_arrays(&run);
    /* After 2 * ranks stages the pairs of neighbours repeat. */
    for (int s = 0; s < pipeline->stages - 1 && s < 2 * pipeline->ranks && status == TUTTI_OK; s++) {
        int a = pipeline_stage_rank(pipeline, s), b = pipeline_stage_rank(pipeline, s + 1);
        if (a != b) status = pipeline_check_messages(pipeline, true, a, b);
        if (a != b && status == TUTTI_OK) status = pipeline_check_messages(pipeline, false, b, a);
    }
    free(ones);
    free(seen);
    return status;
}
