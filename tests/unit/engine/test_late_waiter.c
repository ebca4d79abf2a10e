/* Closing a communicator waits for a thread that begins to wait for its operation at the last moment. */
#include "backend/engine/comm.h"
#include "backend/engine/driver.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>

/* The communicator that is closed, its operation, and how far the two threads are. */
static tutti_comm *closing;
static tutti_request request = TUTTI_REQUEST_INIT;
static _Atomic bool closer_naps, waiter_is_inside, role_is_free, closer_awaits, has_closed, waiter_may_go_on;
static _Thread_local bool is_closer, is_waiter;

/* Replaces the function of libc, which a thread calls after it has backed off for long. */
int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left)
{
    if (is_closer) atomic_store(&closer_naps, true);
    if (is_closer) progress_thread_wake();
    /* The closer waits only for the waiter now: the operation is taken, and the progress thread has left. */
    if (is_closer && atomic_load(&role_is_free) && !atomic_load(&closing->submission.submitted)
        && !atomic_load(&closing->progress_entry.requests))
        atomic_store(&closer_awaits, true);
    return syscall(SYS_clock_nanosleep, clock, flags, time, left) == 0 ? 0 : errno;
}
/* Replaces the function of libc, which a thread calls while it waits inside an operation. */
int sched_getcpu(void)
{
    unsigned core = 0;
    if (is_waiter) atomic_store(&waiter_is_inside, true);
    while (is_waiter && !atomic_load(&waiter_may_go_on)) sleep_us(50);
    syscall(SYS_getcpu, &core, NULL, NULL);
    return (int)core;
}
static void event_await(_Atomic bool *event)
{
    while (!atomic_load(event)) sleep_us(50);
}
static void *close_comm(void *unused)
{
    is_closer = true;
    operations_close_comm(closing);
    atomic_store(&has_closed, true);
    return unused;
}
static void *wait_for_operation(void *unused)
{
    is_waiter = true;
    REQUIRE(tutti_wait(&request, 0) == TUTTI_ABORTED);
    return unused;
}
/* Rank 0 has the driver's role until the closer has seen that no thread is inside the operation, and the waiter has
   entered it after that. */
static void wait_while_another_thread_closes(struct rank *me)
{
    pthread_t closer, waiter;
    tutti_comm *comm;
    REQUIRE(tutti_comm_split(me->comm, 0, me->rank, &comm) == TUTTI_OK);
    if (me->rank == 0) {
        closing = comm;
        driver_acquire_role(comm);
        REQUIRE(tutti_barrier(comm, &request) == TUTTI_OK);
        comm_fail_locally(comm, TUTTI_ABORTED, "the test has closed the communicator");
        REQUIRE(pthread_create(&closer, NULL, close_comm, NULL) == 0);
        event_await(&closer_naps);
        REQUIRE(pthread_create(&waiter, NULL, wait_for_operation, NULL) == 0);
        event_await(&waiter_is_inside);
        atomic_store(&role_is_free, true);
        driver_hand_over_role(comm);
        while (!atomic_load(&closer_awaits) && !atomic_load(&has_closed)) sleep_us(50);
        REQUIRE(!atomic_load(&has_closed));
        atomic_store(&waiter_may_go_on, true);
        REQUIRE(pthread_join(waiter, NULL) == 0 && pthread_join(closer, NULL) == 0);
        driver_release_role(comm);
    }
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
}
static void test_closing_awaits_a_late_waiter(void **state)
{
    (void)state;
    world_threads(2, NULL, wait_while_another_thread_closes, NULL);
}

unit_function test_late_waiter;
int test_late_waiter(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_closing_awaits_a_late_waiter) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
