/* The tuner tests choices while operations run. All ranks run the same choice in an operation, however far apart they
   are. The tuner finds a faster choice, also after times have changed. The tests cost little, and end when a rank asks
   for an algorithm. Times are simulated, and the order in which ranks go on is random. */
#include "backend/collectives/collectives.h"
#include "backend/tuning/tuners.h"
#include "tests/support/random.h"
#include "tests/support/unit.h"
#include "tests/unit/model/machines.h"
#include <math.h>

enum { RANKS = 3, KINDS = 4, OPERATIONS = 40000 };
static const size_t MIB = 1 << 20;
/* The factor from the times of the functions below to those that the tuner gets. These are so long that the real time
   of its search for variants is negligible. */
static const double UNIT = 1e6;

/* The tuners of a simulated group, and what their choices are made of. */
struct bench {
    struct layout *layout;
    struct chooser chooser;
    struct tuning tuning;
    struct tuners tuners;
    struct variant_limits limits;
};
static struct bench *bench_create(enum tuner_mode mode)
{
    struct bench *b = calloc(1, sizeof *b);
    assert_non_null(b);
    assert_int_equal(layout_create(NULL, RANKS, &b->layout), TUTTI_OK);
    b->chooser = (struct chooser){
        .layout = b->layout, .cache = plan_cache_create(SIZE_MAX, NULL, NULL), .cores = RANKS, .machine = near_cores
    };
    assert_non_null(b->chooser.cache);
    b->tuners.tuning = &b->tuning;
    b->tuners.mode = mode;
    b->limits = (struct variant_limits){ &b->chooser, true, HUGE_VAL, TENSORS_PRIVATE };
    return b;
}
static void bench_destroy(struct bench *b)
{
    tuners_finish(&b->tuners);
    chooser_finish(&b->chooser);
    plan_cache_destroy(b->chooser.cache);
    layout_destroy(b->layout);
    free(b);
}
static struct tuner *tuner_create(struct bench *b, const struct question *q, int root)
{
    struct tuner_key key = { q->collective, root, false, q->message_bytes };
    struct tuner *t, *again;
    struct choice predicted;
    assert_int_equal(tuners_find_or_create(&b->tuners, &key, &t), TUTTI_OK);
    assert_int_equal(tuners_find_or_create(&b->tuners, &key, &again), TUTTI_OK);
    assert_non_null(t);
    assert_ptr_equal(t, again);
    assert_int_equal(chooser_make_choice(&b->chooser, q, &predicted), TUTTI_OK);
    tuner_set_placement(t, q, &predicted);
    return t;
}
static uint32_t code_at(const struct tuner *t, uint64_t operation)
{
    return tuner_code_at(atomic_load(&t->line->word), operation);
}

/* ---- words and codes ---- */
static void test_word_has_the_codes_before_and_after_a_change(void **state)
{
    uint32_t most = (1u << CODE_BITS) - 1;
    uint64_t turn = (uint64_t)1 << FROM_BITS;
    (void)state;
    for (uint64_t from = 5; from < turn; from = 3 * from + 1)
        for (int times = 0; times < 3; times++) {
            uint64_t base = (uint64_t)times * turn, word = tuner_pack_word(base + from, 7, most);
            assert_int_equal(tuner_code_at(word, base + from - 1), 7);
            assert_int_equal(tuner_code_at(word, base + from), most);
            assert_int_equal(tuner_code_at(word, base + from + TRACKS), most);
        }
    /* A word that was never written stands for the predicted choice. */
    assert_int_equal(tuner_code_at(0, 12345), 0);
}
static void test_choices_have_codes_and_other_codes_are_refused(void **state)
{
    uint64_t seed = 11;
    int sound = 0;
    (void)state;
    for (uint32_t code = 0; code < 1u << CHOICE_BITS; code++) {
        struct choice c = { 0 };
        bool is_sound = choice_decode(code, ALLREDUCE, &c);
        if (!is_sound) continue;
        sound++;
        assert_int_equal(c.algorithm->collective, ALLREDUCE);
        assert_true(c.algorithm->host_memory && c.slots >= 1 && c.slots <= MAX_SLOTS);
        if (random_next(&seed) % 16 == 0) assert_int_equal(choice_encode(&c), code);
    }
    for (const struct algorithm *a = collectives_table; a->name; a++) {
        struct choice same, c = { .algorithm = a, .tile_bytes = MIB, .slots = MAX_SLOTS, .selects_late = true };
        if (!a->host_memory) continue;
        assert_true(choice_encode(&c) < 1u << CHOICE_BITS && choice_decode(choice_encode(&c), a->collective, &same));
        assert_true(same.algorithm == a && choice_code_selects_late(choice_encode(&c)));
    }
    /* The factors are those of algorithms, tiles, slots and four flags. */
    assert_int_equal(sound, 3 * 32 * MAX_SLOTS * 16);
}

/* ---- all ranks run the same ---- */
/* The operations of all ranks: the kind of each, its number, and the code that ran. The numbers between two operations
   belong to other operations, sometimes to very many. */
struct history {
    uint64_t apart;
    struct {
        int kind;
        uint64_t number;
        uint32_t code;
    } at[OPERATIONS + 1];
};
static struct history *history_create(uint64_t apart, uint64_t *seed)
{
    struct history *h = calloc(1, sizeof *h);
    uint64_t number = 0;
    assert_non_null(h);
    h->apart = apart;
    for (int i = 0; i <= OPERATIONS; i++) {
        uint64_t draw = random_next(seed), turn = (uint64_t)1 << FROM_BITS;
        number += draw % 300 ? 1 : draw / 300 % 3 ? turn / 2 - 20 + draw / 900 % 40 : 1 + draw / 900 % (2 * turn);
        h->at[i].kind = (int)((draw >> 32) % KINDS);
        h->at[i].number = number;
        h->at[i].code = UINT32_MAX;
    }
    return h;
}
/* Runs one operation of one rank. The decider begins the call at the tuner, and reports the time afterwards. */
static void step(struct bench *b, struct tuner *kinds[KINDS], int rank, int index, struct history *h, uint64_t *seed)
{
    struct tuner *t = kinds[h->at[index].kind];
    uint64_t operation = h->at[index].number;
    bool decides = rank == tuner_get_decider(&t->key, RANKS);
    if (decides) tuner_begin_call(&b->tuners, t, &(struct moment){ operation, h->apart, h->apart }, &b->limits);
    uint32_t code = code_at(t, operation);
    if (h->at[index].code == UINT32_MAX) h->at[index].code = code;
    assert_int_equal(h->at[index].code, code);
    if (decides && code & TUNER_TIMED) tuner_add_time(t, operation, UNIT * (1000 + (double)(random_next(seed) % 300)));
}
/* Runs all operations while ranks are up to `apart` operations apart. 0: all begin an operation before one begins the
   next. */
static void run_apart(enum tuner_mode mode, uint64_t apart, uint64_t seed)
{
    static const enum collective collectives[KINDS] = { ALLREDUCE, REDUCE, BROADCAST, ALLGATHER };
    struct bench *b = bench_create(mode);
    struct tuner *kinds[KINDS];
    struct history *h = history_create(apart, &seed);
    int at[RANKS] = { 0 }, least = 0, changes = 0;
    for (int k = 0; k < KINDS; k++)
        kinds[k] = tuner_create(b, &(struct question){ .collective = collectives[k], .message_bytes = MIB }, k % RANKS);
    while (least < OPERATIONS) {
        int rank = (int)(random_next(&seed) % RANKS), most = 1 + 8 * (int)(random_next(&seed) % 3);
        for (int n = 0; n < most && at[rank] < OPERATIONS; n++) {
            if (h->at[at[rank]].number >= h->at[least].number + (apart ? apart : 1)) break;
            step(b, kinds, rank, at[rank]++, h, &seed);
        }
        least = at[0];
        for (int r = 1; r < RANKS; r++) least = at[r] < least ? at[r] : least;
    }
    for (int i = 1; i < OPERATIONS; i++) changes += h->at[i].code != h->at[i - 1].code;
    assert_true(changes > OPERATIONS / 100);
    free(h);
    bench_destroy(b);
}
static void test_ranks_that_are_apart_run_the_same_choice(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        for (int apart = 0; apart <= TRACKS; apart += TRACKS) {
            run_apart(TUNER_ON, (uint64_t)apart, seed);
            run_apart(TUNER_TAKES_ANY_VARIANT, (uint64_t)apart, seed);
        }
    }
}

/* ---- faster choices ---- */
/* The times of an allreduce of 1 MiB: four slots of 128 KiB are best, with ordinary stores and a short ring. */
static double first_ns(const struct choice *c)
{
    double ns = 1000;
    if (c->tile_bytes != 128 << 10) ns += 60.0 * abs(__builtin_ctzll(c->tile_bytes) - 17);
    ns += 80.0 * (4 - c->slots) + (c->ordinary_stores ? 0 : 200) + (c->short_ring ? 0 : 100);
    return ns + (strcmp(c->algorithm->name, "one_shot") == 0 ? 3000 : 0);
}
/* The times after cores were moved: the opposite is best. */
static double then_ns(const struct choice *c)
{
    return 1000 + 80.0 * (c->slots - 2) + (c->ordinary_stores ? 200 : 0) + (c->short_ring ? 300 : 0)
        + (strcmp(c->algorithm->name, "one_shot") == 0 ? 3000 : 0);
}
typedef double cost(const struct choice *c);
/* The placement of tensors that late selection finds. */
static enum placement_kind found_placement;
/* Makes calls with noise, one in 50 of them interrupted. Returns the time of those that were not interrupted. */
static double call(struct bench *b, struct tuner *t, uint64_t *operation, int calls, cost *ns_of, uint64_t *seed)
{
    double spent = 0;
    for (int i = 0; i < calls; i++, ++*operation) {
        tuner_begin_call(&b->tuners, t, &(struct moment){ *operation, 0, 0 }, &b->limits);
        uint32_t code = code_at(t, *operation);
        struct choice runs = t->incumbent.choice;
        uint32_t chosen = code & ~(uint32_t)TUNER_TIMED;
        if (chosen) assert_true(choice_decode(chosen, ALLREDUCE, &runs));
        else assert_int_equal(chooser_make_choice(&b->chooser, &t->question, &runs), TUTTI_OK);
        if (choice_code_selects_late(chosen) || choice_code_reads(chosen)) tuner_report_placement(t, found_placement);
        double ns = ns_of(&runs) * (0.98 + (double)(random_next(seed) % 40) / 1000);
        if (random_next(seed) % 50 == 0) ns *= 20;
        else spent += ns;
        if (code & TUNER_TIMED) tuner_add_time(t, *operation, UNIT * ns);
    }
    return spent;
}
static void test_tuner_finds_the_best_choice_and_another_when_times_change(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct bench *b = bench_create(TUNER_ON);
        struct question q = { .collective = ALLREDUCE, .message_bytes = MIB };
        struct tuner *t = tuner_create(b, &q, 0);
        uint64_t operation = 0, noise = seed;
        call(b, t, &operation, 6000, first_ns, &noise);
        assert_true(first_ns(&t->incumbent.choice) <= 1.05 * 1000);
        call(b, t, &operation, 60000, then_ns, &noise);
        assert_true(then_ns(&t->incumbent.choice) <= 1.05 * 1000);
        bench_destroy(b);
    }
}
/* A variant against which the predicted cost decides takes a tenth less, and with small tiles 30 % less. */
static double late_selection_ns(const struct choice *c)
{
    return !c->selects_late ? 1000 : c->tile_bytes <= 32 << 10 ? 700 : 900;
}
static double read_ns(const struct choice *c)
{
    return !c->reads_private ? 1000 : c->tile_bytes <= 128 << 10 ? 700 : 900;
}
/* A variant that needs tensors of a certain placement: its times, the test of its codes, where the tensors may lie as
   far as this rank knows, and where those of all ranks lie. */
struct placement_variant { cost *ns; bool (*is_of)(uint32_t code); enum placement_kind could_be, are; };
static void run_variant_while_tensors_allow(struct bench *b, struct tuner *t,
    const struct placement_variant *placement_variant)
{
    uint64_t operation = 0, noise = 3;
    call(b, t, &operation, 6000, placement_variant->ns, &noise);
    /* This rank's tensors do not allow the variant. */
    assert_false(placement_variant->is_of(t->incumbent.code));
    b->limits.possible = placement_variant->could_be;
    found_placement = placement_variant->are;
    call(b, t, &operation, 6000, placement_variant->ns, &noise);
    assert_true(placement_variant->is_of(t->incumbent.code) && t->placement.seen == placement_variant->are);
    call(b, t, &operation, 20000, placement_variant->ns, &noise);
    assert_true(placement_variant->ns(&t->incumbent.choice) == 700);
    found_placement = TENSORS_PRIVATE;
    uint64_t before = operation, candidates = 0;
    for (int i = 0; i < 20000; i++) {
        call(b, t, &operation, 1, placement_variant->ns, &noise);
        candidates += placement_variant->is_of(code_at(t, operation - 1));
    }
    /* The tensors of other ranks do not allow the variant now, so it seldom runs. */
    assert_true(operation - before == 20000 && candidates < 200);
    b->limits.possible = TENSORS_PRIVATE;
    call(b, t, &operation, 3 * TRACKS, placement_variant->ns, &noise);
    for (int i = 0; i < 2000; i++) {
        call(b, t, &operation, 1, placement_variant->ns, &noise);
        assert_false(placement_variant->is_of(code_at(t, operation - 1)));
    }
}
static void test_late_selection_runs_while_it_is_faster(void **state)
{
    static const struct placement_variant look = { late_selection_ns, choice_code_selects_late, TENSORS_SHARED_IN_PLACE,
        TENSORS_SHARED_APART };
    struct bench *b = bench_create(TUNER_ON);
    struct question q = { .collective = ALLREDUCE, .message_bytes = 64 << 10 };
    (void)state;
    /* With this parameter the cost decides against late selection. */
    b->chooser.machine.line = 3000;
    struct tuner *t = tuner_create(b, &q, 0);
    assert_false(choice_selects_late(&b->chooser, &t->predicted));
    run_variant_while_tensors_allow(b, t, &look);
    bench_destroy(b);
}
static void test_single_copy_runs_while_it_is_faster(void **state)
{
    static const struct placement_variant reading = { read_ns, choice_code_reads, TENSORS_OPEN_IN_PLACE,
        TENSORS_OPEN_APART };
    struct bench *b = bench_create(TUNER_ON);
    struct question q = { .collective = ALLREDUCE, .message_bytes = MIB };
    (void)state;
    struct tuner *t = tuner_create(b, &q, 0);
    struct choice open;
    q.placement = TENSORS_OPEN_IN_PLACE;
    assert_int_equal(chooser_make_choice(&b->chooser, &q, &open), TUTTI_OK);
    /* The cost decides against single copy. */
    assert_false(open.reads_private);
    run_variant_while_tensors_allow(b, t, &reading);
    bench_destroy(b);
}
static void test_few_long_calls_are_enough(void **state)
{
    struct bench *b = bench_create(TUNER_ON);
    struct question q = { .collective = ALLREDUCE, .message_bytes = 64 * MIB };
    struct tuner *t = tuner_create(b, &q, 0);
    uint64_t operation = 0, noise = 3;
    (void)state;
    call(b, t, &operation, 100, first_ns, &noise);
    assert_true(first_ns(&t->incumbent.choice) < 0.95 * first_ns(&t->predicted));
    bench_destroy(b);
}
/* The predicted choice is the best, and all others take four times as long. */
static double nothing_else_ns(const struct choice *c)
{
    bool predicted = !c->ordinary_stores && !c->short_ring && c->slots == 2 && c->tile_bytes == 512 << 10;
    return strcmp(c->algorithm->name, "two_shot") == 0 && predicted ? 1000 : 4000;
}
static void test_tests_cost_little_if_the_prediction_is_best(void **state)
{
    struct bench *b = bench_create(TUNER_ON);
    struct question q = { .collective = ALLREDUCE, .message_bytes = MIB };
    struct tuner *t = tuner_create(b, &q, 0);
    uint64_t operation = 0, noise = 3;
    (void)state;
    assert_true(nothing_else_ns(&t->incumbent.choice) == 1000);
    double early = call(b, t, &operation, 1000, nothing_else_ns, &noise);
    double later = call(b, t, &operation, 100000, nothing_else_ns, &noise);
    assert_true(nothing_else_ns(&t->incumbent.choice) == 1000);
    /* The budget is a tenth of the first calls. One A/B test may exceed it. */
    assert_true(early < 1000 * 1000 * 1.3);
    assert_true(later < 1000 * 100000 * 1.03);
    bench_destroy(b);
}

/* ---- calls without tests ---- */
static void test_calls_without_times_are_seldom_timed(void **state)
{
    struct bench *b = bench_create(TUNER_ON);
    struct question q = { .collective = ALLREDUCE, .message_bytes = MIB };
    struct tuner *t = tuner_create(b, &q, 0);
    int timed = 0, calls = 20000;
    (void)state;
    for (int operation = 0; operation < calls; operation++) {
        tuner_begin_call(&b->tuners, t, &(struct moment){ (uint64_t)operation, 0, 0 }, &b->limits);
        timed += (code_at(t, (uint64_t)operation) & TUNER_TIMED) != 0;
    }
    assert_true(timed > 0 && timed < calls / 20);
    bench_destroy(b);
}
static void test_nothing_is_tested_if_the_tuner_is_off_or_stopped(void **state)
{
    (void)state;
    for (int off = 0; off < 2; off++) {
        struct bench *b = bench_create(off ? TUNER_OFF : TUNER_ON);
        struct question q = { .collective = ALLREDUCE, .message_bytes = MIB };
        struct tuner *t = tuner_create(b, &q, 0);
        uint64_t operation = 0, noise = 5;
        if (!off) tuners_stop_collective(&b->tuners, ALLREDUCE);
        call(b, t, &operation, 2000, first_ns, &noise);
        assert_int_equal(atomic_load(&t->line->word), 0);
        bench_destroy(b);
    }
}
static void test_stop_ends_a_running_test(void **state)
{
    (void)state;
    for (int calls = 0; calls < 400; calls += 7) {
        struct bench *b = bench_create(TUNER_ON);
        struct question q = { .collective = ALLREDUCE, .message_bytes = MIB };
        struct tuner *t = tuner_create(b, &q, 0);
        uint64_t operation = 0, noise = 5;
        call(b, t, &operation, calls, first_ns, &noise);
        tuners_stop_collective(&b->tuners, ALLREDUCE);
        call(b, t, &operation, 3 * TRACKS, first_ns, &noise);
        for (int i = 0; i < 100; i++) {
            call(b, t, &operation, 1, first_ns, &noise);
            assert_int_equal(code_at(t, operation), 0);
        }
        bench_destroy(b);
    }
}
static void test_number_of_tuners_is_limited(void **state)
{
    struct bench *b = bench_create(TUNER_ON);
    (void)state;
    /* The last key is the first one again. */
    for (size_t i = 0; i <= MOST_TUNERS + 1; i++) {
        struct tuner_key key = { ALLREDUCE, 0, false, i <= MOST_TUNERS ? 1000 + i : 1000 };
        struct tuner *found;
        assert_int_equal(tuners_find_or_create(&b->tuners, &key, &found), TUTTI_OK);
        assert_true((found != NULL) == (i != MOST_TUNERS));
    }
    bench_destroy(b);
}
unit_function test_tuner;
int test_tuner(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_word_has_the_codes_before_and_after_a_change),
        cmocka_unit_test(test_choices_have_codes_and_other_codes_are_refused),
        cmocka_unit_test(test_ranks_that_are_apart_run_the_same_choice),
        cmocka_unit_test(test_tuner_finds_the_best_choice_and_another_when_times_change),
        cmocka_unit_test(test_late_selection_runs_while_it_is_faster),
        cmocka_unit_test(test_single_copy_runs_while_it_is_faster),
        cmocka_unit_test(test_few_long_calls_are_enough),
        cmocka_unit_test(test_tests_cost_little_if_the_prediction_is_best),
        cmocka_unit_test(test_calls_without_times_are_seldom_timed),
        cmocka_unit_test(test_nothing_is_tested_if_the_tuner_is_off_or_stopped),
        cmocka_unit_test(test_stop_ends_a_running_test),
        cmocka_unit_test(test_number_of_tuners_is_limited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
