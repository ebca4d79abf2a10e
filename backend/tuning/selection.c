/* Finds the algorithm, the tile size and the number of slots with the least cost. A choice is made when a message size
   first occurs, and is then remembered. It serves all sizes between two neighbours of 1, 1.5, 2, 3, 4, 6, …. */
#include "backend/tuning/selection.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/collectives/collectives.h"
#include <assert.h>
#include <math.h>
#include <stdlib.h>

/* An earlier question and its answer. */
struct choice_answer { struct question question; struct choice choice; };
enum {
    SLOTS_TO_PREDICT = 3,
    UNKNOWN_BYTES = 1 << 20,
    RANKS_TO_PREDICT = 32,
    RANKS_OF_HOST_TO_PREDICT = 64,
    /* The bytes of the messages in the two exchanges of the probe; the large number is approximate. */
    LITTLE = 128 << 10,
    MUCH = 2 << 20,
    /* Algorithms with few_hosts are no candidates for more hosts than MANY_HOSTS, or if the hosts times the ranks of
       the largest host exceed MANY_PIECES. */
    MANY_HOSTS = 32,
    MANY_PIECES = 512
};
/* A later row of the table must be at least this much cheaper than an earlier one. */
static const double WORTH_IT = 0.97;
/* A choice that reads must have at most this share of the cost of one that stages. The share is lower for bytes that go
   one way, because no measured exchange corrects their cost. */
static const double READING_IS_WORTH_IT = 0.85, READING_ONE_WAY_IS_WORTH_IT = 0.65;
/* A measurement changes a cost by at most this factor. */
static const double MOST_SCALED = 4;
/* The highest cost of late selection, relative to an operation on private tensors. */
static const double LOOK_COSTS = 0.05;

size_t size_floor_half_octave(size_t bytes)
{
    if (bytes < 2) return bytes;
    int top = 63 - __builtin_clzll(bytes);
    return (2 + (bytes >> (top - 1) & 1)) << (top - 1);
}

/* ---- predicted costs ---- */
/* Returns the largest number of ranks whose plans are predicted. For larger groups a plan of fewer ranks is predicted.
   It has fewer ranks on each host, because what hosts send depends little on how many ranks share it, and then fewer
   hosts. */
static int layout_max_sampled_ranks(const struct layout *layout)
{
    return layout->hosts > 1 ? RANKS_TO_PREDICT : RANKS_OF_HOST_TO_PREDICT;
}
static bool layout_needs_sample(const struct layout *layout)
{
    return layout->ranks > layout_max_sampled_ranks(layout);
}
/* Sets chooser->sample, a smaller layout with the same structure, for which plans are predicted instead of the
   group's. */
static tutti_status chooser_make_sample(struct chooser *chooser)
{
    int host[RANKS_OF_HOST_TO_PREDICT], ranks = 0, max_ranks = layout_max_sampled_ranks(chooser->layout);
    int hosts = chooser->layout->hosts < max_ranks ? chooser->layout->hosts : max_ranks;
    if (chooser->sample) return TUTTI_OK;
    for (int h = 0; h < hosts; h++)
        for (int i = 0; i < layout_host_size(chooser->layout, h) && i < max_ranks / hosts; i++) host[ranks++] = h;
    return layout_create(host, ranks, &chooser->sample);
}
/* Returns the placement for the prediction: open tensors that are not read are staged, like private ones. */
static enum placement_kind placement_for_cost(enum placement_kind kind, bool reads)
{
    return placement_is_open(kind) && !reads ? TENSORS_PRIVATE : kind;
}
/* Finds or builds the plan of an algorithm for a layout with tensors in `placement`. */
static tutti_status chooser_plan_for_layout(struct chooser *chooser, const struct layout *layout,
    const struct algorithm *algorithm, enum placement_kind placement, const struct plan **out)
{
    bool is_apart =
        placement == TENSORS_SHARED_APART || placement == TENSORS_OPEN_APART || algorithm->collective == ALL_TO_ALL;
    struct plan key = { .algorithm = algorithm,
        .layout = layout,
        .slots = SLOTS_TO_PREDICT,
        .in_place = is_apart ? NULL : mask_all,
        .shared = placement_is_shared(placement) ? mask_all : NULL,
        .can_read_private = placement_is_open(placement) };
    return plan_cache_get(chooser->cache, &key, out);
}
/* Finds or builds the plan that is predicted for an algorithm: for the sample if the group is too large. */
static tutti_status chooser_plan_algorithm(struct chooser *chooser, const struct algorithm *algorithm,
    enum placement_kind placement, const struct plan **out)
{
    if (layout_needs_sample(chooser->layout)) TRY(chooser_make_sample(chooser));
    return chooser_plan_for_layout(chooser, chooser->sample ? chooser->sample : chooser->layout, algorithm, placement,
        out);
}
/* Returns the number of cores for the prediction of a plan: with fewer ranks than the group, their share. */
static int chooser_cores_of_plan(const struct chooser *chooser, const struct plan *plan)
{
    return (chooser->cores * plan->layout->largest + chooser->layout->largest - 1) / chooser->layout->largest;
}
/* Returns the machine with the cost of a byte that the kernel reads multiplied by `scale`. */
static struct machine machine_scale_reading(const struct machine *machine, double scale)
{
    struct machine scaled = *machine;
    scaled.fetch *= scale;
    scaled.lost_fetch *= scale;
    return scaled;
}
/* Computes the cost of the exchange that the probe measures: two ranks send each other `part` bytes, by kernel reads or
   through slots. scale: as machine_scale_reading. */
static tutti_status chooser_cost_exchange(struct chooser *chooser, size_t part, double scale, bool reads, double *out)
{
    const struct algorithm *algorithm = collectives_table;
    const struct plan *plan;
    struct machine machine = machine_scale_reading(&chooser->machine, scale);
    struct cutting cutting;
    while (algorithm->collective != ALLGATHER || !algorithm->host_memory) algorithm++;
    if (!chooser->pair) TRY(layout_create(NULL, 2, &chooser->pair));
    TRY(chooser_plan_for_layout(chooser, chooser->pair, algorithm, reads ? TENSORS_OPEN_IN_PLACE : TENSORS_PRIVATE,
        &plan));
    return plan_choose_tile(plan, &machine, 2 * part, 2, &cutting, out);
}
/* Sets *out to the factor that corrects the cost of a byte that the kernel reads, for exchanges of `part` bytes, if it
   is 0. measured: the measured time by reads divided by that through slots. Machines differ by a factor of two in how
   well the two copies of staging overlap, and in what pages cost the kernel. That is more than the costs of staging and
   reading differ. So the probe measures exchanges of two sizes in both ways (`one_copy`), and these correct the cost of
   a byte that the kernel reads. */
static tutti_status chooser_calibrate_reading(struct chooser *chooser, size_t part, double measured, double *out)
{
    double staged, read, calls;
    if (*out > 0) return TUTTI_OK;
    TRY(chooser_cost_exchange(chooser, part, 0, false, &staged));
    TRY(chooser_cost_exchange(chooser, part, 1, true, &read));
    /* This cost contains all costs but those of the bytes. */
    TRY(chooser_cost_exchange(chooser, part, 0, true, &calls));
    *out = fmin(fmax((measured * staged - calls) / (read - calls), 1 / MOST_SCALED), MOST_SCALED);
    return TUTTI_OK;
}
/* True if bytes go one way: all come from one rank, or all go to one. SCATTER does not count. In these collectives two
   cores copy a byte that is staged, and one core copies a byte that is read. */
static bool collective_is_one_way(enum collective collective)
{
    return collective == BROADCAST || collective == REDUCE || collective == GATHER;
}
/* Sets *out to the machine with the cost of kernel reads calibrated for messages of this size. */
static tutti_status chooser_scale_machine(struct chooser *chooser, const struct question *question, bool reads,
    struct machine *out)
{
    *out = chooser->machine;
    if (!reads || collective_is_one_way(question->collective)) return TUTTI_OK;
    double part = (double)question->message_bytes / chooser->layout->largest,
           large_share = log2(part / LITTLE) / log2(MUCH / LITTLE);
    TRY(chooser_calibrate_reading(chooser, LITTLE, chooser->machine.one_copy, &chooser->reading_scale[0]));
    TRY(chooser_calibrate_reading(chooser, MUCH, chooser->machine.lost_one_copy, &chooser->reading_scale[1]));
    large_share = fmin(fmax(large_share, 0), 1);
    *out = machine_scale_reading(&chooser->machine,
        (1 - large_share) * chooser->reading_scale[0] + large_share * chooser->reading_scale[1]);
    return TUTTI_OK;
}
/* Returns the ns of offering tensors to peers that read: a rank asks the kernel twice whether others could read
   them. */
static double chooser_cost_offer(const struct chooser *chooser, bool reads)
{
    return reads ? 2 * chooser->machine.reading : 0;
}
/* Computes the choice with one algorithm: its best tile, its slots and its cost in ns. */
static tutti_status chooser_cost_candidate(struct chooser *chooser, const struct question *question,
    const struct algorithm *algorithm, bool reads, struct choice *out)
{
    struct machine machine;
    struct cutting cutting;
    const struct plan *plan;
    double ns = 0;
    TRY(chooser_scale_machine(chooser, question, reads, &machine));
    TRY(chooser_plan_algorithm(chooser, algorithm, placement_for_cost(question->placement, reads), &plan));
    TRY(plan_choose_tile(plan, &machine, question->message_bytes, chooser_cores_of_plan(chooser, plan), &cutting, &ns));
    ns += chooser_cost_offer(chooser, reads);
    *out = (struct choice){ .algorithm = algorithm,
        .tile_bytes = cutting.tile_bytes,
        .slots = cutting.slots,
        .cost = ns,
        .reads_private = reads };
    return TUTTI_OK;
}
/* Over several hosts a hierarchical all-to-all needs equal counts, because only two ranks know the count of a block.
   Else one host might cut the messages into tiles that fit its slots, while another host does not cut them. */
bool algorithm_takes_uneven(const struct layout *layout, const struct algorithm *algorithm)
{
    return !algorithm->equal_chunks
        && !(layout->hosts > 1 && algorithm->hierarchical && algorithm->collective == ALL_TO_ALL);
}
/* True if the algorithm may answer the question: the one that was asked for, or one that suits the collective, the
   counts and the number of hosts. */
static bool algorithm_is_candidate(const struct chooser *chooser, const struct question *question,
    const struct algorithm *algorithm)
{
    if (question->algorithm) return algorithm == question->algorithm;
    if (algorithm->collective != question->collective
        || (question->is_uneven && !algorithm_takes_uneven(chooser->layout, algorithm)))
        return false;
    int hosts = chooser->layout->hosts;
    if (hosts > 1 && question->is_uneven && algorithm->collective == ALL_TO_ALL) return !algorithm->host_memory;
    bool has_many_hosts = hosts > MANY_HOSTS || hosts * chooser->layout->largest > MANY_PIECES;
    return hosts == 1 ? algorithm->host_memory : algorithm->hierarchical && !(algorithm->few_hosts && has_many_hosts);
}
/* Returns the cost by which choices are compared: one that reads counts as more expensive. */
static double choice_weighted_cost(const struct choice *choice)
{
    if (!choice->reads_private) return choice->cost;
    return choice->cost
        / (collective_is_one_way(choice->algorithm->collective) ? READING_ONE_WAY_IS_WORTH_IT : READING_IS_WORTH_IT);
}
/* Computes the cost of all candidates, with and without kernel reads. *best, which has no algorithm at first, gets the
   best one. */
static tutti_status chooser_compare_algorithms(struct chooser *chooser, const struct question *question,
    struct choice *best)
{
    for (const struct algorithm *algorithm = collectives_table; algorithm->name; algorithm++) {
        struct choice choice;
        if (!algorithm_is_candidate(chooser, question, algorithm)) continue;
        for (int reads = question->must_read; reads <= placement_is_open(question->placement); reads++) {
            TRY(chooser_cost_candidate(chooser, question, algorithm, reads, &choice));
            if (!best->algorithm || choice_weighted_cost(&choice) < WORTH_IT * choice_weighted_cost(best))
                *best = choice;
        }
    }
    return TUTTI_OK;
}
/* Returns a choice without a cost: the first candidate, with tile and slots by a rule. */
static struct choice chooser_take_only_candidate(const struct chooser *chooser, const struct question *question)
{
    const struct algorithm *algorithm = collectives_table;
    while (!algorithm_is_candidate(chooser, question, algorithm)) algorithm++;
    size_t largest = machine_largest_tile(&chooser->machine);
    int slots = machine_tiles_in_flight(&chooser->machine, largest, chooser->layout->largest > chooser->cores);
    if (algorithm->host_memory) return (struct choice){ .algorithm = algorithm, .tile_bytes = largest, .slots = slots };
    /* On one host half the cache may be in flight. */
    size_t in_flight = chooser->layout->hosts > 1 ? BYTES_WITH_MESSAGES : largest;
    size_t tile = in_flight / TILES_WITH_MESSAGES;
    return (struct choice){ .algorithm = algorithm, .tile_bytes = tile, .slots = TILES_WITH_MESSAGES };
}

/* ---- questions ---- */
/* True if ranks only send and receive. */
static bool algorithm_uses_only_messages(const struct algorithm *algorithm)
{
    return !algorithm->host_memory && !algorithm->hierarchical;
}
static bool question_is_same(const struct question *a, const struct question *b)
{
    return a->collective == b->collective && a->algorithm == b->algorithm && a->message_bytes == b->message_bytes
        && a->placement == b->placement && a->is_uneven == b->is_uneven && a->must_read == b->must_read;
}
/* Answers a new question and remembers the answer. */
static tutti_status chooser_answer_question(struct chooser *chooser, const struct question *question,
    struct choice *out)
{
    struct choice made = { 0 };
    struct choice_answer *answers =
        memory_grow(chooser->answers, chooser->answer_count, &chooser->answer_room, sizeof *answers);
    if (!answers) return status_fail(TUTTI_NO_MEMORY, "no memory to remember a choice");
    chooser->answers = answers;
    TRY(chooser_compare_algorithms(chooser, question, &made));
    assert(made.algorithm && made.algorithm->collective == question->collective);
    answers[chooser->answer_count++] = (struct choice_answer){ *question, made };
    *out = made;
    return TUTTI_OK;
}
tutti_status chooser_make_choice(struct chooser *chooser, const struct question *asked, struct choice *out)
{
    struct question question = *asked;
    bool only_messages = question.algorithm && algorithm_uses_only_messages(question.algorithm);
    if (chooser->layout->hosts > 1 && question.algorithm && question.algorithm->host_memory)
        return status_fail(TUTTI_INVALID_ARGUMENT,
            "%s %s works on one host only, but the %d ranks are on %d hosts: choose another algorithm, or none",
            collective_name(question.collective), question.algorithm->name, chooser->layout->ranks,
            chooser->layout->hosts);
    if (chooser->layout->hosts > 1) question.placement = TENSORS_PRIVATE;
    question.must_read &= placement_is_open(question.placement);
    if (chooser->layout->ranks == 1 || only_messages || question.collective == BARRIER) {
        *out = chooser_take_only_candidate(chooser, &question);
        return TUTTI_OK;
    }
    question.message_bytes = size_floor_half_octave(question.message_bytes ? question.message_bytes : UNKNOWN_BYTES);
    for (int i = 0; i < chooser->answer_count; i++)
        if (question_is_same(&chooser->answers[i].question, &question)) {
            *out = chooser->answers[i].choice;
            return TUTTI_OK;
        }
    return chooser_answer_question(chooser, &question, out);
}
tutti_status choice_compute_cost(struct chooser *chooser, const struct question *question, struct choice *choice)
{
    const struct plan *plan;
    int hosts = chooser->layout->hosts;
    choice->cost = 0;
    if (chooser->layout->ranks == 1 || question->collective == BARRIER
        || (hosts == 1 && algorithm_uses_only_messages(choice->algorithm)))
        return TUTTI_OK;
    struct machine machine;
    /* This comes before chooser_plan_algorithm, because it takes other plans from the cache, which may then evict
       *plan. */
    TRY(chooser_scale_machine(chooser, question, choice->reads_private, &machine));
    TRY(chooser_plan_algorithm(chooser, choice->algorithm,
        hosts > 1 ? TENSORS_PRIVATE : placement_for_cost(question->placement, choice->reads_private), &plan));
    struct cutting cutting = { question->message_bytes, choice->tile_bytes, choice->slots,
        chooser_cores_of_plan(chooser, plan) };
    TRY(plan_compute_cost(plan, &machine, &cutting, &choice->cost));
    choice->cost += chooser_cost_offer(chooser, choice->reads_private);
    return TUTTI_OK;
}
tutti_status choice_writes_slots(struct chooser *chooser, const struct question *question, const struct choice *choice,
    bool *out)
{
    const struct plan *plan;
    TRY(chooser_plan_algorithm(chooser, choice->algorithm,
        placement_for_cost(question->placement, choice->reads_private), &plan));
    *out = plan->ranks[0].chunks[SCRATCH] > 0;
    return TUTTI_OK;
}
bool chooser_considers_algorithm(const struct chooser *chooser, const struct algorithm *algorithm)
{
    struct question question = { .collective = algorithm->collective };
    return algorithm_is_candidate(chooser, &question, algorithm);
}
void chooser_finish(struct chooser *chooser)
{
    free(chooser->answers);
    layout_destroy(chooser->sample);
    layout_destroy(chooser->pair);
    chooser->answers = NULL;
    chooser->sample = chooser->pair = NULL;
    chooser->answer_count = chooser->answer_room = 0;
}
double choice_cost_of_late_selection(const struct chooser *chooser, const struct choice *choice)
{
    return choice->cost > 0
        ? machine_cost_of_round(&chooser->machine, chooser->layout->largest, chooser->cores) / choice->cost
        : HUGE_VAL;
}
bool choice_selects_late(const struct chooser *chooser, const struct choice *choice)
{
    return choice_cost_of_late_selection(chooser, choice) <= LOOK_COSTS;
}
