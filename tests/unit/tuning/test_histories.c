/* The tuner on a simulated machine. A scene has random factors, from which the time of a call follows for each choice.
   The machine jumps from scene to scene, as when a hypervisor moves the cores, and sometimes back. Calls are noisy, and
   some are interrupted. The goals hold over a thousand random histories. */
#include "backend/collectives/collectives.h"
#include "backend/tuning/tuners.h"
#include "tests/support/random.h"
#include "tests/support/unit.h"
#include "tests/unit/model/machines.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 2, SCENES = 4, ALGORITHMS = 8, LEAST_TILE = 14, MOST_TILE = 22, MOST_SLOTS = 4 };
/* After most jumps the incumbent must be good again within SOON calls, after nearly all within LATER calls. */
enum { SOON = 12, LATER = 40, NEVER = 1 << 20 };
/* The simulated time of a call. The tuner's search for candidates takes real time, which is negligible beside it. */
static const double UNIT = 1e6;                                         /* ns */

/* The factors of the time of each choice. `tile` is the power of two of the best tile. */
struct scene {
    double ns, stores, ring, tile_slope, slots_slope, algorithm[ALGORITHMS];
    int tile, slots;
    size_t message_bytes;
};
struct simulation {
    struct layout *layout;
    struct chooser chooser;
    struct tuning *tuning;
    struct tuners tuners;
    struct variant_limits limits;
    struct tuner *tuner;
    uint64_t operation, seed;
    /* The largest noise relative to the time, and the number of calls of which one is interrupted. */
    double noise;
    int calls_per_interruption;
};

/* ---- scenes ---- */
static double draw_factor(uint64_t *seed, double least, double most)
{
    return least * pow(most / least, (double)(random_next(seed) % 10001) / 10000);
}
static int draw_int(uint64_t *seed, int least, int most)
{
    return least + (int)(random_next(seed) % (uint64_t)(most - least + 1));
}
/* Returns the row of the algorithm among those of its collective. */
static int algorithm_row(const struct algorithm *algorithm)
{
    int row = 0;
    for (const struct algorithm *a = collectives_table; a != algorithm; a++)
        row += a->collective == algorithm->collective;
    return row % ALGORITHMS;
}
/* Draws a scene that differs from *from in half of its factors, or in all if `from` is NULL. */
static struct scene scene_draw(uint64_t *seed, const struct choice *predicted, const struct scene *from, size_t bytes)
{
    struct scene p = { .message_bytes = bytes,
        .ns = UNIT * draw_factor(seed, 0.25, 4),
        .stores = draw_factor(seed, 0.6, 1.6),
        .ring = draw_factor(seed, 0.8, 1.6),
        .tile_slope = draw_factor(seed, 0.02, 0.2),
        .slots_slope = draw_factor(seed, 0.02, 0.2),
        .tile = __builtin_ctzll(predicted->tile_bytes) + draw_int(seed, -1, 1),
        .slots = draw_int(seed, 2, 4) };
    for (int i = 0; i < ALGORITHMS; i++) p.algorithm[i] = draw_factor(seed, 1, 3);
    p.algorithm[random_next(seed) % 4 ? algorithm_row(predicted->algorithm) : draw_int(seed, 0, 2)] = 1;
    uint64_t same = from ? random_next(seed) : 0;
    if (same & 1) p.stores = from->stores;
    if (same & 2) p.ring = from->ring;
    if (same & 4) { p.tile = from->tile; p.tile_slope = from->tile_slope; }
    if (same & 8) { p.slots = from->slots; p.slots_slope = from->slots_slope; }
    if (same & 16) memcpy(p.algorithm, from->algorithm, sizeof p.algorithm);
    return p;
}
/* Returns the time of a choice. A message of one tile uses one slot. */
static double scene_ns(const struct scene *p, const struct choice *c)
{
    double ns = p->ns * p->algorithm[algorithm_row(c->algorithm)];
    if (c->ordinary_stores) ns *= p->stores;
    if (c->short_ring) ns *= p->ring;
    ns *= 1 + p->tile_slope * abs(__builtin_ctzll(c->tile_bytes) - p->tile);
    return c->tile_bytes >= p->message_bytes ? ns : ns * (1 + p->slots_slope * abs(c->slots - p->slots));
}
/* Returns the time of the best choice with this algorithm. */
static double scene_best_of(const struct scene *p, const struct algorithm *algorithm)
{
    double best = HUGE_VAL;
    for (int tile = LEAST_TILE; tile <= MOST_TILE; tile++)
        for (int rest = 0; rest < 4 * MOST_SLOTS; rest++) {
            struct choice c = { .algorithm = algorithm,
                .tile_bytes = (size_t)1 << tile,
                .slots = 1 + rest / 4,
                .ordinary_stores = rest & 1,
                .short_ring = rest >> 1 & 1 };
            best = fmin(best, scene_ns(p, &c));
        }
    return best;
}
static double scene_best_ns(const struct simulation *s, const struct scene *p)
{
    double best = HUGE_VAL;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        if (a->collective == ALLREDUCE && chooser_considers_algorithm(&s->chooser, a))
            best = fmin(best, scene_best_of(p, a));
    return best;
}

/* ---- calls ---- */
static void simulation_begin(struct simulation *s, uint64_t seed, size_t bytes)
{
    struct question q = { .collective = ALLREDUCE, .message_bytes = bytes };
    struct tuner_key key = { ALLREDUCE, 0, false, bytes };
    struct choice predicted;
    *s = (struct simulation){ .seed = seed };
    assert_int_equal(layout_create(NULL, RANKS, &s->layout), TUTTI_OK);
    s->chooser = (struct chooser){
        .layout = s->layout, .cache = plan_cache_create(SIZE_MAX, NULL, NULL), .cores = RANKS, .machine = near_cores
    };
    assert_non_null(s->chooser.cache);
    s->tuning = aligned_alloc(_Alignof(struct tuning), sizeof *s->tuning);
    assert_non_null(s->tuning);
    memset(s->tuning, 0, sizeof *s->tuning);
    s->tuners.tuning = s->tuning;
    s->tuners.mode = TUNER_ON;
    s->limits = (struct variant_limits){ &s->chooser, true, HUGE_VAL, TENSORS_PRIVATE };
    assert_int_equal(tuners_find_or_create(&s->tuners, &key, &s->tuner), TUTTI_OK);
    assert_int_equal(chooser_make_choice(&s->chooser, &q, &predicted), TUTTI_OK);
    tuner_set_placement(s->tuner, &q, &predicted);
    s->noise = draw_factor(&s->seed, 0.01, 0.1);
    s->calls_per_interruption = draw_int(&s->seed, 30, 300);
}
static void simulation_end(struct simulation *s)
{
    tuners_finish(&s->tuners);
    free(s->tuning);
    chooser_finish(&s->chooser);
    plan_cache_destroy(s->chooser.cache);
    layout_destroy(s->layout);
}
/* Runs a call. Returns its time without noise. */
static double simulation_call(struct simulation *s, const struct scene *p)
{
    struct tuner *t = s->tuner;
    bool watched;
    /* The other rank may be an operation behind. */
    tuner_begin_call(&s->tuners, t, &(struct moment){ s->operation, 1, 0 }, &s->limits);
    uint32_t code = tuner_count_call(t, s->operation, &watched), choice = code & ~(uint32_t)TUNER_TIMED;
    struct choice runs = t->predicted;
    if (choice) assert_true(choice_decode(choice, ALLREDUCE, &runs));
    double ns = scene_ns(p, &runs), seen = ns * (1 + s->noise * (double)(random_next(&s->seed) % 100) / 100);
    if (random_next(&s->seed) % (uint64_t)s->calls_per_interruption == 0) seen *= draw_factor(&s->seed, 1.5, 20);
    if (watched || code & TUNER_TIMED) tuner_add_watched_time(t, choice, seen);
    if (code & TUNER_TIMED) tuner_add_time(t, s->operation, seen);
    s->operation++;
    return ns;
}

/* ---- histories ---- */
/* The measurements of histories. regret: the time of a call divided by the best, summed over the calls of the second
   half of each stay in a scene. changes: of the incumbent, in the same calls. */
struct result {
    double regret, calls;
    int changes, jumps, soon, later, most_bad_in_a_row;
};
/* Counts how soon the incumbent was good after a jump. */
static void result_add_jump(struct result *r, int calls_until_good, int bad_in_a_row)
{
    r->jumps++;
    r->soon += calls_until_good <= SOON;
    r->later += calls_until_good <= LATER;
    if (bad_in_a_row > r->most_bad_in_a_row) r->most_bad_in_a_row = bad_in_a_row;
}
/* Stays in a scene for some calls. noticeable: the jump to this scene has changed the time of a call by half, and made
   the incumbent worse than 1.2 times the best. A smaller change is found by A/B tests, much later. */
static void simulation_stay(struct simulation *s, const struct scene *p, int calls, bool noticeable, struct result *r)
{
    double best = scene_best_ns(s, p);
    int until_good = NEVER, bad = 0, most_bad = 0;
    for (int n = 0; n < calls; n++) {
        uint32_t incumbent = s->tuner->incumbent.code;
        double ns = simulation_call(s, p);
        bool is_good = scene_ns(p, &s->tuner->incumbent.choice) <= 1.2 * best;
        if (!is_good && n <= LATER) until_good = NEVER;
        if (is_good && until_good == NEVER) until_good = n;
        bad = ns > 3 * best ? bad + 1 : 0;
        if (bad > most_bad) most_bad = bad;
        if (n < calls / 2) continue;
        r->regret += ns / best;
        r->calls++;
        r->changes += s->tuner->incumbent.code != incumbent;
    }
    if (noticeable) result_add_jump(r, until_good, most_bad);
}
static bool jump_is_noticeable(const struct simulation *s, const struct scene *from, const struct scene *to)
{
    const struct choice *incumbent = &s->tuner->incumbent.choice;
    double before = scene_ns(from, incumbent), now = scene_ns(to, incumbent);
    return (now > 1.55 * before || now * 1.7 < before) && now > 1.2 * scene_best_ns(s, to);
}
static void run_history(uint64_t seed, size_t bytes, int calls, struct result *r)
{
    struct simulation s;
    struct scene scenes[SCENES];
    simulation_begin(&s, seed, bytes);
    for (int i = 0; i < SCENES; i++) {
        bool comes_back = i > 1 && random_next(&s.seed) % 2;
        scenes[i] =
            comes_back ? scenes[i - 2] : scene_draw(&s.seed, &s.tuner->predicted, i ? &scenes[i - 1] : NULL, bytes);
        simulation_stay(&s, &scenes[i], calls, i && jump_is_noticeable(&s, &scenes[i - 1], &scenes[i]), r);
    }
    simulation_end(&s);
}
static struct result run_histories(int histories, size_t bytes, int calls)
{
    struct result r = { 0 };
    for (int i = 1; i <= histories; i++) run_history((uint64_t)i * 7919, bytes, calls, &r);
    print_message("%zu KiB: regret %.3f; %.2f changes in 1,000 calls; of %d jumps %.1f %% good within %d calls, "
                  "%.1f %% within %d; at most %d calls in a row beyond 3 times the best\n",
        bytes >> 10, r.regret / r.calls, 1000 * r.changes / r.calls, r.jumps, 100.0 * r.soon / r.jumps, SOON,
        100.0 * r.later / r.jumps, LATER, r.most_bad_in_a_row);
    return r;
}
/* A survey tries eight choices, so it finds most changes, but not all (docs/decisions/when-the-machine-changes.md). */
static void test_tuner_follows_a_machine_that_jumps(void **state)
{
    (void)state;
    for (size_t bytes = 1 << 20; bytes <= 16 << 20; bytes <<= 4) {
        struct result r = run_histories(500, bytes, 3000);
        assert_true(r.regret <= 1.05 * r.calls);
        assert_true(r.jumps > 300 && r.soon >= 0.75 * r.jumps && r.later >= 0.9 * r.jumps);
        assert_true(r.most_bad_in_a_row <= 20);
        assert_true(r.changes <= r.calls / 5000);
    }
}
/* Only one in 64 short calls is watched, so the tuner notices a change later. */
static void test_tuner_follows_with_short_calls(void **state)
{
    struct result r = run_histories(100, 64 << 10, 15000);
    (void)state;
    assert_true(r.regret <= 1.05 * r.calls);
    assert_true(r.changes <= r.calls / 5000);
}
/* If the predicted choice is the best, and anything else takes 1.2 to 4 times as long, the search for a better one
   costs little. */
static void test_search_costs_at_most_3_percent(void **state)
{
    double worst = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct simulation s;
        double spent = 0, best = 0;
        simulation_begin(&s, seed, 4 << 10);
        struct scene p = { .message_bytes = 4 << 10,
            .ns = 500,
            .stores = draw_factor(&s.seed, 1.2, 4),
            .ring = 1.3,
            .tile_slope = 0.2,
            .slots_slope = 0.2,
            .tile = __builtin_ctzll(s.tuner->predicted.tile_bytes),
            .slots = s.tuner->predicted.slots };
        for (int i = 0; i < ALGORITHMS; i++) p.algorithm[i] = 4;
        p.algorithm[algorithm_row(s.tuner->predicted.algorithm)] = 1;
        for (int n = 0; n < 15000; n++) {
            spent += simulation_call(&s, &p);
            best += p.ns;
        }
        worst = fmax(worst, spent / best);
        simulation_end(&s);
    }
    print_message("4 KiB: at most %.4f of the time without a search\n", worst);
    assert_true(worst <= 1.03);
}
unit_function test_histories;
int test_histories(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tuner_follows_a_machine_that_jumps),
        cmocka_unit_test(test_tuner_follows_with_short_calls),
        cmocka_unit_test(test_search_costs_at_most_3_percent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
