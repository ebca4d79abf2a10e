/* Simulates a pipeline. Each rank takes its list in order, and an action begins when the actions that it needs are
   over. A message between two ranks arrives after its transfer time. The results are times, and whether the pipeline
   ends. */
#include "backend/base/memory.h"
#include "backend/base/sorted.h"
#include "backend/base/status.h"
#include "backend/groups/pipeline.h"
#include <stdlib.h>

struct play {
    const struct tutti_pipeline *p;
    const tutti_pipeline_cost *cost;
    /* `over` is the time at which an action ends, or negative while it has not begun. */
    double *over[TUTTI_WORKS];                          /* [stages * microbatches] */
    int *next;                                          /* [ranks] */
    double *free_at;                                    /* [ranks] */
};
static const char *const names[] = { "forward", "backward", "backward of inputs", "backward of weights" };

/* ---- one action ---- */
/* Returns the time of an action, in the unit of the caller's costs. */
static double play_action_length(const struct play *play, tutti_action action)
{
    const tutti_pipeline_cost *c = play->cost;
    switch (action.work) {
    case TUTTI_FORWARD: return c->forward[action.stage];
    case TUTTI_BACKWARD_INPUT: return c->input[action.stage];
    case TUTTI_BACKWARD_WEIGHT: return c->weight[action.stage];
    default: return c->input[action.stage] + c->weight[action.stage];
    }
}
/* Returns when the message of another stage's work arrives at the rank; negative while it is unknown. */
static double play_input_arrival(const struct play *play, tutti_work work, int stage, int microbatch, int rank)
{
    double over = play->over[work][pipeline_cell(play->p, stage, microbatch)];
    return over < 0 || pipeline_stage_rank(play->p, stage) == rank ? over : over + play->cost->message;
}
/* Returns when the message of a backward arrives, be it whole or of inputs only. */
static double play_backward_arrival(const struct play *play, int stage, int microbatch, int rank)
{
    double whole = play_input_arrival(play, TUTTI_BACKWARD, stage, microbatch, rank);
    return whole < 0 ? play_input_arrival(play, TUTTI_BACKWARD_INPUT, stage, microbatch, rank) : whole;
}
/* Returns when an action can begin; negative while it is unknown. */
static double play_action_begin_time(const struct play *play, int rank, tutti_action action)
{
    double mine = play->free_at[rank], own, other = 0;
    if (action.work == TUTTI_FORWARD) {
        other = action.stage ? play_input_arrival(play, TUTTI_FORWARD, action.stage - 1, action.microbatch, rank) : 0;
        return other < 0 ? other : double_larger(mine, other);
    }
    if (action.work == TUTTI_BACKWARD_WEIGHT) {
        own = play->over[TUTTI_BACKWARD_INPUT][pipeline_cell(play->p, action.stage, action.microbatch)];
        return own < 0 ? own : double_larger(mine, own);
    }
    own = play->over[TUTTI_FORWARD][pipeline_cell(play->p, action.stage, action.microbatch)];
    if (action.stage < play->p->stages - 1)
        other = play_backward_arrival(play, action.stage + 1, action.microbatch, rank);
    return own < 0 || other < 0 ? -1 : double_larger(mine, double_larger(own, other));
}

/* ---- the whole pipeline ---- */
/* Plays all ranks as far as they can go; returns false if none could take an action. */
static bool play_advance_ranks(struct play *play, double *ends)
{
    bool any = false;
    for (int rank = 0, before = 0; rank < play->p->ranks; before += play->p->list[rank++].count) {
        const struct pipeline_list *l = &play->p->list[rank];
        while (play->next[rank] < l->count) {
            tutti_action action = l->action[play->next[rank]];
            double begin = play_action_begin_time(play, rank, action);
            if (begin < 0) break;
            play->free_at[rank] = play->over[action.work][pipeline_cell(play->p, action.stage, action.microbatch)] =
                begin + play_action_length(play, action);
            if (ends) ends[before + play->next[rank]] = play->free_at[rank];
            play->next[rank]++;
            any = true;
        }
    }
    return any;
}
/* Fails if a rank has not reached the end of its list. */
static tutti_status play_describe_deadlock(const struct play *play)
{
    for (int rank = 0; rank < play->p->ranks; rank++) {
        const struct pipeline_list *l = &play->p->list[rank];
        if (play->next[rank] == l->count) continue;
        tutti_action action = l->action[play->next[rank]];
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "pipeline: deadlock: rank %d never completes its action %d, the %s of microbatch %d on stage %d", rank,
            play->next[rank], names[action.work], action.microbatch, action.stage);
    }
    return TUTTI_OK;
}
/* Simulates all lists. `ends`, if given, gets the end of each action. */
static tutti_status play_run_pipeline(struct play *play, double *ends)
{
    size_t cells = (size_t)play->p->stages * (size_t)play->p->microbatches;
    play->next = memory_alloc_zeroed((size_t)play->p->ranks, sizeof *play->next);
    play->free_at = memory_alloc_zeroed((size_t)play->p->ranks, sizeof *play->free_at);
    bool fine = play->next && play->free_at;
    for (int w = 0; w < TUTTI_WORKS; w++) {
        play->over[w] = memory_alloc_zeroed(cells, sizeof(double));
        fine = fine && play->over[w];
        for (size_t i = 0; fine && i < cells; i++) play->over[w][i] = -1;
    }
    if (!fine) return status_fail(TUTTI_NO_MEMORY, "pipeline: no memory to play %zu pieces of work", cells);
    while (play_advance_ranks(play, ends)) continue;
    return play_describe_deadlock(play);
}
static void play_free_arrays(struct play *play)
{
    for (int w = 0; w < TUTTI_WORKS; w++) free(play->over[w]);
    free(play->next);
    free(play->free_at);
}
/* Returns the most microbatches whose activations a rank keeps at the same time. */
static int pipeline_list_most_held(const struct pipeline_list *l)
{
    int now = 0, most = 0;
    for (int i = 0; i < l->count; i++) {
        tutti_work work = l->action[i].work;
        now += work == TUTTI_FORWARD;
        if (now > most) most = now;
        now -= work == TUTTI_BACKWARD_WEIGHT || work == TUTTI_BACKWARD;
    }
    return most;
}
/* Refuses negative times and NaN. */
static tutti_status pipeline_check_cost(const struct tutti_pipeline *pipeline, const tutti_pipeline_cost *c)
{
    bool fine = c->message >= 0;
    for (int s = 0; s < pipeline->stages; s++)
        fine = fine && c->forward[s] >= 0 && c->input[s] >= 0 && c->weight[s] >= 0;
    return fine ? TUTTI_OK : status_refuse(TUTTI_INVALID_ARGUMENT, "pipeline: a time is negative or not a number");
}
tutti_status pipeline_compute_times(const struct tutti_pipeline *pipeline, const tutti_pipeline_cost *cost,
    double *ends, double *makespan, double *busy, int *held)
{
    TRY(pipeline_check_cost(pipeline, cost));
    struct play play = { .p = pipeline, .cost = cost };
    tutti_status status = play_run_pipeline(&play, ends);
    *makespan = 0;
    for (int rank = 0; status == TUTTI_OK && rank < pipeline->ranks; rank++) {
        const struct pipeline_list *l = &pipeline->list[rank];
        busy[rank] = 0;
        for (int i = 0; i < l->count; i++) busy[rank] += play_action_length(&play, l->action[i]);
        held[rank] = pipeline_list_most_held(l);
        *makespan = double_larger(*makespan, play.free_at[rank]);
    }
    play_free_arrays(&play);
    return status;
}

/* ---- checks ---- */
/* Refuses lists that do not have each forward and backward exactly once, on the right rank. */
static tutti_status pipeline_check_each_once(const struct tutti_pipeline *pipeline, uint8_t *seen)
{
    size_t cells = (size_t)pipeline->stages * (size_t)pipeline->microbatches;
    for (int rank = 0; rank < pipeline->ranks; rank++)
        for (int i = 0; i < pipeline->list[rank].count; i++) {
            tutti_action action = pipeline->list[rank].action[i];
            bool known = (unsigned)action.work < TUTTI_WORKS && action.stage >= 0 && action.stage < pipeline->stages
                && action.microbatch >= 0 && action.microbatch < pipeline->microbatches;
            if (!known || pipeline_stage_rank(pipeline, action.stage) != rank
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
/* Finds the next message of one direction between two ranks in the list of rank `of`, which is its sender or receiver.
   Returns its index, or -1 after the last. */
static int pipeline_next_message(const struct tutti_pipeline *pipeline, bool forward, int of, int from, int to, int *at,
    tutti_action *out)
{
    for (; *at < pipeline->list[of].count; ++*at) {
        tutti_action action = pipeline->list[of].action[*at];
        if ((action.work == TUTTI_FORWARD) != forward || action.work == TUTTI_BACKWARD_WEIGHT) continue;
        int way = (forward ? 1 : -1) * (of == from ? 1 : -1), other = action.stage + way;
        if (other < 0 || other >= pipeline->stages || pipeline_stage_rank(pipeline, other) != (of == from ? to : from))
            continue;
        /* The result names the stage that sent the message. */
        *out = (tutti_action){ action.work, of == from ? action.stage : other, action.microbatch };
        return (*at)++;
    }
    return -1;
}
/* Refuses two ranks of which one receives in another order than the other sends. */
static tutti_status pipeline_check_messages(const struct tutti_pipeline *pipeline, bool forward, int from, int to)
{
    int sent = 0, used = 0;
    for (;;) {
        tutti_action made = { 0 }, wanted = { 0 };
        int mine = pipeline_next_message(pipeline, forward, from, from, to, &sent, &made);
        int theirs = pipeline_next_message(pipeline, forward, to, from, to, &used, &wanted);
        if (mine < 0 && theirs < 0) return TUTTI_OK;
        if (mine < 0 || theirs < 0 || made.stage != wanted.stage || made.microbatch != wanted.microbatch)
            return status_refuse(TUTTI_INVALID_ARGUMENT,
                "pipeline: rank %d sends rank %d the %s of microbatch %d where that of microbatch %d is expected", from,
                to, names[made.work], made.microbatch, wanted.microbatch);
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
    struct play play = { .p = pipeline, .cost = &(tutti_pipeline_cost){ ones, ones, ones, 0 } };
    if (status == TUTTI_OK) status = play_run_pipeline(&play, NULL);
    play_free_arrays(&play);
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
