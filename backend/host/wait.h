/* Waiting for a word that another rank writes: a backoff of pauses, then yields, then sleep in the kernel on the very
   words polled. */
#pragma once
#include "backend/base/fence.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct backoff { int pauses, yields; };                 /* how long each phase is                                   */
/* For a thread that has nothing else to do (driver) or that shares its core with computation. */
struct backoff backoff_for(bool driver);
struct backoff backoff_of(int pauses, int yields);       /* what the settings do not say otherwise                  */

enum { WAIT_WORDS = 16 };
struct wait_set {                                      /* words whose change is worth waking up for               */
    int count;
    bool core_is_wanted;                               /* somebody who is to write one of them needs this core     */
    bool soon;                                         /* some of what is waited for rings nobody: a sleep is short */
    bool idle; /* nothing is waited for: who sleeps is not counted as waiting */
    struct { _Atomic uint32_t *word, *waiters; uint32_t seen; bool shared; } item[WAIT_WORDS];
};
static inline void wait_clear(struct wait_set *set)    /* the words need none of it */
{
    set->count = 0;
    set->core_is_wanted = set->soon = set->idle = false;
}
/* Remembers a word and the value it had. `waiters` counts sleepers for word_wake; shared: between processes. A full set
   ignores it, and then sleeps for 1 ms at most. */
void wait_add(struct wait_set *set, _Atomic uint32_t *word, uint32_t seen, _Atomic uint32_t *waiters, bool shared);
uint32_t wait_core(void);                              /* 1 + the core this thread runs on; 0: not known          */
/* After the n-th fruitless poll (0, 1, …) it is time to sleep. */
static inline bool backoff_is_over(const struct backoff *backoff, int64_t n)
{
    return n >= backoff->pauses && n - backoff->pauses >= backoff->yields;
}
/* The n-th fruitless poll: pause (yield, if somebody is in the way) or yield. False: neither, it is time to sleep. */
bool backoff_step(const struct backoff *backoff, int64_t n, bool core_is_wanted);
/* The same, and then sleeps until a word changes, but no longer than most_ms. True: it slept. */
bool backoff_wait(const struct backoff *backoff, int64_t n, const struct wait_set *set, int most_ms);
void wait_sleep(const struct wait_set *set, int most_ms);
void word_wake(_Atomic uint32_t *word, bool shared);   /* wakes all sleepers of a word                            */

/* What waiting has come to in this process, over all its threads. Counted where the system is called anyway, so a wait
   that ends before that costs nothing. Late is what should never be; it may also be a change that came at the very end
   of the sleep, or to a word that a kernel without futex_waitv did not sleep on. */
#define WAITING_MAP(X) \
    X(YIELDS, "yields")           /* of the core, between two polls                              */ \
    X(SLEEPS, "sleeps")           /* on words, those that found one changed already among them   */ \
    X(ASLEEP_NS, "asleep_ns")     /* how long they took                                          */ \
    X(TIMED_OUT, "timed_out")     /* sleeps that ended by their limit                            */ \
    X(LATE, "late")               /* of these, those in which a word had changed, idle ones too  */ \
    X(NAPS, "naps")               /* sleeps on nothing, as nobody would wake                     */ \
    X(WAKES, "wakes")             /* calls to wake others                                        */
enum waiting_counter {
#define X(name, text) WAITING_##name,
    WAITING_MAP(X)
#undef X
        WAITING_COUNTERS
};
const char *waiting_name(int which);                   /* NULL: there are no more */
uint64_t waiting_count(int which);

/* Changes a word that stands for nothing but that something has changed, and wakes sleepers if there are any. */
static inline void word_ring(_Atomic uint32_t *word, _Atomic uint32_t *waiters, bool shared)
{
    atomic_fetch_add(word, 1);
    if (atomic_load(waiters)) word_wake(word, shared);
}
/* Whoever publishes counters, one thread at a time, to one word of waiters, and is in a hurry. As nobody has slept
   for a while it does so *bare*, without a fence between the counter and its look at the sleepers: a fence takes as
   long as the counter's line needs to come from a peer's core, and lets no other line come meanwhile. It says so in
   the word of waiters, by the bit above their number; who then goes to sleep clears the bit, after it has had the
   kernel put a fence everywhere. */
enum { WAITERS_BARE = 1 << 30 };
struct publisher { bool may_be_bare; int quiet; };     /* all who may sleep admit fences; times without a sleeper  */
void publisher_go_bare(struct publisher *p, _Atomic uint32_t *waiters);
/* Stores, and wakes sleepers if there are any; release. The exchange keeps a sleeper that is just going to bed from
   being missed. If the word is not bare any more when the counter has been stored, that is done once more, with it.
   p: NULL if there is no hurry. */
static inline void counter_publish(struct publisher *p, _Atomic uint64_t *counter, uint64_t value,
    _Atomic uint32_t *waiters)
{
    if (p && atomic_load_explicit(waiters, memory_order_relaxed) == WAITERS_BARE) {
        atomic_store_explicit(counter, value, memory_order_release);
        fence_of_compiler();
        if (atomic_load_explicit(waiters, memory_order_relaxed) == WAITERS_BARE) return;
    }
    atomic_exchange_explicit(counter, value, memory_order_seq_cst);
    bool slept = atomic_load_explicit(waiters, memory_order_seq_cst) & ~(uint32_t)WAITERS_BARE;
    if (slept) word_wake((_Atomic uint32_t *)(void *)counter, true);
    if (p && slept) p->quiet = 0;
    else if (p && p->may_be_bare) publisher_go_bare(p, waiters);
}
