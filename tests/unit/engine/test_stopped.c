/* A job that was stopped for longer than its timeout (SIGSTOP, a frozen container) goes on when it is continued,
   whichever of its ranks runs first. Here the clock jumps, as it does for such a process. */
#include "backend/engine/driver.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>

enum { TIMEOUT_MS = 10000, STOP_S = 60 };
/* The seconds by which the clock has jumped, and those that it jumps at each call. */
static _Atomic long stopped_s, hurry_s;
/* Replaces the function of libc. */
int clock_gettime(clockid_t id, struct timespec *out)
{
    long failed = syscall(SYS_clock_gettime, id, out);
    if (id == CLOCK_MONOTONIC) out->tv_sec += atomic_fetch_add(&stopped_s, atomic_load(&hurry_s));
    return (int)failed;
}
static void is_stopped(struct rank *me)
{
    int32_t one = 1, sum = 0, got = 0;
    tutti_request collective = { .struct_size = sizeof collective, .timeout_ms = TIMEOUT_MS };
    tutti_request message = { .struct_size = sizeof message, .timeout_ms = TIMEOUT_MS };
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    if (me->rank == 1) {
        /* The other rank waits by now, and has read the clock. */
        sleep_us(100000);
        atomic_fetch_add(&stopped_s, STOP_S);
        /* The other rank runs first. */
        sleep_us(100000);
    }
    REQUIRE(tutti_all_reduce(&one, &sum, 1, TUTTI_INT32, TUTTI_SUM, me->comm, &collective) == TUTTI_OK);
    if (me->rank == 0) REQUIRE(tutti_recv(&got, 1, TUTTI_INT32, 1, 7, me->comm, &message) == TUTTI_OK);
    else REQUIRE(tutti_send(&one, 1, TUTTI_INT32, 0, 7, me->comm, &message) == TUTTI_OK);
    REQUIRE(tutti_wait(&collective, 0) == TUTTI_OK && sum == 2);
    REQUIRE(tutti_wait(&message, 0) == TUTTI_OK && got == (me->rank == 0));
}
static void test_time_in_which_all_were_stopped_does_not_count(void **state)
{
    (void)state;
    world_threads(2, NULL, is_stopped, NULL);
    assert_int_equal(atomic_load(&stopped_s), STOP_S);
}
/* The driver checks every few seconds only, as if it were busy with large operations of another communicator. */
static void is_seldom_checked(struct rank *me)
{
    static _Atomic bool over;
    tutti_request request = { .struct_size = sizeof request, .timeout_ms = TIMEOUT_MS, .blocking = true };
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    while (me->rank == 1 && !atomic_load(&over)) sleep_us(1000);
    if (me->rank == 0) atomic_store(&hurry_s, 2);
    REQUIRE(tutti_barrier(me->comm, &request) == TUTTI_TIMEOUT);
    atomic_store(&hurry_s, 0);
    atomic_store(&over, true);
}
static void test_a_timeout_ends_a_wait_that_is_seldom_checked(void **state)
{
    (void)state;
    world_threads(2, NULL, is_seldom_checked, NULL);
}

/* A turn with a sleep of 20 ms counts as 64 turns, so 2^31 turns pass in 7.8 days. */
static void test_a_wait_of_many_days_goes_on(void **state)
{
    (void)state;
    int64_t n = INT32_MAX - 100;
    for (int sleep = 0; sleep < 10; sleep++) {
        int64_t next = driver_turn_before_check(n);
        assert_in_range(next - n, 63, 126);
        /* The turn after it checks for failures. */
        assert_int_equal(next % 64, 62);
        n = next + 1;
    }
    assert_true(n > INT32_MAX);
}
unit_function test_stopped;
int test_stopped(void)
{
    /* Ranks only yield, because the kernel's clock, by which they would sleep, does not jump. */
    setenv("TUTTI_YIELDS", "1000000000", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_time_in_which_all_were_stopped_does_not_count),
        cmocka_unit_test(test_a_timeout_ends_a_wait_that_is_seldom_checked),
        cmocka_unit_test(test_a_wait_of_many_days_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
