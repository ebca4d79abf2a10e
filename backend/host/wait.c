/* The backoff and the two futex calls. No wake-up is lost. A sleeper first counts itself in `waiters`, and then the
   kernel compares the word with the value that the sleeper has seen. A publisher first changes the word and then
   reads `waiters`, both in sequentially consistent order. So either the sleeper finds the word changed, or the
   publisher finds the sleeper.

   An unfenced publisher has no fence between the two. Then the sleeper makes the kernel put a fence into all threads.
   A publisher that read `waiters` before the fence has stored its word; one that reads it later finds the sleeper, or
   the bit cleared if the sleeper has gone. The bit is cleared only after the fence, because until then other sleepers
   need a fence too. Only the publisher sets the bit, and it clears the bit if it finds a sleeper. */
#include "backend/host/wait.h"
#include "backend/base/clock.h"
#include "backend/base/pause.h"
#include "backend/base/settings.h"
#include "backend/host/contention.h"
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a counter's low half is the word at its address");
#ifndef SYS_futex_waitv
/* Linux 5.16 has this number on every architecture. */
#define SYS_futex_waitv 449
#endif
/* Flags of futex_waitv, and the most words that this file gives to it. */
enum { FUTEX_32_BITS = 2, PRIVATE = 128, WORDS_PER_CALL = 16 };
/* This is the kernel's struct futex_waitv. */
struct futex_word { uint64_t value, address; uint32_t flags, unused; };
static_assert(sizeof(struct futex_word) == 24 && (int)WAIT_WORDS <= (int)WORDS_PER_CALL, "as the kernel has it");
/* True if futex_waitv is missing or forbidden, so that a thread sleeps on one word only. */
static _Atomic bool lacks_futex_waitv;

/* ---- counters ---- */
/* The counters have cache lines of their own. */
static struct { _Alignas(128) _Atomic uint64_t count[WAITING_COUNTERS]; } waiting;
static void waiting_counter_add(enum waiting_counter counter, uint64_t more)
{
    atomic_fetch_add_explicit(&waiting.count[counter], more, memory_order_relaxed);
}
const char *waiting_counter_name(int counter)
{
    static const char *const names[] = {
#define X(name, text) text,
        WAITING_MAP(X)
#undef X
    };
    return counter >= 0 && counter < WAITING_COUNTERS ? names[counter] : NULL;
}
uint64_t waiting_counter_value(int counter)
{
    return waiting_counter_name(counter) ? atomic_load_explicit(&waiting.count[counter], memory_order_relaxed) : 0;
}

/* ---- spin budgets ---- */
/* Replaces a number of pauses or of yields by the setting, unless that is negative. */
static void backoff_override_phase(int *count, int64_t setting)
{
    if (setting >= 0) *count = setting < INT_MAX / 2 ? (int)setting : INT_MAX / 2;
}
/* Measured: a pause takes about 40 ns, a yield without another thread on the core 300 ns, and a sleep with its wake-up
   8 us. A yield is cheap if the core has no other thread, and hands the core over if it has one. */
struct backoff backoff_for_thread(bool only_drives)
{
    struct backoff backoff = only_drives ? (struct backoff){ 100, 200 } : (struct backoff){ 100, 10 };
    backoff_override_phase(&backoff.pauses, settings_get()->spins);
    backoff_override_phase(&backoff.yields, settings_get()->yields);
    return backoff;
}
struct backoff backoff_of_budget(int pauses, int yields)
{
    struct backoff backoff = { pauses, yields };
    backoff_override_phase(&backoff.pauses, settings_get()->spins);
    backoff_override_phase(&backoff.yields, settings_get()->yields);
    return backoff;
}

/* ---- wait sets ---- */
uint32_t wait_core(void) { return (uint32_t)(sched_getcpu() + 1); }
void wait_set_add(struct wait_set *set, _Atomic uint32_t *word, uint32_t seen, _Atomic uint32_t *waiters,
    bool is_shared)
{
    if (set->count == WAIT_WORDS) return;
    set->item[set->count].word = word;
    set->item[set->count].waiters = waiters;
    set->item[set->count].seen = seen;
    set->item[set->count++].shared = is_shared;
}
void word_wake(_Atomic uint32_t *word, bool is_shared)
{
    waiting_counter_add(WAITING_WAKES, 1);
    syscall(SYS_futex, word, is_shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* ---- unfenced publishing ---- */
/* After so many stores without a sleeper, stores become unfenced. */
enum { QUIET_STORES = 64 };
void publisher_go_unfenced(struct publisher *p, _Atomic uint32_t *waiters)
{
    if (++p->quiet < QUIET_STORES) return;
    p->quiet = 0;
    if (atomic_fetch_or(waiters, WAITERS_UNFENCED) != 0) atomic_fetch_and(waiters, ~(uint32_t)WAITERS_UNFENCED);
}
/* Adds this thread to the sleepers of each word. Returns false if that needs a fence which the kernel refuses, so that
   a wake-up may be missed. */
static bool wait_set_count_sleeper(const struct wait_set *set)
{
    uint32_t bits = 0;
    for (int i = 0; i < set->count; i++) bits |= atomic_fetch_add(set->item[i].waiters, 1);
    if (!(bits & WAITERS_UNFENCED)) return true;
    bool has_fence = fence_all_threads();
    for (int i = 0; i < set->count; i++) atomic_fetch_and(set->item[i].waiters, ~(uint32_t)WAITERS_UNFENCED);
    return has_fence;
}

/* ---- sleep ---- */
static struct timespec timespec_from_ms(int ms) { return (struct timespec){ ms / 1000, ms % 1000 * 1000000L }; }

/* Sleeps until the first word of the set changes, for at most most_ms, by futex. Returns 0, or the errno with which the
   sleep ended. */
static int wait_set_sleep_one(const struct wait_set *set, int most_ms)
{
    struct timespec most = timespec_from_ms(most_ms);
    int call = set->item[0].shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE;
    return syscall(SYS_futex, set->item[0].word, call, set->item[0].seen, &most, NULL, 0) < 0 ? errno : 0;
}
/* Sleeps until any word of the set changes, for at most most_ms, by futex_waitv. Returns 0, or the errno with which the
   sleep ended. */
static int wait_set_sleep_all(const struct wait_set *set, int most_ms)
{
    struct futex_word words[WAIT_WORDS];
    struct timespec until, most = timespec_from_ms(most_ms);
    for (int i = 0; i < set->count; i++) {
        uint32_t scope = set->item[i].shared ? 0 : PRIVATE;
        words[i] = (struct futex_word){ set->item[i].seen, (uintptr_t)set->item[i].word, FUTEX_32_BITS | scope, 0 };
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += most.tv_sec;
    until.tv_nsec += most.tv_nsec;
    if (until.tv_nsec >= 1000000000) { until.tv_nsec -= 1000000000; until.tv_sec++; }
    return syscall(SYS_futex_waitv, words, set->count, 0, &until, CLOCK_MONOTONIC) < 0 ? errno : 0;
}
/* Sleeps until any word of the set changes, for at most most_ms; on old kernels until the first word does, for at most
   1 ms. Returns 0, or the errno with which the sleep ended. */
static int wait_set_sleep_words(const struct wait_set *set, int most_ms)
{
    /* A full set may have ignored words. */
    if (set->count == WAIT_WORDS && most_ms > 1) most_ms = 1;
    if (set->count > 1 && !atomic_load_explicit(&lacks_futex_waitv, memory_order_relaxed)) {
        int error = wait_set_sleep_all(set, most_ms);
        if (error != ENOSYS && error != EPERM) return error;
        atomic_store_explicit(&lacks_futex_waitv, true, memory_order_relaxed);
    }
    return wait_set_sleep_one(set, set->count > 1 && most_ms > 1 ? 1 : most_ms);
}
static bool wait_set_has_changed(const struct wait_set *set)
{
    for (int i = 0; i < set->count; i++)
        if (atomic_load(set->item[i].word) != set->item[i].seen) return true;
    return false;
}
/* Counts a sleep of `ns` nanoseconds. It was late if it timed out although a word had changed: a wake-up was missed.
   Only the count of late sleeps includes those of an idle thread, which waits for no operation. */
static void waiting_count_sleep(const struct wait_set *set, int64_t ns, bool timed_out)
{
    if (timed_out && wait_set_has_changed(set)) waiting_counter_add(WAITING_LATE, 1);
    if (set->idle) return;
    waiting_counter_add(WAITING_SLEEPS, 1);
    waiting_counter_add(WAITING_ASLEEP_NS, (uint64_t)ns);
    if (timed_out) waiting_counter_add(WAITING_TIMED_OUT, 1);
}
/* Sleeps for the whole time, because there is no word to sleep on. */
static void thread_nap(int ms)
{
    struct timespec time = timespec_from_ms(ms);
    waiting_counter_add(WAITING_NAPS, 1);
    clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
}
void wait_set_sleep(const struct wait_set *set, int most_ms)
{
    if (set->soon && most_ms > 1) most_ms = 1;
    if (most_ms <= 0) return;
    if (set->count == 0) { thread_nap(most_ms); return; }
    /* Without the fence this sleep may miss a wake-up. */
    if (!wait_set_count_sleeper(set) && most_ms > 1) most_ms = 1;
    int64_t begin = clock_ns();
    bool timed_out = wait_set_sleep_words(set, most_ms) == ETIMEDOUT;
    waiting_count_sleep(set, clock_ns() - begin, timed_out);
    for (int i = 0; i < set->count; i++) atomic_fetch_sub_explicit(set->item[i].waiters, 1, memory_order_relaxed);
}

/* ---- the backoff ---- */
bool backoff_wants_sleep(const struct backoff *backoff, int64_t n, bool core_is_wanted)
{
    /* A rank that wants the core does not keep it for long, so a yield to it is better than a sleep. */
    bool yields_to_strangers = n >= backoff->pauses && !core_is_wanted;
    return backoff_is_over(backoff, n) || (yields_to_strangers && core_is_contended());
}
/* Pauses or yields after the n-th unsuccessful poll. */
static void backoff_spin(const struct backoff *backoff, int64_t n, bool core_is_wanted)
{
    if (n < backoff->pauses && !core_is_wanted) {
        cpu_pause_briefly();
        return;
    }
    waiting_counter_add(WAITING_YIELDS, 1);
    core_yield();
}
bool backoff_step(const struct backoff *backoff, int64_t n, bool core_is_wanted)
{
    if (backoff_wants_sleep(backoff, n, core_is_wanted)) return false;
    backoff_spin(backoff, n, core_is_wanted);
    return true;
}
bool backoff_wait(const struct backoff *backoff, int64_t n, const struct wait_set *set, int most_ms)
{
    /* A sleep on an empty set lasts its whole time, so a yield is better there even on a contended core. */
    bool sleeps = set->count ? backoff_wants_sleep(backoff, n, set->core_is_wanted) : backoff_is_over(backoff, n);
    if (sleeps) wait_set_sleep(set, most_ms);
    else backoff_spin(backoff, n, set->core_is_wanted);
    return sleeps;
}
