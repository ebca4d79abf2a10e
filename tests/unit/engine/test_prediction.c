/* Predictions of a communicator: the algorithm that a call would run, and its cost. They are equal on all ranks, and
   the call then runs that algorithm. */
#include "backend/collectives/collectives.h"
#include "backend/engine/comm.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"

enum { RANKS = 4, MOST = 1 << 22 };
#define SAYS(text) REQUIRE(strstr(tutti_get_last_error(), text) != NULL)

static tutti_prediction predict(tutti_comm *comm, const char *collective, const char *algorithm, size_t bytes)
{
    tutti_prediction out = TUTTI_PREDICTION_INIT;
    REQUIRE(tutti_comm_predict(comm, collective, algorithm, bytes, &out) == TUTTI_OK);
    REQUIRE(out.struct_size == sizeof out && out.slots >= 1 && out.tile_bytes > 0);
    return out;
}
/* All ranks make the same prediction for each collective and each algorithm that the group allows. */
static void is_the_same_everywhere(struct rank *me)
{
    for (const struct algorithm *a = collectives_table; a->name; a++) {
        if (comm_check_algorithm(me->comm, a) != TUTTI_OK) continue;
        for (size_t bytes = 0; bytes <= MOST; bytes = 64 * bytes + 8) {
            tutti_prediction all[RANKS], mine = predict(me->comm, collective_name(a->collective), a->name, bytes);
            REQUIRE(tutti_all_gather(&mine, all, sizeof mine, TUTTI_UINT8, me->comm, NULL) == TUTTI_OK);
            for (int r = 0; r < RANKS; r++) REQUIRE(memcmp(&all[r], &mine, offsetof(tutti_prediction, candidate)) == 0);
            REQUIRE(strcmp(mine.algorithm, a->name) == 0 && mine.ns >= 0);
        }
    }
}
/* If no algorithm was asked for, the prediction has the least cost of all candidates, or little more, and it is what
   runs. */
static void what_is_predicted_runs(struct rank *me)
{
    float *data = calloc(1, MOST);
    REQUIRE(data != NULL);
    for (size_t bytes = sizeof *data; bytes <= MOST; bytes *= 8) {
        tutti_prediction chosen = predict(me->comm, "allreduce", NULL, bytes);
        REQUIRE(chosen.candidate && chosen.ns > 0);
        for (int i = 0; tutti_algorithm_name("allreduce", i); i++) {
            const struct algorithm *a = collectives_find_algorithm(ALLREDUCE, tutti_algorithm_name("allreduce", i));
            if (comm_check_algorithm(me->comm, a) != TUTTI_OK) continue;
            tutti_prediction other = predict(me->comm, "allreduce", a->name, bytes);
            REQUIRE(!other.candidate || other.ns > 0.9 * chosen.ns);
        }
        REQUIRE(tutti_all_reduce(data, data, bytes / sizeof *data, TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL)
            == TUTTI_OK);
        const struct recent *r = &me->comm->launcher.recent[ALLREDUCE];
        REQUIRE(strcmp(r->chosen.algorithm->name, chosen.algorithm) == 0);
        REQUIRE(r->chosen.tile_bytes == chosen.tile_bytes && r->chosen.slots == chosen.slots);
    }
    free(data);
}
static void what_the_user_chose_is_predicted(struct rank *me)
{
    REQUIRE(tutti_comm_set_algorithm(me->comm, "allreduce", "ring") == TUTTI_OK);
    tutti_prediction ring = predict(me->comm, "allreduce", NULL, 1 << 20);
    REQUIRE(strcmp(ring.algorithm, "ring") == 0 && !ring.candidate);
    REQUIRE(strcmp(predict(me->comm, "allreduce", "tree", 1 << 20).algorithm, "tree") == 0);
    REQUIRE(tutti_comm_set_algorithm(me->comm, "allreduce", NULL) == TUTTI_OK);
    REQUIRE(predict(me->comm, "allreduce", NULL, 1 << 20).candidate);
}
static void refuse(tutti_comm *comm, const char *collective, const char *algorithm, const char *text)
{
    tutti_prediction out = TUTTI_PREDICTION_INIT;
    REQUIRE(tutti_comm_predict(comm, collective, algorithm, 8, &out) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_last_error_is_refusal() && out.algorithm == NULL);
    SAYS(text);
}
static void what_does_not_exist_is_refused(struct rank *me)
{
    refuse(me->comm, "allreduec", NULL, "unknown collective \"allreduec\", did you mean \"allreduce\"?");
    refuse(me->comm, "allreduce", "rign", "unknown allreduce algorithm \"rign\", did you mean \"ring\"?");
    refuse(me->comm, NULL, NULL, "the name of the collective or");
    tutti_prediction old = { .struct_size = sizeof old - 8 };
    REQUIRE(tutti_comm_predict(me->comm, "allreduce", NULL, 8, &old) == TUTTI_INVALID_ARGUMENT);
    SAYS("initialize it with TUTTI_PREDICTION_INIT");
    REQUIRE(tutti_comm_predict(me->comm, "allreduce", NULL, 8, NULL) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
}
static void what_needs_one_host_is_refused_on_two(struct rank *me)
{
    refuse(me->comm, "allreduce", "two_shot", "needs all ranks on one host");
    REQUIRE(predict(me->comm, "allreduce", "ring", 1 << 20).ns > 0);
    REQUIRE(predict(me->comm, "allreduce", "leaders", 1 << 20).candidate);
}
static void messages_of_one_host_have_no_cost(struct rank *me)
{
    REQUIRE(predict(me->comm, "allreduce", "ring", 1 << 20).ns <= 0);
    REQUIRE(predict(me->comm, "barrier", NULL, 0).ns <= 0);
}
/* Predictions do not disturb an operation that waits for another rank. */
static void nothing_is_disturbed(struct rank *me)
{
    float x[2] = { 1, 1 };
    tutti_request request = TUTTI_REQUEST_INIT;
    for (int round = 0; round < 20; round++) {
        if (me->rank == round % RANKS) sleep_us(500);
        REQUIRE(tutti_all_reduce(x, x, 1, TUTTI_FLOAT32, TUTTI_MAX, me->comm, &request) == TUTTI_OK);
        predict(me->comm, "allgather", NULL, (size_t)1000 << round % 10);
        REQUIRE(tutti_wait(&request, 0) == TUTTI_OK && x[0] == 1);
    }
}
static void the_group_reports_its_parameters(struct rank *me)
{
    char text[8192], few[8];
    size_t bytes, again;
    REQUIRE(tutti_comm_info(me->comm, text, sizeof text, &bytes) == TUTTI_OK && bytes == strlen(text));
    REQUIRE(tutti_comm_info(me->comm, few, sizeof few, &again) == TUTTI_OK && again == bytes && strlen(few) == 7);
    REQUIRE(strstr(text, "\"ranks\": 4, \"ranks_of_host\": [") && strstr(text, "\"message\": {\"value\": "));
    REQUIRE(tutti_comm_info(NULL, text, sizeof text, &bytes) == TUTTI_INVALID_ARGUMENT);
}
static void test_predictions_on_one_host(void **state)
{
    (void)state;
    const tutti_config options = TUTTI_CONFIG_INIT;
    static rank_function *const bodies[] = { is_the_same_everywhere, what_is_predicted_runs,
        what_the_user_chose_is_predicted, what_does_not_exist_is_refused, messages_of_one_host_have_no_cost,
        nothing_is_disturbed, the_group_reports_its_parameters };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) world_threads_on("", RANKS, &options, bodies[i], NULL);
}
static void test_predictions_on_several_hosts(void **state)
{
    (void)state;
    const tutti_config options = TUTTI_CONFIG_INIT;
    static rank_function *const bodies[] = { is_the_same_everywhere, what_is_predicted_runs,
        what_the_user_chose_is_predicted, what_does_not_exist_is_refused, what_needs_one_host_is_refused_on_two,
        nothing_is_disturbed, the_group_reports_its_parameters };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        world_threads_on("2", RANKS, &options, bodies[i], NULL);
        world_threads_on("0,1,2,3", RANKS, &options, bodies[i], NULL);
    }
}
static void test_a_destroyed_communicator_makes_no_prediction(void **state)
{
    (void)state;
    tutti_config config = { .struct_size = sizeof config, .size = 1 };
    tutti_prediction out = TUTTI_PREDICTION_INIT;
    tutti_comm *comm;
    assert_int_equal(tutti_comm_init(&comm, &config), TUTTI_OK);
    assert_int_equal(tutti_comm_predict(comm, "broadcast", NULL, 8, &out), TUTTI_OK);
    /* A rank that is alone has no cost. */
    assert_true(out.ns <= 0);
    assert_int_equal(tutti_comm_retain(comm), TUTTI_OK);
    assert_int_equal(tutti_comm_destroy(comm), TUTTI_OK);
    assert_int_equal(tutti_comm_predict(comm, "broadcast", NULL, 8, &out), TUTTI_ABORTED);
    assert_int_equal(tutti_comm_release(comm), TUTTI_OK);
}

unit_function test_prediction;
int test_prediction(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_predictions_on_one_host),
        cmocka_unit_test(test_predictions_on_several_hosts),
        cmocka_unit_test(test_a_destroyed_communicator_makes_no_prediction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
