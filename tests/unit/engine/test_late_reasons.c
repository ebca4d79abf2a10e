/* An operation that has all it needs does not fail because of what happens next. A rank that looks whether its peers
 * have come, and then for reasons not to go on, may lose its core between the two looks, as long as a peer needs to
 * come, to end the operation and to abort the group. Here it loses it there: in one of the rounds just before a look
 * for reasons is due. */
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>

enum { ROUNDS = 80 };
static _Thread_local int turns_left;                    /* until this thread loses its core */
static _Atomic int has_stopped, may_go_on;              /* numbers of rounds */
static void await(_Atomic int *at, int round)
{
    while (atomic_load(at) < round) sleep_us(50);
}
int sched_getcpu(void)                                  /* in place of libc's: what a rank calls that has to wait */
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
static void test_what_all_have_done_does_not_fail(void **state)
{
    (void)state;
    world_threads(2, NULL, peer_aborts_when_all_is_done, NULL);
    assert_int_equal(atomic_load(&has_stopped), ROUNDS);
}

unit_function test_late_reasons;
int test_late_reasons(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_what_all_have_done_does_not_fail) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
