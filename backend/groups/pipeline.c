/* Most schedules are rules: in each tick a rank takes the ready action that its rule prefers. A forward takes one tick,
   a backward two, or one for each of its halves. The naive, interleaved and DualPipe schedules are written out as
   lists. The interleaved one follows Megatron-LM, which does not always take what is ready first. */
#include "backend/groups/pipeline.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <stdlib.h>
#include <string.h>

/* A rule that has not ended after this many ticks never ends. */
enum { MAX_TICKS = 1 << 20 };
/* Writes the lists of a pipeline tick by tick. */
struct list_maker {
    struct tutti_pipeline *pipeline;
    /* [work][stage and microbatch (pipeline_cell)]: the tick at which an action is over; 0: it has not begun. */
    int *over[TUTTI_WORKS];
    /* [work][stage]: the number of microbatches begun, in order. */
    int *begun[TUTTI_WORKS];
    /* [rank]: the tick from which it is idle. */
    int *free_at;
    int now;
};
/* Chooses the action that a rank begins in this tick. False: none. */
typedef bool rule(struct list_maker *maker, int rank, tutti_action *out);

/* ---- ready actions ---- */
/* True if a stage has done the work (forward, backward, …) of a microbatch. */
static bool maker_work_is_over(const struct list_maker *maker, tutti_work work, int stage, int microbatch)
{
    int over = maker->over[work][pipeline_cell(maker->pipeline, stage, microbatch)];
    return over && over <= maker->now;
}
/* True if the next forward of a stage may run in this tick: the stage before has done its own. */
static bool forward_is_ready(const struct list_maker *maker, int stage)
{
    int n = maker->begun[TUTTI_FORWARD][stage];
    return n < maker->pipeline->microbatches && (stage == 0 || maker_work_is_over(maker, TUTTI_FORWARD, stage - 1, n));
}
/* True if the next backward of a stage may run in this tick: its forward and the next stage's backward are over. */
static bool backward_is_ready(const struct list_maker *maker, int stage)
{
    tutti_work work = pipeline_backward_work(maker->pipeline);
    int n = maker->begun[work][stage];
    if (n >= maker->pipeline->microbatches || !maker_work_is_over(maker, TUTTI_FORWARD, stage, n)) return false;
    return stage == maker->pipeline->stages - 1 || maker_work_is_over(maker, work, stage + 1, n);
}
/* True if the next backward of weights of a stage may run in this tick: its backward of inputs is over. */
static bool weight_is_ready(const struct list_maker *maker, int stage)
{
    int n = maker->begun[TUTTI_BACKWARD_WEIGHT][stage];
    return maker->pipeline->splits_backwards && n < maker->begun[TUTTI_BACKWARD_INPUT][stage]
        && maker_work_is_over(maker, TUTTI_BACKWARD_INPUT, stage, n);
}
/* Returns how many microbatches have begun the forward of a stage but not its backward. */
static int maker_count_in_flight(const struct list_maker *maker, int stage)
{
    return maker->begun[TUTTI_FORWARD][stage] - maker->begun[pipeline_backward_work(maker->pipeline)][stage];
}
/* Returns how many activations a stage holds: a backward of weights, or a whole backward, still needs them. */
static int maker_count_activations(const struct list_maker *maker, int stage)
{
    return maker->begun[TUTTI_FORWARD][stage]
        - maker->begun[maker->pipeline->splits_backwards ? TUTTI_BACKWARD_WEIGHT : TUTTI_BACKWARD][stage];
}
/* Sets *out to the next action of this kind on a stage. Always true, so that rules can return it. */
static bool maker_choose_action(struct list_maker *maker, tutti_work work, int stage, tutti_action *out)
{
    *out = (tutti_action){ work, stage, maker->begun[work][stage] };
    return true;
}

/* ---- rules ---- */
/* The rule of GPipe: all forwards, then all backwards. */
static bool rule_gpipe(struct list_maker *maker, int rank, tutti_action *out)
{
    if (forward_is_ready(maker, rank)) return maker_choose_action(maker, TUTTI_FORWARD, rank, out);
    bool all_begun = maker->begun[TUTTI_FORWARD][rank] == maker->pipeline->microbatches;
    return all_begun && backward_is_ready(maker, rank)
        && maker_choose_action(maker, pipeline_backward_work(maker->pipeline), rank, out);
}
/* 1F1B: a rank runs ahead by one forward for each stage from its own to the last; each backward then allows another. */
static bool rule_one_forward_one_backward(struct list_maker *maker, int rank, tutti_action *out)
{
    if (backward_is_ready(maker, rank))
        return maker_choose_action(maker, pipeline_backward_work(maker->pipeline), rank, out);
    bool may_run_ahead = maker_count_in_flight(maker, rank) < maker->pipeline->ranks - rank;
    return may_run_ahead && forward_is_ready(maker, rank) && maker_choose_action(maker, TUTTI_FORWARD, rank, out);
}
/* ZB-H1 (Qi et al., Zero Bubble Pipeline Parallelism, 2023): 1F1B, with gradients of weights in idle ticks. A rank
   holds at most what the first rank of 1F1B holds. A permitted forward goes first, because later stages wait for it. */
static bool rule_zero_bubble_h1(struct list_maker *maker, int rank, tutti_action *out)
{
    bool may_run_ahead = maker_count_in_flight(maker, rank) < maker->pipeline->ranks - rank
        && maker_count_activations(maker, rank) < maker->pipeline->ranks;
    if (may_run_ahead && forward_is_ready(maker, rank)) return maker_choose_action(maker, TUTTI_FORWARD, rank, out);
    if (backward_is_ready(maker, rank)) return maker_choose_action(maker, TUTTI_BACKWARD_INPUT, rank, out);
    return weight_is_ready(maker, rank) && maker_choose_action(maker, TUTTI_BACKWARD_WEIGHT, rank, out);
}
/* ZB-V (the same authors): each rank has one stage of the way up and one of the way down. So the first and the last
   stage share a rank. Each rank holds what 1F1B's first rank holds: 2 * ranks activations of half the size. */
static bool rule_zero_bubble_v(struct list_maker *maker, int rank, tutti_action *out)
{
    int up = rank, down = 2 * maker->pipeline->ranks - 1 - rank;
    bool may_run_ahead =
        maker_count_activations(maker, up) + maker_count_activations(maker, down) < 2 * maker->pipeline->ranks;
    if (may_run_ahead && forward_is_ready(maker, down)) return maker_choose_action(maker, TUTTI_FORWARD, down, out);
    if (may_run_ahead && forward_is_ready(maker, up)) return maker_choose_action(maker, TUTTI_FORWARD, up, out);
    if (backward_is_ready(maker, down)) return maker_choose_action(maker, TUTTI_BACKWARD_INPUT, down, out);
    if (backward_is_ready(maker, up)) return maker_choose_action(maker, TUTTI_BACKWARD_INPUT, up, out);
    if (weight_is_ready(maker, down)) return maker_choose_action(maker, TUTTI_BACKWARD_WEIGHT, down, out);
    return weight_is_ready(maker, up) && maker_choose_action(maker, TUTTI_BACKWARD_WEIGHT, up, out);
}

/* ---- making lists ---- */
/* The ticks that each kind of work takes. */
static const int ticks[TUTTI_WORKS] = {
    [TUTTI_FORWARD] = 1, [TUTTI_BACKWARD] = 2, [TUTTI_BACKWARD_INPUT] = 1, [TUTTI_BACKWARD_WEIGHT] = 1
};
static void pipeline_add_action(struct tutti_pipeline *pipeline, int rank, tutti_action action)
{
    pipeline->list[rank].action[pipeline->list[rank].count++] = action;
}
/* Lets each idle rank begin the action that the rule chooses, then advances to the next tick. False: every action is
   done. */
static bool maker_play_tick(struct list_maker *maker, rule *choose)
{
    int unfinished = 0,
        actions_per_rank =
            maker->pipeline->chunks * maker->pipeline->microbatches * (maker->pipeline->splits_backwards ? 3 : 2);
    for (int rank = 0; rank < maker->pipeline->ranks; rank++) {
        tutti_action action;
        unfinished += maker->pipeline->list[rank].count < actions_per_rank || maker->free_at[rank] > maker->now;
        if (maker->free_at[rank] > maker->now || !choose(maker, rank, &action)) continue;
        pipeline_add_action(maker->pipeline, rank, action);
        maker->begun[action.work][action.stage]++;
        maker->free_at[rank] = maker->now + ticks[action.work];
        maker->over[action.work][pipeline_cell(maker->pipeline, action.stage, action.microbatch)] =
            maker->free_at[rank];
    }
    maker->now++;
    return unfinished > 0;
}
/* Makes the lists by simulated ticks: in each tick each idle rank takes the action that its rule chooses. */
static tutti_status pipeline_make_by_rule(struct tutti_pipeline *pipeline, rule *choose)
{
    struct list_maker maker = { .pipeline = pipeline };
    size_t cells = (size_t)pipeline->stages * (size_t)pipeline->microbatches;
    bool has_memory = (maker.free_at = memory_alloc_zeroed((size_t)pipeline->ranks, sizeof *maker.free_at));
    for (int w = 0; w < TUTTI_WORKS; w++) {
        maker.over[w] = memory_alloc_zeroed(cells, sizeof(int));
        maker.begun[w] = memory_alloc_zeroed((size_t)pipeline->stages, sizeof(int));
        has_memory = has_memory && maker.over[w] && maker.begun[w];
    }
    bool over = false;
    while (has_memory && !over && maker.now < MAX_TICKS) over = !maker_play_tick(&maker, choose);
    for (int w = 0; w < TUTTI_WORKS; w++) {
        free(maker.over[w]);
        free(maker.begun[w]);
    }
    free(maker.free_at);
    if (!has_memory) return status_fail(TUTTI_NO_MEMORY, "pipeline: no memory for %zu pieces of work", cells);
    return over ? TUTTI_OK
                : status_fail(TUTTI_INTERNAL, "pipeline: the schedule has not ended after %d ticks", MAX_TICKS);
}
/* Each microbatch runs through all stages and back before the next begins. */
static void pipeline_make_naive(struct tutti_pipeline *pipeline)
{
    for (int rank = 0; rank < pipeline->ranks; rank++)
        for (int n = 0; n < pipeline->microbatches; n++) {
            pipeline_add_action(pipeline, rank, (tutti_action){ TUTTI_FORWARD, rank, n });
            pipeline_add_action(pipeline, rank, (tutti_action){ TUTTI_BACKWARD, rank, n });
        }
}
/* Returns the n-th forward or backward of a rank, from 0. As in Megatron-LM, the rank works on one chunk for as many
   microbatches as there are ranks, then on the next chunk. */
static tutti_action interleaved_nth_action(const struct tutti_pipeline *pipeline, int rank, int n, bool is_backward)
{
    int chunk = n / pipeline->ranks % pipeline->chunks;
    if (is_backward) chunk = pipeline->chunks - 1 - chunk;
    int microbatch = n / (pipeline->ranks * pipeline->chunks) * pipeline->ranks + n % pipeline->ranks;
    return (tutti_action){ is_backward ? TUTTI_BACKWARD : TUTTI_FORWARD, chunk * pipeline->ranks + rank, microbatch };
}
/* Writes the lists of interleaved 1F1B: `ahead` forwards, then forwards and backwards in turn, then the remaining
   backwards. */
static void pipeline_make_interleaved(struct tutti_pipeline *pipeline)
{
    int total = pipeline->chunks * pipeline->microbatches;
    for (int rank = 0; rank < pipeline->ranks; rank++) {
        int ahead = (pipeline->ranks - rank - 1) * 2 + (pipeline->chunks - 1) * pipeline->ranks;
        if (ahead > total) ahead = total;
        for (int n = 0; n < ahead; n++)
            pipeline_add_action(pipeline, rank, interleaved_nth_action(pipeline, rank, n, false));
        for (int n = ahead; n < total; n++) {
            pipeline_add_action(pipeline, rank, interleaved_nth_action(pipeline, rank, n, false));
            pipeline_add_action(pipeline, rank, interleaved_nth_action(pipeline, rank, n - ahead, true));
        }
        for (int n = total - ahead; n < total; n++)
            pipeline_add_action(pipeline, rank, interleaved_nth_action(pipeline, rank, n, true));
    }
}

/* ---- DualPipeV ---- */
/* DualPipeV (DeepSeek-AI, 2025) is DualPipe cut in half: a V as well. Once it is full, forwards of one half alternate
   with backwards of the other, so that a rank can overlap them. Backwards are split into halves only at both ends. */
/* The list of one rank as it is written. [half]: 0 is the rank's stage on the way up, 1 that on the way down; how many
   of its forwards and backwards are written. next_weight: where in the list the next backward of weights is looked
   for. */
struct dual { struct tutti_pipeline *pipeline; int rank, forwards[2], backwards[2], next_weight; };
static int dual_stage_of_half(const struct dual *dual, int half)
{
    return half ? 2 * dual->pipeline->ranks - 1 - dual->rank : dual->rank;
}
/* Adds the next forward of a half to the list. */
static void dual_add_forward(struct dual *dual, int half)
{
    pipeline_add_action(dual->pipeline, dual->rank,
        (tutti_action){ TUTTI_FORWARD, dual_stage_of_half(dual, half), dual->forwards[half]++ });
}
/* Adds the next backward of a half: of inputs only if it splits, else whole. */
static void dual_add_backward(struct dual *dual, int half, bool splits)
{
    tutti_work work = splits ? TUTTI_BACKWARD_INPUT : TUTTI_BACKWARD;
    pipeline_add_action(dual->pipeline, dual->rank,
        (tutti_action){ work, dual_stage_of_half(dual, half), dual->backwards[half]++ });
}
/* Adds the backward of weights for the oldest backward of inputs that has none yet. */
static void dual_add_weight(struct dual *dual)
{
    const struct pipeline_list *list = &dual->pipeline->list[dual->rank];
    while (list->action[dual->next_weight].work != TUTTI_BACKWARD_INPUT) dual->next_weight++;
    tutti_action action = list->action[dual->next_weight++];
    pipeline_add_action(dual->pipeline, dual->rank,
        (tutti_action){ TUTTI_BACKWARD_WEIGHT, action.stage, action.microbatch });
}
/* Adds `pairs` backwards of both halves in turns; those of the later pairs are of inputs only. */
static void dual_add_last_backwards(struct dual *dual, int pairs)
{
    for (int i = 0; i < pairs; i++) {
        dual_add_backward(dual, 1, i > pairs / 2 || (i == pairs / 2 && dual->rank % 2));
        dual_add_backward(dual, 0, i >= pairs / 2);
    }
}
/* Writes the lists of DualPipeV (its eight phases). `behind`: ranks after this one. */
static void pipeline_make_dualpipe_v(struct tutti_pipeline *pipeline)
{
    for (int rank = 0; rank < pipeline->ranks; rank++) {
        struct dual dual = { .pipeline = pipeline, .rank = rank };
        int behind = pipeline->ranks - rank - 1;
        for (int i = 0; i < 2 * behind; i++) dual_add_forward(&dual, 0);
        for (int i = 0; i <= rank; i++) dual_add_forward(&dual, 0), dual_add_forward(&dual, 1);
        for (int i = 0; i < behind; i++)
            dual_add_backward(&dual, 1, true), dual_add_weight(&dual), dual_add_forward(&dual, 1);
        for (int i = 0; i < pipeline->microbatches - 2 * pipeline->ranks + rank + 1; i++) {
            dual_add_forward(&dual, 0), dual_add_backward(&dual, 1, false);
            dual_add_forward(&dual, 1), dual_add_backward(&dual, 0, false);
        }
        for (int i = 0; i < behind; i++)
            dual_add_backward(&dual, 1, false), dual_add_forward(&dual, 1), dual_add_backward(&dual, 0, false);
        dual_add_last_backwards(&dual, rank + 1);
        for (int i = 0; i < behind; i++) dual_add_weight(&dual), dual_add_backward(&dual, 0, true);
        for (int i = 0; i <= rank; i++) dual_add_weight(&dual);
    }
}

/* ---- schedules ---- */
/* A schedule has either a rule (choose) or a function that writes all lists (write). */
static const struct pipeline_rule {
    const char *name;
    rule *choose;
    void (*write)(struct tutti_pipeline *);
    /* The number of stages of a rank; 0 allows any. */
    int chunks;
    bool splits_backwards, is_v_shaped;
    /* The least number of microbatches per rank; 0 also allows fewer microbatches than ranks. */
    int min_per_rank;
    /* The number of microbatches must be a multiple of the ranks. */
    bool needs_multiple;
} schedules[] = {
    { "naive", .write = pipeline_make_naive, .chunks = 1 },
    { "gpipe", .choose = rule_gpipe, .chunks = 1 },
    { "1f1b", .choose = rule_one_forward_one_backward, .chunks = 1, .min_per_rank = 1 },
    { "interleaved", .write = pipeline_make_interleaved, .min_per_rank = 1, .needs_multiple = true },
    { "zb-h1", .choose = rule_zero_bubble_h1, .chunks = 1, .splits_backwards = true, .min_per_rank = 1 },
    { "zb-v", .choose = rule_zero_bubble_v, .chunks = 2, .splits_backwards = true, .is_v_shaped = true,
        .min_per_rank = 1 },
    { "dualpipe-v", .write = pipeline_make_dualpipe_v, .chunks = 2, .is_v_shaped = true, .min_per_rank = 2 },
};
enum { SCHEDULES = sizeof schedules / sizeof schedules[0] };
enum { MOST_RANKS = 4096, MOST_MICROBATCHES = 65536, MOST_CHUNKS = 64, MOST_WORK = 1 << 24 };
const char *pipeline_schedule_name(int index) { return index >= 0 && index < SCHEDULES ? schedules[index].name : NULL; }
/* Returns the schedule of that name, or NULL. */
static const struct pipeline_rule *pipeline_find_schedule(const char *name)
{
    for (int i = 0; i < SCHEDULES; i++)
        if (strcmp(schedules[i].name, name) == 0) return &schedules[i];
    return NULL;
}
/* INVALID_ARGUMENT if the schedule does not support these numbers, or is NULL: no schedule has the name. */
static tutti_status pipeline_check_sizes(const struct pipeline_rule *s, const char *name, int ranks, int chunks,
    int microbatches)
{
    if (!s)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "pipeline: unknown schedule \"%s\"; known are naive, gpipe, 1f1b, interleaved, zb-h1, zb-v and dualpipe-v",
            name);
    if (ranks < 1 || ranks > MOST_RANKS || chunks < 1 || chunks > MOST_CHUNKS || microbatches < 1
        || microbatches > MOST_MICROBATCHES)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "pipeline: %d ranks, %d stages on each, %d microbatches; allowed are 1 to %d, 1 to %d and 1 to %d", ranks,
            chunks, microbatches, MOST_RANKS, MOST_CHUNKS, MOST_MICROBATCHES);
    if (s->chunks && chunks != s->chunks)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "pipeline: %s has %d stage%s on each rank, not %d", name,
            s->chunks, s->chunks > 1 ? "s" : "", chunks);
    if ((int64_t)ranks * chunks * microbatches > MOST_WORK)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "pipeline: %d ranks, %d stages on each and %d microbatches are more than %d pieces of work", ranks, chunks,
            microbatches, MOST_WORK);
    if (microbatches < ranks * s->min_per_rank)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "pipeline: %d microbatches for %d ranks; %s needs at least %d, gpipe takes fewer", microbatches, ranks,
            name, ranks * s->min_per_rank);
    if (s->needs_multiple && microbatches % ranks)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "pipeline: %s needs a multiple of %d microbatches, not %d", name,
            ranks, microbatches);
    return TUTTI_OK;
}
/* Allocates a list of actions for each rank and fills them by the schedule. */
static tutti_status pipeline_fill_lists(struct tutti_pipeline *pipeline, const struct pipeline_rule *s)
{
    size_t each = (size_t)pipeline->chunks * (size_t)pipeline->microbatches * 3;
    pipeline->list = memory_alloc_zeroed((size_t)pipeline->ranks, sizeof *pipeline->list);
    for (int rank = 0; pipeline->list && rank < pipeline->ranks; rank++) {
        pipeline->list[rank].action = memory_alloc_zeroed(each, sizeof *pipeline->list[rank].action);
        if (!pipeline->list[rank].action) return status_fail(TUTTI_NO_MEMORY, "pipeline: no memory for rank %d", rank);
    }
    if (!pipeline->list) return status_fail(TUTTI_NO_MEMORY, "pipeline: no memory for %d ranks", pipeline->ranks);
    if (s->choose) return pipeline_make_by_rule(pipeline, s->choose);
    s->write(pipeline);
    return TUTTI_OK;
}
tutti_status pipeline_make(struct tutti_pipeline **out, const char *schedule, int ranks, int chunks, int microbatches)
{
    const struct pipeline_rule *s = pipeline_find_schedule(schedule);
    TRY(pipeline_check_sizes(s, schedule, ranks, chunks, microbatches));
    struct tutti_pipeline *pipeline = memory_alloc_zeroed(1, sizeof *pipeline);
    if (!pipeline) return status_fail(TUTTI_NO_MEMORY, "pipeline: no memory");
    *pipeline = (struct tutti_pipeline){ ranks, chunks, ranks * chunks, microbatches, s->is_v_shaped,
        s->splits_backwards, NULL };
    tutti_status status = pipeline_fill_lists(pipeline, s);
    if (status == TUTTI_OK) *out = pipeline;
    else pipeline_destroy(pipeline);
    return status;
}
void pipeline_destroy(struct tutti_pipeline *pipeline)
{
    for (int rank = 0; pipeline && pipeline->list && rank < pipeline->ranks; rank++) free(pipeline->list[rank].action);
    if (pipeline) free(pipeline->list);
    free(pipeline);
}
