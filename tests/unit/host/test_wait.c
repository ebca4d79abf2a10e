/* Waiting loses no wake-up: two parties hand a word back and forth 100,000 times and go to sleep at once whenever it is
   the other's turn. A lost wake-up is a sleep that lasts as long as it may, 20 seconds. (That the way without fences
   loses none in any order of its steps, tests/python/test_publish_model.py shows.) */
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
struct word { _Alignas(128) _Atomic uint64_t counter; _Alignas(128) _Atomic uint32_t waiters; };
struct table { struct word turn, decoys[WAIT_WORDS]; };
struct side { struct table *table; unsigned which, handovers, decoys; bool lost; };

/* ---- the game ---- */
static void add(struct wait_set *set, struct word *word, uint64_t seen)
{
    wait_set_add(set, (_Atomic uint32_t *)(void *)&word->counter, (uint32_t)seen, &word->waiters, true);
}
static bool sleep_once(const struct side *me, uint64_t seen)     /* false: it lasted as long as it may */
{
    static const struct backoff at_once = { 0, 0 };
    struct wait_set set = { .count = 0 };
    for (unsigned i = 0; i < me->decoys; i++) add(&set, &me->table->decoys[i], 0);
    add(&set, &me->table->turn, seen);
    int64_t begin = clock_ms();
    backoff_wait(&at_once, 0, &set, LOST_MS);
    return clock_ms() - begin < LOST_MS;
}
static void *play(void *context)
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
    assert_int_equal(atomic_load(&table->decoys[0].waiters), 0);
    munmap(table, sizeof *table);
}
static void play_threads(unsigned decoys)
{
    struct table *table = table_create();
    struct side sides[2] = { { table, 0, HANDOVERS, decoys, false }, { table, 1, HANDOVERS, decoys, false } };
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, play, &sides[1]), 0);
    play(&sides[0]);
    pthread_join(other, NULL);
    assert_false(sides[0].lost || sides[1].lost);
    table_destroy(table);
}
static void play_processes(unsigned decoys, unsigned handovers, bool (*prepare)(void))
{
    struct table *table = table_create();
    pid_t sides[2];
    for (unsigned side = 0; side < 2; side++)
        if ((sides[side] = fork()) == 0) {
            struct side me = { table, side, handovers, decoys, false };
            if (prepare && !prepare()) _exit(77);
            play(&me);
            _exit(me.lost);
        }
    for (int side = 0; side < 2; side++) {
        int status;
        assert_int_equal(waitpid(sides[side], &status, 0), sides[side]);
        bool cannot = WIFEXITED(status) && WEXITSTATUS(status) == 77;
        if (cannot) print_message("seccomp filters are not allowed here: the way without futex_waitv is not tested\n");
        else assert_int_equal(status, 0);
    }
    if (atomic_load(&table->turn.counter)) table_destroy(table);
}
static bool forbid_futex_waitv(void) { return forbid_calls(FUTEX_WAITV, FUTEX_WAITV, ENOSYS); }    /* before 5.16 */

/* ---- the same in a hurry: each publishes its own word, mostly looks at the other's, and now and then sleeps ---- */
enum { HASTY = 40000, MOST_MS = 2000, LOOKS = 1000, SLEEP_EVERY = 200, SLEEPS = 2, BARE = 400 };
struct hasty { struct word word; _Alignas(128) _Atomic uint32_t bare; _Atomic uint64_t last; };
struct player { struct hasty *both; unsigned which; bool refused, lost; };
static bool await_other(const struct player *me, uint64_t now)
{
    struct word *other = &me->both[!me->which].word;
    bool sleeps = now % SLEEP_EVERY < SLEEPS;
    int64_t begin = clock_ms();
    uint64_t seen;
    for (unsigned n = 1; (seen = atomic_load(&other->counter)) < now; n++) {
        struct wait_set set = { .count = 0 };
        add(&set, other, seen);
        if (sleeps) wait_set_sleep(&set, LOST_MS);
        else if (n % LOOKS == 0) sched_yield();                        /* the two may have one core */
        if ((sleeps || n % LOOKS == 0) && clock_ms() - begin >= LOST_MS) return false;
    }
    return true;
}
/* Both must have been bare for some turns. Who shares a core with others plays few turns in a second. */
static bool is_over(const struct hasty *both, uint64_t now, bool bare, int64_t begin)
{
    bool seen = !bare || (atomic_load(&both[0].bare) >= BARE && atomic_load(&both[1].bare) >= BARE);
    int64_t ms = clock_ms() - begin;
    return ms > LOST_MS || (seen && (now >= HASTY || ms > MOST_MS));
}
static void hurry(struct player *me)
{
    struct hasty *own = &me->both[me->which];
    struct publisher publisher = { .may_be_unfenced = fence_register_process() != me->refused };
    int64_t begin = clock_ms();
    for (uint64_t now = 1; now <= atomic_load(&me->both[0].last) && !me->lost; now++) {
        for (volatile uint64_t i = 0; i < now * (7 + 4 * me->which) % 64; i++) {}
        if (me->which == 0 && is_over(me->both, now, publisher.may_be_unfenced, begin)) atomic_store(&own->last, now);
        counter_publish_and_wake(&publisher, &own->word.counter, now, &own->word.waiters);
        if (atomic_load(&own->word.waiters) & WAITERS_UNFENCED) atomic_fetch_add(&own->bare, 1);
        me->lost = !await_other(me, now);
    }
}
static bool forbid_fences(void) { return forbid_calls(SYS_membarrier, SYS_membarrier, EPERM); }
/* refused: the kernel of one of them refuses fences, which the other does not know. */
static void hurry_together(bool refused)
{
    struct hasty *both = mmap(NULL, 2 * sizeof *both, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t sides[2];
    assert_true(both != MAP_FAILED);
    bool can = fence_register_process();
    if (refused && !can) skip();                                       /* here both are */
    atomic_store(&both[0].last, UINT64_MAX);
    for (unsigned side = 0; side < 2; side++)
        if ((sides[side] = fork()) == 0) {
            struct player me = { both, side, refused && side, false };
            if (me.refused && !forbid_fences()) _exit(77);
            hurry(&me);
            _exit(me.lost);
        }
    for (int side = 0; side < 2; side++) {
        int status;
        assert_int_equal(waitpid(sides[side], &status, 0), sides[side]);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 77) { kill(sides[!side], SIGKILL); skip(); }
        assert_int_equal(status, 0);
    }
    for (unsigned side = 0; side < 2; side++) {
        assert_true((atomic_load(&both[side].bare) >= BARE) == can);
        assert_true(atomic_load(&both[side].bare) < atomic_load(&both[side].word.counter));
    }
    munmap(both, 2 * sizeof *both);
}

/* ---- tests ---- */
static void test_without_fences_no_wake_up_is_lost(void **state)
{
    (void)state;
    hurry_together(false);
}
static void test_who_is_refused_a_fence_sleeps_briefly(void **state)
{
    (void)state;
    hurry_together(true);
}
static void test_threads_lose_no_wake_up(void **state)
{
    (void)state;
    play_threads(0);
}
static void test_threads_lose_no_wake_up_among_many_words(void **state)
{
    (void)state;
    play_threads(WAIT_WORDS - 2);
}
static void test_processes_lose_no_wake_up(void **state)
{
    (void)state;
    play_processes(0, HANDOVERS, NULL);
}
static void test_processes_lose_no_wake_up_among_many_words(void **state)
{
    (void)state;
    play_processes(3, HANDOVERS, NULL);
}
static void test_old_kernel_waits_for_many_words_too(void **state)
{
    (void)state;
    play_processes(3, HANDOVERS / 100, forbid_futex_waitv);
}
static void test_full_set_still_notices_what_found_no_room(void **state)
{
    struct table *table = table_create();
    struct side me = { table, 0, 0, WAIT_WORDS, false };
    assert_true(sleep_once(&me, 0));                               /* nobody ever changes a word */
    munmap(table, sizeof *table);
    (void)state;
}
static void test_changed_word_is_not_slept_on(void **state)
{
    struct table *table = table_create();
    struct side me = { table, 0, 0, 0, false };
    atomic_store(&table->turn.counter, 5);
    assert_true(sleep_once(&me, 4));
    me.decoys = 3;
    assert_true(sleep_once(&me, 4));
    munmap(table, sizeof *table);
    (void)state;
}
static int yields;
int sched_yield(void)                                   /* in place of libc's */
{
    yields++;
    return 0;
}

/* ---- what it comes to ---- */
static uint64_t was[WAITING_COUNTERS];
static void remember(void)
{
    for (int i = 0; i < WAITING_COUNTERS; i++) was[i] = waiting_counter_value(i);
}
static void assert_more(enum waiting_counter which, uint64_t more)
{
    assert_int_equal(waiting_counter_value(which) - was[which], more);
}
static void test_sleep_that_nobody_ends_times_out(void **state)
{
    static struct word word = { 7, 0 };
    struct wait_set set = { .count = 0 };
    add(&set, &word, 7);
    remember();
    wait_set_sleep(&set, 2);
    assert_more(WAITING_SLEEPS, 1);
    assert_more(WAITING_TIMED_OUT, 1);
    assert_more(WAITING_LATE, 0);
    assert_true(waiting_counter_value(WAITING_ASLEEP_NS) - was[WAITING_ASLEEP_NS] >= 2000000);
    (void)state;
}
static void test_sleep_on_what_has_changed_does_not_time_out(void **state)
{
    static struct word word = { 8, 0 };
    struct wait_set set = { .count = 0 };
    add(&set, &word, 7);
    remember();
    wait_set_sleep(&set, 2);
    assert_more(WAITING_SLEEPS, 1);
    assert_more(WAITING_TIMED_OUT, 0);
    (void)state;
}
/* Without futex_waitv nobody sleeps on the second word: its change is what a lost wake-up would be. */
static int end_late(void)
{
    static struct word words[2] = { { 7, 0 }, { 8, 0 } };
    struct wait_set set = { .count = 0 };
    if (!forbid_futex_waitv()) return 77;
    for (int i = 0; i < 2; i++) add(&set, &words[i], 7);
    remember();
    wait_set_sleep(&set, 2);
    return waiting_counter_value(WAITING_LATE) - was[WAITING_LATE] != 1
        || waiting_counter_value(WAITING_TIMED_OUT) == 0;
}
static void test_change_that_ended_no_sleep_counts_as_late(void **state)
{
    int status;
    pid_t child = fork();
    if (child == 0) _exit(end_late());
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) skip();
    assert_int_equal(status, 0);
    (void)state;
}
static void test_idle_thread_does_not_wait(void **state)
{
    static struct word word = { 7, 0 };
    struct wait_set set = { .idle = true };
    add(&set, &word, 7);
    remember();
    wait_set_sleep(&set, 2);
    assert_more(WAITING_SLEEPS, 0);
    assert_more(WAITING_ASLEEP_NS, 0);
    assert_more(WAITING_TIMED_OUT, 0);
    (void)state;
}
static void test_each_yield_nap_and_wake_up_counts(void **state)
{
    struct backoff backoff = { 3, 2 };
    struct wait_set none = { .count = 0 };
    static struct word word = { 7, 0 };
    remember();
    for (int n = 0; n < 9; n++) backoff_wait(&backoff, n, &none, 1);
    counter_publish_and_wake(NULL, &word.counter, 8, &word.waiters);
    word_wake(&word.waiters, false);
    assert_more(WAITING_YIELDS, 2);
    assert_more(WAITING_NAPS, 4);
    assert_more(WAITING_SLEEPS, 0);
    assert_more(WAITING_WAKES, 1);                      /* nobody slept on the counter */
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
static void test_rungs_follow_each_other(void **state)
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
/* However long it has waited. */
static void test_rungs_do_not_come_again(void **state)
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
static void test_who_is_in_the_way_does_not_pause(void **state)
{
    struct backoff backoff = { 3, 2 };
    struct wait_set set = { .core_is_wanted = true };
    yields = 0;
    for (int n = 0; n < 5; n++) assert_false(backoff_wait(&backoff, n, &set, 1));
    assert_int_equal(yields, 5);
    assert_true(backoff_wait(&backoff, 5, &set, 1));
    (void)state;
}
static void test_cores_have_numbers(void **state)
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
static void test_settings_decide(void **state)
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
        cmocka_unit_test(test_without_fences_no_wake_up_is_lost),
        cmocka_unit_test(test_who_is_refused_a_fence_sleeps_briefly),
        cmocka_unit_test(test_processes_lose_no_wake_up),
        cmocka_unit_test(test_processes_lose_no_wake_up_among_many_words),
        cmocka_unit_test(test_old_kernel_waits_for_many_words_too),
        cmocka_unit_test(test_full_set_still_notices_what_found_no_room),
        cmocka_unit_test(test_changed_word_is_not_slept_on),
        cmocka_unit_test(test_sleep_that_nobody_ends_times_out),
        cmocka_unit_test(test_sleep_on_what_has_changed_does_not_time_out),
        cmocka_unit_test(test_change_that_ended_no_sleep_counts_as_late),
        cmocka_unit_test(test_idle_thread_does_not_wait),
        cmocka_unit_test(test_each_yield_nap_and_wake_up_counts),
        cmocka_unit_test(test_counters_have_names),
        cmocka_unit_test(test_rungs_follow_each_other),
        cmocka_unit_test(test_rungs_do_not_come_again),
        cmocka_unit_test(test_who_is_in_the_way_does_not_pause),
        cmocka_unit_test(test_cores_have_numbers),
        cmocka_unit_test(test_settings_decide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
