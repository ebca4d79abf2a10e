/* Choices tried while operations run: all ranks run the same however far they are apart, what takes less is found and
   found again when times change, trying costs what it may, and who asks for an algorithm is left alone. Times are those
   of a table; which rank goes on next is drawn. */
#include "backend/collectives/collectives.h"
#include "backend/tuning/tuners.h"
#include "tests/support/random.h"
#include "tests/support/unit.h"
#include "tests/unit/model/machines.h"
#include <math.h>

enum { RANKS = 3, KINDS = 4, OPERATIONS = 40000 };
static const size_t MIB = 1 << 20;
/* Calls of a second: beside them it counts for nothing how long this machine looks for a variant, which is real. */
static const double UNIT = 1e6;

struct bench {                                          /* a decider, and what its choices are made of */
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
static struct tuner *add(struct bench *b, const struct question *q, int root)
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

/* ---- words ---- */
static void a_word_says_what_runs_before_and_after(void **state)
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
    assert_int_equal(tuner_code_at(0, 12345), 0);       /* nothing has been written: as predicted */
}
static void a_choice_is_a_number_and_nonsense_is_none(void **state)
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
    assert_int_equal(sound, 3 * 32 * MAX_SLOTS * 16);   /* algorithms, tiles, slots, four answers of yes or no */
}

/* ---- all ranks run the same ---- */
/* What all do: of which kind each operation is, which number it has (others may lie between it and the one before, now
   and then very many), and what ran. */
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
/* One operation of one rank: who decides goes first, and learns how long it took. */
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
/* 0: all begin an operation before one begins the next. */
static void run_apart(enum tuner_mode mode, uint64_t apart, uint64_t seed)
{
    static const enum collective collectives[KINDS] = { ALLREDUCE, REDUCE, BROADCAST, ALLGATHER };
    struct bench *b = bench_create(mode);
    struct tuner *kinds[KINDS];
    struct history *h = history_create(apart, &seed);
    int at[RANKS] = { 0 }, least = 0, changes = 0;
    for (int k = 0; k < KINDS; k++)
        kinds[k] = add(b, &(struct question){ .collective = collectives[k], .message_bytes = MIB }, k % RANKS);
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
static void ranks_that_are_apart_run_the_same(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        for (int apart = 0; apart <= TRACKS; apart += TRACKS) {
            run_apart(TUNER_ON, (uint64_t)apart, seed);
            run_apart(TUNER_TAKES_ANY_VARIANT, (uint64_t)apart, seed);
        }
    }
}

/* ---- what takes less ---- */
/* Of an allreduce of 1 MiB: four tiles of 128 KiB are best, and ordinary stores, and slots that come round soon. */
static double first_ns(const struct choice *c)
{
    double ns = 1000;
    if (c->tile_bytes != 128 << 10) ns += 60.0 * abs(__builtin_ctzll(c->tile_bytes) - 17);
    ns += 80.0 * (4 - c->slots) + (c->ordinary_stores ? 0 : 200) + (c->short_ring ? 0 : 100);
    return ns + (strcmp(c->algorithm->name, "one_shot") == 0 ? 3000 : 0);
}
/* When cores have been moved: the opposite. */
static double then_ns(const struct choice *c)
{
    return 1000 + 80.0 * (c->slots - 2) + (c->ordinary_stores ? 200 : 0) + (c->short_ring ? 300 : 0)
        + (strcmp(c->algorithm->name, "one_shot") == 0 ? 3000 : 0);
}
typedef double cost(const struct choice *c);
static enum placement_kind lies;                        /* what who looks sees */
/* So many calls with so much noise, and sometimes an interruption; returns what they took beyond the best. */
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
        if (choice_code_selects_late(chosen) || choice_code_reads(chosen)) tuner_report_placement(t, lies);
        double ns = ns_of(&runs) * (0.98 + (double)(random_next(seed) % 40) / 1000);
        if (random_next(seed) % 50 == 0) ns *= 20;
        else spent += ns;
        if (code & TUNER_TIMED) tuner_add_time(t, *operation, UNIT * ns);
    }
    return spent;
}
static void what_takes_less_is_found_and_found_again(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct bench *b = bench_create(TUNER_ON);
        struct question q = { .collective = ALLREDUCE, .message_bytes = MIB };
        struct tuner *t = add(b, &q, 0);
        uint64_t operation = 0, noise = seed;
        call(b, t, &operation, 6000, first_ns, &noise);
        assert_true(first_ns(&t->incumbent.choice) <= 1.05 * 1000);
        call(b, t, &operation, 60000, then_ns, &noise);
        assert_true(then_ns(&t->incumbent.choice) <= 1.05 * 1000);
        bench_destroy(b);
    }
}
/* What is done in spite of the cost takes a tenth less, and with small tiles another fifth. */
static double looked_ns(const struct choice *c)
{
    return !c->selects_late ? 1000 : c->tile_bytes <= 32 << 10 ? 700 : 900;
}
static double read_ns(const struct choice *c)
{
    return !c->reads_private ? 1000 : c->tile_bytes <= 128 << 10 ? 700 : 900;
}
struct venture { cost *ns; bool (*is_of)(uint32_t code); enum placement_kind could_be, are; };
static void lasts_as_long_as_tensors_allow(struct bench *b, struct tuner *t, const struct venture *venture)
{
    uint64_t operation = 0, noise = 3;
    call(b, t, &operation, 6000, venture->ns, &noise);
    assert_false(venture->is_of(t->incumbent.code));         /* this rank's tensors do not allow it */
    b->limits.possible = venture->could_be;
    lies = venture->are;                                /* as the others' are; a choice of another cost */
    call(b, t, &operation, 6000, venture->ns, &noise);
    assert_true(venture->is_of(t->incumbent.code) && t->placement.seen == venture->are);
    call(b, t, &operation, 20000, venture->ns, &noise);
    assert_true(venture->ns(&t->incumbent.choice) == 700);
    lies = TENSORS_PRIVATE;
    uint64_t before = operation, candidates = 0;
    for (int i = 0; i < 20000; i++) {
        call(b, t, &operation, 1, venture->ns, &noise);
        candidates += venture->is_of(code_at(t, operation - 1));
    }
    assert_true(operation - before == 20000 && candidates < 200);         /* seldom, although this rank's allow it */
    b->limits.possible = TENSORS_PRIVATE;
    call(b, t, &operation, 3 * TRACKS, venture->ns, &noise);
    for (int i = 0; i < 2000; i++) {
        call(b, t, &operation, 1, venture->ns, &noise);
        assert_false(venture->is_of(code_at(t, operation - 1)));
    }
}
static void shared_tensors_are_looked_at_as_long_as_that_takes_less(void **state)
{
    static const struct venture look = { looked_ns, choice_code_selects_late, TENSORS_SHARED_IN_PLACE,
        TENSORS_SHARED_APART };
    struct bench *b = bench_create(TUNER_ON);
    struct question q = { .collective = ALLREDUCE, .message_bytes = 64 << 10 };
    (void)state;
    b->chooser.machine.line = 3000;                     /* so it does not look by cost */
    struct tuner *t = add(b, &q, 0);
    assert_false(choice_selects_late(&b->chooser, &t->predicted));
    lasts_as_long_as_tensors_allow(b, t, &look);
    bench_destroy(b);
}
static void private_tensors_are_read_as_long_as_that_takes_less(void **state)
{
    static const struct venture reading = { read_ns, choice_code_reads, TENSORS_OPEN_IN_PLACE, TENSORS_OPEN_APART };
    struct bench *b = bench_create(TUNER_ON);
    struct question q = { .collective = ALLREDUCE, .message_bytes = MIB };
    (void)state;
    struct tuner *t = add(b, &q, 0);
    struct choice open;
    q.placement = TENSORS_OPEN_IN_PLACE;
    assert_int_equal(chooser_make_choice(&b->chooser, &q, &open), TUTTI_OK);
    assert_false(open.reads_private);                           /* by cost */
    lasts_as_long_as_tensors_allow(b, t, &reading);
    bench_destroy(b);
}
static void of_long_calls_few_are_enough(void **state)
{
    struct bench *b = bench_create(TUNER_ON);
    struct question q = { .collective = ALLREDUCE, .message_bytes = 64 * MIB };
    struct tuner *t = add(b, &q, 0);
    uint64_t operation = 0, noise = 3;
    (void)state;
    call(b, t, &operation, 100, first_ns, &noise);
    assert_true(first_ns(&t->incumbent.choice) < 0.95 * first_ns(&t->predicted));
    bench_destroy(b);
}
/* What is predicted is the best, and all else takes four times as long. */
static double nothing_else_ns(const struct choice *c)
{
    bool predicted = !c->ordinary_stores && !c->short_ring && c->slots == 2 && c->tile_bytes == 512 << 10;
    return strcmp(c->algorithm->name, "two_shot") == 0 && predicted ? 1000 : 4000;
}
static void trying_costs_little(void **state)
{
    struct bench *b = bench_create(TUNER_ON);
    struct question q = { .collective = ALLREDUCE, .message_bytes = MIB };
    struct tuner *t = add(b, &q, 0);
    uint64_t operation = 0, noise = 3;
    (void)state;
    assert_true(nothing_else_ns(&t->incumbent.choice) == 1000);
    double early = call(b, t, &operation, 1000, nothing_else_ns, &noise);
    double later = call(b, t, &operation, 100000, nothing_else_ns, &noise);
    assert_true(nothing_else_ns(&t->incumbent.choice) == 1000);
    assert_true(early < 1000 * 1000 * 1.3);             /* a tenth, and one A/B test more that nobody could foresee */
    assert_true(later < 1000 * 100000 * 1.03);
    bench_destroy(b);
}

/* ---- who is left alone ---- */
static void what_nobody_times_is_seldom_asked_for(void **state)
{
    struct bench *b = bench_create(TUNER_ON);
    struct question q = { .collective = ALLREDUCE, .message_bytes = MIB };
    struct tuner *t = add(b, &q, 0);
    int timed = 0, calls = 20000;
    (void)state;
    for (int operation = 0; operation < calls; operation++) {
        tuner_begin_call(&b->tuners, t, &(struct moment){ (uint64_t)operation, 0, 0 }, &b->limits);
        timed += (code_at(t, (uint64_t)operation) & TUNER_TIMED) != 0;
    }
    assert_true(timed > 0 && timed < calls / 20);
    bench_destroy(b);
}
static void nothing_is_tried_where_somebody_asks_or_it_is_off(void **state)
{
    (void)state;
    for (int off = 0; off < 2; off++) {
        struct bench *b = bench_create(off ? TUNER_OFF : TUNER_ON);
        struct question q = { .collective = ALLREDUCE, .message_bytes = MIB };
        struct tuner *t = add(b, &q, 0);
        uint64_t operation = 0, noise = 5;
        if (!off) tuners_stop_collective(&b->tuners, ALLREDUCE);
        call(b, t, &operation, 2000, first_ns, &noise);
        assert_int_equal(atomic_load(&t->line->word), 0);
        bench_destroy(b);
    }
}
static void what_was_tried_ends_when_somebody_asks(void **state)
{
    (void)state;
    for (int calls = 0; calls < 400; calls += 7) {
        struct bench *b = bench_create(TUNER_ON);
        struct question q = { .collective = ALLREDUCE, .message_bytes = MIB };
        struct tuner *t = add(b, &q, 0);
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
static void there_are_so_many_kinds_and_no_more(void **state)
{
    struct bench *b = bench_create(TUNER_ON);
    (void)state;
    for (size_t i = 0; i <= MOST_TUNERS + 1; i++) {          /* the last is the first again */
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
        cmocka_unit_test(a_word_says_what_runs_before_and_after),
        cmocka_unit_test(a_choice_is_a_number_and_nonsense_is_none),
        cmocka_unit_test(ranks_that_are_apart_run_the_same),
        cmocka_unit_test(what_takes_less_is_found_and_found_again),
        cmocka_unit_test(shared_tensors_are_looked_at_as_long_as_that_takes_less),
        cmocka_unit_test(private_tensors_are_read_as_long_as_that_takes_less),
        cmocka_unit_test(of_long_calls_few_are_enough),
        cmocka_unit_test(trying_costs_little),
        cmocka_unit_test(what_nobody_times_is_seldom_asked_for),
        cmocka_unit_test(nothing_is_tried_where_somebody_asks_or_it_is_off),
        cmocka_unit_test(what_was_tried_ends_when_somebody_asks),
        cmocka_unit_test(there_are_so_many_kinds_and_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
