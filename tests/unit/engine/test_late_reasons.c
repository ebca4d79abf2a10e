/* An operation that has all it needs does not fail because of a later event. A rank checks whether its peers have
   arrived, and then checks for failures. It may lose its core between the two checks, for so long that a peer arrives,
   completes the operation and aborts the group. In each round the rank loses its core in another turn of its wait, so
   in one of them just before it checks for failures. */
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>

enum { ROUNDS = 80 };
/* The turns until this thread loses its core; 0: it keeps the core. */
static _Thread_local int turns_left;
/* The number of the last round in which the rank has stopped, and of the last one in which it may go on. */
static _Atomic int has_stopped, may_go_on;
static void await(_Atomic int *at, int round)
{
    while (atomic_load(at) < round) sleep_us(50);
}
/* Replaces the function of libc, which a rank calls in each turn of a wait. */
int sched_getcpu(void)
{
    unsigned core = 0;
    if (turns_left && --turns_left == 0) {
        atomic_fetch_add(&has_stopped, 1);
        await(&may_go_on, atomic_load(&has_stopped));
    }
    syscall(SYS_getcpu, &core, NULL, NULL);
    return (int)core;
}
static void peer_aborts_when_all_is_done(struct rank *me)
{
    for (int round = 1; round <= ROUNDS; round++) {
        tutti_comm *comm;
        int32_t one = 1, sum = 0;
        REQUIRE(tutti_comm_split(me->comm, 0, me->rank, &comm) == TUTTI_OK);
        if (me->rank == 0) turns_left = round;
        if (me->rank == 1) await(&has_stopped, round);
        REQUIRE(tutti_all_reduce(&one, &sum, 1, TUTTI_INT32, TUTTI_SUM, comm, NULL) == TUTTI_OK && sum == 2);
        if (me->rank == 1) REQUIRE(tutti_comm_abort(comm) == TUTTI_OK);
        if (me->rank == 1) atomic_store(&may_go_on, round);
        REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
    }
}
static void test_an_operation_that_all_ranks_have_done_does_not_fail(void **state)
{
    (void)state;
    world_threads(2, NULL, peer_aborts_when_all_is_done, NULL);
    assert_int_equal(atomic_load(&has_stopped), ROUNDS);
}

unit_function test_late_reasons;
int test_late_reasons(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_an_operation_that_all_ranks_have_done_does_not_fail) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
