/* A thread that waits in a call runs its check for interrupts. A check that returns true ends the wait with an error,
   and fails the group on all ranks; one that returns false lets the wait go on. */
#include "backend/engine/comm.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <stdatomic.h>

enum { CALLS = 3 };
static _Thread_local int calls;
static _Atomic int quiet_calls;
/* Interrupts at the last of CALLS calls. */
static bool interrupt_later(void) { return ++calls == CALLS; }
static bool count_call(void)
{
    atomic_fetch_add(&quiet_calls, 1);
    return false;
}
static float values[2][64];

/* ---- waits of rank 1 ---- */
typedef tutti_status wait_function(tutti_comm *comm);
static tutti_status wait_in_collective(tutti_comm *comm)
{
    return tutti_all_reduce(values[1], values[1], 64, TUTTI_FLOAT32, TUTTI_SUM, comm, NULL);
}
static tutti_status wait_in_recv(tutti_comm *comm)
{
    return tutti_recv(values[1], 64, TUTTI_FLOAT32, 0, 0, comm, NULL);
}
static tutti_status wait_for_request(tutti_comm *comm)
{
    tutti_request request = TUTTI_REQUEST_INIT;
    REQUIRE(tutti_all_reduce(values[1], values[1], 64, TUTTI_FLOAT32, TUTTI_SUM, comm, &request) == TUTTI_OK);
    return tutti_wait(&request, 0);
}
static void be_interrupted(struct rank *me)
{
    wait_function *wait = *(wait_function **)me->context;
    if (me->rank == 1) {
        calls = 0;
        tutti_set_interrupt_check(interrupt_later);
        REQUIRE(wait(me->comm) == TUTTI_ABORTED && calls == CALLS);
        REQUIRE(strstr(tutti_get_last_error(), "rank 1 of ") && strstr(tutti_get_last_error(), " was interrupted"));
        tutti_set_interrupt_check(NULL);
    }
    world_meet(me);
    float *mine = values[me->rank];
    REQUIRE(tutti_all_reduce(mine, mine, 64, TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL) == TUTTI_ABORTED);
    REQUIRE(strstr(tutti_get_last_error(), "rank 1 of ") && strstr(tutti_get_last_error(), " was interrupted"));
}
static void test_interrupted_wait_fails_the_group_on_all_ranks(void **state)
{
    wait_function *const waits[] = { wait_in_collective, wait_in_recv, wait_for_request };
    (void)state;
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
        wait_function *wait = waits[i];
        world_threads(2, NULL, be_interrupted, &wait);
        world_threads_on("2", 2, NULL, be_interrupted, &wait);
    }
}

/* ---- a check that finds nothing ---- */
/* Rank 0 comes after rank 1 has run its check a few times. */
static void go_on_after_checks(struct rank *me)
{
    float mine = (float)me->rank;
    if (me->rank == 0)
        while (atomic_load(&quiet_calls) < CALLS) sleep_us(1000);
    else tutti_set_interrupt_check(count_call);
    REQUIRE(tutti_all_reduce(&mine, &mine, 1, TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL) == TUTTI_OK && mine == 1);
    tutti_set_interrupt_check(NULL);
}
static void test_wait_goes_on_after_a_check_without_an_interrupt(void **state)
{
    (void)state;
    atomic_store(&quiet_calls, 0);
    world_threads(2, NULL, go_on_after_checks, NULL);
    atomic_store(&quiet_calls, 0);
    world_threads_on("2", 2, NULL, go_on_after_checks, NULL);
}
/* Another thread drives the communicator of rank 1, so the thread of the check only sleeps. */
static void *recv_second(void *context)
{
    tutti_comm *comm = context;
    float got;
    REQUIRE(tutti_recv(&got, 1, TUTTI_FLOAT32, 0, 2, comm, NULL) == TUTTI_OK);
    return NULL;
}
static void go_on_beside_a_driver(struct rank *me)
{
    float mine = 0;
    if (me->rank == 0) {
        while (atomic_load(&quiet_calls) < CALLS) sleep_us(1000);
        REQUIRE(tutti_send(&mine, 1, TUTTI_FLOAT32, 1, 1, me->comm, NULL) == TUTTI_OK);
        REQUIRE(tutti_send(&mine, 1, TUTTI_FLOAT32, 1, 2, me->comm, NULL) == TUTTI_OK);
        return;
    }
    pthread_t other;
    REQUIRE(pthread_create(&other, NULL, recv_second, me->comm) == 0);
    tutti_set_interrupt_check(count_call);
    REQUIRE(tutti_recv(&mine, 1, TUTTI_FLOAT32, 0, 1, me->comm, NULL) == TUTTI_OK);
    tutti_set_interrupt_check(NULL);
    pthread_join(other, NULL);
}
static void test_threads_that_wait_beside_each_other_run_their_checks(void **state)
{
    (void)state;
    atomic_store(&quiet_calls, 0);
    world_threads(2, NULL, go_on_beside_a_driver, NULL);
}
unit_function test_interrupts;
int test_interrupts(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_interrupted_wait_fails_the_group_on_all_ranks),
        cmocka_unit_test(test_wait_goes_on_after_a_check_without_an_interrupt),
        cmocka_unit_test(test_threads_that_wait_beside_each_other_run_their_checks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
