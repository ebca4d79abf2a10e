/* All ranks of a group use the parameters for the distance of their cores. They check the parameters that rank 0
   publishes, and wait for them only until a deadline. */
#include "backend/base/clock.h"
#include "backend/join/calibration.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <sched.h>

static double marked(int distance) { return 1000 + distance; }
/* Stores parameters for each distance, with a `line` that identifies the distance. */
static int set_up(void **state)
{
    (void)state;
    for (int distance = 0; distance < DISTANCES; distance++) {
        struct machine parameters = machine_typical();
        parameters.line = marked(distance);
        machine_store_parameters(distance, &parameters, false);
    }
    return 0;
}
/* The first two cores that this process may use. */
static int cores[2];
/* Finds them, and returns their number. */
static int find_cores(void)
{
    cpu_set_t set;
    int count = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 0;
    for (int core = 0; core < CPU_SETSIZE && count < 2; core++)
        if (CPU_ISSET((size_t)core, &set)) cores[count++] = core;
    return count;
}
static void pin_to(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)core, &set);
    REQUIRE(sched_setaffinity(0, sizeof set, &set) == 0);
}

/* ---- the distance of two cores ---- */
/* The cores of two ranks, and the distance that they use. */
struct pair { int core[2], distance; };
static void split_on_cores(struct rank *me)
{
    struct pair *pair = me->context;
    tutti_comm *comm;
    pin_to(pair->core[me->rank]);
    REQUIRE(tutti_comm_split(me->comm, 0, me->rank, &comm) == TUTTI_OK);
    int32_t distance = comm->group.segment->calibration_record->distance;
    REQUIRE(distance == 0 || comm->launcher.chooser.machine.line == marked(distance));
    if (me->rank == 0) pair->distance = distance;
    REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
}
static int distance_of(int one, int other)
{
    struct pair pair = { { one, other }, -1 };
    world_threads(2, NULL, split_on_cores, &pair);
    return pair.distance;
}
static void test_ranks_of_one_core_have_no_distance(void **state)
{
    (void)state;
    find_cores();
    assert_int_equal(distance_of(cores[0], cores[0]), 0);
}
static void test_ranks_of_two_cores_have_a_distance(void **state)
{
    (void)state;
    int distance = 0;
    if (find_cores() < 2) { print_message("this process has one core only: not tested\n"); skip(); }
    /* Other processes may keep a core busy for long. */
    for (int tries = 0; tries < 100 && !distance; tries++) distance = distance_of(cores[0], cores[1]);
    assert_in_range(distance, 1, DISTANCES - 1);
}

/* ---- the record of rank 0 ---- */
static void await_unpublished_parameters(struct rank *me)
{
    struct calibration_record *calibration_record = me->comm->group.segment->calibration_record;
    if (me->rank == 0) return;
    atomic_store(&calibration_record->ready, 0);
    REQUIRE(calibration_agree_parameters(me->comm, &(struct link_costs){ 0 }, clock_ms() + 20) == TUTTI_TIMEOUT);
    REQUIRE(strstr(tutti_get_last_error(),
                "rank 0 of choir has joined but did not publish the machine parameters in time")
        != NULL);
}
static void test_parameters_not_published_in_time_are_an_error(void **state)
{
    (void)state;
    tutti_config config = { .struct_size = sizeof config, .name = "choir" };
    world_threads(2, &config, await_unpublished_parameters, NULL);
}
/* Rank 0 publishes when all ranks sleep but the last one, which answers its pings because all run on one core. */
static void await_asleep(struct rank *me)
{
    struct calibration_record *record = me->comm->group.segment->calibration_record;
    const struct link_costs none = { 0 };
    pin_to(*(const int *)me->context);
    atomic_store(&segment_join_info(me->comm->group.segment, me->rank)->core, wait_core());
    /* All have joined. */
    world_meet(me);
    if (me->rank == 0) atomic_store(&record->ready, 0);
    world_meet(me);
    if (me->rank > 0) {
        REQUIRE(calibration_agree_parameters(me->comm, &none, clock_ms() + 600000) == TUTTI_OK);
        return;
    }
    while (atomic_load(&record->waiters) != (uint32_t)me->size - 2) sleep_us(1000);
    atomic_store(&record->ready, 1);
    word_wake(&record->ready, true);
}
static void test_ranks_sleep_until_the_parameters_are_published(void **state)
{
    (void)state;
    find_cores();
    world_threads(8, NULL, await_asleep, &cores[0]);
}
/* Rank 1 answers a ping from another core than the one on which it joined. The latter decides which ranks stay awake,
   so it must not change. */
static void answer_from_another_core(struct rank *me)
{
    struct calibration_record *record = me->comm->group.segment->calibration_record;
    struct join_info *info = segment_join_info(me->comm->group.segment, 1);
    const uint32_t joined_on = CPU_SETSIZE + 1;
    const struct link_costs none = { 0 };
    world_meet(me);
    if (me->rank == 1) {
        atomic_store(&record->ready, 0);
        atomic_store(&info->core, joined_on);
    }
    world_meet(me);
    if (me->rank == 1) {
        REQUIRE(calibration_agree_parameters(me->comm, &none, clock_ms() + 600000) == TUTTI_OK);
        return;
    }
    /* A ping is odd. One to which the join did not await the answer may still be there. */
    uint32_t ping = atomic_load(&info->ping) | 1;
    atomic_store(&info->ping, ping);
    while (atomic_load(&info->ping) != ping + 1) sleep_us(100);
    REQUIRE(atomic_load(&info->core) == joined_on);
    REQUIRE(atomic_load(&info->answer_core) != joined_on && atomic_load(&info->answer_core) > 0);
    atomic_store(&record->ready, 1);
    word_wake(&record->ready, true);
}
static void test_an_answer_leaves_the_core_of_the_join(void **state)
{
    (void)state;
    world_threads(2, NULL, answer_from_another_core, NULL);
}
static void read_invalid_records(struct rank *me)
{
    struct calibration_record *calibration_record = me->comm->group.segment->calibration_record;
    struct machine typical = machine_typical(), known;
    if (me->rank == 0) return;
    /* These bytes are not numbers. */
    memset(calibration_record->parameters, 0xff, sizeof calibration_record->parameters);
    REQUIRE(calibration_agree_parameters(me->comm, &(struct link_costs){ 0 }, clock_ms() + 20) == TUTTI_OK);
    REQUIRE(memcmp(&me->comm->launcher.chooser.machine, &typical, sizeof typical) == 0);
    memcpy(calibration_record->parameters, &typical, sizeof typical);
    /* The parameters are valid, but the distance is not. */
    calibration_record->distance = 1 << 30;
    REQUIRE(calibration_agree_parameters(me->comm, &(struct link_costs){ 0 }, clock_ms() + 20) == TUTTI_OK);
    REQUIRE(machine_find_parameters(1, &known) && known.line == marked(1));
}
static void test_invalid_parameters_are_not_used(void **state)
{
    (void)state;
    world_threads(2, NULL, read_invalid_records, NULL);
}

unit_function test_calibration;
int test_calibration(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_of_one_core_have_no_distance),
        cmocka_unit_test(test_ranks_of_two_cores_have_a_distance),
        cmocka_unit_test(test_parameters_not_published_in_time_are_an_error),
        cmocka_unit_test(test_ranks_sleep_until_the_parameters_are_published),
        cmocka_unit_test(test_an_answer_leaves_the_core_of_the_join),
        cmocka_unit_test(test_invalid_parameters_are_not_used),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
