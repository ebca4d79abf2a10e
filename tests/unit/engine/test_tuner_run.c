/* Operations of which another choice runs every few calls, whatever it costs (TUTTI_TUNER=2): results are those of
   always, on private and on shared tensors, among small one-sided operations in which ranks are apart. Who asks for an
   algorithm alone has it, and is told if it comes too late for that. */
#include "backend/engine/comm.h"
#include "tests/support/random.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"

#ifdef FEW
enum { CALLS = 300, LOOKS = 0 };                        /* too few to come to all variants */
#else
enum { CALLS = 3000, LOOKS = 1 };
#endif
enum { MOST_RANKS = 4, MOST_FLOATS = 1 << 16, DIFFERENT = 10 };
enum what { SUM, SCATTERED_SUM, GATHERED, EXCHANGED, TO_ROOT, FROM_ROOT };
static const struct kind {
    enum what what;
    size_t floats;
    int root;
} kinds[] = {
    /* floats of one rank's part */
    { SUM, 1 << 11, 0 },
    { SUM, 50000, 0 },
    { SUM, 16, 0 },
    { SCATTERED_SUM, 9000, 0 },
    { GATHERED, 2048, 0 },
    { GATHERED, 12345, 0 },
    { EXCHANGED, 3000, 0 },
    { TO_ROOT, 20000, 1 },
    { TO_ROOT, 1024, 0 },
    { TO_ROOT, 100, 0 },
    { FROM_ROOT, 30000, 1 },
    { FROM_ROOT, 1024, 0 },
    { FROM_ROOT, 32, 1 },
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static float value(int call, int rank, size_t i) { return (float)((call * 7 + rank * 31 + (int)(i % 97)) % 1000); }
/* The result of one rank at index i; of FROM_ROOT all have it, of TO_ROOT the root. */
static float expected(const struct kind *k, int call, int rank, int size, size_t i)
{
    float sum = 0;
    size_t n = k->floats, from = i / n, at = k->what == SCATTERED_SUM ? (size_t)rank * n + i : i;
    if (k->what == GATHERED) return value(call, (int)from, i % n);
    if (k->what == EXCHANGED) return value(call, (int)from, (size_t)rank * n + i % n);
    if (k->what == FROM_ROOT) return value(call, k->root, i);
    for (int r = 0; r < size; r++) sum += value(call, r, at);
    return sum;
}
static tutti_status run(const struct kind *k, struct rank *me, const float *in, float *out)
{
    tutti_comm *c = me->comm;
    size_t n = k->floats;
    switch (k->what) {
    case SUM: return tutti_all_reduce(in, out, n, TUTTI_FLOAT32, TUTTI_SUM, c, NULL);
    case SCATTERED_SUM: return tutti_reduce_scatter(in, out, n, TUTTI_FLOAT32, TUTTI_SUM, c, NULL);
    case GATHERED: return tutti_all_gather(in, out, n, TUTTI_FLOAT32, c, NULL);
    case EXCHANGED: return tutti_all_to_all(in, out, n, TUTTI_FLOAT32, c, NULL);
    case TO_ROOT: return tutti_reduce(in, out, n, TUTTI_FLOAT32, TUTTI_SUM, k->root, c, NULL);
    default: return tutti_broadcast(in, out, n, TUTTI_FLOAT32, k->root, c, NULL);
    }
}
static size_t parts(const struct kind *k, int size, bool output)
{
    bool many = k->what == EXCHANGED || (output ? k->what == GATHERED : k->what == SCATTERED_SUM);
    return k->floats * (size_t)(many ? size : 1);
}
static void call(struct rank *me, int number, const struct kind *k, float *in, float *out)
{
    for (size_t i = 0; i < parts(k, me->size, false); i++) in[i] = value(number, me->rank, i);
    REQUIRE(run(k, me, in, out) == TUTTI_OK);
    if (k->what == TO_ROOT && me->rank != k->root) return;
    for (size_t i = 0; i < parts(k, me->size, true); i += i % 64 == 63 ? 257 : 1)
        REQUIRE(out[i] == expected(k, number, me->rank, me->size, i));
}
struct seen { uint32_t code[DIFFERENT]; int count, looked[2]; };        /* at private tensors, at shared ones */
static void seen_add_code(struct seen *s, uint32_t code)
{
    for (int i = 0; i < s->count; i++)
        if (s->code[i] == code) return;
    if (s->count < DIFFERENT) s->code[s->count++] = code;
}
struct expected_calls { int different; bool look; };    /* look: some, although that is not cheap */
/* What it sees is where all tensors lie. */
static void seen_add_late(struct seen *s, const struct rank *me, bool shared)
{
    const struct launcher *l = &me->comm->launcher;
    s->looked[shared]++;
    REQUIRE(l->recent[l->last.collective].shared[0] == (shared ? (1u << me->size) - 1 : 0));
}
/* Large ones with two kinds of tensors in turns: a few hundred calls each. */
static void calls_main(struct rank *me)
{
    static const size_t bytes = MOST_RANKS * MOST_FLOATS * sizeof(float);
    void *tensors[4] = { malloc(bytes), malloc(bytes) };
    uint64_t seed = 77;
    struct seen seen = { .count = 0 };
    REQUIRE(tensors[0] && tensors[1]);
    REQUIRE(tutti_mem_alloc(&tensors[2], bytes) == TUTTI_OK && tutti_mem_alloc(&tensors[3], bytes) == TUTTI_OK);
    for (int number = 0; number < CALLS; number++) {
        uint64_t draw = random_next(&seed);
        int shared = number / 250 % 2 * 2, rows = draw % 64 == 0 ? 20 : 1;     /* now and then many of one kind */
        const struct kind *k = &kinds[draw / 64 % KINDS];
        if (k->root >= me->size) continue;
        for (int i = 0; i < rows; i++) call(me, number, k, tensors[shared], tensors[shared + 1]);
        seen_add_code(&seen, me->comm->launcher.code);
        if (choice_code_selects_late(me->comm->launcher.code)) seen_add_late(&seen, me, shared);
    }
    const struct expected_calls *expected_calls = me->context;
    REQUIRE(seen.count == expected_calls->different);
    REQUIRE(!expected_calls->look || (seen.looked[1] >= LOOKS && seen.looked[0] <= seen.looked[1]));
    free(tensors[0]);
    free(tensors[1]);
    tutti_mem_free(tensors[2]);
    tutti_mem_free(tensors[3]);
}
static void results_are_those_of_always(void **state)
{
    struct expected_calls some = { DIFFERENT, false }, look = { DIFFERENT, true };
    (void)state;
    world_set("TUTTI_TUNER", "2");
    for (int size = 2; size <= MOST_RANKS; size++) world_threads(size, NULL, calls_main, &some);
    world_set("TUTTI_MACHINE", "line=300");             /* as of cores so far apart that few calls look by cost */
    world_threads(2, NULL, calls_main, &look);
    world_set("TUTTI_MACHINE", NULL);
    world_set("TUTTI_TUNER", NULL);
}
static void nothing_is_tried_if_it_is_off(void **state)
{
    struct expected_calls nothing = { 1, false };
    (void)state;
    world_set("TUTTI_TUNER", "0");
    world_threads(2, NULL, calls_main, &nothing);
    world_set("TUTTI_TUNER", NULL);
}
/* All say when they begin and end, and so blocks come to an end: of four kinds in turns; of calls in which who only
   sends is ahead (4 KiB to the root, which decides). */
static void timed_main(struct rank *me)
{
    static const struct kind four[] = { { SUM, 4000, 0 }, { GATHERED, 4000, 0 }, { EXCHANGED, 4000, 0 },
        { SCATTERED_SUM, 4000, 0 } },
                             to_root = { TO_ROOT, 1024, 0 };
    static const enum collective collectives[] = { ALLREDUCE, ALLGATHER, ALL_TO_ALL, REDUCE_SCATTER };
    const struct launcher *l = &me->comm->launcher;
    float *in = malloc(64000), *out = malloc(64000);
    REQUIRE(in && out);
    for (int number = 0; number < 4000; number++)
        for (int k = 0; k < 4; k++) call(me, number, &four[k], in, out);
    for (int number = 0; number < 4000; number++) call(me, number, &to_root, in, out);
    for (int k = 0; k < 5 && me->rank == 0 && l->tuners.mode == TUNER_ON; k++) {
        const struct tuner *t = l->recent[k < 4 ? collectives[k] : REDUCE].tuner;
        REQUIRE(tuner_get_decider(&t->key, me->size) == 0 && (t->budget.lost > 0 || t->budget.opened > 0));
    }
    free(in);
    free(out);
}
static void what_is_tried_is_timed_by_all(void **state)
{
    (void)state;
    world_set("TUTTI_TUNER", "1");
    world_threads(2, NULL, timed_main, NULL);
    world_set("TUTTI_TUNER", NULL);
}
/* Makes the tuner believe that its calls have become slow, so that it begins a survey. */
static void alarm_raise(struct tuner *tuner)
{
    tuner->watch =
        (struct watch){ .usual_ns = 1, .learned = WATCH_SAMPLES, .slow = WATCH_SLOW_CALLS, .level_ns = 1e12 };
    tuner->survey.next_call = 0;
}
/* Surveys one after another, in calls in which all ranks meet and in calls in which some only send. */
static void surveys_main(struct rank *me)
{
    static const struct kind four[] = { { SUM, 50000, 0 }, { TO_ROOT, 20000, 1 }, { FROM_ROOT, 1024, 0 },
        { EXCHANGED, 3000, 0 } };
    static const enum collective collectives[] = { ALLREDUCE, REDUCE, BROADCAST, ALL_TO_ALL };
    size_t bytes = MOST_RANKS * 50000 * sizeof(float);
    float *in = malloc(bytes), *out = malloc(bytes);
    REQUIRE(in && out);
    me->comm->launcher.tuners.mode = TUNER_ON;          /* also if ranks share cores */
    for (int k = 0; k < 4; k++) {
        uint64_t surveys = 0, last = 0;
        for (int number = 0; number < 600; number++) {
            call(me, number, &four[k], in, out);
            struct tuner *tuner = me->comm->launcher.recent[collectives[k]].tuner;
            if (tuner_get_decider(&tuner->key, me->size) != me->rank) continue;
            surveys += tuner->survey.from != last;
            last = tuner->survey.from;
            if (!tuner->survey.is_running) alarm_raise(tuner);
            REQUIRE(number < 599 || surveys > 4);
        }
    }
    free(in);
    free(out);
}
static void surveys_change_no_result(void **state)
{
    (void)state;
    world_set("TUTTI_TUNER", "1");
    for (int size = 2; size <= MOST_RANKS; size++) world_threads(size, NULL, surveys_main, NULL);
    world_set("TUTTI_MACHINE", "line=3000");            /* so that no small call looks where tensors lie */
    world_threads(3, NULL, surveys_main, NULL);
    world_set("TUTTI_MACHINE", NULL);
    world_set("TUTTI_TUNER", NULL);
}
static const char *predicted_for(struct rank *me, const struct kind *sum)
{
    struct question q = { .collective = ALLREDUCE, .message_bytes = sum->floats * sizeof(float) };
    struct choice predicted;
    REQUIRE(launch_predict_cost(me->comm, &q, false, &predicted) == TUTTI_OK);
    return predicted.algorithm->name;
}
/* One rank asks for what all would have taken: the others try nothing in its place. */
static void asker_main(struct rank *me)
{
    const struct kind sum = { SUM, 50000, 0 };
    float *in = malloc(sum.floats * sizeof *in), *out = malloc(sum.floats * sizeof *out);
    const char *predicted = predicted_for(me, &sum);
    REQUIRE(in && out);
    if (me->rank == 1) REQUIRE(tutti_comm_set_algorithm(me->comm, "allreduce", predicted) == TUTTI_OK);
    for (int number = 0; number < 300; number++) {
        call(me, number, &sum, in, out);
        REQUIRE(me->comm->launcher.code == 0);
    }
    free(in);
    free(out);
}
static void who_asks_alone_is_left_alone(void **state)
{
    (void)state;
    world_set("TUTTI_TUNER", "2");
    world_threads(3, NULL, asker_main, NULL);
    world_set("TUTTI_TUNER", NULL);
}
/* When others already try something else, it is a disagreement, and the words say about what. */
static void late_asker_main(struct rank *me)
{
    const struct kind sum = { SUM, 50000, 0 };
    float *in = calloc(sum.floats, sizeof *in), *out = calloc(sum.floats, sizeof *out);
    const char *predicted = predicted_for(me, &sum);
    tutti_status status = TUTTI_OK;
    REQUIRE(in && out);
    for (int number = 0; number < 300 && status == TUTTI_OK; number++) {
        bool asks = me->rank == 1 && number == 60;
        if (asks) REQUIRE(tutti_comm_set_algorithm(me->comm, "allreduce", predicted) == TUTTI_OK);
        status = run(&sum, me, in, out);
        REQUIRE(status == TUTTI_OK || number >= 60);
    }
    REQUIRE(status == TUTTI_MISMATCH);
    REQUIRE(strstr(tutti_get_last_error(), "ranks disagree about operation 61"));
    REQUIRE(strstr(tutti_get_last_error(), "trying another way (TUTTI_TUNER)"));
    free(in);
    free(out);
}
static void who_asks_late_is_told(void **state)
{
    (void)state;
    world_set("TUTTI_TUNER", "2");
    world_threads(2, NULL, late_asker_main, NULL);
    world_set("TUTTI_TUNER", NULL);
}
unit_function test_tuner_run;
int test_tuner_run(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_those_of_always),
        cmocka_unit_test(nothing_is_tried_if_it_is_off),
        cmocka_unit_test(what_is_tried_is_timed_by_all),
        cmocka_unit_test(surveys_change_no_result),
        cmocka_unit_test(who_asks_alone_is_left_alone),
        cmocka_unit_test(who_asks_late_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
