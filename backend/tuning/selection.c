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
    /* The message sizes of the two exchanges of the probe; the large one is approximate. */
    LITTLE = 128 << 10,
    MUCH = 2 << 20,
    MANY_HOSTS = 32,
    MANY_PIECES = 512
};
/* A later row of the table must be at least this much cheaper than an earlier one. */
static const double WORTH_IT = 0.97;
/* A choice that reads must have at most this share of the cost of one that stages. The share is lower for bytes that
   go one way, because no measured exchange corrects their cost. */
static const double READING_IS_WORTH_IT = 0.85, READING_ONE_WAY_IS_WORTH_IT = 0.65;
/* A measurement changes a cost by at most this factor. */
static const double MOST_SCALED = 4;
/* The highest cost of looking first, relative to an operation on private tensors. */
static const double LOOK_COSTS = 0.05;

size_t size_floor_half_octave(size_t bytes)
{
    if (bytes < 2) return bytes;
    int top = 63 - __builtin_clzll(bytes);
    return (2 + (bytes >> (top - 1) & 1)) << (top - 1);
}

/* ---- predicted costs ---- */
/* For many ranks a plan of fewer ranks is predicted. It has fewer ranks on each host, because what hosts send depends
   little on how many ranks share it, and then fewer hosts. */
static int layout_most_sampled(const struct layout *l)
{
    return l->hosts > 1 ? RANKS_TO_PREDICT : RANKS_OF_HOST_TO_PREDICT;
}
static bool layout_needs_sample(const struct layout *l) { return l->ranks > layout_most_sampled(l); }
static tutti_status chooser_make_sample(struct chooser *x)
{
    int host[RANKS_OF_HOST_TO_PREDICT], ranks = 0, most = layout_most_sampled(x->layout);
    int hosts = x->layout->hosts < most ? x->layout->hosts : most;
    if (x->sample) return TUTTI_OK;
    for (int h = 0; h < hosts; h++)
        for (int i = 0; i < layout_host_size(x->layout, h) && i < most / hosts; i++) host[ranks++] = h;
    return layout_create(host, ranks, &x->sample);
}
/* Open tensors that are not read are staged, like private ones. */
static enum placement_kind placement_for_cost(enum placement_kind p, bool reads)
{
    return placement_is_open(p) && !reads ? TENSORS_PRIVATE : p;
}
static tutti_status chooser_plan_for_layout(struct chooser *x, const struct layout *layout, const struct algorithm *a,
    enum placement_kind placement, const struct plan **out)
{
    bool apart = placement == TENSORS_SHARED_APART || placement == TENSORS_OPEN_APART || a->collective == ALL_TO_ALL;
    struct plan key = { .algorithm = a,
        .layout = layout,
        .slots = SLOTS_TO_PREDICT,
        .in_place = apart ? NULL : mask_all,
        .shared = placement_is_shared(placement) ? mask_all : NULL,
        .reads = placement_is_open(placement) };
    return plan_cache_get(x->cache, &key, out);
}
static tutti_status chooser_plan_algorithm(struct chooser *x, const struct algorithm *a, enum placement_kind placement,
    const struct plan **out)
{
    if (layout_needs_sample(x->layout)) TRY(chooser_make_sample(x));
    return chooser_plan_for_layout(x, x->sample ? x->sample : x->layout, a, placement, out);
}
/* Returns the share of the cores that belongs to a plan of fewer ranks. */
static int chooser_cores_of_plan(const struct chooser *x, const struct plan *plan)
{
    return (x->cores * plan->layout->largest + x->layout->largest - 1) / x->layout->largest;
}
static struct machine machine_scale_reading(const struct machine *machine, double scale)
{
    struct machine m = *machine;
    m.fetch *= scale;
    m.lost_fetch *= scale;
    return m;
}
/* Computes the cost of the exchange that the probe measures, between two ranks. */
static tutti_status chooser_cost_exchange(struct chooser *x, size_t part, double scale, bool reads, double *out)
{
    const struct algorithm *a = collectives_table;
    const struct plan *plan;
    struct machine machine = machine_scale_reading(&x->machine, scale);
    struct cutting cutting;
    while (a->collective != ALLGATHER || !a->host_memory) a++;
    if (!x->pair) TRY(layout_create(NULL, 2, &x->pair));
    TRY(chooser_plan_for_layout(x, x->pair, a, reads ? TENSORS_OPEN_IN_PLACE : TENSORS_PRIVATE, &plan));
    return plan_choose_tile(plan, &machine, 2 * part, 2, &cutting, out);
}
/* Machines differ by a factor of two in how well the two copies of staging overlap, and in what pages cost the kernel.
   That is more than the costs of staging and reading differ. So the probe measures exchanges of two sizes in both ways
   (`one_copy`), and these correct the cost of a byte that the kernel reads. */
static tutti_status chooser_calibrate_reading(struct chooser *x, size_t part, double measured, double *out)
{
    double staged, read, calls;
    if (*out > 0) return TUTTI_OK;
    TRY(chooser_cost_exchange(x, part, 0, false, &staged));
    TRY(chooser_cost_exchange(x, part, 1, true, &read));
    /* This cost contains all costs but those of the bytes. */
    TRY(chooser_cost_exchange(x, part, 0, true, &calls));
    *out = fmin(fmax((measured * staged - calls) / (read - calls), 1 / MOST_SCALED), MOST_SCALED);
    return TUTTI_OK;
}
/* All bytes come from one rank, or go to one. Two cores copy a byte that is staged there, and one core copies a byte
   that is read. */
static bool collective_is_one_way(enum collective f) { return f == BROADCAST || f == REDUCE || f == GATHER; }
static tutti_status chooser_scale_machine(struct chooser *x, const struct question *q, bool reads, struct machine *out)
{
    *out = x->machine;
    if (!reads || collective_is_one_way(q->collective)) return TUTTI_OK;
    double part = (double)q->message_bytes / x->layout->largest, much = log2(part / LITTLE) / log2(MUCH / LITTLE);
    TRY(chooser_calibrate_reading(x, LITTLE, x->machine.one_copy, &x->reading_scale[0]));
    TRY(chooser_calibrate_reading(x, MUCH, x->machine.lost_one_copy, &x->reading_scale[1]));
    much = fmin(fmax(much, 0), 1);
    *out = machine_scale_reading(&x->machine, (1 - much) * x->reading_scale[0] + much * x->reading_scale[1]);
    return TUTTI_OK;
}
/* Returns the cost of offering tensors: a rank asks the kernel twice whether others could read them. */
static double chooser_cost_offer(const struct chooser *x, bool reads) { return reads ? 2 * x->machine.reading : 0; }
static tutti_status chooser_cost_candidate(struct chooser *x, const struct question *q, const struct algorithm *a,
    bool reads, struct choice *out)
{
    struct machine machine;
    struct cutting cutting;
    const struct plan *plan;
    double ns = 0;
    TRY(chooser_scale_machine(x, q, reads, &machine));
    TRY(chooser_plan_algorithm(x, a, placement_for_cost(q->placement, reads), &plan));
    TRY(plan_choose_tile(plan, &machine, q->message_bytes, chooser_cores_of_plan(x, plan), &cutting, &ns));
    ns += chooser_cost_offer(x, reads);
    *out = (struct choice){
        .algorithm = a, .tile_bytes = cutting.tile_bytes, .slots = cutting.slots, .cost = ns, .reads = reads
    };
    return TUTTI_OK;
}
/* In an all-to-all only two ranks know what they exchange. The slots of one host would cut a hierarchical one, while
   the other host would not cut it. */
bool algorithm_takes_uneven(const struct layout *layout, const struct algorithm *a)
{
    return !a->equal_chunks && !(layout->hosts > 1 && a->hierarchical && a->collective == ALL_TO_ALL);
}
static bool algorithm_is_candidate(const struct chooser *x, const struct question *q, const struct algorithm *a)
{
    if (q->algorithm) return a == q->algorithm;
    if (a->collective != q->collective || (q->uneven && !algorithm_takes_uneven(x->layout, a))) return false;
    int hosts = x->layout->hosts;
    if (hosts > 1 && q->uneven && a->collective == ALL_TO_ALL) return !a->host_memory;
    bool many = hosts > MANY_HOSTS || hosts * x->layout->largest > MANY_PIECES;
    return hosts == 1 ? a->host_memory : a->hierarchical && !(a->few_hosts && many);
}
static double choice_weighted_cost(const struct choice *c)
{
    if (!c->reads) return c->cost;
    return c->cost
        / (collective_is_one_way(c->algorithm->collective) ? READING_ONE_WAY_IS_WORTH_IT : READING_IS_WORTH_IT);
}
static tutti_status chooser_compare_algorithms(struct chooser *x, const struct question *q, struct choice *best)
{
    for (const struct algorithm *a = collectives_table; a->name; a++) {
        struct choice c;
        if (!algorithm_is_candidate(x, q, a)) continue;
        for (int reads = q->must_read; reads <= placement_is_open(q->placement); reads++) {
            TRY(chooser_cost_candidate(x, q, a, reads, &c));
            if (!best->algorithm || choice_weighted_cost(&c) < WORTH_IT * choice_weighted_cost(best)) *best = c;
        }
    }
    return TUTTI_OK;
}
static struct choice chooser_take_only_candidate(const struct chooser *x, const struct question *q)
{
    const struct algorithm *a = collectives_table;
    while (!algorithm_is_candidate(x, q, a)) a++;
    size_t largest = machine_largest_tile(&x->machine);
    int slots = machine_tiles_in_flight(&x->machine, largest, x->layout->largest > x->cores);
    if (a->host_memory) return (struct choice){ .algorithm = a, .tile_bytes = largest, .slots = slots };
    /* On one host half the cache may be in flight. */
    size_t in_flight = x->layout->hosts > 1 ? BYTES_WITH_MESSAGES : largest;
    size_t tile = in_flight / TILES_WITH_MESSAGES;
    return (struct choice){ .algorithm = a, .tile_bytes = tile, .slots = TILES_WITH_MESSAGES };
}

/* ---- questions ---- */
static bool algorithm_uses_only_messages(const struct algorithm *a) { return !a->host_memory && !a->hierarchical; }
static bool question_is_same(const struct question *a, const struct question *b)
{
    return a->collective == b->collective && a->algorithm == b->algorithm && a->message_bytes == b->message_bytes
        && a->placement == b->placement && a->uneven == b->uneven && a->must_read == b->must_read;
}
static tutti_status chooser_answer_question(struct chooser *x, const struct question *q, struct choice *out)
{
    struct choice made = { 0 };
    struct choice_answer *answers = memory_grow(x->answers, x->answer_count, &x->answer_room, sizeof *answers);
    if (!answers) return status_fail(TUTTI_NO_MEMORY, "no memory to remember a choice");
    x->answers = answers;
    TRY(chooser_compare_algorithms(x, q, &made));
    assert(made.algorithm && made.algorithm->collective == q->collective);
    answers[x->answer_count++] = (struct choice_answer){ *q, made };
    *out = made;
    return TUTTI_OK;
}
tutti_status chooser_make_choice(struct chooser *x, const struct question *asked, struct choice *out)
{
    struct question q = *asked;
    bool messages = q.algorithm && algorithm_uses_only_messages(q.algorithm);
    if (x->layout->hosts > 1 && q.algorithm && q.algorithm->host_memory)
        return status_fail(TUTTI_INVALID_ARGUMENT,
            "%s %s works on one host only, but the %d ranks are on %d hosts: choose another algorithm, or none",
            collective_name(q.collective), q.algorithm->name, x->layout->ranks, x->layout->hosts);
    if (x->layout->hosts > 1) q.placement = TENSORS_PRIVATE;
    q.must_read &= placement_is_open(q.placement);
    if (x->layout->ranks == 1 || messages || q.collective == BARRIER) {
        *out = chooser_take_only_candidate(x, &q);
        return TUTTI_OK;
    }
    q.message_bytes = size_floor_half_octave(q.message_bytes ? q.message_bytes : UNKNOWN_BYTES);
    for (int i = 0; i < x->answer_count; i++)
        if (question_is_same(&x->answers[i].question, &q)) { *out = x->answers[i].choice; return TUTTI_OK; }
    return chooser_answer_question(x, &q, out);
}
tutti_status choice_compute_cost(struct chooser *x, const struct question *q, struct choice *c)
{
    const struct plan *plan;
    int hosts = x->layout->hosts;
    c->cost = 0;
    if (x->layout->ranks == 1 || q->collective == BARRIER || (hosts == 1 && algorithm_uses_only_messages(c->algorithm)))
        return TUTTI_OK;
    struct machine machine;
    /* This comes before chooser_plan_algorithm, because it makes other plans. */
    TRY(chooser_scale_machine(x, q, c->reads, &machine));
    TRY(chooser_plan_algorithm(x, c->algorithm,
        hosts > 1 ? TENSORS_PRIVATE : placement_for_cost(q->placement, c->reads), &plan));
    struct cutting cutting = { q->message_bytes, c->tile_bytes, c->slots, chooser_cores_of_plan(x, plan) };
    TRY(plan_compute_cost(plan, &machine, &cutting, &c->cost));
    c->cost += chooser_cost_offer(x, c->reads);
    return TUTTI_OK;
}
tutti_status choice_writes_slots(struct chooser *x, const struct question *q, const struct choice *c, bool *out)
{
    const struct plan *plan;
    TRY(chooser_plan_algorithm(x, c->algorithm, placement_for_cost(q->placement, c->reads), &plan));
    *out = plan->ranks[0].chunks[SCRATCH] > 0;
    return TUTTI_OK;
}
bool chooser_considers_algorithm(const struct chooser *x, const struct algorithm *a)
{
    struct question q = { .collective = a->collective };
    return algorithm_is_candidate(x, &q, a);
}
void chooser_finish(struct chooser *x)
{
    free(x->answers);
    layout_destroy(x->sample);
    layout_destroy(x->pair);
    x->answers = NULL;
    x->sample = x->pair = NULL;
    x->answer_count = x->answer_room = 0;
}
double choice_cost_of_late_selection(const struct chooser *x, const struct choice *choice)
{
    return choice->cost > 0 ? machine_cost_of_round(&x->machine, x->layout->largest, x->cores) / choice->cost
                            : HUGE_VAL;
}
bool choice_selects_late(const struct chooser *x, const struct choice *choice)
{
    return choice_cost_of_late_selection(x, choice) <= LOOK_COSTS;
}
