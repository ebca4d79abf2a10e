/* A rank that dies is named by all others, with the remedy; and a forked child may not use its parent's communicators.
   The ranks are processes. */
#include "backend/engine/comm.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <signal.h>
#include <sys/wait.h>

#define SAYS(text) REQUIRE(strstr(tutti_get_last_error(), text) != NULL)
static float one[64], other[64];

/* Rank 1 dies within calls. If the context is not NULL, the group is reconfigurable. */
static void rank_dies(struct rank *me)
{
    me->comm->group.is_reconfigurable = me->context != NULL;
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    /* A rank that returns from this barrier knows that the first one is over. */
    tutti_status status = tutti_barrier(me->comm, NULL);
    if (me->rank == 1) { usleep(20000); raise(SIGKILL); }
    static float big[1 << 20];
    while (status == TUTTI_OK) status = tutti_all_reduce(big, big, 1 << 20, TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL);
    REQUIRE(status == TUTTI_PEER_LOST);
    SAYS("rank 1 of the group (process ");
    SAYS("died");
    SAYS(me->context ? "; reconfigure this group without rank 1 (docs/fault-tolerance.md) or make a new one"
                     : "; destroy this group and make a new one without it");
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_PEER_LOST);
}
static void test_a_killed_rank_is_named_by_all_survivors(void **state)
{
    (void)state;
    /* Only the killed process does not exit with 0. */
    assert_int_equal(world_processes(3, 30, rank_dies, NULL), 1);
    assert_int_equal(world_processes(3, 30, rank_dies, state), 1);
}
static void test_a_killed_rank_is_named_on_all_hosts(void **state)
{
    (void)state;
    world_pretend("0,1,0,1");
    assert_int_equal(world_processes(4, 30, rank_dies, state), 1);
    world_pretend("");
}
/* The child may use its own communicators only. */
static void rank_forks(struct rank *me)
{
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        bool right =
            tutti_barrier(me->comm, NULL) == TUTTI_FORKED && strstr(tutti_get_last_error(), "before a fork") != NULL;
        tutti_comm *own;
        tutti_config config = { .struct_size = sizeof config, .size = 1 };
        right = right && tutti_comm_destroy(me->comm) == TUTTI_OK && tutti_comm_init(&own, &config) == TUTTI_OK;
        right = right && tutti_all_reduce(one, other, 4, TUTTI_FLOAT32, TUTTI_SUM, own, NULL) == TUTTI_OK
            && tutti_comm_destroy(own) == TUTTI_OK;
        _exit(right ? 0 : 1);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    /* The parent's communicator still works. */
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
}
static void test_a_forked_child_may_use_only_its_own_communicators(void **state)
{
    (void)state;
    assert_int_equal(world_processes(2, 30, rank_forks, NULL), 0);
}
unit_function test_deaths;
int test_deaths(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_killed_rank_is_named_by_all_survivors),
        cmocka_unit_test(test_a_killed_rank_is_named_on_all_hosts),
        cmocka_unit_test(test_a_forked_child_may_use_only_its_own_communicators),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
