/* Measures a barrier of 8-byte flags between processes for a given spin budget, to choose the constants of
   backoff_for_thread. It is a program for use by hand, not a test: measure_backoff [blind] RANKS PAUSES YIELDS
   [MILLISECONDS [COMPUTE_US]]. The last rank computes for COMPUTE_US microseconds before each barrier. Like the
   executor, a rank yields its core without pauses if a rank that it awaits runs there; with `blind` it does not. Prints
   per barrier the microseconds, the context switches and the processor time of all ranks. */
#include "backend/base/clock.h"
#include "backend/host/wait.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_RANKS = 64 };
struct flag { _Alignas(128) _Atomic uint64_t counter; _Alignas(128) _Atomic uint32_t waiters, core; };
static struct flag *flags;
static bool blind;

/* True if a rank that has not reached `target` last ran on this rank's core. */
static bool is_in_the_way(int rank, int ranks, uint64_t target)
{
    uint32_t core = wait_core();
    if (blind) return false;
    if (atomic_load_explicit(&flags[rank].core, memory_order_relaxed) != core) atomic_store(&flags[rank].core, core);
    for (int peer = 0; peer < ranks; peer++)
        if (atomic_load_explicit(&flags[peer].core, memory_order_relaxed) == core
            && atomic_load_explicit(&flags[peer].counter, memory_order_acquire) < target)
            return true;
    return false;
}
static void flag_await(struct backoff backoff, struct flag *flag, int rank, int ranks, uint64_t target)
{
    for (int n = 0;; n++) {
        struct wait_set set = { .count = 0 };
        uint64_t now = atomic_load_explicit(&flag->counter, memory_order_acquire);
        if (now >= target) return;
        wait_set_add(&set, (_Atomic uint32_t *)(void *)&flag->counter, (uint32_t)now, &flag->waiters, true);
        set.core_is_wanted = is_in_the_way(rank, ranks, target);
        backoff_wait(&backoff, n, &set, 100);
    }
}
static void compute(int64_t us)
{
    for (int64_t until = clock_ns() + us * 1000; clock_ns() < until;) {}
}
static uint64_t rounds_run(struct backoff backoff, int rank, int ranks, int64_t ms, int64_t compute_us)
{
    uint64_t rounds = 0, last = UINT64_MAX;
    for (int64_t until = clock_ms() + ms; rounds < last;) {
        rounds++;
        if (rank == ranks - 1 && compute_us) compute(compute_us);
        /* Rank 0 announces the last round before it completes it. */
        if (rank == 0 && clock_ms() >= until) {
            last = rounds;
            atomic_store(&flags[MOST_RANKS].counter, last);
        }
        counter_publish_and_wake(NULL, &flags[rank].counter, rounds, &flags[rank].waiters);
        for (int peer = 0; peer < ranks; peer++) flag_await(backoff, &flags[peer], rank, ranks, rounds);
        uint64_t announced = atomic_load(&flags[MOST_RANKS].counter);
        if (announced) last = announced;
    }
    return rounds;
}
static void used_up(int64_t *cpu_us, int64_t *switches)
{
    static const int whose[] = { RUSAGE_SELF, RUSAGE_CHILDREN };
    *cpu_us = *switches = 0;
    for (int i = 0; i < 2; i++) {
        struct rusage used;
        getrusage(whose[i], &used);
        *cpu_us += (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000;
        *cpu_us += used.ru_utime.tv_usec + used.ru_stime.tv_usec;
        *switches += used.ru_nivcsw + used.ru_nvcsw;
    }
}
int main(int count, char **arguments)
{
    blind = count > 1 && strcmp(arguments[1], "blind") == 0;
    if (blind) { count--; arguments++; }
    int ranks = count > 3 ? atoi(arguments[1]) : 0;
    if (ranks < 1 || ranks > MOST_RANKS) {
        fprintf(stderr, "usage: measure_backoff [blind] RANKS PAUSES YIELDS [MILLISECONDS [COMPUTE_US]]\n");
        return 2;
    }
    struct backoff backoff = { atoi(arguments[2]), atoi(arguments[3]) };
    int64_t ms = count > 4 ? atoi(arguments[4]) : 1000, compute_us = count > 5 ? atoi(arguments[5]) : 0;
    flags = mmap(NULL, (MOST_RANKS + 1) * sizeof *flags, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (flags == MAP_FAILED) return 1;
    int64_t begin = clock_ns();
    for (int rank = 1; rank < ranks; rank++)
        if (fork() == 0) { rounds_run(backoff, rank, ranks, ms, compute_us); _exit(0); }
    uint64_t rounds = rounds_run(backoff, 0, ranks, ms, compute_us);
    int64_t took = clock_ns() - begin;
    while (wait(NULL) > 0) {}
    int64_t cpu_us, switches;
    used_up(&cpu_us, &switches);
    printf("%d ranks, %d pauses, %d yields%s: %.3f us per barrier, %.2f switches, %.2f us of processor time\n", ranks,
        backoff.pauses, backoff.yields, blind ? ", blind" : "", (double)took / 1000 / (double)rounds,
        (double)switches / (double)rounds, (double)cpu_us / (double)rounds);
    return 0;
}
