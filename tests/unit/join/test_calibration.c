/* All ranks of a group use the parameters of their cores' distance, check what rank 0 publishes, and wait for it only
   for a limited time. */
#include "backend/base/clock.h"
#include "backend/join/calibration.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <sched.h>

static double marked(int distance) { return 1000 + distance; }
static int set_up(void **state)                         /* parameters that say of which distance they are */
{
    (void)state;
    for (int distance = 0; distance < DISTANCES; distance++) {
        struct machine parameters = machine_typical();
        parameters.line = marked(distance);
        machine_store_parameters(distance, &parameters, false);
    }
    return 0;
}
static int cores[2];                                    /* that this process may use; alike if there is only one */
static int find_cores(void)
{
    cpu_set_t set;
    int count = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 0;
    for (int core = 0; core < CPU_SETSIZE && count < 2; core++)
        if (CPU_ISSET((size_t)core, &set)) cores[count++] = core;
    return count;
}
static void stand_on(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)core, &set);
    REQUIRE(sched_setaffinity(0, sizeof set, &set) == 0);
}

/* ---- whose parameters ---- */
struct stage { int core[2], distance; };
static void split_there(struct rank *me)
{
    struct stage *stage = me->context;
    tutti_comm *comm;
    stand_on(stage->core[me->rank]);
    REQUIRE(tutti_comm_split(me->comm, 0, me->rank, &comm) == TUTTI_OK);
    int32_t distance = comm->group.segment->calibration_record->distance;
    REQUIRE(distance == 0 || comm->launcher.chooser.machine.line == marked(distance));
    if (me->rank == 0) stage->distance = distance;
    REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
}
static int distance_of(int one, int other)
{
    struct stage stage = { { one, other }, -1 };
    world_threads(2, NULL, split_there, &stage);
    return stage.distance;
}
static void ranks_of_one_core_have_no_distance(void **state)
{
    (void)state;
    find_cores();
    assert_int_equal(distance_of(cores[0], cores[0]), 0);
}
static void ranks_of_two_cores_have_one(void **state)
{
    (void)state;
    int distance = 0;
    if (find_cores() < 2) { print_message("this process has one core only: not tested\n"); skip(); }
    for (int tries = 0; tries < 100 && !distance; tries++)              /* others may keep a core busy for long */
        distance = distance_of(cores[0], cores[1]);
    assert_in_range(distance, 1, DISTANCES - 1);
}

/* ---- what rank 0 says ---- */
static void listen_to_nobody(struct rank *me)
{
    struct calibration_record *calibration_record = me->comm->group.segment->calibration_record;
    if (me->rank == 0) return;
    atomic_store(&calibration_record->ready, 0);
    REQUIRE(calibration_agree_parameters(me->comm, &(struct link_costs){ 0 }, clock_ms() + 20) == TUTTI_TIMEOUT);
    REQUIRE(strstr(tutti_get_last_error(),
                "rank 0 of choir has joined but did not publish the machine parameters in time")
        != NULL);
}
static void a_silent_rank_0_is_an_error(void **state)
{
    (void)state;
    tutti_config config = { .struct_size = sizeof config, .name = "choir" };
    world_threads(2, &config, listen_to_nobody, NULL);
}
static void listen_to_nonsense(struct rank *me)
{
    struct calibration_record *calibration_record = me->comm->group.segment->calibration_record;
    struct machine typical = machine_typical(), known;
    if (me->rank == 0) return;
    memset(calibration_record->parameters, 0xff, sizeof calibration_record->parameters);  /* not even numbers */
    REQUIRE(calibration_agree_parameters(me->comm, &(struct link_costs){ 0 }, clock_ms() + 20) == TUTTI_OK);
    REQUIRE(memcmp(&me->comm->launcher.chooser.machine, &typical, sizeof typical) == 0);
    memcpy(calibration_record->parameters, &typical, sizeof typical);
    calibration_record->distance = 1 << 30;                           /* fine parameters, but of nowhere */
    REQUIRE(calibration_agree_parameters(me->comm, &(struct link_costs){ 0 }, clock_ms() + 20) == TUTTI_OK);
    REQUIRE(machine_find_parameters(1, &known) && known.line == marked(1));
}
static void nonsense_is_not_believed(void **state)
{
    (void)state;
    world_threads(2, NULL, listen_to_nonsense, NULL);
}

unit_function test_calibration;
int test_calibration(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_of_one_core_have_no_distance),
        cmocka_unit_test(ranks_of_two_cores_have_one),
        cmocka_unit_test(a_silent_rank_0_is_an_error),
        cmocka_unit_test(nonsense_is_not_believed),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
