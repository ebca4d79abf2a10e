/* Waits for words that other ranks write: a backoff of pauses, then yields, then sleep in the kernel on the polled
   words. */
#pragma once
#include "backend/base/fence.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The spin budget: the number of pauses and of yields before a thread sleeps. */
struct backoff { int pauses, yields; };
/* Returns the budget of a thread that only drives communicators, or of one that shares its core with computation. The
   settings override both numbers. */
struct backoff backoff_for_thread(bool only_drives);
/* Returns a budget of these numbers, unless the settings override them. */
struct backoff backoff_of_budget(int pauses, int yields);

enum { WAIT_WORDS = 16 };
/* The words whose change wakes a thread. */
struct wait_set {
    int count;
    /* A rank that will write one of the words needs this core. */
    bool core_is_wanted;
    /* Some awaited event wakes no sleeper, so a sleep is short. */
    bool soon;
    /* The thread waits for no operation, so its sleep does not count as waiting. */
    bool idle;
    /* A word with the value that the thread has seen, and the count of its sleepers. `shared`: between processes. */
    struct { _Atomic uint32_t *word, *waiters; uint32_t seen; bool shared; } item[WAIT_WORDS];
};
/* Empties the set; the items need no clearing. */
static inline void wait_set_clear(struct wait_set *set)
{
    set->count = 0;
    set->core_is_wanted = set->soon = set->idle = false;
}
/* Adds a word with the value that the thread has seen. `waiters` counts the sleepers for word_wake; `is_shared` means
   that processes share the word. A full set ignores the word, and sleeps on the set then take at most 1 ms. */
void wait_set_add(struct wait_set *set, _Atomic uint32_t *word, uint32_t seen, _Atomic uint32_t *waiters,
    bool is_shared);
/* Returns 1 + the core that this thread runs on, or 0 if it is unknown. */
uint32_t wait_core(void);
/* Returns true if both phases are over at the n-th unsuccessful poll (0, 1, …). */
static inline bool backoff_is_over(const struct backoff *backoff, int64_t n)
{
    return n >= backoff->pauses && n - backoff->pauses >= backoff->yields;
}
/* Returns true if the thread should sleep after the n-th unsuccessful poll: both phases are over, or it would yield a
   contended core (contention.h) that no awaited rank wants. Until the next call the answer may change to false, but to
   true only by a yield of this thread. */
bool backoff_wants_sleep(const struct backoff *backoff, int64_t n, bool core_is_wanted);
/* Pauses or yields after the n-th unsuccessful poll; a wanted core is yielded without a pause. Returns false, without
   either, if the thread should sleep. */
bool backoff_step(const struct backoff *backoff, int64_t n, bool core_is_wanted);
/* Does backoff_step, or sleeps until a word changes, for at most `most_ms`. Returns true if the thread slept. With an
   empty set it sleeps only when both phases are over. */
bool backoff_wait(const struct backoff *backoff, int64_t n, const struct wait_set *set, int most_ms);
/* Sleeps until a word of the set changes, for at most `most_ms`; at most 1 ms if `soon` is set. Sleeps the whole time
   if the set is empty. */
void wait_set_sleep(const struct wait_set *set, int most_ms);
/* Wakes all sleepers of a word. `is_shared`: they may be in other processes. */
void word_wake(_Atomic uint32_t *word, bool is_shared);

/* Counters of waiting in this process, over all its threads. Only system calls are counted, so a wait that ends before
   costs nothing. YIELDS counts yields between two polls. SLEEPS counts sleeps on words, including those that found a
   word already changed, and ASLEEP_NS their time. TIMED_OUT counts the sleeps that ended by their limit. LATE counts
   the timed-out sleeps, idle ones included, in which a word had changed. That is an error, unless the change came at
   the end of the sleep, or the kernel without futex_waitv did not sleep on the word. NAPS counts sleeps on an empty
   set, and WAKES the calls that wake others. */
#define WAITING_MAP(X) \
    X(YIELDS, "yields") \
    X(SLEEPS, "sleeps") \
    X(ASLEEP_NS, "asleep_ns") \
    X(TIMED_OUT, "timed_out") \
    X(LATE, "late") \
    X(NAPS, "naps") \
    X(WAKES, "wakes")
enum waiting_counter {
#define X(name, text) WAITING_##name,
    WAITING_MAP(X)
#undef X
        WAITING_COUNTERS
};
/* Returns the name of a counter, or NULL if `counter` is not an enum waiting_counter. */
const char *waiting_counter_name(int counter);
/* Returns the value of a counter, or 0 if `counter` is not an enum waiting_counter. */
uint64_t waiting_counter_value(int counter);

/* Increments a word that serves as a bell, and wakes the sleepers that `waiters` counts. The value of a bell has no
   meaning except that it changes. */
static inline void word_ring_bell(_Atomic uint32_t *word, _Atomic uint32_t *waiters, bool is_shared)
{
    atomic_fetch_add(word, 1);
    if (atomic_load(waiters)) word_wake(word, is_shared);
}
/* A publisher stores counters for the sleepers of one word of waiters, one thread at a time. If no thread has slept for
   a while, it stores them *unfenced*, without a fence before it reads `waiters`. A fence takes as long as the transfer
   of the counter's cache line from a peer's core, and delays all other lines. The bit WAITERS_UNFENCED above the number
   of waiters announces this. A thread that goes to sleep then makes the kernel put a fence into all threads, and clears
   the bit afterwards. */
enum { WAITERS_UNFENCED = 1 << 30 };
/* `may_be_unfenced` is set if every process that may sleep accepts fences from others. `quiet` counts stores in a row
   without a sleeper. */
struct publisher { bool may_be_unfenced; int quiet; };
/* Counts a store without a sleeper. After 64 in a row sets WAITERS_UNFENCED, unless a thread sleeps, so that further
   stores are unfenced. */
void publisher_go_unfenced(struct publisher *p, _Atomic uint32_t *waiters);
/* Stores a counter with release order and wakes its sleepers. The exchange ensures that a thread which is about to
   sleep is noticed. If the bit was cleared while the counter was stored without a fence, the counter is stored again by
   the exchange. `p` is NULL if the store may always have a fence. */
static inline void counter_publish_and_wake(struct publisher *p, _Atomic uint64_t *counter, uint64_t value,
    _Atomic uint32_t *waiters)
{
    if (p && atomic_load_explicit(waiters, memory_order_relaxed) == WAITERS_UNFENCED) {
        atomic_store_explicit(counter, value, memory_order_release);
        fence_compiler_only();
        if (atomic_load_explicit(waiters, memory_order_relaxed) == WAITERS_UNFENCED) return;
    }
    atomic_exchange_explicit(counter, value, memory_order_seq_cst);
    bool slept = atomic_load_explicit(waiters, memory_order_seq_cst) & ~(uint32_t)WAITERS_UNFENCED;
    if (slept) word_wake((_Atomic uint32_t *)(void *)counter, true);
    if (p && slept) p->quiet = 0;
    else if (p && p->may_be_unfenced) publisher_go_unfenced(p, waiters);
}
