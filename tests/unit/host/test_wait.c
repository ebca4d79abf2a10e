/* Waiting loses no wake-up. Two threads or processes increment a counter in turns, up to 100,000, and each sleeps at
   once while it is the other's turn. A wake-up is lost if a sleep takes its limit, 20 seconds.
   tests/python/test_publish_model.py proves that unfenced stores lose none in any order of their steps. The other tests
   are of the counters of waiting and of the backoff. */
#include "backend/base/clock.h"
#include "backend/base/settings.h"
#include "backend/host/wait.h"
#include "tests/support/forbid.h"
#include "tests/support/unit.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { HANDOVERS = 100000, LOST_MS = 20000, FUTEX_WAITV = 449 };
/* A counter, and the number of threads that sleep on it. */
struct word { _Alignas(128) _Atomic uint64_t counter; _Alignas(128) _Atomic uint32_t waiters; };
/* Memory that both sides share. The side whose `which` is the lowest bit of `turn` increments it. The words of
   `constant` never change; they fill a wait set. */
struct table { struct word turn, constant[WAIT_WORDS]; };
/* One side. It sleeps on `constants` constant words besides `turn`, and ends when `turn` is `handovers`, or when it has
   lost a wake-up. */
struct side { struct table *table; unsigned which, handovers, constants; bool lost; };

/* ---- two sides in turns ---- */
static void add(struct wait_set *set, struct word *word, uint64_t seen)
{
    wait_set_add(set, (_Atomic uint32_t *)(void *)&word->counter, (uint32_t)seen, &word->waiters, true);
}
/* Sleeps once, until `turn` is no longer `seen`. Returns false if the sleep took its limit. */
static bool sleep_once(const struct side *me, uint64_t seen)
{
    static const struct backoff at_once = { 0, 0 };
    struct wait_set set = { .count = 0 };
    for (unsigned i = 0; i < me->constants; i++) add(&set, &me->table->constant[i], 0);
    add(&set, &me->table->turn, seen);
    int64_t begin = clock_ms();
    backoff_wait(&at_once, 0, &set, LOST_MS);
    return clock_ms() - begin < LOST_MS;
}
static void *turns_take(void *context)
{
    struct side *me = context;
    struct word *turn = &me->table->turn;
    for (uint64_t now = 0; now < me->handovers && !me->lost;) {
        now = atomic_load_explicit(&turn->counter, memory_order_acquire);
        if (now % 2 == me->which) counter_publish_and_wake(NULL, &turn->counter, now + 1, &turn->waiters);
        else if (now < me->handovers) me->lost = !sleep_once(me, now);
    }
    return NULL;
}
static struct table *table_create(void)
{
    void *at = mmap(NULL, sizeof(struct table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(at != MAP_FAILED);
    return at;
}
static void table_destroy(struct table *table)
{
    assert_true(atomic_load(&table->turn.counter) >= HANDOVERS / 100);
    assert_int_equal(atomic_load(&table->turn.waiters), 0);
    assert_int_equal(atomic_load(&table->constant[0].waiters), 0);
    munmap(table, sizeof *table);
}
static void threads_take_turns(unsigned constants)
{
    struct table *table = table_create();
    struct side sides[2] = { { table, 0, HANDOVERS, constants, false }, { table, 1, HANDOVERS, constants, false } };
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, turns_take, &sides[1]), 0);
    turns_take(&sides[0]);
    pthread_join(other, NULL);
    assert_false(sides[0].lost || sides[1].lost);
    table_destroy(table);
}
/* Each process calls `prepare` first, unless it is NULL. If a process cannot prepare, nothing is tested. */
static void processes_take_turns(unsigned constants, unsigned handovers, bool (*prepare)(void))
{
    struct table *table = table_create();
    pid_t sides[2];
    for (unsigned side = 0; side < 2; side++)
        if ((sides[side] = fork()) == 0) {
            struct side me = { table, side, handovers, constants, false };
            if (prepare && !prepare()) _exit(77);
            turns_take(&me);
            _exit(me.lost);
        }
    for (int side = 0; side < 2; side++) {
        int status;
        assert_int_equal(waitpid(sides[side], &status, 0), sides[side]);
        bool cannot = WIFEXITED(status) && WEXITSTATUS(status) == 77;
        if (cannot) print_message("seccomp filters are not allowed here, so sleep without futex_waitv is not tested\n");
        else assert_int_equal(status, 0);
    }
    if (atomic_load(&table->turn.counter)) table_destroy(table);
}
/* Simulates a kernel before Linux 5.16. */
static bool forbid_futex_waitv(void) { return forbid_calls(FUTEX_WAITV, FUTEX_WAITV, ENOSYS); }

/* ---- unfenced stores: each process publishes its own counter, mostly polls the other's, and seldom sleeps ---- */
/* A run ends after TURNS turns or MOST_MS, but not before each process has made UNFENCED unfenced stores. A process
   sleeps in SLEEPS of SLEEP_EVERY turns, and calls sched_yield after each POLLS polls in the others. */
enum { TURNS = 40000, MOST_MS = 2000, POLLS = 1000, SLEEP_EVERY = 200, SLEEPS = 2, UNFENCED = 400 };
/* Each process publishes its counter and the number of its unfenced stores, and process 0 also the last turn. */
struct published { struct word word; _Alignas(128) _Atomic uint32_t unfenced; _Atomic uint64_t last; };
struct publishing_process { struct published *both; unsigned which; bool refused, lost; };
/* Returns true when the other process has reached turn `now`, and false after LOST_MS. */
static bool await_other(const struct publishing_process *me, uint64_t now)
{
    struct word *other = &me->both[!me->which].word;
    bool sleeps = now % SLEEP_EVERY < SLEEPS;
    int64_t begin = clock_ms();
    uint64_t seen;
    for (unsigned n = 1; (seen = atomic_load(&other->counter)) < now; n++) {
        struct wait_set set = { .count = 0 };
        add(&set, other, seen);
        if (sleeps) wait_set_sleep(&set, LOST_MS);
        else if (n % POLLS == 0) sched_yield();
        if ((sleeps || n % POLLS == 0) && clock_ms() - begin >= LOST_MS) return false;
    }
    return true;
}
/* True if turn `now` may be the last of a run that began at `begin` (ms). If stores may be unfenced, the run goes on
   until both processes have made enough of them, for at most LOST_MS: a process that shares its core makes few turns in
   a second. */
static bool is_over(const struct published *both, uint64_t now, bool may_be_unfenced, int64_t begin)
{
    bool seen =
        !may_be_unfenced || (atomic_load(&both[0].unfenced) >= UNFENCED && atomic_load(&both[1].unfenced) >= UNFENCED);
    int64_t ms = clock_ms() - begin;
    return ms > LOST_MS || (seen && (now >= TURNS || ms > MOST_MS));
}
static void publish_in_turns(struct publishing_process *me)
{
    struct published *own = &me->both[me->which];
    struct publisher publisher = { .may_be_unfenced = fence_register_process() != me->refused };
    int64_t begin = clock_ms();
    for (uint64_t now = 1; now <= atomic_load(&me->both[0].last) && !me->lost; now++) {
        for (volatile uint64_t i = 0; i < now * (7 + 4 * me->which) % 64; i++) {}
        if (me->which == 0 && is_over(me->both, now, publisher.may_be_unfenced, begin)) atomic_store(&own->last, now);
        counter_publish_and_wake(&publisher, &own->word.counter, now, &own->word.waiters);
        if (atomic_load(&own->word.waiters) & WAITERS_UNFENCED) atomic_fetch_add(&own->unfenced, 1);
        me->lost = !await_other(me, now);
    }
}
static bool forbid_fences(void) { return forbid_calls(SYS_membarrier, SYS_membarrier, EPERM); }
/* With `refused`, the kernel refuses fences to process 1, and process 0 does not know it. */
static void processes_publish_in_turns(bool refused)
{
    struct published *both = mmap(NULL, 2 * sizeof *both, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t sides[2];
    assert_true(both != MAP_FAILED);
    bool can = fence_register_process();
    /* Here the kernel refuses fences to both. */
    if (refused && !can) skip();
    atomic_store(&both[0].last, UINT64_MAX);
    for (unsigned side = 0; side < 2; side++)
        if ((sides[side] = fork()) == 0) {
            struct publishing_process me = { both, side, refused && side, false };
            if (me.refused && !forbid_fences()) _exit(77);
            publish_in_turns(&me);
            _exit(me.lost);
        }
    for (int side = 0; side < 2; side++) {
        int status;
        assert_int_equal(waitpid(sides[side], &status, 0), sides[side]);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 77) { kill(sides[!side], SIGKILL); skip(); }
        assert_int_equal(status, 0);
    }
    for (unsigned side = 0; side < 2; side++) {
        assert_true((atomic_load(&both[side].unfenced) >= UNFENCED) == can);
        assert_true(atomic_load(&both[side].unfenced) < atomic_load(&both[side].word.counter));
    }
    munmap(both, 2 * sizeof *both);
}

/* ---- tests ---- */
static void test_unfenced_stores_lose_no_wake_up(void **state)
{
    (void)state;
    processes_publish_in_turns(false);
}
static void test_process_that_is_refused_a_fence_sleeps_briefly(void **state)
{
    (void)state;
    processes_publish_in_turns(true);
}
static void test_threads_lose_no_wake_up(void **state)
{
    (void)state;
    threads_take_turns(0);
}
static void test_threads_lose_no_wake_up_among_many_words(void **state)
{
    (void)state;
    threads_take_turns(WAIT_WORDS - 2);
}
static void test_processes_lose_no_wake_up(void **state)
{
    (void)state;
    processes_take_turns(0, HANDOVERS, NULL);
}
static void test_processes_lose_no_wake_up_among_many_words(void **state)
{
    (void)state;
    processes_take_turns(3, HANDOVERS, NULL);
}
static void test_old_kernel_waits_for_many_words_too(void **state)
{
    (void)state;
    processes_take_turns(3, HANDOVERS / 100, forbid_futex_waitv);
}
static void test_sleep_on_a_full_set_is_brief(void **state)
{
    struct table *table = table_create();
    struct side me = { table, 0, 0, WAIT_WORDS, false };
    /* No word changes. The sleep ends by the limit of 1 ms for full sets. */
    assert_true(sleep_once(&me, 0));
    munmap(table, sizeof *table);
    (void)state;
}
static void test_changed_word_ends_a_sleep_at_once(void **state)
{
    struct table *table = table_create();
    struct side me = { table, 0, 0, 0, false };
    atomic_store(&table->turn.counter, 5);
    assert_true(sleep_once(&me, 4));
    me.constants = 3;
    assert_true(sleep_once(&me, 4));
    munmap(table, sizeof *table);
    (void)state;
}
static int yields;
/* Replaces the function of libc: it only counts its calls, and does not yield. */
int sched_yield(void)
{
    yields++;
    return 0;
}

/* ---- counters of waiting ---- */
static uint64_t before_test[WAITING_COUNTERS];
static void counters_save(void)
{
    for (int i = 0; i < WAITING_COUNTERS; i++) before_test[i] = waiting_counter_value(i);
}
static void assert_counted(enum waiting_counter which, uint64_t more)
{
    assert_int_equal(waiting_counter_value(which) - before_test[which], more);
}
static void test_sleep_without_a_wake_up_times_out(void **state)
{
    static struct word word = { 7, 0 };
    struct wait_set set = { .count = 0 };
    add(&set, &word, 7);
    counters_save();
    wait_set_sleep(&set, 2);
    assert_counted(WAITING_SLEEPS, 1);
    assert_counted(WAITING_TIMED_OUT, 1);
    assert_counted(WAITING_LATE, 0);
    assert_true(waiting_counter_value(WAITING_ASLEEP_NS) - before_test[WAITING_ASLEEP_NS] >= 2000000);
    (void)state;
}
static void test_sleep_on_a_changed_word_does_not_time_out(void **state)
{
    static struct word word = { 8, 0 };
    struct wait_set set = { .count = 0 };
    add(&set, &word, 7);
    counters_save();
    wait_set_sleep(&set, 2);
    assert_counted(WAITING_SLEEPS, 1);
    assert_counted(WAITING_TIMED_OUT, 0);
    (void)state;
}
/* Without futex_waitv the thread sleeps only on the first word. The second word has changed, so the sleep that times
   out counts as one that has missed a wake-up. */
static int sleep_with_a_changed_word(void)
{
    static struct word words[2] = { { 7, 0 }, { 8, 0 } };
    struct wait_set set = { .count = 0 };
    if (!forbid_futex_waitv()) return 77;
    for (int i = 0; i < 2; i++) add(&set, &words[i], 7);
    counters_save();
    wait_set_sleep(&set, 2);
    return waiting_counter_value(WAITING_LATE) - before_test[WAITING_LATE] != 1
        || waiting_counter_value(WAITING_TIMED_OUT) == 0;
}
static void test_change_that_ended_no_sleep_counts_as_late(void **state)
{
    int status;
    pid_t child = fork();
    if (child == 0) _exit(sleep_with_a_changed_word());
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) skip();
    assert_int_equal(status, 0);
    (void)state;
}
static void test_sleep_of_an_idle_thread_is_not_counted(void **state)
{
    static struct word word = { 7, 0 };
    struct wait_set set = { .idle = true };
    add(&set, &word, 7);
    counters_save();
    wait_set_sleep(&set, 2);
    assert_counted(WAITING_SLEEPS, 0);
    assert_counted(WAITING_ASLEEP_NS, 0);
    assert_counted(WAITING_TIMED_OUT, 0);
    (void)state;
}
static void test_each_yield_nap_and_wake_up_counts(void **state)
{
    struct backoff backoff = { 3, 2 };
    struct wait_set none = { .count = 0 };
    static struct word word = { 7, 0 };
    counters_save();
    for (int n = 0; n < 9; n++) backoff_wait(&backoff, n, &none, 1);
    counter_publish_and_wake(NULL, &word.counter, 8, &word.waiters);
    word_wake(&word.waiters, false);
    assert_counted(WAITING_YIELDS, 2);
    assert_counted(WAITING_NAPS, 4);
    assert_counted(WAITING_SLEEPS, 0);
    /* No thread slept on the counter, so only word_wake counts. */
    assert_counted(WAITING_WAKES, 1);
    (void)state;
}
static void test_counters_have_names(void **state)
{
    for (int i = 0; i < WAITING_COUNTERS; i++) assert_true(waiting_counter_name(i) && *waiting_counter_name(i));
    assert_null(waiting_counter_name(-1));
    assert_null(waiting_counter_name(WAITING_COUNTERS));
    assert_int_equal(waiting_counter_value(WAITING_COUNTERS), 0);
    (void)state;
}

/* ---- the backoff ---- */
static void test_backoff_pauses_then_yields_then_sleeps(void **state)
{
    yields = 0;
    struct backoff backoff = { 3, 2 };
    struct wait_set none = { .count = 0 };
    for (int n = 0; n < 3; n++) assert_false(backoff_wait(&backoff, n, &none, 1));
    assert_int_equal(yields, 0);
    for (int n = 3; n < 5; n++) assert_false(backoff_wait(&backoff, n, &none, 1));
    assert_int_equal(yields, 2);
    for (int n = 5; n < 9; n++) assert_true(backoff_wait(&backoff, n, &none, 1));
    assert_int_equal(yields, 2);
    (void)state;
}
/* The number of polls may exceed 32 bits. */
static void test_backoff_never_returns_to_pauses_and_yields(void **state)
{
    const struct backoff backoff = { 3, 2 };
    const struct wait_set none = { .count = 0 };
    yields = 0;
    for (int64_t n = (int64_t)INT32_MAX - 1; n < (int64_t)INT32_MAX + 3; n++)
        assert_true(backoff_wait(&backoff, n, &none, 1));
    assert_true(backoff_wait(&backoff, (int64_t)1 << 32, &none, 1));
    assert_int_equal(yields, 0);
    (void)state;
}
static void test_backoff_yields_a_wanted_core_without_pauses(void **state)
{
    struct backoff backoff = { 3, 2 };
    struct wait_set set = { .core_is_wanted = true };
    yields = 0;
    for (int n = 0; n < 5; n++) assert_false(backoff_wait(&backoff, n, &set, 1));
    assert_int_equal(yields, 5);
    assert_true(backoff_wait(&backoff, 5, &set, 1));
    (void)state;
}
static void test_wait_core_is_1_more_than_the_core(void **state)
{
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &before)) continue;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
        assert_int_equal(wait_core(), core + 1);
    }
    sched_setaffinity(0, sizeof before, &before);
    (void)state;
}
static void test_settings_override_the_spin_budget(void **state)
{
    setenv("TUTTI_SPINS", "7", 1);
    setenv("TUTTI_YIELDS", "0", 1);
    settings_get();
    settings_reload();
    struct backoff backoff = backoff_for_thread(true);
    unsetenv("TUTTI_SPINS");
    unsetenv("TUTTI_YIELDS");
    settings_reload();
    assert_int_equal(backoff.pauses, 7);
    assert_int_equal(backoff.yields, 0);
    (void)state;
}
unit_function test_wait;
int test_wait(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_lose_no_wake_up),
        cmocka_unit_test(test_threads_lose_no_wake_up_among_many_words),
        cmocka_unit_test(test_unfenced_stores_lose_no_wake_up),
        cmocka_unit_test(test_process_that_is_refused_a_fence_sleeps_briefly),
        cmocka_unit_test(test_processes_lose_no_wake_up),
        cmocka_unit_test(test_processes_lose_no_wake_up_among_many_words),
        cmocka_unit_test(test_old_kernel_waits_for_many_words_too),
        cmocka_unit_test(test_sleep_on_a_full_set_is_brief),
        cmocka_unit_test(test_changed_word_ends_a_sleep_at_once),
        cmocka_unit_test(test_sleep_without_a_wake_up_times_out),
        cmocka_unit_test(test_sleep_on_a_changed_word_does_not_time_out),
        cmocka_unit_test(test_change_that_ended_no_sleep_counts_as_late),
        cmocka_unit_test(test_sleep_of_an_idle_thread_is_not_counted),
        cmocka_unit_test(test_each_yield_nap_and_wake_up_counts),
        cmocka_unit_test(test_counters_have_names),
        cmocka_unit_test(test_backoff_pauses_then_yields_then_sleeps),
        cmocka_unit_test(test_backoff_never_returns_to_pauses_and_yields),
        cmocka_unit_test(test_backoff_yields_a_wanted_core_without_pauses),
        cmocka_unit_test(test_wait_core_is_1_more_than_the_core),
        cmocka_unit_test(test_settings_override_the_spin_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
