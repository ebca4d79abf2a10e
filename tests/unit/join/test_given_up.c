/* A rank that cannot join a group, and whose process goes on living, says so: the others are told at once and by name,
   instead of waiting for it until their time is over. What they have besides works on. */
#include "tests/support/unit.h"
#include "tests/support/world.h"

enum { RANKS = 3, SECONDS = 60 };                       /* the group's own timeout is half an hour */
static void split(struct rank *me)
{
    int who = *(const int *)me->context;
    char says[64];
    tutti_comm *part = NULL;
    struct rlimit before = { 0, 0 };
    snprintf(says, sizeof says, "rank %d (process ", who);
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    if (me->rank == who) before = world_limit(RLIMIT_NOFILE, 3);
    tutti_status status = tutti_comm_split(me->comm, 0, 0, &part);
    if (me->rank == who) {
        REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
        REQUIRE(status == TUTTI_SYSTEM && strstr(tutti_get_last_error(), "too many open files"));
    } else {
        REQUIRE(status == TUTTI_PEER_LOST && strstr(tutti_get_last_error(), says));
        REQUIRE(strstr(tutti_get_last_error(), "could not join the group and has given up; its own error says why"));
    }
    REQUIRE(!part);
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    REQUIRE(tutti_comm_split(me->comm, 0, 0, &part) == TUTTI_OK);
    REQUIRE(tutti_barrier(part, NULL) == TUTTI_OK);
    REQUIRE(tutti_comm_destroy(part) == TUTTI_OK);
}
static void test_whoever_cannot_join_says_so(void **state)
{
    (void)state;
    for (int who = 0; who < RANKS; who++) assert_int_equal(world_processes(RANKS, SECONDS, split, &who), 0);
}

unit_function test_given_up;
int test_given_up(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_whoever_cannot_join_says_so) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
