/* Each schedule of a pipeline is complete, ends, and has the bubble and the memory of its paper. tutti_pipeline_check
   finds mistakes in lists of actions. */
#include "backend/groups/pipeline.h"
#include "tests/support/random.h"
#include "tests/support/unit.h"
#include <math.h>

enum { MOST_STAGES = 64, MOST_RANKS = 16 };
#define ASSERT_ERROR(text) assert_non_null(strstr(tutti_get_last_error(), text))
/* `ones` are the times of actions. The others are results: the time of a step, the time that each rank works, and the
   most microbatches that each holds. */
static double ones[MOST_STAGES], makespan, busy[MOST_RANKS];
static int held[MOST_RANKS];
static tutti_pipeline *pipeline_make_checked(const char *schedule, int ranks, int chunks, int microbatches)
{
    tutti_pipeline *p;
    tutti_pipeline_cost cost = { ones, ones, ones, 0 };
    for (int s = 0; s < MOST_STAGES; s++) ones[s] = 1;
    assert_int_equal(tutti_pipeline_make(&p, schedule, ranks, chunks, microbatches), TUTTI_OK);
    assert_int_equal(tutti_pipeline_check(p), TUTTI_OK);
    assert_int_equal(tutti_pipeline_time(p, &cost, NULL, &makespan, busy, held), TUTTI_OK);
    for (int rank = 0; rank < ranks; rank++) assert_true(busy[rank] == 3.0 * chunks * microbatches);
    return p;
}
static int most_held(int ranks)
{
    int most = 0;
    for (int rank = 0; rank < ranks; rank++) most = held[rank] > most ? held[rank] : most;
    return most;
}
static double bubble(void) { return 1 - busy[0] / makespan; }
static bool is_near(double a, double b) { return fabs(a - b) < 1e-12; }

/* ---- bubbles and memory ---- */
static void test_schedules_have_the_bubbles_and_memory_of_their_papers(void **state)
{
    (void)state;
    for (int p = 1; p <= MOST_RANKS; p++)
        for (int m = p; m <= 4 * p; m++) {
            double same = (double)(p - 1) / (m + p - 1);
            tutti_pipeline_destroy(pipeline_make_checked("naive", p, 1, m));
            assert_true(is_near(bubble(), (double)(p - 1) / p) && most_held(p) == 1);
            tutti_pipeline_destroy(pipeline_make_checked("gpipe", p, 1, m));
            assert_true(is_near(bubble(), same) && most_held(p) == m);
            tutti_pipeline_destroy(pipeline_make_checked("1f1b", p, 1, m));
            assert_true(is_near(bubble(), same));
            for (int rank = 0; rank < p; rank++) assert_int_equal(held[rank], p - rank);
            /* A bubble of (p - 1) (forward + input - weight) is left. */
            tutti_pipeline_destroy(pipeline_make_checked("zb-h1", p, 1, m));
            assert_true(makespan <= 3 * m + p - 1 && most_held(p) <= p);
            /* The last rank begins p - 1 later, and little is added to that. */
            tutti_pipeline_destroy(pipeline_make_checked("zb-v", p, 2, m));
            assert_true(makespan <= 6 * m + p - 1 + (m < 2 * p ? p : p / 4) && most_held(p) <= 2 * p);
            if (m < 2 * p) continue;
            /* Only those p - 1 are added, and each rank holds one microbatch more. */
            tutti_pipeline_destroy(pipeline_make_checked("dualpipe-v", p, 2, m));
            assert_true(makespan == 6 * m + p - 1);
            for (int rank = 0; rank < p; rank++) assert_int_equal(held[rank], 2 * p + 1);
        }
}
static void test_interleaved_has_the_bubble_of_its_paper(void **state)
{
    (void)state;
    for (int p = 1; p <= 8; p++)
        for (int v = 1; v <= 4; v++)
            for (int m = p; m <= 4 * p; m += p) {
                tutti_pipeline *one = pipeline_make_checked("interleaved", p, v, m);
                assert_true(is_near(bubble(), (double)(p - 1) / (m * v + p - 1)));
                for (int s = 0; s < p * v; s++) assert_int_equal(tutti_pipeline_rank(one, s), s % p);
                tutti_pipeline_destroy(one);
            }
}
static void test_stages_of_a_v_go_up_the_ranks_and_down_again(void **state)
{
    (void)state;
    tutti_pipeline *p = pipeline_make_checked("zb-v", 3, 2, 6);
    static const int ranks[] = { 0, 1, 2, 2, 1, 0 };
    for (int s = 0; s < 6; s++) assert_int_equal(tutti_pipeline_rank(p, s), ranks[s]);
    assert_int_equal(tutti_pipeline_rank(p, 6), -1);
    tutti_pipeline_destroy(p);
}
/* With any times of the actions, the lists end in their order, and no rank works for longer than the whole step. */
static void test_lists_end_with_unequal_times(void **state)
{
    (void)state;
    uint64_t seed = 7;
    static const char *const all[] = { "naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v" };
    for (int turn = 0; turn < 300; turn++) {
        double of[3][MOST_STAGES], *ends;
        int n = turn % 7, ranks = 2 + (int)(random_next(&seed) % 5), chunks = n == 3 || n >= 5 ? 2 : 1, count, at = 0;
        tutti_pipeline_cost cost = { of[0], of[1], of[2], (double)(random_next(&seed) % 100) / 50 };
        tutti_pipeline *p = pipeline_make_checked(all[n], ranks, chunks, ranks * 2);
        for (int s = 0; s < MOST_STAGES; s++)
            for (int k = 0; k < 3; k++) of[k][s] = 0.1 + (double)(random_next(&seed) % 1000) / 500;
        ends = calloc((size_t)ranks * (size_t)(chunks * ranks * 2 * 3), sizeof *ends);
        assert_int_equal(tutti_pipeline_time(p, &cost, ends, &makespan, busy, held), TUTTI_OK);
        for (int rank = 0; rank < ranks; at += count, rank++) {
            assert_non_null(tutti_pipeline_actions(p, rank, &count));
            assert_true(busy[rank] <= makespan && ends[at + count - 1] <= makespan);
            for (int i = 1; i < count; i++) assert_true(ends[at + i] > ends[at + i - 1]);
        }
        free(ends);
        tutti_pipeline_destroy(p);
    }
}

/* ---- lists with mistakes ---- */
static void swap(tutti_pipeline *p, int rank, int a, int b)
{
    tutti_action kept = p->list[rank].action[a];
    p->list[rank].action[a] = p->list[rank].action[b];
    p->list[rank].action[b] = kept;
}
static void test_check_finds_mistakes_in_lists(void **state)
{
    (void)state;
    tutti_pipeline *p = pipeline_make_checked("1f1b", 2, 1, 4);
    /* A backward is before its forward. */
    swap(p, 1, 0, 1);
    assert_int_equal(tutti_pipeline_check(p), TUTTI_INVALID_ARGUMENT);
    ASSERT_ERROR("never completes its action");
    swap(p, 1, 0, 1);
    /* The second microbatch is sent first. */
    swap(p, 0, 0, 1);
    assert_int_equal(tutti_pipeline_check(p), TUTTI_INVALID_ARGUMENT);
    ASSERT_ERROR("rank 0 sends rank 1 the forward of microbatch 1 where that of microbatch 0 is expected");
    swap(p, 0, 0, 1);
    /* An action is there twice, and another one is missing. */
    p->list[0].action[3].microbatch = 0;
    assert_int_equal(tutti_pipeline_check(p), TUTTI_INVALID_ARGUMENT);
    ASSERT_ERROR("belongs to another rank, or is a duplicate");
    tutti_pipeline_destroy(p);
    p = pipeline_make_checked("gpipe", 2, 1, 2);
    p->list[1].count--;
    assert_int_equal(tutti_pipeline_check(p), TUTTI_INVALID_ARGUMENT);
    ASSERT_ERROR("microbatch 1 is missing on stage 1");
    tutti_pipeline_destroy(p);
    p = pipeline_make_checked("zb-h1", 2, 1, 4);
    int at = 0;
    while (p->list[0].action[at].work != TUTTI_BACKWARD_WEIGHT) at++;
    /* A gradient of weights is the first action. */
    swap(p, 0, at, 0);
    assert_int_equal(tutti_pipeline_check(p), TUTTI_INVALID_ARGUMENT);
    ASSERT_ERROR("rank 0 never completes its action 0, the backward of weights of microbatch 0 on stage 0");
    tutti_pipeline_destroy(p);
}
static void test_wrong_schedules_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *schedule;
        int ranks, chunks, microbatches;
        const char *text;
    } wrong[] = {
        { "dualpipe", 2, 1, 4, "unknown schedule \"dualpipe\"; known are naive, gpipe" },
        { "1f1b", 4, 1, 3, "3 microbatches for 4 ranks; 1f1b needs at least 4, gpipe takes fewer" },
        { "1f1b", 4, 2, 8, "1f1b has 1 stage on each rank, not 2" },
        { "dualpipe-v", 4, 2, 7, "7 microbatches for 4 ranks; dualpipe-v needs at least 8" },
        { "zb-v", 4, 1, 8, "zb-v has 2 stages on each rank, not 1" },
        { "interleaved", 4, 2, 6, "interleaved needs a multiple of 4 microbatches, not 6" },
        { "gpipe", 0, 1, 4, "0 ranks, 1 stages on each, 4 microbatches" },
        { "gpipe", 2, 1, 0, "0 microbatches" },
        { "interleaved", 4096, 64, 65536, "more than 16777216 pieces of work" },
    };
    tutti_pipeline *p;
    int count;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        tutti_status status =
            tutti_pipeline_make(&p, wrong[i].schedule, wrong[i].ranks, wrong[i].chunks, wrong[i].microbatches);
        assert_true(status == TUTTI_INVALID_ARGUMENT && !p);
        ASSERT_ERROR(wrong[i].text);
    }
    assert_int_equal(tutti_pipeline_make(&p, NULL, 2, 1, 4), TUTTI_INVALID_ARGUMENT);
    ASSERT_ERROR("is NULL");
    /* gpipe accepts fewer microbatches than ranks. */
    p = pipeline_make_checked("gpipe", 4, 1, 2);
    ones[3] = -1;
    tutti_pipeline_cost cost = { ones, ones, ones, 0 };
    assert_int_equal(tutti_pipeline_time(p, &cost, NULL, &makespan, busy, held), TUTTI_INVALID_ARGUMENT);
    ASSERT_ERROR("a time is negative");
    assert_null(tutti_pipeline_actions(p, 4, &count));
    tutti_pipeline_destroy(p);
    assert_int_equal(tutti_pipeline_destroy(NULL), TUTTI_OK);
    for (int i = 0; tutti_pipeline_name(i); i++) assert_true(i < 7);
}
unit_function test_pipeline;
int test_pipeline(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedules_have_the_bubbles_and_memory_of_their_papers),
        cmocka_unit_test(test_interleaved_has_the_bubble_of_its_paper),
        cmocka_unit_test(test_stages_of_a_v_go_up_the_ranks_and_down_again),
        cmocka_unit_test(test_lists_end_with_unequal_times),
        cmocka_unit_test(test_check_finds_mistakes_in_lists),
        cmocka_unit_test(test_wrong_schedules_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
