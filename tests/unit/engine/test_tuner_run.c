/* Operations for which another choice runs every few calls, whatever it costs (TUTTI_TUNER=2). Results do not change,
   on private and on shared tensors, among small one-sided operations in which ranks run ahead. A rank that alone sets
   an algorithm gets it, or an error if a candidate runs already. */
#include "backend/engine/comm.h"
#include "tests/support/random.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"

/* How many late selections on shared tensors there must be. 300 calls do not reach all variants. */
#ifdef FEW
enum { CALLS = 300, LATE_SELECTIONS = 0 };
#else
enum { CALLS = 3000, LATE_SELECTIONS = 1 };
#endif
enum { MOST_RANKS = 4, MOST_FLOATS = 1 << 16, DIFFERENT = 10 };
enum what { SUM, SCATTERED_SUM, GATHERED, EXCHANGED, TO_ROOT, FROM_ROOT };
static const struct kind {
    enum what what;
    /* The size of one rank's part. */
    size_t floats;
    int root;
} kinds[] = {
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
/* Returns element i of a rank's result. All ranks have a result of FROM_ROOT, and only the root has one of TO_ROOT. */
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
/* The codes of the choices that ran, and the numbers of late selections on private and on shared tensors. */
struct seen { uint32_t code[DIFFERENT]; int count, late[2]; };
static void seen_add_code(struct seen *s, uint32_t code)
{
    for (int i = 0; i < s->count; i++)
        if (s->code[i] == code) return;
    if (s->count < DIFFERENT) s->code[s->count++] = code;
}
/* different: the number of choices that run. late: some calls select late although that costs more. */
struct expected_calls { int different; bool late; };
/* Counts a late selection, which must know where all tensors lie. */
static void seen_add_late(struct seen *s, const struct rank *me, bool shared)
{
    const struct launcher *l = &me->comm->launcher;
    s->late[shared]++;
    REQUIRE(l->recent[l->last.collective].shared[0] == (shared ? (1u << me->size) - 1 : 0));
}
/* Makes calls of random kinds, in turns 250 on private and 250 on shared tensors. */
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
        /* Now and then there are many calls of one kind. */
        int shared = number / 250 % 2 * 2, rows = draw % 64 == 0 ? 20 : 1;
        const struct kind *k = &kinds[draw / 64 % KINDS];
        if (k->root >= me->size) continue;
        for (int i = 0; i < rows; i++) call(me, number, k, tensors[shared], tensors[shared + 1]);
        seen_add_code(&seen, me->comm->launcher.code);
        if (choice_code_selects_late(me->comm->launcher.code)) seen_add_late(&seen, me, shared);
    }
    const struct expected_calls *expected_calls = me->context;
    REQUIRE(seen.count == expected_calls->different);
    REQUIRE(!expected_calls->late || (seen.late[1] >= LATE_SELECTIONS && seen.late[0] <= seen.late[1]));
    free(tensors[0]);
    free(tensors[1]);
    tutti_mem_free(tensors[2]);
    tutti_mem_free(tensors[3]);
}
static void test_candidates_change_no_result(void **state)
{
    struct expected_calls some = { DIFFERENT, false }, late = { DIFFERENT, true };
    (void)state;
    world_set("TUTTI_TUNER", "2");
    for (int size = 2; size <= MOST_RANKS; size++) world_threads(size, NULL, calls_main, &some);
    /* Cores are so far apart that few calls select late by cost. */
    world_set("TUTTI_MACHINE", "line=300");
    world_threads(2, NULL, calls_main, &late);
    world_set("TUTTI_MACHINE", NULL);
    world_set("TUTTI_TUNER", NULL);
}
static void test_no_candidate_runs_if_the_tuner_is_off(void **state)
{
    struct expected_calls nothing = { 1, false };
    (void)state;
    world_set("TUTTI_TUNER", "0");
    world_threads(2, NULL, calls_main, &nothing);
    world_set("TUTTI_TUNER", NULL);
}
/* All ranks record when they begin and end calls, so that blocks of A/B tests end: in calls of four kinds in turns, and
   in calls in which ranks that only send run ahead (4 KiB to the root, which is the decider). */
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
static void test_all_ranks_time_candidates(void **state)
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
/* Runs one survey after another, in calls in which all ranks meet and in calls in which some only send. */
static void surveys_main(struct rank *me)
{
    static const struct kind four[] = { { SUM, 50000, 0 }, { TO_ROOT, 20000, 1 }, { FROM_ROOT, 1024, 0 },
        { EXCHANGED, 3000, 0 } };
    static const enum collective collectives[] = { ALLREDUCE, REDUCE, BROADCAST, ALL_TO_ALL };
    size_t bytes = MOST_RANKS * 50000 * sizeof(float);
    float *in = malloc(bytes), *out = malloc(bytes);
    REQUIRE(in && out);
    /* The tuner runs even if ranks share cores. */
    me->comm->launcher.tuners.mode = TUNER_ON;
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
static void test_surveys_change_no_result(void **state)
{
    (void)state;
    world_set("TUTTI_TUNER", "1");
    for (int size = 2; size <= MOST_RANKS; size++) world_threads(size, NULL, surveys_main, NULL);
    /* With this parameter no small call selects late. */
    world_set("TUTTI_MACHINE", "line=3000");
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
/* One rank sets the algorithm that all ranks would run anyway. No candidate runs in its place. */
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
static void test_an_algorithm_set_on_one_rank_keeps_candidates_away(void **state)
{
    (void)state;
    world_set("TUTTI_TUNER", "2");
    world_threads(3, NULL, asker_main, NULL);
    world_set("TUTTI_TUNER", NULL);
}
/* One rank sets an algorithm while a candidate runs. This is a disagreement, and the error names the tuner. */
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
static void test_an_algorithm_set_on_one_rank_during_a_test_is_an_error(void **state)
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
        cmocka_unit_test(test_candidates_change_no_result),
        cmocka_unit_test(test_no_candidate_runs_if_the_tuner_is_off),
        cmocka_unit_test(test_all_ranks_time_candidates),
        cmocka_unit_test(test_surveys_change_no_result),
        cmocka_unit_test(test_an_algorithm_set_on_one_rank_keeps_candidates_away),
        cmocka_unit_test(test_an_algorithm_set_on_one_rank_during_a_test_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
