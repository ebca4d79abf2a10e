/* A late yield makes the core count as contended for 50 ms, in which waiting threads sleep instead of yielding, and
   gives the thread short slices. Time is simulated: only yields take time. */
#include "backend/base/settings.h"
#include "backend/host/contention.h"
#include "backend/host/wait.h"
#include "tests/support/unit.h"
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

/* This is the first version of the kernel's struct sched_attr. */
struct schedule_attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};
enum { MS = 1000000, SLICE_NS = 100000 };
/* The first line with a condition that was false, because a thread cannot end a test of cmocka. */
static int false_line;
#define REQUIRE(condition) ((condition) ? (void)0 : (void)(false_line = false_line ? false_line : __LINE__))
static int64_t now_ns = 1000 * (int64_t)MS, yield_ns;
static int yields;

/* This replaces libc's function. */
int sched_yield(void)
{
    yields++;
    now_ns += yield_ns;
    return 0;
}
/* This replaces libc's function. */
int clock_gettime(clockid_t clock, struct timespec *out)
{
    (void)clock;
    *out = (struct timespec){ now_ns / 1000000000, now_ns % 1000000000 };
    return 0;
}
static struct schedule_attributes schedule_get(void)
{
    struct schedule_attributes out = { 0 };
    assert_int_equal(syscall(SYS_sched_getattr, 0, &out, sizeof out, 0), 0);
    return out;
}
/* Linux 6.12 has slices for the policy OTHER. */
static bool kernel_has_slices(void)
{
    struct utsname kernel;
    int major = 0, minor = 0;
    assert_int_equal(uname(&kernel), 0);
    assert_int_equal(sscanf(kernel.release, "%d.%d", &major, &minor), 2);
    return major > 6 || (major == 6 && minor >= 12);
}
/* Each test has a thread of its own, which has made no late yield. */
static void run_in_thread(void *(*body)(void *))
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, body, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(false_line, 0);
}

static void *yield_late(void *unused)
{
    static const struct backoff backoff = { .pauses = 1, .yields = 10 };
    yields = 0;
    yield_ns = 99999;
    REQUIRE(backoff_step(&backoff, 1, false) && yields == 1 && !core_is_contended());
    yield_ns = 100000;
    REQUIRE(backoff_step(&backoff, 2, false) && yields == 2 && core_is_contended());
    REQUIRE(!backoff_step(&backoff, 3, false) && yields == 2);
    /* A thread that asks beforehand gets the same answer. */
    REQUIRE(backoff_wants_sleep(&backoff, 3, false) && !backoff_wants_sleep(&backoff, 3, true));
    REQUIRE(!backoff_wants_sleep(&backoff, 0, false));
    /* A pause gives no core away. */
    REQUIRE(backoff_step(&backoff, 0, false) && yields == 2);
    now_ns += 50 * MS - 1;
    REQUIRE(!backoff_step(&backoff, 3, false) && yields == 2);
    now_ns += 1;
    REQUIRE(backoff_step(&backoff, 3, false) && yields == 3 && core_is_contended());
    /* A rank that wants the core gets it even then. */
    REQUIRE(backoff_step(&backoff, 0, true) && backoff_step(&backoff, 4, true) && yields == 5);
    return unused;
}
static void test_late_yield_ends_yields(void **state)
{
    (void)state;
    run_in_thread(yield_late);
}
static void *wait_on_words(void *unused)
{
    static const struct backoff backoff = { .pauses = 0, .yields = 10 };
    static _Atomic uint32_t word = 1, waiters;
    struct wait_set words = { .count = 0 }, none = { .count = 0 };
    /* The word has changed already, so the sleep ends at once. */
    wait_set_add(&words, &word, 0, &waiters, false);
    yields = 0;
    yield_ns = MS;
    REQUIRE(!backoff_wait(&backoff, 0, &words, 1000) && yields == 1);
    REQUIRE(backoff_wait(&backoff, 1, &words, 1000) && yields == 1);
    REQUIRE(!backoff_wait(&backoff, 1, &none, 1000) && yields == 2);
    return unused;
}
static void test_only_threads_with_words_sleep_early(void **state)
{
    (void)state;
    run_in_thread(wait_on_words);
}

static void *yield_twice(void *unused)
{
    struct schedule_attributes before = schedule_get(), after;
    bool has_slices = kernel_has_slices() && before.policy == SCHED_OTHER && before.runtime > SLICE_NS;
    yield_ns = 0;
    core_yield();
    REQUIRE(schedule_get().runtime == before.runtime);
    yield_ns = MS;
    core_yield();
    after = schedule_get();
    REQUIRE(after.runtime == (has_slices ? SLICE_NS : before.runtime));
    REQUIRE(after.nice == before.nice && after.policy == before.policy);
    return unused;
}
static void test_late_yield_shortens_slices(void **state)
{
    (void)state;
    run_in_thread(yield_twice);
}
static void *yield_as_batch(void *unused)
{
    struct sched_param none = { 0 };
    REQUIRE(sched_setscheduler(0, SCHED_BATCH, &none) == 0);
    struct schedule_attributes before = schedule_get();
    yield_ns = MS;
    core_yield();
    REQUIRE(schedule_get().runtime == before.runtime && core_is_contended());
    return unused;
}
static void test_slices_of_other_policies_stay(void **state)
{
    (void)state;
    run_in_thread(yield_as_batch);
}

unit_function test_contention;
int test_contention(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late_yield_ends_yields),
        cmocka_unit_test(test_only_threads_with_words_sleep_early),
        cmocka_unit_test(test_late_yield_shortens_slices),
        cmocka_unit_test(test_slices_of_other_policies_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
