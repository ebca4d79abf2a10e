/* A rank that waits for a rank on its own core yields at once. A rank that waits for ranks on other cores does not: the
   spin budget is so large here that it never yields for another reason. */
#include "backend/base/settings.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>

enum { RANKS = 3, CALLS = 300, LARGE = 100000 };
static _Thread_local int yields;
/* Replaces the function of libc. */
int sched_yield(void)
{
    yields++;
    return (int)syscall(SYS_sched_yield);
}

/* ---- cores ---- */
static int cores_usable(cpu_set_t *out)
{
    REQUIRE(sched_getaffinity(0, sizeof *out, out) == 0);
    return CPU_COUNT(out);
}
/* Pins this thread to one of the cores that this process may use, by its index. */
static void stay_on(int which)
{
    cpu_set_t all, one;
    cores_usable(&all);
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &all) && which-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(core, &one);
            REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
        }
}

/* ---- bodies ---- */
/* The yields of all ranks during their operations. */
static _Atomic int yielded;
static void reduce_often(struct rank *me, size_t count, int calls)
{
    float *x = calloc(count, sizeof *x);
    x[0] = 1;
    /* After these barriers each rank knows the cores of the others. */
    for (int i = 0; i < 3; i++) REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    int before = yields;
    for (int i = 0; i < calls; i++) {
        x[count - 1] = 1;
        REQUIRE(tutti_all_reduce(x, x, count, TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL) == TUTTI_OK);
        REQUIRE(x[count - 1] == (float)me->size);
    }
    yielded += yields - before;
    free(x);
}
static void on_one_core(struct rank *me)
{
    stay_on(0);
    reduce_often(me, 2, CALLS);
    reduce_often(me, LARGE, CALLS / 30);
}
static void on_a_core_each(struct rank *me)
{
    stay_on(me->rank);
    reduce_often(me, 2, CALLS);
    reduce_often(me, LARGE, CALLS / 30);
}
/* One message goes round all ranks. */
static void pass_message_round(struct rank *me)
{
    stay_on(0);
    float x = (float)me->rank;
    int next = (me->rank + 1) % me->size, previous = (me->rank + me->size - 1) % me->size, before = yields;
    for (int i = 0; i < CALLS; i++)
        if (me->rank == i % me->size) {
            REQUIRE(tutti_send(&x, 1, TUTTI_FLOAT32, next, 0, me->comm, NULL) == TUTTI_OK);
        } else if (me->rank == (i + 1) % me->size) {
            REQUIRE(tutti_recv(&x, 1, TUTTI_FLOAT32, previous, 0, me->comm, NULL) == TUTTI_OK);
        }
    yielded += yields - before;
}

/* ---- worlds ---- */
static int pauses_are(const char *number)
{
    yielded = 0;
    setenv("TUTTI_SPINS", number, 1);
    settings_reload();
    return 0;
}
/* A spin budget of some ms, which includes the polls of the executor. */
static int many_pauses(void **state)
{
    (void)state;
    return pauses_are("100000");
}
static int endless_pauses(void **state)
{
    (void)state;
    return pauses_are("1000000000");
}
static int settings_again(void **state)
{
    (void)state;
    unsetenv("TUTTI_SPINS");
    settings_reload();
    return 0;
}
static void test_ranks_of_one_core_yield_to_each_other(void **state)
{
    (void)state;
    world_threads(RANKS, NULL, on_one_core, NULL);
    assert_true(yielded >= CALLS);
}
static void test_messages_on_one_core_yield(void **state)
{
    (void)state;
    world_threads(RANKS, NULL, pass_message_round, NULL);
    /* A receiver does not wait for a message that arrived while another rank had the core. */
    assert_true(yielded >= CALLS / 2);
}
static void test_ranks_of_different_cores_do_not_yield(void **state)
{
    (void)state;
    cpu_set_t all;
    if (cores_usable(&all) < 2) { print_message("SKIPPED: this process may use one core only\n"); skip(); }
    world_threads(2, NULL, on_a_core_each, NULL);
    assert_int_equal(yielded, 0);
}

unit_function test_crowd;
int test_crowd(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_ranks_of_one_core_yield_to_each_other, many_pauses, settings_again),
        cmocka_unit_test_setup_teardown(test_messages_on_one_core_yield, many_pauses, settings_again),
        cmocka_unit_test_setup_teardown(test_ranks_of_different_cores_do_not_yield, endless_pauses, settings_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
