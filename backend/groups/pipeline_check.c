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
static double play_action_length(const struct play *y, tutti_action a)
{
    const tutti_pipeline_cost *c = y->cost;
    switch (a.work) {
    case TUTTI_FORWARD: return c->forward[a.stage];
    case TUTTI_BACKWARD_INPUT: return c->input[a.stage];
    case TUTTI_BACKWARD_WEIGHT: return c->weight[a.stage];
    default: return c->input[a.stage] + c->weight[a.stage];
    }
}
/* Returns when the message of another stage's work arrives at the rank; negative while it is unknown. */
static double play_input_arrival(const struct play *y, tutti_work work, int stage, int microbatch, int rank)
{
    double over = y->over[work][pipeline_cell(y->p, stage, microbatch)];
    return over < 0 || pipeline_stage_rank(y->p, stage) == rank ? over : over + y->cost->message;
}
/* Returns when the message of a backward arrives, be it whole or of inputs only. */
static double play_backward_arrival(const struct play *y, int stage, int microbatch, int rank)
{
    double whole = play_input_arrival(y, TUTTI_BACKWARD, stage, microbatch, rank);
    return whole < 0 ? play_input_arrival(y, TUTTI_BACKWARD_INPUT, stage, microbatch, rank) : whole;
}
/* Returns when an action can begin; negative while it is unknown. */
static double play_action_begin_time(const struct play *y, int rank, tutti_action a)
{
    double mine = y->free_at[rank], own, other = 0;
    if (a.work == TUTTI_FORWARD) {
        other = a.stage ? play_input_arrival(y, TUTTI_FORWARD, a.stage - 1, a.microbatch, rank) : 0;
        return other < 0 ? other : double_larger(mine, other);
    }
    if (a.work == TUTTI_BACKWARD_WEIGHT) {
        own = y->over[TUTTI_BACKWARD_INPUT][pipeline_cell(y->p, a.stage, a.microbatch)];
        return own < 0 ? own : double_larger(mine, own);
    }
    own = y->over[TUTTI_FORWARD][pipeline_cell(y->p, a.stage, a.microbatch)];
    if (a.stage < y->p->stages - 1) other = play_backward_arrival(y, a.stage + 1, a.microbatch, rank);
    return own < 0 || other < 0 ? -1 : double_larger(mine, double_larger(own, other));
}

/* ---- the whole pipeline ---- */
/* Plays all ranks as far as they can go; returns false if none could take an action. */
static bool play_advance_ranks(struct play *y, double *ends)
{
    bool any = false;
    for (int rank = 0, before = 0; rank < y->p->ranks; before += y->p->list[rank++].count) {
        const struct pipeline_list *l = &y->p->list[rank];
        while (y->next[rank] < l->count) {
            tutti_action a = l->action[y->next[rank]];
            double begin = play_action_begin_time(y, rank, a);
            if (begin < 0) break;
            y->free_at[rank] = y->over[a.work][pipeline_cell(y->p, a.stage, a.microbatch)] =
                begin + play_action_length(y, a);
            if (ends) ends[before + y->next[rank]] = y->free_at[rank];
            y->next[rank]++;
            any = true;
        }
    }
    return any;
}
static tutti_status play_describe_deadlock(const struct play *y)
{
    for (int rank = 0; rank < y->p->ranks; rank++) {
        const struct pipeline_list *l = &y->p->list[rank];
        if (y->next[rank] == l->count) continue;
        tutti_action a = l->action[y->next[rank]];
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "pipeline: deadlock: rank %d never completes its action %d, the %s of microbatch %d on stage %d", rank,
            y->next[rank], names[a.work], a.microbatch, a.stage);
    }
    return TUTTI_OK;
}
static tutti_status play_run_pipeline(struct play *y, double *ends)
{
    size_t cells = (size_t)y->p->stages * (size_t)y->p->microbatches;
    y->next = memory_alloc_zeroed((size_t)y->p->ranks, sizeof *y->next);
    y->free_at = memory_alloc_zeroed((size_t)y->p->ranks, sizeof *y->free_at);
    bool fine = y->next && y->free_at;
    for (int w = 0; w < TUTTI_WORKS; w++) {
        y->over[w] = memory_alloc_zeroed(cells, sizeof(double));
        fine = fine && y->over[w];
        for (size_t i = 0; fine && i < cells; i++) y->over[w][i] = -1;
    }
    if (!fine) return status_fail(TUTTI_NO_MEMORY, "pipeline: no memory to play %zu pieces of work", cells);
    while (play_advance_ranks(y, ends)) continue;
    return play_describe_deadlock(y);
}
static void play_free_arrays(struct play *y)
{
    for (int w = 0; w < TUTTI_WORKS; w++) free(y->over[w]);
    free(y->next);
    free(y->free_at);
}
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
static tutti_status pipeline_check_cost(const struct tutti_pipeline *p, const tutti_pipeline_cost *c)
{
    bool fine = c->message >= 0;
    for (int s = 0; s < p->stages; s++) fine = fine && c->forward[s] >= 0 && c->input[s] >= 0 && c->weight[s] >= 0;
    return fine ? TUTTI_OK : status_refuse(TUTTI_INVALID_ARGUMENT, "pipeline: a time is negative or not a number");
}
tutti_status pipeline_compute_times(const struct tutti_pipeline *p, const tutti_pipeline_cost *cost, double *ends,
    double *makespan, double *busy, int *held)
{
    TRY(pipeline_check_cost(p, cost));
    struct play y = { .p = p, .cost = cost };
    tutti_status status = play_run_pipeline(&y, ends);
    *makespan = 0;
    for (int rank = 0; status == TUTTI_OK && rank < p->ranks; rank++) {
        const struct pipeline_list *l = &p->list[rank];
        busy[rank] = 0;
        for (int i = 0; i < l->count; i++) busy[rank] += play_action_length(&y, l->action[i]);
        held[rank] = pipeline_list_most_held(l);
        *makespan = double_larger(*makespan, y.free_at[rank]);
    }
    play_free_arrays(&y);
    return status;
}

/* ---- checks ---- */
static tutti_status pipeline_check_each_once(const struct tutti_pipeline *p, uint8_t *seen)
{
    size_t cells = (size_t)p->stages * (size_t)p->microbatches;
    for (int rank = 0; rank < p->ranks; rank++)
        for (int i = 0; i < p->list[rank].count; i++) {
            tutti_action a = p->list[rank].action[i];
            bool known = (unsigned)a.work < TUTTI_WORKS && a.stage >= 0 && a.stage < p->stages && a.microbatch >= 0
                && a.microbatch < p->microbatches;
            if (!known || pipeline_stage_rank(p, a.stage) != rank
                || seen[a.work * cells + pipeline_cell(p, a.stage, a.microbatch)]++)
                return status_refuse(TUTTI_INVALID_ARGUMENT,
                    "pipeline: action %d of rank %d belongs to another rank, or is a duplicate", i, rank);
        }
    for (size_t c = 0; c < cells; c++) {
        int halves = seen[TUTTI_BACKWARD_INPUT * cells + c] + seen[TUTTI_BACKWARD_WEIGHT * cells + c];
        if (!seen[c] || halves + 2 * seen[TUTTI_BACKWARD * cells + c] != 2)
            return status_refuse(TUTTI_INVALID_ARGUMENT, "pipeline: microbatch %d is missing on stage %d",
                (int)(c % (size_t)p->microbatches), (int)(c / (size_t)p->microbatches));
    }
    return TUTTI_OK;
}
/* Finds the next message of one direction between two ranks in the list of rank `of`, which is its sender or receiver.
   Returns its index, or -1 after the last. */
static int pipeline_next_message(const struct tutti_pipeline *p, bool forward, int of, int from, int to, int *at,
    tutti_action *out)
{
    for (; *at < p->list[of].count; ++*at) {
        tutti_action a = p->list[of].action[*at];
        if ((a.work == TUTTI_FORWARD) != forward || a.work == TUTTI_BACKWARD_WEIGHT) continue;
        int way = (forward ? 1 : -1) * (of == from ? 1 : -1), other = a.stage + way;
        if (other < 0 || other >= p->stages || pipeline_stage_rank(p, other) != (of == from ? to : from)) continue;
        /* The result names the stage that sent the message. */
        *out = (tutti_action){ a.work, of == from ? a.stage : other, a.microbatch };
        return (*at)++;
    }
    return -1;
}
static tutti_status pipeline_check_messages(const struct tutti_pipeline *p, bool forward, int from, int to)
{
    int sent = 0, used = 0;
    for (;;) {
        tutti_action made = { 0 }, wanted = { 0 };
        int mine = pipeline_next_message(p, forward, from, from, to, &sent, &made);
        int theirs = pipeline_next_message(p, forward, to, from, to, &used, &wanted);
        if (mine < 0 && theirs < 0) return TUTTI_OK;
        if (mine < 0 || theirs < 0 || made.stage != wanted.stage || made.microbatch != wanted.microbatch)
            return status_refuse(TUTTI_INVALID_ARGUMENT,
                "pipeline: rank %d sends rank %d the %s of microbatch %d where that of microbatch %d is expected", from,
                to, names[made.work], made.microbatch, wanted.microbatch);
    }
}
tutti_status pipeline_check(const struct tutti_pipeline *p)
{
    size_t cells = (size_t)p->stages * (size_t)p->microbatches;
    double *ones = memory_alloc_zeroed((size_t)p->stages, sizeof *ones);
    uint8_t *seen = memory_alloc_zeroed(cells, TUTTI_WORKS);
    tutti_status status =
        ones && seen ? pipeline_check_each_once(p, seen) : status_fail(TUTTI_NO_MEMORY, "pipeline: no memory");
    for (int s = 0; ones && s < p->stages; s++) ones[s] = 1;
    struct play y = { .p = p, .cost = &(tutti_pipeline_cost){ ones, ones, ones, 0 } };
    if (status == TUTTI_OK) status = play_run_pipeline(&y, NULL);
    play_free_arrays(&y);
    /* After 2 * ranks stages the pairs of neighbours repeat. */
    for (int s = 0; s < p->stages - 1 && s < 2 * p->ranks && status == TUTTI_OK; s++) {
        int a = pipeline_stage_rank(p, s), b = pipeline_stage_rank(p, s + 1);
        if (a != b) status = pipeline_check_messages(p, true, a, b);
        if (a != b && status == TUTTI_OK) status = pipeline_check_messages(p, false, b, a);
    }
    free(ones);
    free(seen);
    return status;
}
