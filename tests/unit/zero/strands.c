/* A strand is a context of ucontext.h. The functions of this file replace the calls by which a thread waits or reads
   the clock (the linker's --wrap). Mutexes are real: a strand that cannot lock one watches for a change. A condition
   wakes only the strands that wait for it at the time of the broadcast.

   A nap is longer than any timeout, so a wait with a timeout ends after its second look. A look with the answer "not
   yet", a nap and the same look again are one choice, because "yes" at the second look has the same effect as "yes" at
   the first. */
#include "tests/unit/zero/strands.h"
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

enum { MOST_STRANDS = 2 * MOST_RANKS, STACK_BYTES = 256 << 10, NAP_S = 1000, MOST_NAPS = 100 };
enum strand_state { READY, WAITS, ASKS, WATCHES, LAGS, OVER };
struct strand {
    ucontext_t context;
    char *stack;
    void *fake_stack;
    void (*main)(void *);
    void *(*thread)(void *);
    void *argument;
    const char *doing;
    enum strand_state state;
    /* The flag for which the strand waits. */
    const bool *until;
    /* The strand waits for its own rank, so it still waits when waits are ended. */
    bool stubborn;
    bool over, woken;
    enum answers answering;
    /* The condition for which the strand waits, or NULL. */
    const pthread_cond_t *sleeps;
    /* The flag for which the last answer was "not yet", or NULL if the strand has done something since. */
    const void *fruitless;
    int rank, naps;
    /* `moves` when the strand looked at memory. */
    uint64_t seen;
};
static struct strand strands[MOST_STRANDS], *now;
static ucontext_t director;
static struct choices *choices;
static struct adversary adversary;
static int count;
/* The number of turns and calls that may have changed memory that a strand watches. */
static uint64_t moves;
static int64_t now_s;
static bool ends, wrong;
static char text[400];

/* ---- turns ---- */
#if defined(__SANITIZE_ADDRESS__)
static const void *director_bottom;
static size_t director_bytes;
static void enter(struct strand *s)
{
    void *mine;
    __sanitizer_start_switch_fiber(&mine, s->stack, STACK_BYTES);
    swapcontext(&director, &s->context);
    __sanitizer_finish_switch_fiber(mine, NULL, NULL);
}
static void leave(struct strand *s)
{
    __sanitizer_start_switch_fiber(s->over ? NULL : &s->fake_stack, director_bottom, director_bytes);
    swapcontext(&s->context, &director);
    __sanitizer_finish_switch_fiber(s->fake_stack, &director_bottom, &director_bytes);
}
static void arrive(void) { __sanitizer_finish_switch_fiber(NULL, &director_bottom, &director_bytes); }
#else
static void enter(struct strand *s) { swapcontext(&director, &s->context); }
static void leave(struct strand *s) { swapcontext(&s->context, &director); }
static void arrive(void) {}
#endif
static void begin(void)
{
    arrive();
    struct strand *s = now;
    if (s->thread) s->thread(s->argument);
    else s->main(s->argument);
    s->over = true;
    s->state = OVER;
    leave(s);
}
static struct strand *add(int rank, void *argument)
{
    if (count == MOST_STRANDS) {
        fprintf(stderr, "too many threads\n");
        exit(2);
    }
    struct strand *s = &strands[count++];
    char *stack = s->stack ? s->stack : malloc(STACK_BYTES);
    if (!stack) {
        fprintf(stderr, "no memory for a stack\n");
        exit(2);
    }
    *s = (struct strand){ .stack = stack, .rank = rank, .argument = argument, .doing = "begins" };
    getcontext(&s->context);
    s->context.uc_stack.ss_sp = stack;
    s->context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&s->context, begin, 0);
    return s;
}
void strands_begin(struct choices *c, struct adversary a)
{
    choices = c;
    adversary = a;
    count = 0;
    moves = 0;
    now_s = 1;
    c->next = 0;
    ends = wrong = false;
}
void strand_start(int rank, void (*main)(void *), void *context) { add(rank, context)->main = main; }
int strand_rank(void) { return now->rank; }
static bool can_go_on(const struct strand *s)
{
    switch (s->state) {
    case READY: return true;
    case WAITS:
    case ASKS: return *s->until || (ends && !s->stubborn);
    case WATCHES: return s->seen != moves || (ends && !s->stubborn);
    default: return false;
    }
}
static struct strand *pick(bool lags)
{
    for (int i = 0; i < count; i++) {
        struct strand *s = &strands[adversary.backwards ? count - 1 - i : i];
        if (lags ? s->state == LAGS : can_go_on(s)) return s;
    }
    return NULL;
}
bool strands_want(const bool *until)
{
    for (int i = 0; i < count; i++)
        if ((strands[i].state == WAITS || strands[i].state == ASKS) && strands[i].until == until) return true;
    return false;
}
enum ending strands_run(bool (*ripen)(void))
{
    bool all = true, asks = false;
    for (struct strand *s; (s = pick(false)) || (s = pick(true)) || ripen();) {
        if (!s || s->state != WATCHES) moves++;
        if (!s) continue;
        s->state = READY;
        now = s;
        enter(s);
    }
    for (int i = 0; i < count; i++) {
        all &= strands[i].over;
        asks |= strands[i].state == ASKS;
    }
    return all ? ALL_OVER : asks ? INFEASIBLE : DEADLOCK;
}
static void wait_in(enum strand_state state, const bool *until)
{
    struct strand *s = now;
    s->state = state;
    s->until = until;
    leave(s);
}

/* ---- waiting ---- */
void strand_does(const char *what)
{
    now->doing = what;
    now->fruitless = NULL;
    now->naps = 0;
    /* Other strands see from now on what this strand wrote before. */
    moves++;
}
void strand_await(const bool *until)
{
    if (!*until && !ends) wait_in(WAITS, until);
}
static bool choose(void)
{
    if (now->answering != AS_CHOSEN) return now->answering == YES;
    if (choices->next == MOST_CHOICES) {
        strands_fault("there are too many choices");
        return false;
    }
    if (choices->next == choices->count) choices->taken[choices->count++] = 0;
    return choices->taken[choices->next++];
}
bool strand_asks(const bool *whether)
{
    if (ends) return *whether;
    bool again = now->fruitless == whether;
    now->fruitless = NULL;
    if (again || !choose()) {
        now->fruitless = whether;
        return false;
    }
    if (!*whether) wait_in(now->answering == YES ? WAITS : ASKS, whether);
    return *whether;
}
void strand_set_answers(enum answers answers) { now->answering = answers; }
/* The strand has looked since the last call. If there were no moves since then, another look would show the same. */
void strand_watches(void)
{
    if (now->seen == moves && !ends) wait_in(WATCHES, NULL);
    else now->seen = moves;
}
void strand_lags(bool lags)
{
    if (lags && !ends) wait_in(LAGS, NULL);
}

/* ---- faults ---- */
void strands_end_waits(void) { ends = true; }
bool strands_have_ended_waits(void) { return ends; }
void strands_fault(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (!ends) {
        vsnprintf(text, sizeof text, format, arguments);
        wrong = ends = true;
    }
    va_end(arguments);
}
const char *strands_get_fault(void) { return wrong ? text : NULL; }
void strands_describe(void)
{
    static const char *const words[] = { "can continue", "waits", "waits for a yes", "looks at memory", "lags",
        "is over" };
    for (int i = 0; i < count; i++)
        printf("    rank %d%s %s: %s\n", strands[i].rank, strands[i].thread ? ", its async step," : "",
            words[strands[i].state], strands[i].doing);
}

/* ---- replacements of library functions ---- */
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_nanosleep(const struct timespec *wanted, struct timespec *left);
int __wrap_sched_yield(void);
pid_t __wrap_getpid(void);
int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *how, void *(*main)(void *), void *context);
int __wrap_pthread_join(pthread_t thread, void **out);
int __wrap_pthread_setname_np(pthread_t thread, const char *name);
int __wrap_pthread_sigmask(int how, const sigset_t *set, sigset_t *before);
int __wrap_pthread_mutex_lock(pthread_mutex_t *lock);
int __wrap_pthread_cond_broadcast(pthread_cond_t *condition);
int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock);
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *lock, const struct timespec *until);

int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    (void)clock;
    *out = (struct timespec){ .tv_sec = now_s };
    return 0;
}
int __wrap_nanosleep(const struct timespec *wanted, struct timespec *left)
{
    (void)wanted;
    (void)left;
    now_s += NAP_S;
    if (++now->naps > MOST_NAPS) strands_fault("rank %d naps without end: %s", now->rank, now->doing);
    return 0;
}
int __wrap_sched_yield(void) { return 0; }
/* Each call of zero makes this system call, which would take half of the time. */
pid_t __wrap_getpid(void) { return 1; }
int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *how, void *(*main)(void *), void *context)
{
    (void)how;
    struct strand *s = add(now->rank, context);
    s->thread = main;
    *out = (pthread_t)(s - strands);
    return 0;
}
static void wait_for_own(enum strand_state state, const bool *until)
{
    now->stubborn = true;
    if (!*until) wait_in(state, until);
    now->stubborn = false;
}
int __wrap_pthread_join(pthread_t thread, void **out)
{
    (void)out;
    wait_for_own(WAITS, &strands[thread].over);
    return 0;
}
int __wrap_pthread_setname_np(pthread_t thread, const char *name)
{
    (void)thread;
    (void)name;
    return 0;
}
int __wrap_pthread_sigmask(int how, const sigset_t *set, sigset_t *before)
{
    (void)how;
    (void)set;
    (void)before;
    return 0;
}
int __wrap_pthread_mutex_lock(pthread_mutex_t *lock)
{
    while (pthread_mutex_trylock(lock)) {
        now->seen = moves;
        wait_for_own(WATCHES, &now->over);
    }
    return 0;
}
int __wrap_pthread_cond_broadcast(pthread_cond_t *condition)
{
    for (int i = 0; i < count; i++)
        if (strands[i].sleeps == condition) strands[i].woken = true;
    return 0;
}
static void sleep_on(enum strand_state state, pthread_cond_t *condition, pthread_mutex_t *lock)
{
    now->sleeps = condition;
    now->woken = false;
    pthread_mutex_unlock(lock);
    wait_for_own(state, &now->woken);
    now->sleeps = NULL;
    __wrap_pthread_mutex_lock(lock);
}
int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock)
{
    sleep_on(WAITS, condition, lock);
    return 0;
}
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *lock, const struct timespec *until)
{
    if (ends || choose()) {
        sleep_on(ends || now->answering == YES ? WAITS : ASKS, condition, lock);
        return 0;
    }
    if (now_s <= until->tv_sec) now_s = until->tv_sec + 1;
    return ETIMEDOUT;
}
