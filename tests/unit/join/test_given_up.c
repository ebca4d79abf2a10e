/* If a rank cannot join a group but its process continues, the other ranks get an error with its name at once, before
   their timeout. Their other groups still work. */
#include "tests/support/unit.h"
#include "tests/support/world.h"

/* The test ends after SECONDS. The timeout of the group is half an hour. */
enum { RANKS = 3, SECONDS = 60 };
static void split(struct rank *me)
{
    int failing = *(const int *)me->context;
    char name[64];
    tutti_comm *part = NULL;
    struct rlimit before = { 0, 0 };
    snprintf(name, sizeof name, "rank %d (process ", failing);
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    if (me->rank == failing) before = world_limit(RLIMIT_NOFILE, 3);
    tutti_status status = tutti_comm_split(me->comm, 0, 0, &part);
    if (me->rank == failing) {
        REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
        REQUIRE(status == TUTTI_SYSTEM && strstr(tutti_get_last_error(), "too many open files"));
    } else {
        REQUIRE(status == TUTTI_PEER_LOST && strstr(tutti_get_last_error(), name));
        REQUIRE(strstr(tutti_get_last_error(), "could not join the group and has given up; its own error says why"));
    }
    REQUIRE(!part);
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    REQUIRE(tutti_comm_split(me->comm, 0, 0, &part) == TUTTI_OK);
    REQUIRE(tutti_barrier(part, NULL) == TUTTI_OK);
    REQUIRE(tutti_comm_destroy(part) == TUTTI_OK);
}
static void test_rank_that_cannot_join_is_named_by_the_others(void **state)
{
    (void)state;
    for (int failing = 0; failing < RANKS; failing++)
        assert_int_equal(world_processes(RANKS, SECONDS, split, &failing), 0);
}

unit_function test_given_up;
int test_given_up(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_rank_that_cannot_join_is_named_by_the_others) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
